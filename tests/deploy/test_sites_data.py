"""Data that sites read from their own files, against a simulation over the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import Experiment, api
from fedkeel.errors import FedkeelError, InputError
from tests.helpers import deployed

COLUMNS = "age,ward,dose,outcome"
DATASET: dict[str, Any] = {"target": "outcome", "classes": ["no", "yes"], "missing": "median", "test": 0.25}


def tables(folder: Path, sites: int = 3) -> dict[int, Path]:
    """A table per site; the last site lacks a category and a class."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    paths = {}
    for site in range(sites):
        rows = []
        for _ in range(40 + 10 * site):
            age, ward = rng.normal(50 + 5 * site, 10), "ABC"[rng.integers(2 if site == sites - 1 else 3)]
            dose = "" if rng.random() < 0.1 else f"{rng.gamma(2):.3f}"
            outcome = "no" if site == sites - 1 or age + rng.normal() < 52 else "yes"
            rows.append(f"{age:.2f},{ward},{dose},{outcome}")
        paths[site] = folder / f"site-{site}.csv"
        paths[site].write_text("\n".join([COLUMNS, *rows]) + "\n")
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "balanced"])
def test_tables_on_sites_train_as_in_a_simulation(weights: str | None, tmp_path: Path) -> None:
    paths = tables(tmp_path / "data")
    loss = {"class_weights": weights}
    dataset = {**DATASET, "name": str(tmp_path / "data" / "*.csv"), "client": "file"}
    app = deployed.project(tmp_path / "app", dataset=dataset, partition="column", loss=loss, algorithm="scaffold")
    with deployed.own_modules(app):
        transport = deployed.Loopback(deployed.silos(app, paths))
        summary = deployed.deployed(app, tmp_path / "run", transport)
        expected = api.run(Experiment.load(app / "experiment.yaml"))
    deployed.assert_equal(deployed.weights(tmp_path / "run"), expected.model.state_dict())
    assert summary["accuracy"] == pytest.approx(expected.accuracy)
    assert summary["clients_tested_on"] == "own rows"
    assert summary["client_accuracy"] == pytest.approx(expected.summary["client_accuracy"])


def test_a_site_with_other_columns_is_named(tmp_path: Path) -> None:
    paths = tables(tmp_path / "data", 2)
    text = paths[1].read_text().splitlines()
    paths[1].write_text("\n".join([line.rsplit(",", 2)[0] + "," + line.rsplit(",", 1)[1] for line in text]) + "\n")
    dataset = {**DATASET, "name": str(tmp_path / "data" / "*.csv"), "client": "file"}
    app = deployed.project(tmp_path / "app", 2, {"join_seconds": 2}, dataset=dataset, partition="column")
    with deployed.own_modules(app), pytest.raises(FedkeelError, match="site-1"):
        deployed.deployed(app, tmp_path / "run", deployed.Loopback(deployed.silos(app, paths)))


@pytest.mark.parametrize("which", ["test", "validation"])
def test_a_share_that_is_less_than_a_row_at_every_site_is_refused_at_once(which: str, tmp_path: Path) -> None:
    paths = tables(tmp_path / "data", 2)
    dataset = {**DATASET, which: 0.005, "name": str(tmp_path / "data" / "*.csv"), "client": "file"}
    app = deployed.project(tmp_path / "app", 2, dataset=dataset, partition="column")
    with deployed.own_modules(app), pytest.raises(InputError, match=rf"no site has {which} rows.* dataset\.{which}"):
        deployed.deployed(app, tmp_path / "run", deployed.Loopback(deployed.silos(app, paths)))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_arrays_of_the_users_own_code_are_the_sites_rows(tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", 2, model="model:build", partition="iid", rounds=10)
    (app / "model.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(3, 2)\n")
    (app / "data.py").write_text(
        "import numpy as np\n\n"
        "def load(site):\n"
        "    rng = np.random.default_rng(site.number)\n"
        "    x = rng.normal(size=(60, 3))\n"
        "    return x, (x[:, 0] > 0).astype(int)\n"
    )
    summary = deployed.deployed(app, tmp_path / "run")
    assert summary["accuracy"] > 0.8
    assert summary["tested"] == "global model"
    assert summary["clients_tested_on"] == "own rows"

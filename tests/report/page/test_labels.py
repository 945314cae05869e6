"""The map of labels: what the runs wrote down, whoever dealt the data out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.record.schema import LABELS
from fedkeel.report.page.cells import cells
from fedkeel.report.page.labels import labels
from fedkeel.runner.prepare import federate
from fedkeel.study.adhoc import gather
from fedkeel.study.results import Results

Make = Callable[..., Results]


def test_counts_are_those_of_the_run(compared: Results) -> None:
    (found,) = labels(cells(compared))
    record = compared.outcomes[0].record
    assert record is not None
    counts = federate(Experiment.build(record.experiment)).label_counts()
    np.testing.assert_array_equal(found["counts"], counts)
    assert (found["least"], found["most"]) == (counts.sum(1).min(), counts.sum(1).max())
    assert found["cells"] == [{"scene": 0, "variant": variant} for variant in range(3)]


def test_data_of_the_users_own_has_a_map(tmp_path: Path) -> None:
    silos = [(np.full((4, 3), 1.0 + k), np.arange(4) % (k + 1)) for k in range(3)]
    data = FederatedData.from_clients(silos, test=silos[2])
    run(Experiment(rounds=1, per_round=2), tmp_path / "a", data=data, model=torch.nn.Linear(3, 3))
    (found,) = labels(cells(gather([tmp_path / "a"])))
    assert found["counts"] == [[4, 0, 0], [2, 2, 0], [2, 1, 1]]
    assert found["title"].endswith(", seed 0")
    assert "custom:" not in found["title"]


def test_a_file_is_called_by_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_text("x,y,site\n" + "".join(f"{n},{n * 0.5},s{n % 2}\n" for n in range(8)))
    dataset = {"name": str(tmp_path / "sites.csv"), "target": "y", "client": "site", "test": 0.25}
    described = Experiment(
        dataset=dataset, task="regression", model="linear", rounds=1, per_round=1, local={"lr": 1e-3}
    )
    run(described, tmp_path / "a")
    (found,) = labels(cells(gather([tmp_path / "a"])))
    assert found["title"] == "sites, column, seed 0"
    assert (found["clients"], found["median"]) == (2, 3)
    assert "counts" not in found


def test_of_many_clients_the_first_are_shown(written: Make) -> None:
    (found,) = labels(cells(written(["a"], seeds=[0], clients=120)))
    assert (found["clients"], len(found["counts"])) == (120, 100)


def test_ways_that_differ_have_maps_of_their_own(written: Make) -> None:
    one, other = written(["a"], seeds=[0]), written(["b"], seeds=[0], clients=8)
    found = labels([*cells(one), *cells(other)])
    assert [each["clients"] for each in found] == [6, 8]


def test_a_run_of_an_earlier_version_has_none(written: Make) -> None:
    results = written(["a"], seeds=[0])
    (results.outcomes[0].folder / LABELS).unlink()
    assert labels(cells(results))[0]["why_not"] == "the run did not record them"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"counts": 3}', '{"counts": [[1], [1, 2]]}', '{"counts": [["a"]]}'])
def test_a_damaged_file_is_told(written: Make, text: str) -> None:
    results = written(["a"], seeds=[0])
    (results.outcomes[0].folder / LABELS).write_text(text)
    with pytest.raises(InputError, match=r"labels.json is damaged"):
        labels(cells(results))

"""Run folders remember that training diverged, until the run goes on."""

from pathlib import Path

import pytest

from fedkeel import Experiment, InputError, api
from fedkeel.errors import DivergenceError
from fedkeel.record.divergence import DIVERGED, divergence, note
from fedkeel.study.adhoc import gather

SMALL = ["model=linear", "clients=4", "per_round=2", "rounds=3", "dataset.train_limit=60", "executor=serial"]


def test_only_divergence_is_noted(tmp_path: Path) -> None:
    for error in (None, InputError("x"), KeyboardInterrupt()):
        note(tmp_path, error)
        assert divergence(tmp_path) is None
    note(tmp_path, DivergenceError("training diverged in round 3"))
    assert divergence(tmp_path) == "training diverged in round 3"
    note(tmp_path / "nowhere", DivergenceError("a disk that is full"))
    (tmp_path / DIVERGED).write_text("{")
    assert divergence(tmp_path) == "training diverged"


@pytest.mark.slow
def test_a_run_that_diverges_leaves_a_note_that_resuming_removes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(DivergenceError) as caught:
        api.run(Experiment.build({}, [*SMALL, "local.lr=1e38"]), out)
    assert divergence(out) == str(caught.value)
    (told,) = gather([out]).outcomes
    assert (told.state, told.failure) == ("failed", str(caught.value))
    described = (out / "experiment.yaml").read_text()
    (out / "experiment.yaml").write_text(described.replace("1e+38", "0.1").replace("1.0e+38", "0.1"))
    api.resume(out, tell=lambda _: None)
    assert divergence(out) is None

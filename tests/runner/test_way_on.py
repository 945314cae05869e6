"""What is told when a run ends before time, and what a checkpoint is compared with."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from fedkeel import Experiment, FedkeelError, RoundEnd, Stop, StoppedError, run
from fedkeel.config.experiment import contradiction
from fedkeel.local.executors import choose
from fedkeel.runner.simulation import Simulation
from fedkeel.world.desk import Desk
from tests.helpers import federation
from tests.helpers.clock import experiment, watch
from tests.helpers.folders import faulty, resumed, rows, same, stopped

QUICK = [
    "model=linear", "dataset.train_limit=60", "dataset.test_limit=20", "clients=3", "executor.kind=serial",
    "executor.stack=0", "executor.channels_last=false",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net(4)}


def test_other_devices_are_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "devices.csv"
    trace.write_text("speed_factor\n1\n2\n3\n4\n5\n6\n")
    described = faulty("fedavg", fleet={"profile": str(trace)})
    stopped(described, tmp_path / "a", 2, **given())
    trace.write_text("speed_factor\n1\n2\n3\n4\n5\n7\n")
    with pytest.raises(FedkeelError, match="other devices"):
        resumed(tmp_path / "a", **given())
    trace.write_text("speed_factor\n1\n2\n3\n4\n5\n6\n")
    resumed(tmp_path / "a", **given())


def test_descriptions_are_compared_setting_by_setting() -> None:
    """What only one version knows, or what is left open, is no contradiction."""
    one = Experiment(local={"lr": 0.1}, executor={"kind": "serial", "stack": 0}).model_dump()
    other = Experiment(local={"lr": 0.2}).model_dump()
    assert contradiction(one, other) == "local.lr=0.1, not 0.2"
    assert contradiction(other, one) == "local.lr=0.2, not 0.1"
    assert contradiction(one, {**one, "new": 1, "local": {**one["local"], "newer": 2}}) is None
    assert contradiction({**one, "old": {"x": 1}}, one) is None
    assert contradiction({"executor": {"kind": "auto", "stack": None, "workers": 3}}, one) is None
    assert contradiction({"executor": {"kind": "auto", "stack": 5}}, one) == "executor.stack=5, not 0"
    settled = {"kind": "serial", "stack": 0, "native": False, "channels_last": False}
    assert contradiction({"executor": settled}, {"executor": {**settled, "kind": "processes"}}) is None
    left_open = {"executor": {"kind": "vectorised", "stack": None, "native": None}}  # the kind says what follows
    assert contradiction({"executor": {**settled, "stack": None}}, left_open) == "executor.kind=serial, not vectorised"
    assert contradiction({"rounds": 3}, {"rounds": 4}) == "rounds=3, not 4"
    assert contradiction({"name": "a"}, {"name": "b"}, aside=("name",)) is None


def test_what_says_nothing_about_the_result_may_change(tmp_path: Path) -> None:
    run(faulty("fedavg"), tmp_path / "whole", **given())
    stopped(faulty("fedavg"), tmp_path / "a", 2, **given())
    described = tmp_path / "a" / "experiment.yaml"
    text = described.read_text()
    assert text.count("  seconds: 60.0") == 1
    described.write_text(text.replace("  seconds: 60.0", "  seconds: 0.0").replace("name: null", "name: mine", 1))
    resumed(tmp_path / "a", **given())
    described.write_text(text)
    same(tmp_path / "whole", tmp_path / "a")


def test_a_state_that_cannot_be_written_shows_after_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    snapshot = Simulation.snapshot
    monkeypatch.setattr(Simulation, "snapshot", lambda self: {**snapshot(self), "mine": {1, 2}})
    described = faulty("fedavg", checkpoint={"seconds": None})
    with pytest.raises(FedkeelError, match="mine: a set"):
        run(described, tmp_path / "a", progress=lambda end: told.append(end.round), **given())
    assert told == [1]


def test_a_stop_in_the_last_round_comes_before_clients_are_tested(tmp_path: Path) -> None:
    described = faulty("fedavg", evaluate_clients=True)
    run(described, tmp_path / "whole", **given())
    stop = Stop()

    def ask(end: RoundEnd) -> None:
        stop.asked = end.round == 5

    with pytest.raises(StoppedError, match="after the last round, before clients are tested"):
        run(described, tmp_path / "a", progress=ask, stop=stop, **given())
    assert not (tmp_path / "a" / "client_metrics.jsonl").exists()
    resumed(tmp_path / "a", **given())
    same(tmp_path / "whole", tmp_path / "a")


@pytest.mark.slow
def test_claims_of_the_future_are_refused_however_stale_a_job_is() -> None:
    described = experiment(
        "fedasync", fleet={"speed_ratio": 3000}, faults={"corrupt": 0.5, "corruptions": ["future"]}, rounds=700,
        schedule={"pace": "concurrency"}, evaluate_every=700,
    )  # fmt: skip
    seen = watch(described)
    assert max(arrival.staleness for arrival in seen.arrivals) > 1000
    assert {row.reason for end in seen.ends for row in end.refused} == {"from the future"}


@pytest.mark.parametrize("bound", [1e-300, 1e-20, 1.0, 1e37])
def test_a_huge_upload_is_refused_whatever_the_bound(bound: float, tmp_path: Path) -> None:
    gate, faults = {"max_norm": bound}, {"corrupt": 0.5, "corruptions": ["huge"]}
    run(faulty("fedavg", dtype="float32", gate=gate, faults=faults, rounds=2), tmp_path / "a", **given())
    assert rows(tmp_path / "a", "refused")


def test_any_error_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Simulation.rounds

    def fails(self: Simulation) -> Iterator[RoundEnd]:
        for end in rounds(self):
            if end.round == 3:
                raise FedkeelError("a worker died")
            yield end

    monkeypatch.setattr(Simulation, "rounds", fails)
    with pytest.raises(
        FedkeelError, match=r"^a worker died; the last checkpoint is .*round-2; resume with: fedkeel\.resume\("
    ):
        run(faulty("fedavg", checkpoint={"rounds": 2}), tmp_path / "a", **given())


def test_the_summary_is_of_the_end(tmp_path: Path) -> None:
    """Also where time is up in mid-round."""
    result = run(faulty("scaffold", limit_seconds=33.0), tmp_path / "a", **given())
    assert result.summary["virtual_seconds"] == 33.0
    assert result.summary["bytes_down"] == sum(
        row["bytes_down"] for name in ("clients", "unfinished", "refused") for row in rows(tmp_path / "a", name)
    )


def test_results_on_the_desk_are_not_copied_for_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    snapshot = Desk.snapshot

    def watched(self: Desk) -> dict[str, Any]:
        taken = snapshot(self)
        for job, columns in taken["results"].items():
            trained, row = self._results[job]
            seen.append(columns["w"].data_ptr() == trained.w[row].data_ptr())
        return taken

    monkeypatch.setattr(Desk, "snapshot", watched)
    run(faulty("fedbuff", checkpoint={"rounds": 1}), tmp_path / "a", **given())
    assert seen
    assert all(seen)


@pytest.mark.slow
def test_ctrl_c_when_nobody_reads_the_output_any_more(tmp_path: Path) -> None:
    """As with `2>&1 | tee log`, where Ctrl-C ends tee first."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "from fedkeel.cli import main; main()", "run", *QUICK, "rounds=100000", "--out", "a"],
        cwd=tmp_path,
        stdout=writing,
        stderr=writing,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    os.close(writing)
    history, waiting = tmp_path / "a" / "history.jsonl", threading.Event()
    try:
        for _ in range(600):
            if history.exists() and history.stat().st_size:
                break
            waiting.wait(0.1)
        os.close(reading)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert len([*(tmp_path / "a" / "checkpoint").glob("round-*")]) == 1


class Fails(nn.Module):
    """A model with an error of its own, from the second round on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.net, self.folder = federation.net(4), folder

    def forward(self, x: Tensor) -> Tensor:
        if (self.folder / "fails").exists():
            raise ZeroDivisionError("mine")
        out: Tensor = self.net(x)
        return out


def test_an_error_that_is_not_ours_says_how_to_go_on_too(tmp_path: Path) -> None:
    def progress(_: RoundEnd) -> None:
        (tmp_path / "fails").touch()

    handed = {"data": federation.data(), "model": Fails(tmp_path)}
    with pytest.raises(Exception, match="mine") as error:
        run(faulty("fedavg", "serial", checkpoint={"rounds": 1}), tmp_path / "a", progress=progress, **handed)
    told = "; ".join([str(error.value), *getattr(error.value, "__notes__", [])])
    command = f"fedkeel.resume({str(tmp_path / 'a')!r}, data=..., model=...)"
    assert told.endswith(f"the last checkpoint is {tmp_path / 'a' / 'checkpoint' / 'round-1'}; resume with: {command}")

"""A run that is stopped, killed or damaged and resumed leaves what an undisturbed one leaves, bit for bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, RoundEnd, run
from fedkeel.api import resume
from fedkeel.errors import DivergenceError, FedkeelError, StoppedError
from fedkeel.local.build import Workshop
from fedkeel.local.executors import choose
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import methods
from fedkeel.params import FlatModel
from fedkeel.record import lock
from fedkeel.record.checkpoints import Checkpoints
from fedkeel.record.folder import RunFolder
from fedkeel.record.subject import Subject
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.stopping import Stop
from fedkeel.server.stateful import Stateful
from tests.helpers import federation
from tests.helpers.folders import (
    FAULTS,
    FLEET,
    SETTLED,
    After,
    faulty,
    left,
    resumed,
    rows,
    same,
    stopped,
    stopped_again,
)
from tests.helpers.methods import few, small


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE", 1)
    monkeypatch.setattr(choose, "objection", lambda *_: None)  # these executors are known to be right here


def given(model: nn.Module | None = None) -> dict[str, Any]:
    return {"data": federation.data(), "model": model or federation.net(4)}


def goes_on(described: Experiment, folder: Path, stops: tuple[int, ...] = (1, 3), **handed: Any) -> Path:
    """Stopped after these rounds one after the other, the run is the same as whole; where the whole one is."""
    handed = handed or given()
    run(described, folder / "whole", **handed)
    stopped(described, folder / "stopped", stops[0], **handed)
    for before, after in pairwise(stops):
        told = stopped_again(folder / "stopped", after, **handed)
        assert told == [f"{folder / 'stopped'} goes on after round {before}"]
    resumed(folder / "stopped", **handed)
    same(folder / "whole", folder / "stopped")
    return folder / "whole"


# Every method, pace and executor.


def late(name: str) -> dict[str, Any]:
    """A schedule by which not everybody is always at work, or by which devices that hang are given up."""
    return {"deadline_seconds": 60} if methods()[name].server.pace in ("barrier", "stream") else few(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods()))
def test_every_method_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    faults = {**FAULTS, "hang": 0.15, "hang_seconds": 150}
    executor = "serial" if name == "moon" else "stack"  # which takes seconds to trace
    described = faulty(small(name), executor, local={"epochs": 3}, schedule=late(name), faults=faults)
    whole = goes_on(described, tmp_path)
    assert rows(whole, "refused")
    assert rows(whole, "unfinished")
    assert rows(whole, "clients")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "kind"),
    [
        ("barrier", "serial"),
        ("barrier", "processes"),
        ("stream", "stack"),
        ("periodic", "serial"),
        ("concurrency", "stack"),
        ("concurrency", "processes"),
    ],
)
def test_every_pace_and_executor(pace: str, kind: str, tmp_path: Path) -> None:
    name = "fedavg" if pace == "barrier" else "fedasync"
    goes_on(faulty(name, kind, schedule={"pace": pace}), tmp_path, stops=(2,))


CASES: dict[str, dict[str, Any]] = {
    "learnt slots": {
        "algorithm": {"name": "fedasmu", "slot": "learned", "epsilon": 0.5},
        "local": {"epochs": 5},
        "fleet": {"speed_ratio": 5},
        "faults": {},
        "rounds": 8,
    },
    "stale updates that the rule does not want": {"algorithm": {"name": "fedasync", "staleness_bound": 1}},
    "early slots": {"algorithm": {"name": "fedssmu", "slot": "first"}, "local": {"epochs": 4}},
    "jobs told to hurry": {"algorithm": {"name": "port", "minimum": 2, "staleness_bound": 1}, "local": {"epochs": 4}},
    "a buffer that is flushed": {"algorithm": {"name": "fedbuff", "buffer_size": 4, "rest": "flush"}},
    "seldom tested": {"algorithm": "scaffold", "evaluate_every": 3},
    "drawn in proportion": {"algorithm": "fedlga", "sampling": "scheme1", "fleet": {"rho": 0.5}},
    "a look ahead": {
        "algorithm": {"name": "fedlga", "client": "moon", "diagnose": True},
        "local": {"epochs": 4},
        "fleet": {"rho": 0.5},
    },
    "own models tested": {"algorithm": "fedavg", "evaluate_local": True, "evaluate_clients": True},
    "fine-tuned": {"algorithm": "fedbabu", "finetune": {"epochs": 2}, "local": {"lr_decay": 0.5, "epochs": 2}},
    "no global model": {"algorithm": "fedgh", "evaluate_every": 2},
    "a target": {"algorithm": "fedavg", "target_accuracy": 0.01},
    "too many chosen": {"algorithm": "fedavg", "schedule": {"over_select": 1.0, "deadline_seconds": 30}},
    "devices that go off": {"algorithm": "fedasync", "fleet": {"availability": 0.5, "availability_period": 30.0}},
    "single precision": {"algorithm": "fedadam", "dtype": "float32"},
    "a schedule over rounds": {
        "algorithm": "fedasync",
        "local": {"schedule": {"kind": "cosine", "warmup": 2}, "momentum": 0.9, "nesterov": True},
        "finetune": {"epochs": 1},
    },
    "a schedule over steps": {
        "algorithm": "scaffold",
        "local": {"schedule": {"kind": "cosine", "over": "steps"}, "drop_last": True, "batch_size": 2, "epochs": 2},
        "finetune": {"epochs": 1},
    },
    "bfloat16": {
        "algorithm": "fedadam",
        "dtype": "float32",
        "local": {"precision": "bfloat16"},
        "executor": "serial",
    },
    "momentum": {"algorithm": "fedprox", "local": {"momentum": 0.9, "clip_norm": 0.5, "weight_decay": 1e-3}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_settings_that_a_run_remembers_something_for(case: str, tmp_path: Path) -> None:
    settings = dict(CASES[case])
    goes_on(faulty(settings.pop("algorithm"), **settings), tmp_path)


def test_the_learnt_slots_were_learnt(tmp_path: Path) -> None:
    settings = dict(CASES["learnt slots"])
    described = faulty(settings.pop("algorithm"), **settings)
    result = run(described, tmp_path / "a", **given())
    assert bool(result.simulation.core.model.state.memory["met"].any())
    assert any(bool(kept["values"].any()) for kept in result.simulation.world.desk.kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedssmu", "fedasync", "fedbuff"])
def test_time_that_is_up_in_mid_round(name: str, tmp_path: Path) -> None:
    """Also what was refused after the last whole round is written down."""
    whole = run(faulty(name), **given()).history
    limit = (whole[2].virtual_seconds + whole[3].virtual_seconds) / 2
    goes_on(faulty(name, limit_seconds=limit), tmp_path, stops=(1, 2))
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").unlink()
    resumed(tmp_path / "killed", **given())
    same(tmp_path / "whole", tmp_path / "killed")
    turned_away = len(rows(tmp_path / "whole", "refused"))
    assert turned_away == sum(left(tmp_path / "whole")["summary.json"]["uploads_turned_away"].values())


def test_a_run_that_stops_at_its_target(tmp_path: Path) -> None:
    history = run(faulty("fedavg"), **given()).history
    target = max(each.accuracy for each in history)
    reached = next(each.round for each in history if each.accuracy >= target)
    assert reached > 1
    whole = goes_on(faulty("fedavg", target_accuracy=target, stop_at_target=True), tmp_path, stops=(1,))
    assert len(rows(whole, "history")) == reached


def test_a_wish_to_stop_in_the_last_round_changes_nothing(tmp_path: Path) -> None:
    described = faulty("fedavg")
    run(described, tmp_path / "whole", **given())
    stop = After(5)
    run(described, tmp_path / "other", stop=stop, progress=stop.progress, **given())
    same(tmp_path / "whole", tmp_path / "other")


# What is handed over in Python.


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(federation.FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, federation.CLASSES)
    )


def whole_batches() -> FederatedData:
    """Without a batch of one sample, which batch norm does not bear."""
    rng = np.random.default_rng(2)
    clients = [(rng.normal(size=(n, federation.FEATURES)), rng.integers(0, 2, n)) for n in (4, 8, 12, 4, 8, 8)]
    return FederatedData.from_clients(clients, test=clients[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fedgh"])
def test_batch_norm(name: str, tmp_path: Path) -> None:
    goes_on(faulty(small(name), "serial"), tmp_path, stops=(2,), data=whole_batches(), model=normed())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "moon", "fedgh", "fedbabu", "scaffold", "fedasmu"])
def test_first_weights_that_differ_every_time(name: str, tmp_path: Path) -> None:
    """What matters of them is in the checkpoint."""

    def drawn(seed: int) -> nn.Module:
        model = federation.net(4)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        return model

    described = faulty(small(name), "serial", evaluate_clients=True)
    run(described, tmp_path / "whole", **given(drawn(1)))
    stopped(described, tmp_path / "stopped", 2, **given(drawn(1)))
    resumed(tmp_path / "stopped", **given(drawn(2)))
    same(tmp_path / "whole", tmp_path / "stopped")


def shifted(labels: int = 0, samples: float = 0.0) -> FederatedData:
    """The federation's data, but for a few labels or samples."""
    clients = [(x + samples, (y + labels) % federation.CLASSES) for x, y in federation.clients()]
    return FederatedData.from_clients(clients, test=federation.clients()[3])


FOREIGN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "labels": (lambda: {"data": shifted(labels=1), "model": federation.net(4)}, "other data"),
    "samples": (lambda: {"data": shifted(samples=1.0), "model": federation.net(4)}, "other data"),
    "fewer clients": (
        lambda: {**given(), "data": FederatedData.from_clients(federation.clients()[:5], test=federation.clients()[3])},
        "clients must be 5, as many as the data has; got 6",
    ),
    "widths": (lambda: given(federation.net(5)), "other data"),
    "layers": (lambda: given(federation.net(4, 4)), "other data"),
    "no data": (lambda: {"model": federation.net(4)}, "given in Python"),
    "no model": (lambda: {"data": federation.data()}, "given in Python"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_data_and_models_are_refused_and_do_no_harm(what: str, tmp_path: Path) -> None:
    described = faulty("fedavg")
    stopped(described, tmp_path / "a", 2, **given())
    shutil.copytree(tmp_path / "a", tmp_path / "before")
    handed, message = FOREIGN[what]
    with pytest.raises(FedkeelError, match=message) as error:
        resume(tmp_path / "a", **handed())
    same(tmp_path / "before", tmp_path / "a")
    resumed(tmp_path / "a", **given())  # the folder was let go of, though the error is still at hand
    assert error.value
    run(described, tmp_path / "whole", **given())
    same(tmp_path / "whole", tmp_path / "a")


# Folders.


def test_a_complete_run_is_left_alone(tmp_path: Path) -> None:
    run(faulty("fedavg"), tmp_path / "a", **given())
    before = left(tmp_path / "a")
    with pytest.raises(InputError, match=r"resume: .* is complete"):
        resume(tmp_path / "a", **given())
    assert left(tmp_path / "a") == before


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(InputError, match="holds no run; name a folder"):
            resume(path)


def test_a_run_in_use(tmp_path: Path) -> None:
    stopped(faulty("fedavg"), tmp_path / "a", 2, **given())
    stored = Experiment.load(tmp_path / "a" / "experiment.yaml")
    folder, _ = RunFolder.reopen(tmp_path / "a", Subject(stored, _identity(tmp_path / "a"), Simulation.classes))
    before = left(tmp_path / "a")
    with folder, pytest.raises(InputError, match="is in use"):
        resume(tmp_path / "a", **given())
    assert left(tmp_path / "a") == before
    resumed(tmp_path / "a", **given())


def _identity(folder: Path) -> str:
    text = (folder / "checkpoint" / "round-2" / "state.json").read_text()
    return text.split('"identity": "')[1].split('"')[0]


def test_a_run_that_is_going_on_is_in_use(tmp_path: Path) -> None:
    refused: list[str] = []

    def progress(end: RoundEnd) -> None:
        if end.round == 2:
            with pytest.raises(InputError, match="in use") as error:
                resume(tmp_path / "a", **given())
            refused.append(str(error.value))

    run(faulty("fedavg"), tmp_path / "a", progress=progress, **given())
    run(faulty("fedavg"), tmp_path / "whole", **given())
    assert refused
    same(tmp_path / "whole", tmp_path / "a")


EVERY = {"checkpoint": {"rounds": 1}}


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(A run, the same stopped after three of five rounds); to be copied."""
    folder = tmp_path_factory.mktemp("halves")
    described = faulty("scaffold", **EVERY, faults={"lost_upload": 0.2, "corrupt": 0.2})
    run(described, folder / "whole", **given())
    stopped(described, folder / "stopped", 3, **given())
    return folder / "whole", folder / "stopped"


@pytest.fixture
def half(halves: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    return halves[0], Path(shutil.copytree(halves[1], tmp_path / "stopped"))


Half = tuple[Path, Path]


def test_two_checkpoints_are_kept(half: Half) -> None:
    assert sorted(path.name for path in (half[1] / "checkpoint").iterdir()) == ["round-2", "round-3"]


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_damaged_checkpoint_is_passed_over_and_told(half: Half, name: str) -> None:
    whole, folder = half
    path = folder / "checkpoint" / "round-3" / name
    path.write_bytes(path.read_bytes()[:-10])
    _, told = resumed(folder, **given())
    assert "round-3 cannot be used" in told[0]
    assert "damaged" in told[0]
    assert told[-1].endswith("goes on after round 2")
    same(whole, folder)


def test_checkpoints_that_are_all_damaged(half: Half) -> None:
    _, folder = half
    for path in (folder / "checkpoint").glob("*/state.json"):
        path.write_bytes(path.read_bytes()[:-10])
    before = left(folder)
    with pytest.raises(FedkeelError, match=r"no usable checkpoint.*round-3.*damaged.*round-2.*damaged") as error:
        resume(folder, **given())
    assert left(folder) == before
    with pytest.raises(FedkeelError, match="no usable checkpoint"):  # not: in use
        resume(folder, **given())
    assert error.value


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history", "clients", "rounds", "unfinished", "refused"])
def test_rows_that_were_changed_or_lost(half: Half, name: str) -> None:
    """The last round's: the checkpoint before knows nothing of them. The first round's: none can be used."""
    whole, folder = half
    path = folder / f"{name}.jsonl"
    text = path.read_bytes()
    assert text
    path.write_bytes(text.replace(b": ", b":  ", 1))
    with pytest.raises(FedkeelError, match=rf"no usable checkpoint.*{name}.jsonl is not as it was"):
        resume(folder, **given())
    path.write_bytes(text[:1])
    with pytest.raises(FedkeelError, match=rf"no usable checkpoint.*{name}.jsonl is \d+ bytes shorter"):
        resume(folder, **given())
    assert path.read_bytes() == text[:1]
    path.write_bytes(text)
    resumed(folder, **given())
    same(whole, folder)


def test_rows_of_the_last_round_that_were_lost(half: Half) -> None:
    whole, folder = half
    path = folder / "clients.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    _, told = resumed(folder, **given())
    assert "clients.jsonl is 20 bytes shorter" in told[0]
    assert told[-1].endswith("goes on after round 2")
    same(whole, folder)


def test_rows_behind_the_checkpoint_are_written_anew(half: Half) -> None:
    whole, folder = half
    for name in ("history", "clients", "rounds", "unfinished", "refused"):
        with (folder / f"{name}.jsonl").open("ab") as file:
            file.write(b'{"round": 4, "half')
    resumed(folder, **given())
    same(whole, folder)


def test_a_missing_file_of_rows(half: Half) -> None:
    _, folder = half
    (folder / "clients.jsonl").unlink()
    with pytest.raises(FedkeelError, match=r"clients.jsonl is \d+ bytes shorter"):
        resume(folder, **given())


def test_an_edited_experiment(half: Half) -> None:
    whole, folder = half
    path = folder / "experiment.yaml"
    text = path.read_text()
    for key, value in (("rounds", 1), ("seed", 8), ("evaluate_every", 2)):
        path.write_text(yaml.safe_dump({**yaml.safe_load(text), key: value}))
        said = f"written with {key}=.*, not {value}|other data|the run is to end before it, with rounds=1"
        with pytest.raises(FedkeelError, match=said):
            resume(folder, **given())
    path.write_text("rounds: many")
    with pytest.raises(InputError, match="rounds"):
        resume(folder, **given())
    path.write_text(text)
    resumed(folder, **given())
    same(whole, folder)


def test_what_a_kill_left_half_written_is_removed(half: Half) -> None:
    whole, folder = half
    for name in ("summary.json", "model.safetensors", "experiment.yaml"):
        (folder / f"{name}.partial").write_text("half")
    for stage in ("new", "gone"):
        (folder / "checkpoint" / f".round-4.{stage}").mkdir()
        (folder / "checkpoint" / f".round-4.{stage}" / "state.json").write_text("half")
    resumed(folder, **given())
    same(whole, folder)


def test_a_kill_before_the_first_checkpoint(half: Half) -> None:
    whole, folder = half
    shutil.rmtree(folder / "checkpoint")
    _, told = resumed(folder, **given())
    assert told == [f"{folder} has no checkpoint yet: the run starts again from round 1"]
    same(whole, folder)


def test_a_kill_behind_the_last_round(halves: Half, tmp_path: Path) -> None:
    """What is left to do: the model, its tests, the summary."""
    whole, folder = halves[0], Path(shutil.copytree(halves[0], tmp_path / "a"))
    for name in ("summary.json", "model.safetensors"):
        (folder / name).unlink()
    result, _ = resumed(folder, **given())
    assert len(result.history) == 5
    same(whole, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedasync"])
def test_a_kill_anywhere_between_two_rounds(name: str, tmp_path: Path) -> None:
    """As a SIGKILL leaves it: rows of rounds that no checkpoint knows, and nobody to say goodbye."""
    described = faulty(name, checkpoint={"rounds": 2, "seconds": None}, rounds=6)
    run(described, tmp_path / "whole", **given())

    class KilledError(BaseException):
        pass

    for round in (1, 2, 5):
        folder = tmp_path / str(round)

        def progress(end: RoundEnd, round: int = round) -> None:
            if end.round == round:
                raise KilledError

        with pytest.raises(KilledError):
            run(described, folder, progress=progress, **given())
        resumed(folder, **given())
        same(tmp_path / "whole", folder)


def test_a_run_that_diverged_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    described = faulty("fedavg", **EVERY, faults={}, fleet={})
    spoiled = False

    class Brittle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = federation.net(4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out * (1e200 if spoiled else 1.0)

    def progress(end: RoundEnd) -> None:
        nonlocal spoiled
        spoiled = end.round == 2

    described = described.replace(executor=SETTLED["serial"])
    with pytest.raises(DivergenceError, match=r"round 3 on client \d.*learning rate 0.1.*checkpoint/round-2$") as error:
        run(described, tmp_path / "a", data=federation.data(), model=Brittle(), progress=progress)
    assert error.value.exit_code == 3
    assert [row["round"] for row in rows(tmp_path / "a", "history")] == [1, 2]
    spoiled = False
    _, told = resumed(tmp_path / "a", data=federation.data(), model=Brittle())
    assert told[-1].endswith("goes on after round 2")


def test_a_stop_without_a_folder_has_nothing_to_go_on_from() -> None:
    stop = Stop()
    stop.asked = True
    with pytest.raises(StoppedError, match="stopped after round 1; nothing was recorded"):
        run(faulty("fedavg"), stop=stop, **given())


# Completeness: nothing that changes in a run is forgotten in a checkpoint.

FOLLOWS: dict[str, set[str]] = {
    "Simulation": {"_started", "_begun"},  # real times
    "Desk": {"_results", "executor"},  # saved as `results`; has no state of its own
    "AtWork": {"_jobs", "versions", "held"},  # saved as `sent`; follow from that
    "Core": {"_arrived", "_taking", "_again", "_cancelled"},  # empty between rounds
    "Log": {"told", "models"},  # empty between rounds
    "Simulated": {"_asked", "_answer_bytes"},  # of the dispatch before
}
"""What may change without being saved under its own name."""
BUSY = ["fedavg", "scaffold", "fedagg", "fedent", "fedgh", "fedadam", "fedasmu", "fedssmu", "fedbuff", "port", "asofed"]


def simulation(described: Experiment, seed: int = 0) -> Simulation:
    data, module = whole_batches().to(torch.float64), normed().double()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    shop = Workshop(module, data, described.algorithm.rules()[0], described.local, described.seed)
    return Simulation(described, data, FlatModel(module), shop.executor(ExecutorSettings(**SETTLED["serial"])))


def fingerprint(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """Plain values that are equal where two things hold the same; another part of the simulation is its own matter."""
    if isinstance(value, Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: fingerprint(each, inside) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(each, inside) for each in value]
    if id(value) in inside or callable(value):
        return type(value).__name__
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
    names = [name for name in names if not isinstance(getattr(type(value), name, None), cached_property)]
    if names:
        inside |= {id(value)}
        return type(value).__name__, {name: fingerprint(getattr(value, name), inside) for name in names}
    return repr(value)


def parts(of: Stateful) -> list[Stateful]:
    return [of, *(part for name in of.parts for part in parts(getattr(of, name)))]


def attributes(of: Simulation) -> dict[tuple[str, str], Any]:
    """Of each part: what it has, other parts and what trains aside."""
    known = frozenset(map(id, parts(of)))
    executor = frozenset([id(of.executor)])
    return {
        (type(part).__name__, name): fingerprint(value, known | executor)
        for part in parts(of)
        for name, value in vars(part).items()
    }


def stateful(value: Any, seen: set[int]) -> list[Stateful]:
    """Every one that can be reached."""
    if id(value) in seen or not type(value).__module__.startswith(
        ("fedkeel.runner", "fedkeel.server", "fedkeel.world")
    ):
        return []
    seen.add(id(value))
    own = [value] if isinstance(value, Stateful) else []
    return own + [found for each in getattr(value, "__dict__", {}).values() for found in stateful(each, seen)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUSY)
def test_everything_that_changes_is_saved(name: str, tmp_path: Path) -> None:
    faults = {"hang": 0.4, "hang_seconds": 300, "lost_upload": 0.1, "twice": 0.1, "old_job": 0.1, "corrupt": 0.1}
    in_rounds = methods()[name].server.pace in ("barrier", "stream")
    fleet = FLEET if in_rounds else {**FLEET, "availability": 0.5, "availability_period": 40.0}
    described = faulty(small(name), local={"epochs": 3}, schedule=late(name), fleet=fleet, faults=faults)
    running, before = simulation(described), attributes(simulation(described))
    assert {id(part) for part in parts(running)} == {id(part) for part in stateful(running, set())}
    rounds = running.rounds()
    for _ in range(3):
        next(rounds)
        after = attributes(running)
        changed = {key for key in before if after[key] != before[key]}
        assert after.keys() == before.keys()
        told = {type(part).__name__: part.snapshot().keys() for part in parts(running)}
        forgotten = {f"{kind}.{n}" for kind, n in changed if n not in told[kind] | FOLLOWS.get(kind, set())}
        assert forgotten == set()
    assert running.core._arrived == []
    assert len(running.core.log.told) == 0

    store = Checkpoints(tmp_path, "", Simulation.classes)
    store.save(3, running.snapshot())
    found = store.load()
    assert found is not None
    other = simulation(described, seed=1)
    other.restore(found.state)
    again = attributes(other)
    other_form = {("Simulation", "_started"), ("Simulation", "_begun"), ("Desk", "_results"), ("AtWork", "_jobs")}
    assert {key for key in after if again[key] != after[key]} - other_form == set()
    assert fingerprint(other.world.desk.snapshot()["results"]) == fingerprint(running.world.desk.snapshot()["results"])
    assert fingerprint(other.core.at_work.snapshot()) == fingerprint(running.core.at_work.snapshot())
    for flight in other.world.flights.by_client.values():  # what was one thing is one thing again
        assert other.world.desk._ready.get(flight.order.job, flight) is flight
        if flight.order.version == other.core.model.version:
            assert flight.order.start is other.core.model.state.w

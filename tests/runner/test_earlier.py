"""A server that begins with what an earlier run's had learnt: what it makes of that, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedkeel import Experiment, InputError, Result, RoundEnd, run
from fedkeel.api import resume
from fedkeel.record.checkpoints import Checkpoints
from fedkeel.runner.simulation import Simulation
from fedkeel.study.settle import estimate
from tests.helpers import federation
from tests.helpers.fedasmu import HIDDEN, probabilities_by_hand
from tests.helpers.federation import BATCH, EXECUTORS, LR, PER_ROUND, SEED, Vector
from tests.helpers.folders import resumed, same, stopped
from tests.helpers.studies import on_top

D, ALPHA, FLOOR, CAP = federation.FEATURES * federation.CLASSES, 0.1, 0.1, 10.0
LEARNT = {"name": "fedasmu", "slot": "learned", "meta_lr": 0.5, "epsilon": 0.0}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def described(algorithm: Any = "fedagg", epochs: int = 2, **settings: Any) -> Experiment:
    """A few rounds with merges, if the method has them."""
    return Experiment(
        **{"seed": SEED, "rounds": 2, "per_round": PER_ROUND, "dtype": "float64", **settings},
        algorithm=algorithm,
        executor={**EXECUTORS["serial"], "stack": 0, "channels_last": False},
        local={"epochs": epochs, "batch_size": BATCH, "lr": LR},
        fleet={"seconds_per_sample": 0.25},
        schedule={"trigger_seconds": 2.0, "busy_share": 1.0} if "asmu" in str(algorithm) else {},
    )


def ran(out: Path | None, algorithm: Any = "fedagg", model: nn.Module | None = None, **settings: Any) -> Result:
    return run(described(algorithm, **settings), out, data=federation.data(), model=model or federation.net())


def after(folder: Path, name: str = "fedagg", **settings: Any) -> dict[str, Any]:
    return {"name": name, "earlier_run": str(folder), **settings}


def memory(result: Result) -> Any:
    return result.simulation.core.model.state.memory


# FedAgg.


def means(w: Vector, epochs: int) -> tuple[Vector, Vector]:
    """[L, D] each: the mean gradients of a first round's clients at the start of epochs, and their ways."""
    gradients, ways = np.zeros((2, PER_ROUND, epochs, D))
    for row, client in enumerate(federation.chosen(1)):
        batches, here = list(federation.batches(1, client, epochs)), w
        each = len(batches) // epochs
        for epoch in range(epochs):
            gradients[row, epoch] = federation.gradient(here, *batches[epoch * each])
            for batch in batches[epoch * each : (epoch + 1) * each]:
                step = federation.gradient(here, *batch)
                here, ways[row, epoch] = here - LR * step, ways[row, epoch] - step
    return gradients.mean(0), ways.mean(0)


def planned(start: Vector, gradients: Vector, ways: Vector) -> Vector:
    """The rates that minimise the cost by least squares, a row for each term, between floor and cap."""
    phi2 = start + LR * ways.cumsum(0)
    count = len(gradients)
    rows, wanted = [np.sqrt(ALPHA) * np.eye(count)], [np.zeros(count)]
    for end in range(1, count + 1):
        rows.append(np.sqrt(1 - ALPHA) * gradients.T * (np.arange(count) < end))
        wanted.append(np.sqrt(1 - ALPHA) * (start - phi2[end - 1]))
    found = np.linalg.lstsq(np.concatenate(rows), np.concatenate(wanted), rcond=None)[0]
    return np.asarray(np.clip(found, FLOOR * LR, CAP * LR))


def first_rates(algorithm: dict[str, Any], epochs: int, model: nn.Module) -> Vector:
    """Those that the first round of another run was trained at."""
    ends: list[RoundEnd] = []
    experiment = described(algorithm, epochs, rounds=1, seed=SEED + 1)
    run(experiment, data=federation.data(), model=model, progress=ends.append)
    used = np.array(list(ends[0].arrivals.columns["learning_rates"]))
    np.testing.assert_allclose(used, np.tile(ends[0].report["planned_rates"], (PER_ROUND, 1)), rtol=1e-12)
    return np.asarray(used[0])


def other_start() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(federation.FEATURES, federation.CLASSES, bias=False)


@pytest.mark.parametrize(("before", "now"), [(3, 3), (3, 2), (2, 4)])
def test_fedagg_plans_its_first_round_by_an_earlier_run(tmp_path: Path, before: int, now: int) -> None:
    """The epochs that both runs have; where the earlier run has fewer, the others run at the base rate."""
    ran(tmp_path / "earlier", rounds=1, epochs=before)
    gradients, ways = means(federation.start(), before)
    model, both = other_start(), min(before, now)
    assert isinstance(model.weight, Tensor)
    start = model.weight.detach().double().numpy().flatten()
    expected = np.full(now, LR)
    expected[:both] = planned(start, gradients[:both], ways[:both])
    found = first_rates(after(tmp_path / "earlier"), now, model)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert (np.abs(found[:both] / LR - 1) > 0.02).all()
    np.testing.assert_allclose(first_rates({"name": "fedagg"}, now, other_start()), LR)


def test_an_epochs_sum_of_gradients_comes_from_an_earlier_run(tmp_path: Path) -> None:
    ran(tmp_path / "earlier", {"name": "fedagg", "phi1": "sum"}, rounds=1, epochs=3)
    _, ways = means(federation.start(), 3)
    model = other_start()
    start = model.weight.detach().double().numpy().flatten()  # type: ignore[union-attr]
    found = first_rates(after(tmp_path / "earlier", phi1="sum"), 3, model)
    np.testing.assert_allclose(found, planned(start, -ways, ways), rtol=1e-9)
    assert np.linalg.norm(found) < LR * np.sqrt(3)


def test_clients_may_move_along_an_earlier_runs_gradients_from_the_first_round_on(tmp_path: Path) -> None:
    """All alike, one step an epoch."""
    ran(tmp_path / "earlier", {"name": "fedagg", "direction": "aggregated"}, rounds=1, epochs=3)
    gradients, _ = means(federation.start(), 3)
    settings = after(tmp_path / "earlier", direction="aggregated")
    result = ran(None, settings, model=other_start(), rounds=1, epochs=3, seed=SEED + 1)
    start = other_start().weight.detach().double().numpy().flatten()  # type: ignore[union-attr]
    rates = planned(start, gradients, -gradients)
    np.testing.assert_allclose(federation.weights(result), start - rates @ gradients, rtol=0, atol=1e-9)


def test_the_loop_may_be_closed_from_the_first_round_on(tmp_path: Path) -> None:
    """A client that begins an epoch away from where the others do has a rate of its own."""
    ran(tmp_path / "earlier")
    ends: list[RoundEnd] = []
    experiment = described(after(tmp_path / "earlier", closed_loop=True), 3, rounds=1)
    run(experiment, data=federation.data(), model=federation.net(), progress=ends.append)
    used = np.array(list(ends[0].arrivals.columns["learning_rates"]))
    assert len(set(used[:, 0])) == 1
    assert len(set(used[:, 1])) > 1


def test_rounds_after_the_first_remember_their_own(tmp_path: Path) -> None:
    """The first round's means take the place of what was taken over."""
    ran(tmp_path / "earlier", epochs=3, seed=8)
    result = ran(tmp_path / "now", after(tmp_path / "earlier"), rounds=1, epochs=2)
    taken = memory(result)
    assert taken["gradient"].shape == taken["way"].shape == (2, D)
    assert taken["known"].tolist() == [2]
    gradients, _ = means(federation.start(), 1)
    np.testing.assert_allclose(taken["gradient"][0], gradients[0], rtol=1e-9)  # all clients begin there


def test_a_run_of_another_type_serves_too(tmp_path: Path) -> None:
    """Float64 before, float32 now."""
    ran(tmp_path / "earlier")
    result = ran(None, after(tmp_path / "earlier"), dtype="float32", rounds=1)
    assert memory(result)["gradient"].dtype == memory(result)["rates"].dtype == torch.float32


# FedASMU.


def trained_by_hand(folder: Path, meta: Vector, baseline: float) -> None:
    """Put an LSTM and a baseline in place of those in a run's last checkpoint."""
    kept = Checkpoints(folder / "checkpoint", None, Simulation.classes)
    found = kept.load()
    assert found is not None
    state = found.state["core"]["model"]["state"]
    taken = {"meta": torch.tensor(meta), "baseline": torch.tensor([baseline], dtype=torch.float64)}
    state.memory.update(taken)
    kept.save(found.number, found.state)


@pytest.mark.parametrize("name", ["fedasmu", pytest.param("fedssmu", marks=pytest.mark.slow)])
def test_an_lstm_that_was_taken_over_proposes_what_its_weights_say(tmp_path: Path, name: str) -> None:
    ran(tmp_path / "earlier", {**LEARNT, "name": name}, epochs=4)
    meta = np.random.default_rng(0).normal(size=(4 * HIDDEN + 1) * (HIDDEN + 1))
    trained_by_hand(tmp_path / "earlier", meta, 0.75)
    frozen = {**LEARNT, "meta_lr": 0.0, "baseline_rate": 0.0}
    result = ran(None, {**frozen, **after(tmp_path / "earlier", name)}, epochs=4)
    found = memory(result)
    np.testing.assert_allclose(found["proposal"], probabilities_by_hand(meta, 64), rtol=1e-9)
    assert (found["meta"].numpy() == meta).all()
    assert found["baseline"].tolist() == [0.75]
    fresh = memory(ran(None, {**frozen, "name": name}, epochs=4))
    assert (fresh["proposal"] - found["proposal"]).abs().max() > 0.05


def first_slots(algorithm: dict[str, Any]) -> dict[int, int]:
    """Of each device that merges, after how many epochs it did so first."""
    ends: list[RoundEnd] = []
    run(described(algorithm, 4, rounds=6), data=federation.data(), model=federation.net(), progress=ends.append)
    merges = [(row.client, row.slot) for end in ends for row in end.arrivals if row.slot is not None]
    return dict(reversed(merges))


@pytest.mark.slow
def test_devices_draw_from_the_lstm_that_was_taken_over_and_begin_with_empty_tables(tmp_path: Path) -> None:
    """It asks after the third epoch for sure, which those that merged in the earlier run would not know of."""
    ran(tmp_path / "earlier", LEARNT, epochs=4, rounds=6)
    meta = np.zeros((4 * HIDDEN + 1, HIDDEN + 1))
    meta[:-1, -1] = 50.0  # open gates, by which the cells count epochs
    meta[-1] = 20.0
    meta[-1, -1] = -20.0 * HIDDEN * np.tanh(2.5)
    np.testing.assert_allclose(probabilities_by_hand(meta.flatten(), 3), [0, 0, 1], atol=1e-3)
    trained_by_hand(tmp_path / "earlier", meta.flatten(), 0.0)
    frozen = {**LEARNT, "meta_lr": 0.0}
    found, fresh = first_slots({**frozen, **after(tmp_path / "earlier", "fedasmu")}), first_slots(frozen)
    assert set(found.values()) == {3}
    assert len(found) > PER_ROUND
    assert set(fresh.values()) > {3}


# What is refused.


Spoil = Callable[[Path], object]


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def cut(*rounds: int) -> Spoil:
    """The checkpoints of these rounds are damaged."""

    def spoil(folder: Path) -> None:
        for each in rounds:
            file = folder / "checkpoint" / f"round-{each}" / "tensors.safetensors"
            file.write_bytes(file.read_bytes()[:-1])

    return spoil


def of_a_later_version(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"schema": 99, "fedkeel": "9.9"}))


def with_other_names(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({f"body.{name}": each for name, each in weights.items()}, folder / "model.safetensors")


UNFIT: dict[str, tuple[Spoil, str]] = {
    "gone": (shutil.rmtree, "there is no such folder"),
    "no run": (without("experiment.yaml"), "it holds no run"),
    "not finished": (without("summary.json"), "its run is not finished"),
    "damaged": (lambda folder: (folder / "experiment.yaml").write_text("{"), "it cannot be understood"),
    "unknown method": (
        lambda folder: (folder / "experiment.yaml").write_text("algorithm: {name: fedwhat}"),
        "it cannot be understood .*fedwhat",
    ),
    "no checkpoint": (lambda folder: shutil.rmtree(folder / "checkpoint"), "it has no checkpoint"),
    "only an older one": (cut(2), "checkpoint .*round-2 cannot be used: tensors.safetensors is damaged"),
    "damaged ones": (cut(1, 2), "there is no usable checkpoint"),
    "no weights": (without("model.safetensors"), "model.safetensors cannot be read"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors cannot be"),
    "other names": (with_other_names, r"its model is another one \(weight is not there, not \[2, 3\]\)"),
    "later version": (of_a_later_version, "schema must be at most 2; got 99"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_folder_of_no_use_is_refused_before_anything_is_made(tmp_path: Path, case: str) -> None:
    ran(tmp_path / "earlier", checkpoint={"rounds": 1})
    spoil, why = UNFIT[case]
    spoil(tmp_path / "earlier")
    with pytest.raises(InputError, match=f"^algorithm.earlier_run: .*earlier cannot be used, as .*{why}.*; name the f"):
        ran(tmp_path / "now", after(tmp_path / "earlier"))
    assert not (tmp_path / "now").exists()


@pytest.mark.parametrize(
    ("earlier", "now", "why"),
    [
        ({"algorithm": "fedavg"}, {"algorithm": "fedagg"}, "its run is of fedavg"),
        (
            {"algorithm": {"name": "fedagg", "reading": "literal"}},
            {"algorithm": "fedagg"},
            r"has not learnt what this one begins with \(gradient, way, known\)",
        ),
        ({"algorithm": {**LEARNT, "name": "fedssmu"}, "epochs": 4}, {"algorithm": LEARNT}, "its run is of fedssmu"),
        ({"algorithm": "fedasmu", "epochs": 4}, {"algorithm": LEARNT}, r"has not learnt .* \(meta, baseline\)"),
        (
            {"algorithm": "fedagg", "model": federation.net(4)},
            {"algorithm": "fedagg", "model": federation.net(5)},
            r"its model is another one \(0.weight is \[4, 3\], not \[5, 3\]\)",
        ),
        (
            {"algorithm": "fedagg", "model": nn.Linear(3, 2)},
            {"algorithm": "fedagg", "model": federation.net()},
            r"its model is another one \(of 8 parameters, not 6\)",
        ),
    ],
    ids=["method", "reading", "relative", "slot", "shapes", "more"],
)
@pytest.mark.filterwarnings("ignore:FedAgg's literal reading stalls")
def test_a_run_that_learnt_something_else_is_refused(tmp_path: Path, earlier: Any, now: Any, why: str) -> None:
    ran(tmp_path / "earlier", **earlier)
    algorithm = now["algorithm"] if isinstance(now["algorithm"], dict) else {"name": now["algorithm"]}
    with pytest.raises(InputError, match=why):
        ran(tmp_path / "now", **{**now, "algorithm": {**algorithm, "earlier_run": str(tmp_path / "earlier")}})
    assert not (tmp_path / "now").exists()


@pytest.mark.parametrize(
    ("local", "why"),
    [
        ({"epochs": None, "steps": 3}, r"counted otherwise \(local.epochs and local.batch_size=4\)"),
        ({"batch_size": 3}, r"counted otherwise \(local.epochs and local.batch_size=4\)"),
    ],
    ids=["steps", "batch size"],
)
def test_a_run_whose_work_is_counted_otherwise_is_refused(tmp_path: Path, local: dict[str, Any], why: str) -> None:
    ran(tmp_path / "earlier")
    now = described({"name": "fedagg", "earlier_run": str(tmp_path / "earlier")}, 3)
    other = now.replace(local={**now.local.model_dump(), **local})
    with pytest.raises(InputError, match=why):
        run(other, data=federation.data(), model=federation.net(), out=tmp_path / "now")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"name": "fedagg", "reading": "literal"}, "reading=literal; remove it or set algorithm.reading=practical"),
        ({"name": "fedagg", "probe": True}, "probe=true; remove it or set algorithm.probe=false"),
        ({"name": "fedasmu"}, "slot=fixed; remove it or set algorithm.slot=learned"),
        ({"name": "fedssmu", "slot": "first"}, "slot=first; remove it or set algorithm.slot=learned"),
        (
            {**LEARNT, "ablation": "FA"},
            "ablation=FA, where devices do not merge; remove it or set algorithm.ablation to none or DA",
        ),
    ],
    ids=str,
)
def test_settings_that_leave_no_use_for_it_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"^algorithm.earlier_run: 'runs/x' has no use with algorithm.{why}$"):
        Experiment(algorithm={**settings, "earlier_run": "runs/x"})
    assert Experiment(algorithm=settings).algorithm.model_dump()["earlier_run"] is None


def test_other_methods_have_no_such_setting() -> None:
    with pytest.raises(
        InputError, match=r"algorithm.earlier_run is not a setting of fedavg; choose algorithm.name fedagg"
    ):
        Experiment(algorithm={"name": "fedavg", "earlier_run": "runs/x"})


@pytest.mark.parametrize("there", [True, False])
def test_a_run_cannot_follow_itself(tmp_path: Path, there: bool) -> None:
    if there:
        ran(tmp_path / "run")
    with pytest.raises(InputError, match="is not empty" if there else "there is no such folder"):
        ran(tmp_path / "run", after(tmp_path / "run"))


# Runs that name one.


def test_relative_paths_are_those_of_the_working_folder_and_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the description repeats the run."""
    monkeypatch.chdir(tmp_path)
    ran(Path("earlier"))
    first = ran(Path("now"), {"name": "fedagg", "earlier_run": "earlier"})
    again = Experiment.load("now/experiment.yaml")
    assert again.algorithm.model_dump()["earlier_run"] == "earlier"
    second = run(again.replace(dataset={}, model={}), data=federation.data(), model=federation.net())
    assert (federation.weights(first) == federation.weights(second)).all()
    assert not (federation.weights(first) == federation.weights(ran(None))).all()


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedagg"}, pytest.param(LEARNT, marks=pytest.mark.slow)], ids=["fedagg", "fedasmu"]
)
def test_a_resumed_run_needs_the_earlier_folder_no_more(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    ran(tmp_path / "earlier", algorithm, epochs=4, seed=8)
    experiment = described({**algorithm, "earlier_run": str(tmp_path / "earlier")}, 4, rounds=4)
    given = {"data": federation.data(), "model": federation.net()}
    run(experiment, tmp_path / "whole", **given)
    stopped(experiment, tmp_path / "stopped", 2, **given)
    shutil.rmtree(tmp_path / "earlier")
    resumed(tmp_path / "stopped", **given)
    same(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_that_is_begun_anew_reads_it_again(tmp_path: Path) -> None:
    ran(tmp_path / "earlier")
    given = {"data": federation.data(), "model": federation.net()}
    experiment = described(after(tmp_path / "earlier"), 2)
    run(experiment, tmp_path / "whole", **given)
    stopped(experiment, tmp_path / "killed", 1, **given)
    shutil.rmtree(tmp_path / "killed" / "checkpoint")
    (tmp_path / "earlier").rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"algorithm.earlier_run: .* there is no such folder"):
        resume(tmp_path / "killed", tell=lambda _: None, **given)
    (tmp_path / "away").rename(tmp_path / "earlier")
    _, told = resumed(tmp_path / "killed", **given)
    assert told == [f"{tmp_path / 'killed'} has no checkpoint yet: the run starts again from round 1"]
    same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_study_refuses_it_before_its_first_run(tmp_path: Path) -> None:
    words = on_top("algorithm=fedagg", f"algorithm.earlier_run={tmp_path / 'x'}")
    with pytest.raises(InputError, match=r"algorithm.earlier_run: .* there is no such folder"):
        estimate(Experiment.build({}, words))
    run(Experiment.build({}, on_top("algorithm=fedagg")), tmp_path / "x")
    assert estimate(Experiment.build({}, words)).seconds > 0

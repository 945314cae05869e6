"""The choice of an executor: open ends are filled in, liars are shown the door."""

import json
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, Result, Stop, StoppedError, resume, run
from fedkeel.local.batches import Batch
from fedkeel.local.build import Workshop
from fedkeel.local.executors import choose, memory_limits
from fedkeel.local.executors.agreement import objection
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.native.gradient import NativeGradient
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.work import batch_sizes
from fedkeel.methods import ClientRule, Job, Message, Oracle
from fedkeel.params import FlatModel, Layout
from fedkeel.runner import choice
from fedkeel.runner.choice import first_orders
from fedkeel.runner.remembered import place, recall, remember
from tests.helpers.declared import Anything
from tests.helpers.native import needed

LOCAL = {"batch_size": 4, "epochs": 2}


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 4, 4)), rng.integers(0, 3, n)) for n in [9, 3, 7, 12, 4, 5]]
    return FederatedData.from_clients(parts, test=parts[3])


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutional(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *more, nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def eager_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as worth a choice, and none is remembered."""
    monkeypatch.setattr(choose, "_NOTICEABLE", 0.0)
    monkeypatch.setattr(choose, "_LEAST", 10.0)
    monkeypatch.setattr(choice, "recall", lambda _: None)


def go(executor: Any = "auto", model: nn.Module | None = None, out: Path | None = None, **more: Any) -> Result:
    experiment = Experiment(rounds=2, per_round=4, local=LOCAL, executor=executor, **more)
    return run(experiment, out, data=data(), model=model or dense())


def weights(result: Result) -> Tensor:
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def test_a_short_run_is_not_worth_a_choice() -> None:
    result = go()
    assert result.summary["executor"] == choose.SERIAL.model_dump()
    assert list(result.summary["probe"]["seconds_per_round"]) == ["serial"]


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
def test_auto_tries_stacks_and_processes_and_tells() -> None:
    result = go({"native": False})
    told = result.summary["probe"]["seconds_per_round"]
    assert {name.split()[0] for name in told} == {"serial", "vectorised", "processes"}
    assert all(seconds > 0 for seconds in told.values())
    assert result.experiment.executor.settled
    assert result.summary["seconds_per_round_median"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
@pytest.mark.parametrize("kind", ["auto", "vectorised", "processes"])
def test_a_run_says_how_to_repeat_it_bit_for_bit(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = go(kind, out=tmp_path / "first")
    written = Experiment.load(tmp_path / "first" / "experiment.yaml").executor
    assert written == first.experiment.executor
    assert written.settled
    assert written.kind == kind or kind == "auto"
    monkeypatch.setattr(choose, "_Contest", None)  # nothing is measured again
    again = go(yaml.safe_load((tmp_path / "first" / "experiment.yaml").read_text())["executor"])
    assert torch.equal(weights(first), weights(again))
    assert [(e.accuracy, e.loss, e.train_loss) for e in first.history] == [
        (e.accuracy, e.loss, e.train_loss) for e in again.history
    ]


@pytest.mark.slow
def test_the_same_experiment_is_run_the_same_way_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_NOTICEABLE", 0.0)
    first = go(seed=41)
    monkeypatch.setattr(choice, "settle", None)
    again = go(seed=42, name="another", target_accuracy=0.5)
    assert again.summary["executor"] == first.summary["executor"]
    assert again.summary["probe"] == first.summary["probe"]
    with pytest.raises(TypeError):
        go(dtype="float64")


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
@pytest.mark.parametrize("kind", ["vectorised", "processes"])
def test_executors_agree(kind: str) -> None:
    reference = go("serial", dtype="float64")
    other = go({"kind": kind, "stack": 3}, dtype="float64")
    torch.testing.assert_close(weights(other), weights(reference), rtol=0, atol=1e-9)


def lie(self: DenseGradient, w: Tensor, batch: Batch, *more: Any) -> Tensor:
    """Wrong for mini-batches of one size only, as compiled kernels have been seen to be."""
    loss = TRUE(self, w, batch, *more)
    more[-2].mul_(1 if batch.y.shape[1] != 3 else 1.1)
    return loss


TRUE = DenseGradient._sweep


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
def test_a_fast_path_that_is_wrong_for_one_batch_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_PARTS", ())
    contest = choose._Contest
    monkeypatch.setattr(contest, "measure", lambda _, way: 1.0 - (way.stack or 0) / 100)  # stacks look best
    monkeypatch.setattr(contest, "_rehearse", lambda _, rivals, *__: {way: float(i) for i, way in enumerate(rivals)})
    assert go({"native": False}).experiment.executor.kind == "vectorised"
    monkeypatch.setattr(DenseGradient, "_sweep", lie)
    result = go({"kind": "auto", "stack": None, "native": False})
    assert result.experiment.executor.stack == 0
    refused = result.summary["probe"]["refused"]
    assert refused
    assert all("its w deviates" in reason for reason in refused.values())
    with pytest.raises(
        InputError, match="vectorised in stacks of 1 cannot be used with this model and method: its w deviates"
    ):
        go({"kind": "vectorised", "stack": 1})


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([nn.Dropout(0.5)], "the model's forward pass is random"),
        ([nn.BatchNorm2d(4)], "the model has buffers"),
    ],
)
def test_what_cannot_be_stacked(more: list[nn.Module], why: str) -> None:
    for executor in ("vectorised", {"kind": "processes", "stack": 2, "channels_last": False}):
        with pytest.raises(InputError, match=why):
            go(executor, convolutional(*more))
    assert go("auto", convolutional(*more)).experiment.executor.stack == 0
    assert go("processes", convolutional(*more)).experiment.executor.stack == 0


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(x if x.sum() > 0 else -x)


def test_a_model_that_vmap_cannot_follow_is_told_so() -> None:
    with pytest.raises(InputError, match=r"executor: vectorised in stacks of 2 cannot be used.*it fails"):
        go({"kind": "vectorised", "stack": 2, "channels_last": False}, Branching())


class Keeping(nn.Module):
    """Keeps its last activation, and counts its calls, which change what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.calls = nn.Linear(16, 8), nn.Linear(8, 3), 0
        self.features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.features = self.body(x.flatten(1)).relu()
        return self.head(self.features) * (1 + 0.001 * self.calls)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
@pytest.mark.parametrize("kind", ["auto", "processes"])
def test_trying_leaves_the_model_as_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Keeping()
    monkeypatch.setattr(choose, "_LONG", 0.0)
    first = go({"kind": kind, "workers": 1}, net)
    again = go(first.experiment.executor.model_dump(), net)
    assert torch.equal(weights(first), weights(again))
    assert net.calls == 0


def test_in_a_worker_of_a_pool_there_are_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_NOTICEABLE", 0.0)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert go(seed=77).experiment.executor.kind != "processes"
    with pytest.raises(
        InputError, match=r"^executor.kind: processes cannot be used here, as this is a worker.*; use serial, vect"
    ):
        go("processes")


def test_beside_an_accelerator_there_are_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"PyTorch sees an accelerator"):
        go("processes")


def build(width: Any = 8) -> nn.Module:
    torch.manual_seed(int(width))
    return dense()


def test_options_that_json_cannot_say_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_models", sys.modules[__name__])
    experiment = Experiment(rounds=1, local=LOCAL, model={"name": "own_models:build", "width": np.int64(3)})
    assert run(experiment, data=data()).experiment.executor.settled


@pytest.mark.parametrize("told", ["", "{}", '{"settings": {}}', '{"settings": {"kind": "gpu"}}', "[1]"])
def test_what_was_remembered_wrongly_is_forgotten(tmp_path: Path, told: str) -> None:
    path = tmp_path / "choice.json"
    assert recall(path) is None
    path.write_text(told)
    assert recall(path) is None
    choice = choose.Choice(choose.SERIAL, {"serial": 1.5}, {"other": "wrong"})
    remember(path, choice)
    assert recall(path) == choice
    assert [*tmp_path.iterdir()] == [path]


def test_another_forward_or_shape_is_another_choice() -> None:
    experiment = Experiment(local=LOCAL)
    plain, dropping = (nn.Sequential(nn.Linear(4, 3), *more) for more in ([], [nn.Dropout()]))
    small = data()
    large = FederatedData.from_arrays(np.zeros((40, 1, 8, 8)), np.arange(40) % 3, clients=6, test=0.1)
    places = {place(experiment, each, net, 2) for each in (small, large) for net in (plain, dropping)}
    assert len(places) == 4


class Once(ClientRule):
    """Sends what is not a number."""

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"x": torch.full_like(job.samples, float("nan"), dtype=w.dtype)}, {}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


@pytest.mark.parametrize("lr", [0.1, 1e-7])
def test_the_gate_sees_small_steps_and_what_is_not_a_number(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    way = ExecutorSettings(kind="vectorised", stack=4, channels_last=False)
    shop = Workshop(dense(), data(), ClientRule(), Experiment(local={**LOCAL, "lr": lr}).local, 0)
    asked = Experiment(local={**LOCAL, "lr": lr}, clients=6)
    orders = first_orders(asked, data(), FlatModel(dense()), shop.executor(ExecutorSettings(kind="serial", stack=0)))
    assert objection(shop, way, orders) is None
    assert "its message/x deviates" in str(objection(replace(shop, rule=Once()), way, orders))
    monkeypatch.setattr(DenseGradient, "_sweep", lambda s, w, *m: (TRUE(s, w, *m), m[-2].mul_(2), m[-2].sub_(w))[0])
    assert "its w deviates" in str(objection(shop, way, orders))


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        ({"kind": "vectorised", "channels_last": True}, ["executor.channels_last", "executor.stack=0"]),
        ({"stack": 4, "channels_last": True}, ["executor.channels_last", "executor.stack=0"]),
        ({"kind": "serial", "stack": 4}, ["executor.stack must be 0", "kind=serial; got 4"]),
        ({"kind": "vectorised", "stack": 0}, ["executor.stack must be 1 or more", "got 0"]),
        ({"kind": "serial", "workers": 2}, ["executor.workers needs", "kind=processes, threads or ray"]),
        ({"kind": "gpu"}, ["executor.kind", "gpu", "processes"]),
        ({"workers": 0}, ["executor.workers", "0"]),
    ],
)
def test_contradictions_are_refused(executor: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(executor=executor)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match=r"^device: PyTorch sees no cuda device here; use device=cpu$"):
        go(device="cuda")


def test_every_size_of_mini_batch_is_tried() -> None:
    assert batch_sizes(data(), LocalSettings(batch_size=4)) == [1, 3, 4]
    assert batch_sizes(data(), LocalSettings(batch_size="full")) == [3, 4, 5, 7, 9, 12]


def test_stacks_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(dense(), data(), ClientRule(), Experiment(local=LOCAL).local, 0)
    one = 6 * 4 * (16 * 8 + 8 + 8 * 3 + 3)
    monkeypatch.setattr(memory_limits, "STACK_BYTES", 10 * one)
    assert 2 <= memory_limits.stack_limit(shop) < 10  # activations take their share
    monkeypatch.setattr(memory_limits, "STACK_BYTES", 10)
    assert memory_limits.stack_limit(shop) == 1
    assert ExecutorSettings().settled is False


NORMED = "Clients train one by one: the model has buffers, such as batch-norm statistics."
RANDOM = "Clients train one by one: the model's forward pass is random, as with dropout."


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "why"), [(nn.BatchNorm2d(4), NORMED), (nn.Dropout(0.5), RANDOM)], ids=["bn", "drop"])
@pytest.mark.parametrize("kind", ["auto", "processes"])
def test_the_summary_says_why_clients_are_not_stacked(layer: nn.Module, why: str, kind: str, tmp_path: Path) -> None:
    """However short the run is; and again where the choice is remembered."""
    for run_ in ("first", "again"):
        go(kind, convolutional(layer), out=tmp_path / run_)
        told = json.loads((tmp_path / run_ / "summary.json").read_text())
        assert told["executor"]["stack"] == 0
        assert told["why_not_stacked"] == why


@pytest.mark.slow
def test_a_resumed_run_still_says_why_clients_are_not_stacked(tmp_path: Path) -> None:
    stop = Stop()
    stop.asked = True
    described = Experiment(rounds=2, per_round=3, local=LOCAL, evaluate_every=2)
    given = {"data": data(), "model": convolutional(nn.Dropout(0.5))}
    with pytest.raises(StoppedError):
        run(described, tmp_path / "a", stop=stop, **given)
    assert resume(tmp_path / "a", tell=lambda _: None, **given).summary["why_not_stacked"] == RANDOM


@pytest.mark.usefixtures("eager_to_choose")
def test_the_summary_says_that_stacks_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_LONG", 0.0)  # so that vmap is tried
    monkeypatch.setattr(choose._Contest, "measure", lambda _, way: 1.0 if way.stack else 2.0)
    monkeypatch.setattr(choose, "cores", lambda: 1)
    summary = go(model=Branching()).summary
    assert summary["executor"]["stack"] == 0
    assert summary["why_not_stacked"].startswith("Clients train one by one: vectorised in stacks of")
    assert "it fails" in summary["why_not_stacked"]


@pytest.mark.slow
@pytest.mark.usefixtures("eager_to_choose")
def test_nothing_is_said_where_clients_are_stacked_or_were_asked_to_train_alone() -> None:
    normed = convolutional(nn.BatchNorm2d(4))
    for executor in ("serial", {"kind": "processes", "stack": 0}, {"kind": "auto", "stack": 0}):
        assert go(executor, normed).summary["why_not_stacked"] is None
    assert go("vectorised").summary["why_not_stacked"] is None


def test_nothing_is_said_where_a_choice_is_not_worth_it() -> None:
    assert go().summary["why_not_stacked"] is None


def contest(asked: dict[str, Any], method: str = "fedavg", workers: int = 2) -> choose._Contest:
    """On the first round's orders of a network that the kernels know."""
    model, given = convolutional(nn.ReLU()), data().to(torch.float32)
    experiment = Experiment(rounds=1_000_000, per_round=6, local=LOCAL, algorithm=method)
    flat = FlatModel(model)
    rule = experiment.algorithm.rules()[0]
    shop = Workshop(model, given, rule, experiment.local, 0)
    orders = first_orders(experiment, given, flat, shop.executor(choose.SERIAL))
    return choose._Contest(shop, ExecutorSettings(**asked).completed, orders, experiment.rounds, workers)


def told(monkeypatch: pytest.MonkeyPatch, native: float, stacked: float = 1.05) -> None:
    """One by one takes a second on one core, native training and stacks take so long; nothing is rehearsed."""

    def seconds(_: Any, way: ExecutorSettings) -> float:
        return native if way.native else stacked if way.stack else 1.0

    monkeypatch.setattr(choose._Contest, "measure", seconds)
    monkeypatch.setattr(choose._Contest, "_affordable", lambda *_: False)
    monkeypatch.setattr(choose, "cores", lambda: 2)


@pytest.mark.parametrize(("native", "first"), [(0.5, "threads"), (0.9, "threads"), (1.5, "processes")])
def test_native_training_is_compared_on_equal_terms(native: float, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and workers are both taken to share the work out evenly."""
    needed()
    told(monkeypatch, native)
    assert next(iter(contest({}).ranking())).kind == first


def test_the_stack_that_was_asked_for_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    told(monkeypatch, 0.5)
    for workers in (2, 1):
        assert {way.stack for way in contest({"stack": 4}, workers=workers).ranking()} == {4}


def test_what_a_native_run_is_refused_for_leaves_the_best_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    told(monkeypatch, 0.5)
    ways = [*contest({}).ranking()]
    assert [way.kind for way in ways[:2]] == ["threads", "processes"]
    assert not ways[1].native


class OwnStep(ClientRule):
    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(w)


def test_steps_of_a_rules_own_are_rehearsed_in_threads_and_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one client for each core, so that there is only one size of stacks."""
    needed()
    told(monkeypatch, 0.5)
    monkeypatch.setattr(choose, "cores", lambda: 6)
    rivals: list[str] = []

    def rehearse(_: Any, ways: list[ExecutorSettings], *__: Any) -> dict[ExecutorSettings, float]:
        rivals.extend(way.kind for way in ways)
        return dict.fromkeys(ways, 0.1)

    monkeypatch.setattr(choose._Contest, "_rehearse", rehearse)
    match = contest({})
    monkeypatch.setattr(match, "_workshop", replace(match._workshop, rule=OwnStep()))
    next(iter(match.ranking()))
    assert rivals == ["processes", "threads"]


def test_closed_forms_count_where_native_training_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    told(monkeypatch, 0.6, stacked=0.4)
    monkeypatch.setattr(choose._Contest, "_affordable", lambda *_: True)
    monkeypatch.setattr(choose._Contest, "_rehearse", lambda _, rivals, *__: dict.fromkeys(rivals, 0.1))
    match = contest({})
    monkeypatch.setattr(match, "_workshop", replace(match._workshop, module=dense()))
    assert next(iter(match.ranking())).native is False


def test_threads_are_as_many_as_was_asked_for() -> None:
    needed()
    shop = Workshop(convolutional(nn.ReLU()), data(), ClientRule(), Experiment(local=LOCAL).local, 0)
    gradient = shop.trainer(ExecutorSettings(kind="threads", stack=4, workers=3).completed).gradient
    assert isinstance(gradient, NativeGradient)
    assert len(gradient.network(torch.float32)._space(4)) == 3

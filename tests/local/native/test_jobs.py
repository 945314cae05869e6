"""Whole jobs by the native kernels against plain SGD, the same bits however they are shared out; tests of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData
from fedkeel.data.datasets import Examples
from fedkeel.errors import FedkeelError
from fedkeel.local import oracle as oracles
from fedkeel.local.build import Workshop
from fedkeel.local.evaluation import BATCH
from fedkeel.local.gradients.jobs import Jobs, Outcomes
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.native.network import Network
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods import ClientRule, methods
from fedkeel.methods.course import Course, Trail
from fedkeel.params import FlatModel, Layout
from fedkeel.runner.choice import first_orders
from fedkeel.wire.orders import Columns, Order
from tests.helpers.chains import EVERY_ISA, TOGETHER, logits, loss_and_gradient, network
from tests.helpers.native import needed

SHAPE, CLASSES = (1, 6, 6), 3
N = 160
"""Samples."""


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 5), nn.ReLU(),
        nn.Linear(5, CLASSES),
    ).double()  # fmt: skip


def samples(count: int = N) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, *SHAPE, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (count,), generator=draw)


SIZES, EPOCHS = [7, 90, 1, 16, 12], [2, 1, 3, 2, 4]
"""Of each client: one has more samples than go through the kernels together, one has a single one."""


def jobs(batch: int | str = 5, limit: int | None = None, each: int | None = None, **more: Any) -> Jobs:
    """Of five unequal clients, with rates that differ from epoch to epoch, or after `each` steps."""
    k, rng = len(SIZES), np.random.default_rng(2)
    x, y = samples()
    order = np.stack(
        [[np.resize(rng.permutation(N)[:n], max(SIZES)) for _ in range(max(EPOCHS))] for n in SIZES]
    ).astype(np.int64)
    sizes = np.array(SIZES)
    largest = sizes if batch == "full" else np.minimum(sizes, int(batch))
    an_epoch = -(-sizes // largest)
    steps = an_epoch * EPOCHS if limit is None else np.minimum(an_epoch * EPOCHS, limit)
    flat = FlatModel(small()).w
    start = flat + 0.1 * torch.from_numpy(rng.normal(size=(k, len(flat))))
    told: dict[str, Any] = {
        "start": start,
        "x": x,
        "y": y,
        "order": order,
        "samples": sizes,
        "steps": steps,
        "batch": largest,
        "rates": torch.from_numpy(rng.uniform(0.05, 0.2, (k, -(-int(steps.max()) // each) if each else max(EPOCHS)))),
        "each": np.full(k, each) if each else an_epoch,
        "course": Course(),
        "mask": None,
        "decay": 0.0,
        "clip": 0.0,
        "momentum": 0.0,
    }
    return Jobs(**{**told, **more})


def batches(told: Jobs, client: int) -> Iterator[tuple[float, Tensor]]:
    """(Learning rate, samples) of each of a client's steps."""
    count = 0
    for order in told.order[client]:
        mine = order[: told.samples[client]]
        for first in range(0, len(mine), told.batch[client]):
            if count == told.steps[client]:
                return
            rate = float(told.rates[client, count // told.each[client]])
            count += 1
            yield rate, torch.from_numpy(mine[first : first + told.batch[client]])


def by_hand(told: Jobs, client: int) -> tuple[Tensor, float, int]:
    """(Weights, summed losses, samples seen) after plain SGD, one step after the other, in float64.

    With a trail, its two vectors as the last step leaves them stand behind the weights.
    """
    module, course = small(), told.course
    w, v, trail = told.start[client].double(), None, course.trail
    last, past = (None, None) if trail is None else (trail.last[client].double(), trail.past[client].double())
    moving = torch.ones_like(w) if told.mask is None else told.mask.double()
    total, seen = 0.0, 0
    for rate, rows in batches(told, client):
        losses, g = loss_and_gradient(module, w, told.x[rows].double(), told.y[rows])
        total, seen = total + float(losses.sum()), seen + len(rows)
        g = moving * g / len(rows)
        if course.ascent:
            uphill = w + course.ascent * g / (float(g.norm()) + 1e-12)
            g = moving * loss_and_gradient(module, uphill, told.x[rows].double(), told.y[rows])[1] / len(rows)
        if told.clip:
            g = g * min(1.0, told.clip / (float(g.norm()) + 1e-6))
        d = course.share * (g + told.decay * moving * w)
        if course.offset is not None:
            d = d + course.offset[client].double()
        if course.pull is not None:
            assert course.anchor is not None
            d = d + float(course.pull[client]) * (w - course.anchor[client].double())
        if trail is not None:
            assert last is not None
            assert past is not None
            mean = trail.keep * past + (1 - trail.keep) * last
            d, last, past = float(trail.gain[client]) * (d - last + (past if trail.late else mean)), d, mean
        v = d if v is None else told.momentum * v + d
        w = w - rate * v
    return torch.cat([each for each in (w, last, past) if each is not None]), total, seen


def vectors(seed: int, scale: float) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(len(SIZES), Layout.of(small()).size, generator=draw, dtype=torch.float64)


def head() -> Tensor:
    return Layout.of(small()).mask("head").double()


def pulled() -> dict[str, Tensor]:
    return {"pull": torch.linspace(0.1, 2.0, len(SIZES), dtype=torch.float64)[:, None], "anchor": vectors(4, 0.3)}


def trail(late: bool = False) -> Trail:
    gain = torch.linspace(0.5, 2.0, len(SIZES), dtype=torch.float64)[:, None]
    return Trail(vectors(6, 0.2), vectors(7, 0.3), 0.25, gain, late)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "larger than the data": {"batch": 1000},
    "one by one": {"batch": 1, "limit": 9},
    "full": {"batch": "full"},
    "full, momentum": {"batch": "full", "momentum": 0.9},
    "together and more": {"batch": TOGETHER + 1},
    "momentum": {"momentum": 0.9},
    "decay": {"decay": 0.1},
    "clip": {"clip": 0.4},
    "clip that never is": {"clip": 1e6},
    "body": {"mask": 1 - head()},
    "head": {"mask": head()},
    "head, clipped and decayed": {"mask": head(), "clip": 0.2, "decay": 0.1, "momentum": 0.5},
    "share": {"course": Course(share=0.3)},
    "share of what is clipped": {"course": Course(share=-0.5), "clip": 0.4, "decay": 0.1},
    "offset": {"course": Course(offset=vectors(3, 0.2))},
    "the same offset for all": {"course": Course(offset=vectors(3, 0.2)[:1].expand(len(SIZES), -1))},
    "pull": {"course": Course(**pulled())},
    "body, pulled and pushed": {"course": Course(0.7, vectors(3, 0.2), **pulled()), "mask": 1 - head()},
    "ascent": {"course": Course(ascent=0.3)},
    "ascent of more than go together": {"course": Course(share=0.5, ascent=0.3), "batch": TOGETHER + 1},
    "ascent of the head": {"course": Course(ascent=0.3), "mask": head(), "clip": 0.2, "decay": 0.1},
    "ascent, pulled and pushed": {"course": Course(0.7, vectors(3, 0.2), **pulled(), ascent=0.2), "momentum": 0.5},
    "trail": {"course": Course(trail=trail())},
    "trail, late": {"course": Course(trail=trail(late=True))},
    "trail of a pull": {"course": Course(**pulled(), trail=trail()), "momentum": 0.5, "clip": 0.3},
    "trail of one step": {"course": Course(trail=trail()), "limit": 1},
    "everything": {
        "course": Course(0.7, vectors(3, 0.2), **pulled(), ascent=0.2, trail=trail()), "mask": 1 - head(), "clip": 0.4,
        "decay": 0.1, "momentum": 0.9, "batch": 4, "limit": 7,
    },
    "a rate a step": {"each": 1},
    "a rate for three steps": {"each": 3, "limit": 8, "momentum": 0.9},
    "limit 1": {"limit": 1, "momentum": 0.9},
    "limit 4": {"limit": 4},
    "limit 1000": {"limit": 1000, "batch": 90},
}  # fmt: skip


def ran(net: Network, told: Jobs, out: Tensor) -> tuple[Outcomes, list[Tensor]]:
    """(What the jobs came to; weights, and the vectors of a trail, as the last step leaves them)."""
    left = [torch.full_like(told.start, 5.0) for _ in range(0 if told.course.trail is None else 2)]
    return net.run(replace(told, last=left[0], past=left[1]) if left else told, out), [out, *left]


@pytest.mark.parametrize("case", [*CASES])
@EVERY_ISA
def test_jobs_are_plain_sgd(case: str, isa: str) -> None:
    told = jobs(**CASES[case])
    expected = [by_hand(told, client) for client in range(len(SIZES))]
    out = torch.full_like(told.start, 5.0)
    net = network(small(), SHAPE, isa, threads=2)
    for _ in range(2):  # the second time in memory that has been used, where momentum and trails begin anew
        outcome, left = ran(net, told, out)
        torch.testing.assert_close(torch.cat(left, 1), torch.stack([w for w, _, _ in expected]), rtol=0, atol=1e-11)
        np.testing.assert_allclose(outcome.loss, [loss for _, loss, _ in expected], rtol=1e-11)
        assert outcome.seen.tolist() == [seen for _, _, seen in expected]
        assert outcome.finite.tolist() == [True] * len(SIZES)
    moved = (out - told.start).abs().amax(1)
    assert bool((moved > 1e-3).all())
    course = told.course
    if told.mask is not None and course.plain and course.trail is None:
        assert torch.equal(out[:, told.mask == 0], told.start[:, told.mask == 0])


def mapped(course: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """A course or a trail with other tensors."""
    values = {each.name: getattr(course, each.name) for each in fields(course)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = f(value)
        elif isinstance(value, Trail):
            values[name] = mapped(value, f)
    return replace(course, **values)


@EVERY_ISA
@pytest.mark.parametrize("case", ["plain", "full", "ascent", "trail", "everything"])
def test_jobs_in_float32(case: str, isa: str) -> None:
    told = jobs(**CASES[case])
    course, mask = mapped(told.course, Tensor.float), None if told.mask is None else told.mask.float()
    told = replace(told, start=told.start.float(), x=told.x.float(), course=course, mask=mask)
    outcome, left = ran(network(small(), SHAPE, isa, torch.float32), told, torch.empty_like(told.start))
    expected = [by_hand(told, client) for client in range(len(SIZES))]
    torch.testing.assert_close(torch.cat(left, 1).double(), torch.stack([w for w, _, _ in expected]), rtol=0, atol=2e-5)
    np.testing.assert_allclose(outcome.loss, [loss for _, loss, _ in expected], rtol=1e-5)


@EVERY_ISA
@pytest.mark.parametrize(("momentum", "decay", "clip"), [(0.0, 0.0, 0.0), (0.9, 0.0, 0.0), (0.5, 0.1, 0.3)])
def test_jobs_are_what_pytorchs_own_optimiser_makes(momentum: float, decay: float, clip: float, isa: str) -> None:
    told = jobs(momentum=momentum, decay=decay, clip=clip)
    out = torch.empty_like(told.start)
    network(small(), SHAPE, isa).run(told, out)
    for client in range(len(SIZES)):
        flat = FlatModel(small())
        flat.load(told.start[client])
        optimiser = torch.optim.SGD(flat.parameters, lr=1.0, momentum=momentum, weight_decay=decay)
        for rate, rows in batches(told, client):
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad()
            cross_entropy(flat.module(told.x[rows]), told.y[rows]).backward()
            if clip:
                nn.utils.clip_grad_norm_(flat.parameters, clip)
            optimiser.step()
        torch.testing.assert_close(out[client], flat.w, rtol=0, atol=1e-11)


@EVERY_ISA
@pytest.mark.parametrize("case", ["plain", "everything"])
def test_a_jobs_bits_depend_on_nothing_beside_it(case: str, isa: str) -> None:
    """Neither on other jobs, nor on threads, nor on where things lie."""
    told = jobs(**CASES[case])
    out = torch.empty_like(told.start)
    outcome, left = ran(network(small(), SHAPE, isa), told, out)
    for threads in (2, 4, 9):
        shared, again = ran(network(small(), SHAPE, isa, threads=threads), told, torch.empty_like(out))
        assert all(map(torch.equal, again, left))
        for name in ("loss", "seen", "finite"):
            assert np.array_equal(getattr(shared, name), getattr(outcome, name))
    one, wide = network(small(), SHAPE, isa), torch.full((1, out.shape[1] + 8), 7.5, dtype=torch.float64)
    for client in reversed(range(len(SIZES))):
        rows = slice(client, client + 1)
        names = ("start", "order", "samples", "steps", "batch", "rates", "each")
        parts: dict[str, Any] = {name: getattr(told, name)[rows] for name in names}
        mine = replace(told, course=mapped(told.course, lambda v, rows=rows: v[rows]), **parts)
        alone, again = ran(one, mine, wide[:, 3:-5])
        assert all(torch.equal(each[0], whole[client]) for each, whole in zip(again, left, strict=True))
        assert bool((wide[0, [0, 1, 2, -5, -1]] == 7.5).all())
        assert alone.loss[0] == outcome.loss[client]


@EVERY_ISA
def test_jobs_may_be_trained_in_place_and_from_one_vector(isa: str) -> None:
    told = jobs()
    shared = replace(told, start=told.start[:1].expand(len(SIZES), -1))
    expected, out = torch.empty_like(told.start), told.start[:1].repeat(len(SIZES), 1)
    network(small(), SHAPE, isa).run(shared, expected)
    network(small(), SHAPE, isa).run(replace(told, start=out), out)
    assert torch.equal(out, expected)
    turned = replace(told, start=told.start[:1].repeat(len(SIZES), 1).T.contiguous().T)
    network(small(), SHAPE, isa).run(turned, again := torch.empty_like(expected))
    assert torch.equal(again, expected)


def test_samples_may_lie_and_be_numbered_as_they_like() -> None:
    """Labels that are a column of a table, images of every other row, sample numbers of 32 bits."""
    told = jobs()
    expected, out = torch.empty_like(told.start), torch.empty_like(told.start)
    network(small(), SHAPE).run(told, expected)
    x, y = torch.stack([told.x, told.x + 1], dim=1)[:, 0], torch.stack([told.y, told.y + 99], dim=1)[:, 0]
    assert not x.is_contiguous()
    assert not y.is_contiguous()
    network(small(), SHAPE).run(replace(told, x=x, y=y, order=told.order.astype(np.int32)), out)
    assert torch.equal(out, expected)


def test_no_step_leaves_the_weights_as_they_were() -> None:
    told = jobs(limit=0)
    out = torch.full_like(told.start, 5.0)
    outcome = network(small(), SHAPE).run(told, out)
    assert torch.equal(out, told.start)
    assert outcome.seen.tolist() == [0] * len(SIZES)
    assert outcome.finite.all()


@EVERY_ISA
@pytest.mark.parametrize("case", ["plain", "everything"])
@pytest.mark.parametrize("what", ["a sample", "a weight", "a rate"])
def test_what_is_not_finite_is_told_of_its_client_alone(what: str, case: str, isa: str) -> None:
    told = jobs(**{**CASES[case], "limit": None})
    out, clean = torch.empty_like(told.start), torch.empty_like(told.start)
    ran(network(small(), SHAPE, isa), told, clean)
    start, x, rates = told.start.clone(), told.x.clone(), told.rates.clone()
    if what == "a sample":  # of client 3 alone
        others = np.concatenate([told.order[c, : EPOCHS[c], : SIZES[c]].flatten() for c in (0, 1, 2, 4)])
        x[next(i for i in told.order[3, 1, : SIZES[3]] if i not in others), 0, 3, 3] = torch.inf
    elif what == "a weight":
        start[3, 2] = torch.nan
    else:
        rates[3, 1] = torch.inf
    for threads in (1, 3):
        bad = replace(told, start=start, x=x, rates=rates)
        outcome, _ = ran(network(small(), SHAPE, isa, threads=threads), bad, out)
        assert outcome.finite.tolist() == [client != 3 for client in range(len(SIZES))]
        for client in (0, 1, 2, 4):
            assert torch.equal(out[client], clean[client])


def test_jobs_that_do_not_fit_are_refused() -> None:
    told, net = jobs(), network(small(), SHAPE)
    out = torch.empty_like(told.start)
    for bad in (
        {"start": told.start.float()},
        {"start": told.start[:, 1:]},
        {"x": told.x.float()},
        {"x": told.x[1:]},
        {"y": told.y.int()},
        {"course": Course(offset=vectors(3, 1.0)[:, 1:])},
    ):
        with pytest.raises(FedkeelError, match="of native training must"):
            net.run(replace(told, **bad), out)
    for more in (
        {"order": told.order[:, :1]},
        {"order": told.order[:, :, :50]},
        {"order": told.order[1:]},
        {"rates": told.rates[:, :1]},
        {"mask": torch.ones(3, dtype=torch.float64)},
        {"mask": head().float()},
    ):
        with pytest.raises(AssertionError):
            net.run(replace(told, **more), out)


# Executors.


def federation(dtype: torch.dtype = torch.float64) -> FederatedData:
    x, y = samples(sum(SIZES) + 2 * BATCH + 30)
    pairs = zip(x.split([*SIZES, 530]), y.split([*SIZES, 530]), strict=True)
    parts = [(each.numpy(), labels.numpy()) for each, labels in pairs]
    return FederatedData.from_clients(parts[:-1], test=parts[-1]).to(dtype)


def way(kind: str, stack: int, workers: int | None = None, native: bool = True) -> ExecutorSettings:
    return ExecutorSettings(kind=kind, stack=stack, native=native, channels_last=False, workers=workers)


def shop(name: str = "fedavg", dtype: torch.dtype = torch.float64, **local: Any) -> tuple[Workshop, list[Order]]:
    """A method on these clients, and orders of unequal work, as if there was something to remember."""
    experiment = Experiment(
        algorithm=name, local={"batch_size": 5, "epochs": max(EPOCHS), **local}, clients=len(SIZES),
        per_round=len(SIZES), dtype="float64" if dtype == torch.float64 else "float32", schedule={"busy_share": 1.0},
    )  # fmt: skip
    data, net = federation(dtype), small().to(dtype)
    made = Workshop(net, data, experiment.algorithm.rules()[0], experiment.local, 3)
    draw = torch.Generator().manual_seed(7)

    def shaken(message: Any) -> dict[str, Tensor]:
        return {
            k: t + 0.1 * torch.randn(t.shape, generator=draw, dtype=t.dtype) if t.is_floating_point() else t
            for k, t in message.items()
        }

    first = first_orders(experiment, data, FlatModel(net), made.executor(ExecutorSettings(kind="serial")))
    rates = [torch.linspace(0.1, 0.05, EPOCHS[o.client], dtype=o.lr.dtype) for o in first]
    return made, [
        replace(o, epochs=EPOCHS[o.client], lr=lr, received=shaken(o.received), kept=shaken(o.kept))
        for o, lr in zip(first, rates, strict=True)
    ]


def trained(made: Workshop, orders: list[Order], settings: ExecutorSettings, limit: int | None = None) -> Columns:
    executor = made.executor(settings)
    try:
        columns = {name: tensor.clone() for name, tensor in executor.train(orders, limit).columns.items()}
    finally:
        executor.close()
    done = torch.arange(max(EPOCHS)) < torch.tensor([[order.epochs] for order in orders])
    columns["lr"] = torch.where(done, columns["lr"], 0.0)  # what stands behind a client's last epoch says nothing
    return columns


def same(got: Columns, expected: Columns) -> bool:
    return got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in got)


COURSES = ("fedavg", "fedprox", "scaffold", "feddyn", "fedcm", "mimelite", "fedbabu", "fedsam", "mofedsam", "asofed")
EPOCHWISE = ("fedagg", "fednorm")
STEPS = ("moon",)


@pytest.mark.parametrize("stack", [1, 5])
@pytest.mark.parametrize("name", [*COURSES, *EPOCHWISE, *STEPS])
def test_native_training_is_what_autograd_makes(name: str, stack: int) -> None:
    needed()
    made, orders = shop(name)
    expected = trained(made, orders, way("serial", 0, native=False))
    got = trained(made, orders, way("threads", stack, 2))
    assert got.keys() == expected.keys()
    for column in expected:
        torch.testing.assert_close(
            got[column], expected[column], rtol=1e-9, atol=1e-10, msg=lambda m, c=column: f"{c}: {m}"
        )
    assert bool(((got["w"] - orders[0].start).abs().amax(1) > 1e-3).all())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", COURSES)
def test_courses_have_the_same_bits_in_any_stack_and_executor(name: str, dtype: torch.dtype) -> None:
    needed()
    made, orders = shop(name, dtype, momentum=0.0 if name == "mimelite" else 0.5, weight_decay=0.01)
    ways = [
        *(way("vectorised", stack) for stack in (1, 2, 5)),
        *(way("threads", stack, workers) for stack, workers in ((1, 4), (3, 2), (5, 1), (5, 4))),
        *(way("processes", stack, 2) for stack in (0, 2)),
    ]
    expected = trained(made, orders, way("serial", 0))
    for each in ways:
        assert same(trained(made, orders, each), expected), each.label


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_epochs_have_the_same_bits_in_any_stack(dtype: torch.dtype) -> None:
    needed()
    made, orders = shop("fedagg", dtype, weight_decay=0.01)
    expected = trained(made, orders, way("vectorised", 1))
    for each in (way("vectorised", 2), way("threads", 5, 2), way("processes", 3, 2)):
        assert same(trained(made, orders, each), expected), each.label


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EPOCHWISE, *STEPS])
def test_steps_have_the_same_bits_in_equal_stacks(name: str) -> None:
    """PyTorch may add up a norm in another order in a larger stack; kernels, threads and processes change nothing."""
    needed()
    made, orders = shop(name, clip_norm=0.5)
    for stack in (1, 3):
        expected = trained(made, orders, way("vectorised", stack))
        for each in (way("threads", stack, 1), way("threads", stack, 4), way("processes", stack, 2)):
            assert same(trained(made, orders, each), expected), each.label


@pytest.mark.parametrize(("name", "left"), [("moon", True), ("fedsam", False), ("fedavg", False)])
def test_only_a_penalty_on_features_is_left_to_vmap(name: str, left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needed()
    made, orders = shop(name)
    calls = []
    true = VmappedGradient.__call__
    monkeypatch.setattr(VmappedGradient, "__call__", lambda *given: (calls.append(1), true(*given))[1])
    trained(made, orders, way("vectorised", 5), limit=1)
    assert bool(calls) == left


def test_whole_jobs_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop makes no step of theirs; other rules' steps are made by the kernels one by one."""
    needed()
    made, orders = shop()
    expected = trained(made, orders, way("vectorised", 5))
    monkeypatch.setattr(oracles, "ORDERED", 1)  # one client after the other
    assert same(trained(made, orders, way("vectorised", 5)), expected)
    monkeypatch.setattr(oracles.BatchOracle, "steps", lambda _: pytest.fail("a step was made"))
    assert same(trained(made, orders, way("vectorised", 5)), expected)


@pytest.mark.parametrize("name", EPOCHWISE)
@pytest.mark.parametrize("limit", [None, 1, 3, 4, 100])
def test_epochs_are_whole_but_for_their_first_steps(
    name: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients walk through epochs of unequal length and number together, in whatever order they come."""
    needed()
    made, orders = shop(name, weight_decay=0.01, clip_norm=0.5)
    expected = trained(made, orders, way("serial", 0, native=False), limit)
    with monkeypatch.context() as patched:
        patched.setattr(oracles.BatchOracle, "steps", lambda _: pytest.fail("a step was made"))
        got = trained(made, orders, way("threads", 5, 2), limit)
    assert got.keys() == expected.keys()
    for column in expected:
        torch.testing.assert_close(
            got[column], expected[column], rtol=1e-9, atol=1e-10, msg=lambda m, c=column: f"{c}: {m}"
        )
    with monkeypatch.context() as patched:
        patched.setattr(oracles, "ORDERED", 1)  # one client after the other
        assert same(trained(made, orders, way("threads", 5, 2), limit), got)


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "asofed"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_limits_are_kept(limit: int, name: str) -> None:
    needed()
    made, orders = shop(name)
    expected = trained(made, orders, way("serial", 0, native=False), limit)
    got = trained(made, orders, way("threads", 3, 2), limit)
    assert got.keys() == expected.keys()
    for column in expected.keys() - {"lr"}:
        torch.testing.assert_close(got[column], expected[column], rtol=1e-9, atol=1e-11)


def test_a_client_that_diverges_is_told() -> None:
    needed()
    made, orders = shop()
    orders[1].lr = torch.full_like(orders[1].lr, 1e200)
    got, clean = trained(made, orders, way("threads", 5, 2)), trained(made, shop()[1], way("threads", 5, 2))
    assert got["finite"].tolist() == [row != 1 for row in range(5)]
    for row in (0, 2, 3, 4):
        assert torch.equal(got["w"][row], clean["w"][row])


# Tests of models.


def plainly(module: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> tuple[int, float]:
    z = logits(module, w, x)
    return int((z.argmax(1) == y).sum()), float(cross_entropy(z, y, reduction="sum"))


@EVERY_ISA
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("count", "part"), [(1, 1), (7, 250), (64, 64), (160, 50), (160, 250), (130, 129)])
def test_hits_and_losses(count: int, part: int, dtype: torch.dtype, isa: str) -> None:
    x, y = samples()
    module, draw = small(), torch.Generator().manual_seed(5)
    w = FlatModel(small()).w + 0.2 * torch.randn(Layout.of(module).size, generator=draw, dtype=torch.float64)
    which = torch.randperm(N, generator=draw)[:count]
    x, w = x.to(dtype), w.to(dtype)
    for named in (None, which, which.int(), torch.stack([which, which])[:, :].T[:, 0]):
        chosen = torch.arange(count) if named is None else which
        given = (x[:count], y[:count]) if named is None else (x, y)
        expected = [plainly(small(), w.double(), x[rows].double(), y[rows]) for rows in chosen.split(part)]
        told = [network(module, SHAPE, isa, dtype, threads).score(w, *given, named, part) for threads in (1, 2, 4)]
        assert told[0][0].tolist() == [hits for hits, _ in expected]
        tolerance = 1e-11 if dtype == torch.float64 else 1e-5
        np.testing.assert_allclose(told[0][1], [loss for _, loss in expected], rtol=tolerance)
        for hits, losses in told[1:]:
            assert np.array_equal(hits, told[0][0])
            assert np.array_equal(losses, told[0][1])


@EVERY_ISA
def test_labels_of_a_test_may_lie_apart(isa: str) -> None:
    x, y = samples()
    w = FlatModel(small()).w
    apart = torch.stack([y, y + 99], dim=1)[:, 0]
    for named in (None, torch.arange(40, 90)):
        got, expected = (network(small(), SHAPE, isa).score(w, x, labels, named, 30) for labels in (apart, y))
        for one, other in zip(got, expected, strict=True):
            assert np.array_equal(one, other)


@EVERY_ISA
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_model_that_is_not_finite_is_tested_as_pytorch_would(value: float, isa: str) -> None:
    """In particular a logit that is not a number counts as the largest."""
    module = nn.Linear(1, 4).double()
    y = torch.tensor([0, 1, 2, 3])
    x = torch.ones(4, 1, dtype=torch.float64)
    for place in range(8):
        w = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
        w[place] = value
        hits, losses = network(module, (1,), isa).score(w, x, y, None, 1)
        expected = [plainly(module, w, x[i : i + 1], y[i : i + 1]) for i in range(4)]
        assert hits.tolist() == [each for each, _ in expected]
        np.testing.assert_allclose(losses, [loss for _, loss in expected])


@pytest.mark.parametrize("share", [False, True])
def test_every_executor_tests_alike(share: bool) -> None:
    """To the bit, on all samples and on some; and as PyTorch does, up to rounding."""
    needed()
    made, _ = shop()
    w, buffers = FlatModel(made.module).w, torch.zeros(0, dtype=torch.float64)
    assert len(made.data.test.y) > 2 * BATCH  # so that worker processes are asked
    some = torch.randperm(len(made.data.test.y), generator=torch.Generator().manual_seed(1))[:-7] if share else None
    scores = []
    for each in (way("serial", 0), way("threads", 5, 1), way("threads", 5, 4), way("processes", 2, 2)):
        executor = made.executor(each)
        scores.append(executor.evaluate(w, buffers, some))
        executor.close()
    assert scores[1:] == scores[:1] * 3
    plain = made.executor(way("serial", 0, native=False)).evaluate(w, buffers, some)
    assert scores[0].metrics == plain.metrics
    assert scores[0].loss == pytest.approx(plain.loss, rel=1e-12)


def test_data_that_is_made_smaller_is_tested_by_pytorch() -> None:
    needed()
    data = replace(federation(), resize=6)
    x = torch.nn.functional.interpolate(data.test.x, 8)
    large = replace(data, test=Examples(x, data.test.y), train=Examples(
        torch.nn.functional.interpolate(data.train.x, 8), data.train.y))  # fmt: skip
    made = Workshop(small(), large, ClientRule(), LocalSettings(batch_size=5), 3)
    assert not made.trains_whole_jobs
    w, buffers = FlatModel(made.module).w, torch.zeros(0, dtype=torch.float64)
    one, other = (made.executor(way("serial", 0, native=native)) for native in (True, False))
    assert one.evaluate(w, buffers) == other.evaluate(w, buffers)


def test_every_method_is_known_to_keep_to_a_course_or_not() -> None:
    """A method that begins to make steps of its own leaves the kernels' fast path; that should not go unseen."""
    data = federation()
    rules = {name: Experiment(algorithm=name).algorithm.rules()[0] for name in methods()}
    found = {n for n, rule in rules.items() if Workshop(small(), data, rule, LocalSettings(), 0).trains_whole_jobs}
    assert found >= {*COURSES, *EPOCHWISE}
    assert not found & {*STEPS}
    momentum = LocalSettings(momentum=0.5)
    assert not any(Workshop(small(), data, rules[name], momentum, 0).trains_whole_jobs for name in EPOCHWISE)

"""Fresh models in mid-training: every executor against the same jobs written out by hand, in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.local.batches import PROXY, Batches
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.client import ClientRule, Merge
from fedkeel.methods.job import Fresh, Job
from fedkeel.methods.oracle import Oracle
from fedkeel.methods.types import Message
from fedkeel.params import FlatModel, Layout
from fedkeel.wire.orders import Order, Trained
from tests.helpers import federation
from tests.helpers.declared import Anything
from tests.helpers.federation import BATCH, CLASSES, FEATURES, SEED, N, normed
from tests.helpers.tiers import slow_but

EXECUTORS = {
    "serial": ExecutorSettings(kind="serial", stack=0, channels_last=False),
    "one stack": ExecutorSettings(kind="vectorised", stack=100, channels_last=False),
    "processes": ExecutorSettings(kind="processes", stack=0, channels_last=False, workers=2),
    "processes, stacks": ExecutorSettings(kind="processes", stack=3, channels_last=False, workers=2),
}
SHARE = 0.3


class Merging(ClientRule):
    """SGD that takes in so much of a fresh model, and notes what it had before."""

    share: float = SHARE

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return replace(job, carry={"before": torch.zeros_like(job.start), "merges": torch.zeros_like(job.start[:, :1])})

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        share = torch.full_like(w[:, :1], self.share)
        return Merge(share, {"before": w.clone(), "merges": job.carry["merges"] + 1})

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return dict(job.carry), {}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


class Peeking(Merging):
    """Looks first, at both samples."""

    names: ClassVar[tuple[str, ...]] = ("loss batch", "g batch", "loss proxy", "g proxy")

    def begin(self, job: Job, oracle: Oracle) -> Job:
        job = super().begin(job, oracle)
        one, all_ = torch.zeros_like(job.start[:, :1]), torch.zeros_like(job.start)
        return replace(job, carry={**job.carry, **{name: all_ if name[0] == "g" else one for name in self.names}})

    def refresh(self, job: Job, w: Tensor, oracle: Oracle) -> Merge:
        merge = super().refresh(job, w, oracle)
        notes = dict(merge.notes)
        for on in ("batch", "proxy"):
            loss, g = oracle.peek(w, on)
            alone, _ = oracle.peek(w, on, gradient=False)
            assert g is not None
            torch.testing.assert_close(alone, loss, rtol=1e-12, atol=0)
            notes |= {f"loss {on}": loss, f"g {on}": g}
        return replace(merge, notes=notes)


class Careful(Merging):
    """The same by a step of its own, and not in the oracle's stead."""

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(w)


def tanh() -> nn.Module:
    """Without a closed form here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


MODELS = {"closed form": federation.net, "hidden": lambda: federation.net(5), "vmap": tanh}
JOBS = [(0, 3, 1), (1, 4, 3), (2, 2, 1), (3, 4, 2), (4, 5, 4), (5, 2, 0), (1, 3, 0), (3, 1, 0), (5, 4, 3)]
"""(Client, epochs, slot), where 0 is no fresh model."""


def shop(module: nn.Module, rule: ClientRule, **local: Any) -> Workshop:
    settings = LocalSettings(**{"batch_size": BATCH, **local})
    return Workshop(module.double(), federation.data().to(torch.float64), rule, settings, SEED)


def orders(module: nn.Module, jobs: list[tuple[int, int, int]]) -> list[Order]:
    """Two fresh models, and rates of each job's own."""
    flat = FlatModel(copy.deepcopy(module))
    w, buffers = flat.w.clone(), flat.buffers
    made = []
    for number, (client, epochs, slot) in enumerate(jobs):
        lr = torch.linspace(0.2, 0.1 + 0.01 * number, epochs, dtype=torch.float64)
        order = Order(number + 1, client, 1, epochs, w, buffers, lr, {}, {}, wave=number + 2, slot=slot)
        if slot:
            fresh = torch.cos(torch.arange(len(w), dtype=torch.float64) + number % 2)
            order = replace(order, fresh=Fresh(fresh, buffers * 2 + 1, 3))
        made.append(order)
    return made


def trained(executor: str, workshop: Workshop, made: list[Order]) -> Trained:
    worker = workshop.executor(EXECUTORS[executor])
    try:
        got = worker.train(made)
        return Trained({name: tensor.clone() for name, tensor in got.columns.items()})
    finally:
        worker.close()


def by_hand(module: nn.Module, order: Order, momentum: float) -> dict[str, Tensor]:
    """Plain PyTorch, one mini-batch after the other."""
    model = FlatModel(copy.deepcopy(module).train())
    each = -(-federation.SIZES[order.client] // BATCH)
    w, velocity, before = order.start, torch.zeros_like(order.start), torch.zeros_like(order.start)
    model.load(w, order.buffers)
    total, seen = 0.0, 0
    for step, (x, y) in enumerate(federation.batches(order.wave, order.client, order.epochs)):
        if order.slot and step == order.slot * each:
            assert order.fresh is not None
            before = w
            w = (1 - SHARE) * w + SHARE * order.fresh.w
            model.load(w, (1 - SHARE) * model.buffers + SHARE * order.fresh.buffers)
        model.load(w)
        loss = cross_entropy(model.forward(torch.tensor(x)), torch.tensor(y))
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, model.parameters)])
        velocity = momentum * velocity + g
        w = w - order.lr[step // each] * velocity
        total, seen = total + loss.item() * len(y), seen + len(y)
    loss_seen = torch.tensor(total / seen, dtype=torch.float64)
    merges = torch.tensor([float(order.slot > 0)], dtype=torch.float64)
    return {"w": w, "buffers": model.buffers, "loss": loss_seen, "message/before": before, "message/merges": merges}


def check(module: nn.Module, made: list[Order], got: Trained, momentum: float) -> None:
    for row, order in enumerate(made):
        for name, expected in by_hand(module, order, momentum).items():
            torch.testing.assert_close(got.columns[name][row], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("executor", slow_but(EXECUTORS, "serial", "one stack"))
def test_jobs_with_and_without_fresh_models_side_by_side(executor: str, model: str, momentum: float) -> None:
    module = MODELS[model]().double()
    made = orders(module, JOBS)
    check(module, made, trained(executor, shop(module, Merging(), momentum=momentum), made), momentum)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "one stack"])
def test_equal_jobs_and_a_step_of_the_rules_own(executor: str) -> None:
    module = federation.net().double()
    for jobs in ([(3, 3, 1)] * 3, [(3, 3, 2), (3, 3, 0), (3, 3, 1)], [(3, 2, 1)]):
        made = orders(module, jobs)
        for rule in (Merging(), Careful()):
            check(module, made, trained(executor, shop(module, rule), made), 0.0)


@pytest.mark.parametrize("executor", slow_but(["serial", "processes"], "serial"))
def test_statistics_are_merged_with_the_same_share(executor: str) -> None:
    """Clients whose mini-batches are all larger than one; the counter of mini-batches is rounded."""
    module = normed().double()
    made = orders(module, [(0, 4, 1), (2, 3, 2), (3, 2, 1), (5, 3, 0), (5, 4, 3)])
    check(module, made, trained(executor, shop(module, Merging()), made), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(EXECUTORS, "serial", "one stack"))
@pytest.mark.parametrize("model", MODELS)
def test_peeks_are_losses_and_gradients_as_they_are(model: str, executor: str) -> None:
    """Neither clipped nor decayed, of the mini-batch that comes next or of the others' samples."""
    module = MODELS[model]().double()
    made = orders(module, JOBS)
    workshop = shop(module, Peeking(), clip_norm=0.01, weight_decay=0.1)
    got = trained(executor, workshop, made)
    flat = FlatModel(copy.deepcopy(module))
    for row, order in enumerate(made):
        if not order.slot:
            assert not any(got.messages[name][row].any() for name in Peeking.names)
            continue
        flat.load(got.messages["before"][row])
        each = -(-federation.SIZES[order.client] // BATCH)
        x, y = list(federation.batches(order.wave, order.client, order.epochs))[order.slot * each]
        batches = Batches(workshop.data, workshop.local, SEED, [1], [order.client], [1])
        others = batches.proxy(np.arange(1))
        for on, samples in (("batch", (torch.tensor(x), torch.tensor(y))), ("proxy", (others.x[0], others.y[0]))):
            loss = cross_entropy(flat.forward(samples[0]), samples[1])
            g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, flat.parameters)])
            torch.testing.assert_close(got.messages[f"loss {on}"][row, 0], loss.detach(), rtol=0, atol=1e-12)
            torch.testing.assert_close(got.messages[f"g {on}"][row], g, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("executor", ["serial", "one stack"])
def test_a_peek_leaves_no_trace(executor: str, momentum: float) -> None:
    """To the bit: weights, statistics, losses; dropout draws what it would have drawn."""
    serial = executor == "serial"
    module = (normed(0.4) if serial else federation.net(5)).double()
    made = orders(module, [(0, 4, 1), (2, 3, 2), (3, 2, 1), (5, 3, 0), (5, 4, 3)])
    plain, peeked = (trained(executor, shop(module, rule, momentum=momentum), made) for rule in (Merging(), Peeking()))
    for name, tensor in plain.columns.items():
        if name != "lr":  # says nothing behind a job's last epoch
            assert torch.equal(peeked.columns[name], tensor), name
    assert bool(peeked.messages["loss proxy"][0] > 0)


def test_a_share_of_nothing_and_a_job_that_was_not_answered_are_plain_training() -> None:
    module = federation.net().double()
    made = orders(module, JOBS)
    ignored = trained("one stack", shop(module, Merging(share=0.0)), made)
    unanswered = [replace(order, fresh=None) for order in made]
    plain = trained("one stack", shop(module, Merging()), unanswered)
    assert torch.equal(ignored.w, plain.w)
    assert not plain.messages["merges"].any()
    alone = trained("serial", shop(module, Merging()), unanswered)
    torch.testing.assert_close(alone.w, plain.w, rtol=0, atol=1e-12)


def test_a_share_of_one_starts_again_from_the_fresh_model() -> None:
    module = federation.net().double()
    (order,) = orders(module, [(3, 3, 2)])
    got = trained("serial", shop(module, Merging(share=1.0)), [order])
    assert order.fresh is not None
    w = order.fresh.w.numpy()
    for x, y in list(federation.batches(order.wave, 3, 3))[6:]:
        w = w - float(order.lr[2]) * federation.gradient(w, x, y)
    np.testing.assert_allclose(got.w[0], w, rtol=0, atol=1e-12)


def test_proxy_samples_are_others_and_always_the_same() -> None:
    data, local = federation.data().to(torch.float64), LocalSettings(batch_size=BATCH)
    largest_first = sorted(range(N), key=lambda client: -federation.SIZES[client])
    together = Batches(data, local, SEED, [1] * N, largest_first, [1] * N).proxy(np.arange(N))
    assert together.x.shape == (N, PROXY, FEATURES)
    for row, client in enumerate(largest_first):
        for wave in (1, 9):
            alone = Batches(data, local, SEED, [wave], [client], [2]).proxy(np.arange(1))
            assert torch.equal(alone.x[0], together.x[row])
            assert torch.equal(alone.y[0], together.y[row])
        own = {tuple(sample) for sample in federation.clients()[client][0].tolist()}
        assert not own & {tuple(sample) for sample in together.x[row].tolist()}
    other = Batches(data, local, SEED + 1, [1], [largest_first[0]], [1]).proxy(np.arange(1))
    assert not torch.equal(other.x[0], together.x[0])

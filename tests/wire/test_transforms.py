"""Uploads on their way: clipped, cast, charged as sent; against numbers worked out in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import (
    ClientRule,
    Experiment,
    FedkeelError,
    InputError,
    Job,
    Layout,
    Message,
    Oracle,
    RoundEnd,
    Sends,
    run,
    streams,
)
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.registry import find
from fedkeel.params import FlatModel
from fedkeel.wire.cast import Cast
from fedkeel.wire.clip import Clip
from fedkeel.wire.orders import Order
from fedkeel.wire.sizes import Sizes
from fedkeel.wire.transform import Chain, Size, Transform, Upload
from tests.helpers import federation
from tests.helpers.federation import EPOCHS, EXECUTORS, LR, SIZES, Vector


def through(chain: Chain, update: torch.Tensor, messages: Message, kept: Message) -> tuple[Upload, Message]:
    """Encoded and decoded again, and what is kept."""
    sent, after = chain.encode(Upload(update, messages), kept, KEYS)
    return chain.decode(sent, update), after


def KEYS(number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:  # noqa: N802, ARG001
    return np.zeros(2, dtype=np.uint64)


LOCAL = LocalSettings(epochs=1, batch_size=4, lr=LR)
D = federation.FEATURES * federation.CLASSES
CAST = {"kind": "cast", "dtype": "float16"}
CLIP = {"kind": "clip", "norm": 0.05}


def locally(x: Vector, round: int, client: int) -> Vector:
    w = x.copy()
    for batch in federation.batches(round, client, EPOCHS):
        w = w - LR * federation.gradient(w, *batch)
    return w


def by_hand(rounds: int, norm: float | None, half: bool, feedback: bool = False) -> Vector:
    """FedAvg with updates that are scaled down to `norm` and rounded to float16, in numpy."""
    x, rest = federation.start(), {client: np.zeros(D) for client in range(federation.N)}
    for round in range(1, rounds + 1):
        updates, clients = [], federation.chosen(round)
        for client in clients:
            update = locally(x, round, client) - x
            if norm is not None:
                update = update * min(1.0, norm / np.linalg.norm(update))
            whole = update + rest[client] if feedback else update
            sent = whole.astype(np.float16).astype(np.float64) if half else whole
            rest[client] = whole - sent
            updates.append(sent)
        x = x + np.average(updates, axis=0, weights=[SIZES[client] for client in clients])
    return x


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ([CLIP], {"norm": 0.05, "half": False}),
        ([CAST], {"norm": None, "half": True}),
        ([CLIP, CAST], {"norm": 0.05, "half": True}),
        ([{**CAST, "feedback": True}], {"norm": None, "half": True, "feedback": True}),
    ],
    ids=["clip", "cast", "both", "feedback"],
)
def test_a_run_by_hand(executor: str, wire: Any, expected: dict[str, Any]) -> None:
    result, _ = federation.train("fedavg", executor, wire=wire)
    hand = by_hand(federation.ROUNDS, **expected)
    np.testing.assert_allclose(federation.weights(result), hand, rtol=0, atol=1e-10)
    plain = by_hand(federation.ROUNDS, None, False)
    assert np.abs(hand - plain).max() > 1e-6


@pytest.mark.parametrize(("wire", "width"), [([], 8), ([CLIP], 8), ([CAST], 2), ([CLIP, CAST], 2)])
def test_uploads_are_charged_as_sent(wire: Any, width: int) -> None:
    """SCAFFOLD's control variates go through, too; FedNova's counts and FedAgg's sums do not."""
    for name, up in (
        ("fedavg", D * width),
        ("scaffold", 2 * D * width),
        ("fednova", D * width + 2 * 8),
        ("fedagg", D * width + 2 * EPOCHS * D * 8),
    ):
        result, ends = federation.train(name, rounds=2, wire=wire)
        arrivals = [arrival for end in ends for arrival in end.arrivals]
        assert {arrival.bytes_up for arrival in arrivals} == {up}
        assert result.summary["bytes_up"] == up * len(arrivals)


def test_an_upload_of_fewer_bytes_takes_less_time() -> None:
    fleet = {"uplink_mbps": 8e-6}  # a byte a second
    times = [federation.train("fedavg", rounds=1, wire=wire, fleet=fleet)[1] for wire in ([], [CAST])]
    slow, fast = ([arrival.arrived - arrival.finished for arrival in ends[0].arrivals] for ends in times)
    assert slow == pytest.approx([8 * D] * 3)
    assert fast == pytest.approx([2 * D] * 3)


@pytest.mark.parametrize("executor", ["serial", "stack 3", "processes"])
def test_what_overflows_is_refused_by_the_gate(executor: str) -> None:
    ends: list[RoundEnd] = []
    asked = Experiment(
        algorithm="fedavg",
        rounds=1,
        per_round=3,
        seed=federation.SEED,
        dtype="float64",
        local={"epochs": EPOCHS, "batch_size": 4, "lr": 1e6},
        executor=EXECUTORS[executor],
        wire=[CAST],
        gate={"max_loss": 1e30},
    )
    run(asked, data=federation.data(), model=federation.net(), progress=ends.append)
    assert {row.reason for row in ends[0].refused} == {"not finite"}
    assert len(ends[0].refused) + len(ends[0].arrivals) == 3


def test_clients_without_weights_have_nothing_to_clip() -> None:
    with pytest.raises(
        InputError, match="wire=clip needs clients that send weights, and those of fedgh send none; remove it"
    ):
        Experiment(algorithm="fedgh", wire=[CLIP])
    assert Experiment(algorithm="fedgh", wire=["cast"]).wire == (Cast(),)


def test_a_transform_without_a_kind_is_told() -> None:
    with pytest.raises(InputError, match=r"wire: \{'norm': 3\} has no kind; add kind: cast or kind: clip"):
        Experiment(wire=[{"norm": 3}])


def test_a_stack_is_clipped_client_by_client() -> None:
    update = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    read, kept = through(Chain([Clip(norm=1)]), update, {"m": 10 * update}, {})
    np.testing.assert_allclose(read.update, [[0.6, 0.8], [0.3, 0.4]])
    assert torch.equal(read.messages["m"], 10 * update)
    assert kept == {}


def test_error_feedback_loses_nothing_in_the_long_run() -> None:
    """Bits that float16 cannot hold beside 1 come through after enough updates."""
    chain = Chain([Cast(feedback=True)])
    kept, total = {name: t.expand(2, -1) for name, t in chain.initial(torch.zeros(1, dtype=torch.float64)).items()}, 0.0
    update = torch.full((2, 1), 1 + 2**-14, dtype=torch.float64)
    for _ in range(64):
        read, kept = through(chain, update, {}, kept)
        total += float(read.update[0])
    assert total == pytest.approx(64 * (1 + 2**-14), abs=2**-10)
    plain, _ = through(Chain([Cast()]), update, {}, {})
    assert float(plain.update[0]) == 1.0


@pytest.mark.parametrize("feedback", [False, True])
def test_messages_travel_in_two_bytes_and_come_back_in_the_weights_type(feedback: bool) -> None:
    chain = Chain([Cast(dtype="bfloat16", feedback=feedback)])
    message, update = torch.tensor([[1.0001], [2.0]]), torch.ones(2, 3)
    kept = {name: tensor.expand(2, -1) for name, tensor in chain.initial(update[0]).items()}
    sent, _ = chain.encode(Upload(update, {"m": message, "flat": message[:, 0]}), kept, KEYS)
    assert {each.dtype for each in (sent.update, *sent.messages.values())} == {torch.bfloat16}
    read = chain.decode(sent, update)
    assert {each.dtype for each in (read.update, *read.messages.values())} == {torch.float32}
    assert read.messages["m"].tolist() == [[1.0], [2.0]]


def test_fine_tuned_models_do_not_travel() -> None:
    """FedBABU tests clients' own models after five more epochs, which no transform changes."""
    net = federation.net(4)
    runs = [
        federation.train("fedbabu", model=net, wire=wire, rounds=1)[0] for wire in ([], [{**CAST, "feedback": True}])
    ]
    plain, cast = (run.finetuned_accuracy for run in runs)
    assert plain is not None
    assert cast is not None
    assert cast.tolist() == pytest.approx(plain.tolist(), nan_ok=True)


@pytest.mark.parametrize("executor", ["serial", "stack 3", "processes, stack 2"])
def test_what_a_client_keeps_of_its_own_stays_as_it_was_trained(executor: str) -> None:
    """MOON keeps its whole model, from which clipping must not take anything."""
    wire = [{"kind": "clip", "norm": 1e-6}]
    kept = []
    for each in ([], wire):
        result, _ = federation.train("moon", executor, federation.net(4), rounds=1, wire=each)
        kept.append(result.simulation.world.desk.kept)
    assert kept[0].keys() == kept[1].keys()
    for client, own in kept[0].items():
        torch.testing.assert_close(own["w"], kept[1][client]["w"], rtol=0, atol=1e-12)


class Personal(ClientRule):
    """Sends half of the weights; keeps the others, and sends their norm."""

    uploads = "body"

    def end(self, job: Job, w: torch.Tensor, oracle: Oracle) -> tuple[Message, Message]:
        own = w[:, 3:]
        return {"norm": own.norm(dim=-1)}, {"own": own}

    def sends(self, layout: Layout, received: Message) -> dict[str, Sends]:
        return {"norm": Sends(1)}


@pytest.mark.parametrize("executor", ["serial", "stack 3", "processes, stack 2"])
def test_weights_that_do_not_travel_stay_as_they_were_trained(executor: str) -> None:
    """Also where a rule keeps a slice of them, and where the server's copy is put into the memory they were in."""
    data, model = federation.data().to(torch.float64), FlatModel(federation.net(4).double())
    rates = torch.full((1,), LR, dtype=torch.float64)
    body, found = model.layout.mask("body"), []
    for chain in (Chain(), Chain([Clip(norm=1e-6), Cast(feedback=True)])):
        shop = Workshop(model.module, data, Personal(), LOCAL, 1, chain)
        first = chain.initial(model.w[body])
        orders = [Order(1, client, 1, 1, model.w, model.buffers, rates, {}, first) for client in range(federation.N)]
        executing = shop.executor(ExecutorSettings(**EXECUTORS[executor]))
        found.append([executing.train(orders) for _ in range(2)][1])  # the second time, memory is used again
        executing.close()
    plain, changed = found
    torch.testing.assert_close(changed.kept["own"], plain.w[:, 3:], rtol=0, atol=1e-12)
    torch.testing.assert_close(changed.w[:, ~body], plain.w[:, ~body], rtol=0, atol=1e-12)
    update = changed.w[:, body] - model.w[body]
    assert 0 < float(update.norm(dim=-1).max()) < 1.1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bound_of_the_gate_and_clipping_to_it_go_together(dtype: str) -> None:
    gate = {"max_norm": 0.05}
    cast = {"kind": "cast", "dtype": dtype, "feedback": True}
    _, ends = federation.train("fedavg", "stack 3", wire=[CLIP, cast], gate=gate)
    assert all(not end.refused for end in ends)
    assert sum(len(end.arrivals) for end in ends) == 3 * federation.ROUNDS


def test_stacks_are_accepted_with_error_feedback() -> None:
    """What rounding leaves differs in every bit that rounds otherwise: the agreement check looks before the wire."""
    wire = [{"kind": "cast", "dtype": "bfloat16", "feedback": True}]
    model = torch.nn.Sequential(torch.nn.Linear(federation.FEATURES, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 2))
    federation.train("fedavg", "stack 3", model, rounds=1, wire=wire, dtype="float32")


class Counting(ClientRule):
    wide: bool = False

    def end(self, job: Job, w: torch.Tensor, oracle: Oracle) -> tuple[Message, Message]:
        counts = torch.full_like(job.samples, 80_001)
        return {"count": counts, "real": counts.to(w), "cast": counts.to(w)}, {}

    def sends(self, layout: Layout, received: Message) -> dict[str, Sends]:
        count = Sends(1) if self.wide else Sends(1, nbytes=8)
        return {"count": count, "real": Sends(1, exact=True), "cast": Sends(1)}


def test_counts_are_not_cast_and_must_be_declared_as_such() -> None:
    data, model = federation.data().to(torch.float64), FlatModel(federation.net().double())
    for wide in (False, True):
        shop = Workshop(model.module, data, Counting(wide=wide), LOCAL, 1, Chain([Cast()]))
        executor = shop.executor(ExecutorSettings(kind="serial", stack=0, channels_last=False))
        order = Order(1, 1, 1, 1, model.w, model.buffers, torch.full((1,), LR, dtype=torch.float64), {}, {})
        if wide:
            with pytest.raises(FedkeelError, match=r"sends 'count'.*nbytes=8"):
                executor.train([order])
        else:
            read = executor.train([order]).messages
            assert {name: float(tensor) for name, tensor in read.items()} == {
                "count": 80_001,
                "real": 80_001,
                "cast": float("inf"),
            }
            layout = model.layout
            sizes = Sizes(shop.rule, find("fedavg").server(), layout, 8, Chain([Cast()]), lambda: np.zeros(1))
            assert sizes.uploads(np.array([1]), {}).tolist() == [2 * layout.size + 8 + 8 + 2]


class Largest(Transform):
    """Sends the largest numbers of an update and their places, and keeps the others for the next time."""

    kind: str = "largest"
    count: int = 3

    def initial(self, w: torch.Tensor) -> Message:
        return {"rest": torch.zeros_like(w)}

    def encode(self, upload: Upload, kept: Message, keys: Any) -> tuple[Upload, Message]:
        whole = upload.update + kept["rest"]
        places = whole.abs().topk(self.count, dim=-1).indices
        sent = replace(upload, update=whole.gather(-1, places), beside={**upload.beside, "places": places.int()})
        return sent, {"rest": whole.scatter(-1, places, 0.0)}

    def decode(self, upload: Upload, start: torch.Tensor) -> Upload:
        places = upload.beside["places"].long()
        return replace(upload, update=torch.zeros_like(start).scatter(-1, places, upload.update))

    def size(self, before: Size, update: bool) -> Size:
        return replace(before, numbers=self.count, beside=before.beside + 4 * self.count) if update else before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "transforms",
    [[], [Clip(norm=1)], [Cast()], [Largest()], [Clip(norm=1), Cast(feedback=True)], [Largest(), Cast()],
     [Clip(norm=1), Largest(), Cast(dtype="bfloat16")]],
    ids=lambda chain: "+".join(each.kind for each in chain) or "plain",
)  # fmt: skip
def test_what_is_charged_is_what_is_encoded(transforms: list[Transform], dtype: torch.dtype) -> None:
    """Also with a transform that sends fewer numbers, and something beside them."""
    chain = Chain(transforms)
    update = torch.randn(2, 10, dtype=dtype, generator=torch.Generator().manual_seed(0))
    kept = {name: tensor.expand(2, -1) for name, tensor in chain.initial(update[0]).items()}
    sent, _ = chain.encode(Upload(update, {"m": update[:, :4]}), kept, KEYS)
    tensors = [sent.update, *sent.messages.values(), *sent.beside.values()]
    charged = chain.nbytes(10, dtype.itemsize, update=True) + chain.nbytes(4, dtype.itemsize, update=False)
    assert charged == sum(each[0].numel() * each.element_size() for each in tensors)
    read = chain.decode(sent, update)
    assert (read.update.shape, read.update.dtype) == (update.shape, dtype)
    if transforms == [Largest()]:
        assert (read.update != 0).sum(-1).tolist() == [3, 3]
        assert torch.equal(read.update[read.update != 0], update[read.update != 0])


def test_each_transform_has_random_streams_of_its_own() -> None:
    seen = []

    class Noted(Clip):
        def encode(self, upload: Upload, kept: Message, keys: Any) -> tuple[Upload, Message]:
            seen.append(keys.tolist())
            return super().encode(upload, kept, keys)

    chain = Chain([Noted(norm=1), Noted(norm=1)])
    chain.encode(Upload(torch.ones(2, 3), {}), {}, lambda number: streams.keys(7, "wire", number, np.arange(2)))
    assert len({key for keys in seen for key in keys}) == 4

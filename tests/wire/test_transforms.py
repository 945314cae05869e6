"""Uploads on their way: clipped, cast, charged as sent; against numbers worked out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import Experiment, InputError, RoundEnd, run
from fedkeel.wire.cast import Cast
from fedkeel.wire.clip import Clip
from fedkeel.wire.transform import Chain, Upload
from tests.helpers import federation
from tests.helpers.federation import EPOCHS, EXECUTORS, LR, SIZES, Vector

KEYS = np.zeros(2, dtype=np.uint64)
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
    with pytest.raises(InputError, match="clip needs clients that send weights"):
        Experiment(algorithm="fedgh", wire=[CLIP])
    assert Experiment(algorithm="fedgh", wire=["cast"]).wire == (Cast(),)


def test_a_stack_is_clipped_client_by_client() -> None:
    update = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    read, kept = Chain([Clip(norm=1)]).through(Upload(update, {"m": 10 * update}), {}, KEYS)
    np.testing.assert_allclose(read.update, [[0.6, 0.8], [0.3, 0.4]])
    assert torch.equal(read.messages["m"], 10 * update)
    assert kept == {}


def test_error_feedback_loses_nothing_in_the_long_run() -> None:
    """Bits that float16 cannot hold beside 1 come through after enough updates."""
    chain = Chain([Cast(feedback=True)])
    kept, total = {name: t.expand(2, -1) for name, t in chain.initial(torch.zeros(1, dtype=torch.float64)).items()}, 0.0
    update = torch.full((2, 1), 1 + 2**-14, dtype=torch.float64)
    for _ in range(64):
        read, kept = chain.through(Upload(update, {}), kept, KEYS)
        total += float(read.update[0])
    assert total == pytest.approx(64 * (1 + 2**-14), abs=2**-10)
    plain, _ = Chain([Cast()]).through(Upload(update, {}), {}, KEYS)
    assert float(plain.update[0]) == 1.0


def test_messages_come_back_in_their_own_type() -> None:
    message = torch.tensor([[1.0001], [2.0]], dtype=torch.float32)
    read, _ = Chain([Cast(dtype="bfloat16")]).through(
        Upload(torch.ones(2, 3, dtype=torch.float64), {"m": message}), {}, KEYS
    )
    assert (read.update.dtype, read.messages["m"].dtype) == (torch.float64, torch.float32)
    assert read.messages["m"].tolist() == [[1.0], [2.0]]

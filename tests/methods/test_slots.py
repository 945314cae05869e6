"""When devices ask for a fresh model: fixed slots, the device's table and the server's LSTM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.methods.fedasmu import AsynchronousMixing, FreshMerge
from fedkeel.methods.slots import ACTIONS, HIDDEN, SLOTS, Proposals, Timing, first_meta, slot_log_probabilities
from tests.helpers import arrivals
from tests.helpers.fedasmu import probabilities_by_hand
from tests.helpers.federation import Vector

LEARNT = Timing(slot="learned", epsilon=0.2)
W = torch.zeros(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, [0, 1, 1, 2, 2, 5]),
        ({"slot_epoch": 3}, [0, 1, 2, 3, 3, 3]),
        ({"slot": "first"}, [0, 1, 1, 1, 1, 1]),
        ({"slot": "middle", "slot_epoch": 3}, [0, 1, 1, 2, 2, 5]),
        ({"slot": "penultimate"}, [0, 1, 2, 3, 4, 9]),
    ],
)
def test_fixed_slots_lie_within_a_job(settings: dict[str, Any], slots: list[int]) -> None:
    rule = FreshMerge(**settings)
    assert [rule.asks_after({}, {}, epochs, (0.0, 0.0)) for epochs in (1, 2, 3, 4, 5, 10)] == slots


def table(asked: int, **rows: list[float]) -> dict[str, torch.Tensor]:
    """What a device keeps; `s2=[...]` is the row of slot 2: stay, add, minus."""
    kept = dict(LEARNT.first_table(W))
    kept["asked"] = torch.tensor([asked])
    kept["values"] = kept["values"].clone()
    for name, row in rows.items():
        kept["values"][int(name[1:]) - 1] = torch.tensor(row)
    return kept


@pytest.mark.parametrize(
    ("kept", "epochs", "draws", "slot"),
    [
        (table(2, s2=[0, 0, 0]), 5, (0.2, 0.99), 2),  # of equals, stay
        (table(2, s2=[-1, 0.5, 0]), 5, (0.2, 0), 3),
        (table(2, s2=[-1, 0.5, 0.7]), 5, (0.2, 0), 1),
        (table(4, s4=[-1, 9, -2]), 5, (0.2, 0), 4),  # there is no slot 5
        (table(1, s1=[-1, -2, 9]), 5, (0.2, 0), 1),  # nor a slot 0
        (table(9, s4=[-1, 0, -0.5]), 5, (0.2, 0), 3),  # a shorter job than the last
        (table(2, s2=[9, 0, 0]), 5, (0.19, 0.0), 2),
        (table(2, s2=[9, 0, 0]), 5, (0.19, 0.34), 3),
        (table(2, s2=[9, 0, 0]), 5, (0.19, 0.99), 1),
        (table(4, s4=[9, 0, 0]), 5, (0.19, 0.5), 3),
        (table(3), 1, (0.0, 0.5), 0),
        (table(3), 2, (0.0, 0.5), 1),
    ],
)
def test_a_device_goes_where_its_table_says(kept: Any, epochs: int, draws: tuple[float, float], slot: int) -> None:
    assert LEARNT.learnt_slot(kept, {}, epochs, draws) == slot


@pytest.mark.parametrize(
    ("epochs", "draws", "slot"),
    [
        (5, (0.2, 0.0), 1),
        (5, (0.2, 0.11), 2),  # cumulated shares of the first four: .1, .5, .6, 1
        (5, (0.2, 0.49), 2),
        (5, (0.2, 0.51), 3),
        (5, (0.2, 0.999999), 4),
        (3, (0.2, 0.19), 1),  # of the first two: .2, 1
        (3, (0.2, 0.21), 2),
        (5, (0.1, 0.3), 2),  # by chance: .25, .5, .75, 1
        (5, (0.1, 0.9), 4),
        (2, (0.9, 0.9), 1),
        (1, (0.9, 0.9), 0),
    ],
)
def test_the_first_slot_is_drawn_as_the_server_proposes(epochs: int, draws: tuple[float, float], slot: int) -> None:
    proposal = torch.zeros(SLOTS)
    proposal[:4] = torch.tensor([0.05, 0.2, 0.05, 0.2])
    assert LEARNT.learnt_slot(table(0), {"proposal": proposal}, epochs, draws) == slot


def test_without_a_proposal_a_device_begins_in_the_middle() -> None:
    assert LEARNT.learnt_slot(table(0), {}, 7, (0.5, 0.5)) == 3


@given(st.integers(1, 100), st.integers(0, SLOTS), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_learnt_slot_is_always_one_of_the_job(epochs: int, asked: int, first: float, second: float) -> None:
    proposal = {"proposal": torch.linspace(1, 2, SLOTS)}
    slot = LEARNT.learnt_slot(table(asked), proposal, epochs, (first, second))
    assert min(1, epochs - 1) <= slot <= min(epochs - 1, SLOTS)


def q_by_hand(values: Vector, before: int, slot: int, last: int, reward: float, rate: float, discount: float) -> Vector:
    """Eq. 8, H as a dictionary by slot and action."""
    h = {(place + 1, action): values[place, column] for place in range(SLOTS) for column, action in enumerate(ACTIONS)}
    best = max(h[slot, action] for action in (-1, 0, 1) if 1 <= slot + action <= last)
    key = before, slot - before
    h[key] = h[key] + rate * (reward + discount * best - h[key])
    return np.array([[h[place + 1, action] for action in ACTIONS] for place in range(SLOTS)])


def test_the_table_learns_by_hand_alone_and_in_a_stack() -> None:
    rng = np.random.default_rng(0)
    rule = Timing(slot="learned", q_lr=0.3, q_discount=0.7)
    values = rng.normal(size=(5, SLOTS, 3))
    asked, slot, epochs, reward = [3, 1, 9, 4, 0], [4, 1, 4, 0, 2], [6, 3, 5, 6, 6], rng.normal(size=5)
    numbers = [torch.tensor(each)[:, None] for each in (slot, epochs, reward)]
    kept = {"asked": torch.tensor(asked)[:, None], "values": torch.tensor(values)}
    after = rule.learnt_table(kept, *numbers)
    assert after["asked"].tolist() == [[4], [1], [4], [4], [2]]  # no merge leaves the slot as it was
    for row in (0, 1):
        hand = q_by_hand(values[row], asked[row], slot[row], epochs[row] - 1, reward[row], 0.3, 0.7)
        np.testing.assert_allclose(after["values"][row], hand, rtol=1e-12)
        assert (hand != values[row]).sum() == 1
    hand = q_by_hand(values[2], 4, 4, 4, reward[2], 0.3, 0.7)  # slot 9 does not exist in a job of five epochs
    np.testing.assert_allclose(after["values"][2], hand, rtol=1e-12)
    np.testing.assert_array_equal(after["values"][3:], values[3:])  # no merge, and a first one
    for row in range(5):
        alone = rule.learnt_table({name: t[row] for name, t in kept.items()}, *(each[row] for each in numbers))
        assert all(torch.equal(alone[name], after[name][row]) for name in alone)


def test_the_lstm_by_hand() -> None:
    meta = torch.tensor(np.random.default_rng(0).normal(size=first_meta().shape))
    for count in (1, 4, 9):
        got = slot_log_probabilities(meta, count).exp()
        np.testing.assert_allclose(got, probabilities_by_hand(meta.numpy(), count), rtol=1e-10)
    first = slot_log_probabilities(first_meta(), 4).exp()
    assert 0.15 < float(first.min()) < float(first.max()) < 0.4  # no slot is favoured much before it has learnt
    np.testing.assert_allclose(
        slot_log_probabilities(meta, SLOTS).exp()[:4] / slot_log_probabilities(meta, SLOTS).exp()[:4].sum(),
        slot_log_probabilities(meta, 4).exp(),
    )


def first_update(slot: int, before: float, after: float, epochs: int = 5) -> Any:
    told: dict[str, Any] = {"slot": torch.tensor([[slot]]), "fresh": torch.zeros(1, 2, dtype=torch.float64)}
    messages = {"loss_before": before, "loss_after": after, "merge_weight": 0.2}
    return arrivals.arrival([1.0, 2.0], [0.0, 0.0], epochs=epochs, steps=epochs, messages=messages, **told)


def test_the_policy_gradient_is_that_of_log_p() -> None:
    rule = Proposals(slot="learned", meta_lr=0.5, baseline_rate=0.25)
    memory = {**rule.first_memory(W, 3), "baseline": torch.tensor([2.0]).double()}
    after = rule.learnt_memory(memory, first_update(3, 5.0, 1.0), 1)
    baseline = 0.75 * 2 + 0.25 * 4
    assert float(after["baseline"]) == pytest.approx(baseline)
    meta, step = memory["meta"].numpy(), 1e-6
    moved = (after["meta"] - memory["meta"]).numpy() / (0.5 * (4 - baseline))
    for place in [5, 300, HIDDEN, len(meta) - 3, len(meta) - 1]:
        high, low = meta.copy(), meta.copy()
        high[place] += step
        low[place] -= step
        slope = (np.log(probabilities_by_hand(high, 4)[2]) - np.log(probabilities_by_hand(low, 4)[2])) / (2 * step)
        assert moved[place] == pytest.approx(slope, rel=1e-5, abs=1e-8)
    assert np.abs(moved).max() > 1e-2
    np.testing.assert_allclose(after["proposal"], probabilities_by_hand(after["meta"].numpy(), SLOTS), rtol=1e-9)


def test_only_the_first_merge_of_a_device_teaches_the_server() -> None:
    rule = Proposals(slot="learned")
    memory = rule.first_memory(W, 3)
    assert rule.learnt_memory(memory, first_update(0, 0.0, 0.0), 1) is memory
    once = rule.learnt_memory(memory, first_update(2, 1.0, 0.5), 1)
    assert once["met"].tolist() == [False, True, False]
    assert rule.learnt_memory(once, first_update(2, 1.0, 0.5), 1) is once
    assert {client: sorted(rule.proposal(once, client)) for client in range(3)} == {
        0: ["proposal"],
        1: [],
        2: ["proposal"],
    }
    assert memory["met"].tolist() == [False] * 3


def test_rewards_raise_the_odds_of_a_slot() -> None:
    rule, rng, best = Proposals(slot="learned", meta_lr=1.0), np.random.default_rng(0), 1
    memory = rule.first_memory(W, 30)
    first = odds = probabilities_by_hand(memory["meta"].numpy(), 4)
    for client in range(30):
        slot = 1 + int(rng.choice(4, p=odds))
        memory = rule.learnt_memory(memory, first_update(slot, 1.0 if slot == best else 0.0, 0.0), client)
        odds = probabilities_by_hand(memory["meta"].numpy(), 4)
    assert odds[best - 1] > 1.5 * first[best - 1]
    assert odds.argmax() == best - 1


@pytest.mark.parametrize("ablation", ["none", "DA"])
def test_the_server_rule_learns_at_arrivals(ablation: Any) -> None:
    rule = AsynchronousMixing(slot="learned", ablation=ablation, staleness_bound=3)
    state = rule.init(W, arrivals.layout_of(2), torch.ones(4))
    assert rule.send(state, 2)["proposal"].shape == (SLOTS,)
    stale, _ = rule.receive(state, first_update(2, 1.0, 0.5), arrivals.view(5, 0, client=2))
    assert stale.memory is state.memory
    after, _ = rule.receive(state, first_update(2, 1.0, 0.5), arrivals.view(5, client=2))
    assert rule.send(after, 2) == {}
    assert not torch.equal(after.memory["meta"], state.memory["meta"])
    for plain in (AsynchronousMixing(), AsynchronousMixing(slot="learned", ablation="FA")):
        assert plain.send(plain.init(W, arrivals.layout_of(2), torch.ones(4)), 2) == {}

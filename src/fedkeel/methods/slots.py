"""When a device asks for a fresh global model: after how many of its L epochs (FedASMU, Section 4.3.1).

With a learnt slot, a device draws the slot of its first merge from the server's LSTM, which Eq. 7 trains by policy
gradient. From then on it moves one epoch up or down, or stays, by a table of its own (Eq. 8).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedkeel.config.section import Section
from fedkeel.methods.server import Message, Updates
from fedkeel.methods.types import Chance

SLOTS = 64
"""The latest slot that can be learnt."""
ACTIONS = (0, 1, -1)
"""Stay, add, minus; among equally good ones, the first is taken. Erratum: the paper prints +1 for stay, too."""
HIDDEN = 16
"""The size of the LSTM's hidden state."""
RARE = -2.0
"""The first bias of the LSTM's decisions: about one in eight asks, so that early slots have little advantage."""


class Requests(Section):
    """What client and server both must know."""

    slot: Literal["fixed", "first", "middle", "penultimate", "learned"] = "fixed"
    """When a device asks for a fresh model: after `slot_epoch` epochs (`fixed`), after the first epoch (`first`), in
    the middle (`middle`), before the last epoch (`penultimate`), or when it has learnt that it helps (`learned`)."""


class Timing(Requests):
    """How a device chooses its slot in 1 .. L - 1; a job of one epoch has none."""

    slot_epoch: PositiveInt | None = None
    """With `slot: fixed`: the number of epochs before the request. The default is half of the epochs, rounded down."""
    epsilon: Chance = 0.1
    """With `slot: learned`: the probability that a device chooses at random."""
    q_lr: Chance = 0.1
    """With `slot: learned`: the learning rate of a device's table (phi in Eq. 8)."""
    q_discount: Chance = 0.9
    """With `slot: learned`: the discount factor of a device's table (psi in Eq. 8)."""

    def fixed_slot(self, epochs: int) -> int:
        """The slot if it is not learnt; 0: there is none."""
        wanted = {"first": 1, "penultimate": epochs - 1}.get(self.slot, epochs // 2)
        if self.slot == "fixed" and self.slot_epoch is not None:
            wanted = self.slot_epoch
        return min(wanted, epochs - 1)

    def first_table(self, w: Tensor) -> Message:
        """What a device keeps: its last slot [1], 0 before the first merge, and H [SLOTS, 3]."""
        table = torch.zeros(SLOTS, len(ACTIONS), dtype=w.dtype, device=w.device)
        return {"asked": torch.zeros(1, dtype=torch.int64, device=w.device), "values": table}

    def learnt_slot(self, kept: Message, received: Message, epochs: int, draws: tuple[float, float]) -> int:
        """Epsilon-greedy; before the first merge, drawn from the LSTM's probabilities, as Eq. 7 assumes."""
        last = min(epochs - 1, SLOTS)
        before, chance = min(int(kept["asked"]), last), draws[0] < self.epsilon
        if not before:
            if not last or "proposal" not in received:
                return self.fixed_slot(epochs)
            odds = received["proposal"][:last].double()
            odds = (torch.ones_like(odds) if chance else odds).cumsum(0)
            return 1 + min(int((odds <= draws[1] * odds[-1]).sum()), last - 1)
        values = dict(zip(ACTIONS, kept["values"][before - 1].tolist(), strict=True))
        actions = [action for action in ACTIONS if 1 <= before + action <= last]
        action = actions[int(draws[1] * len(actions))] if chance else max(actions, key=values.__getitem__)
        return before + action

    def learnt_table(self, kept: Message, slot: Tensor, epochs: Tensor, reward: Tensor) -> Message:
        """Eq. 8 after a merge with that reward; `slot`, `epochs` and `reward` are [..., 1], a slot of 0 is no merge.

        The best action of the new slot is taken among those that lead to a valid slot.
        """
        values, last = kept["values"], (epochs - 1).clamp(max=SLOTS)
        before = torch.minimum(kept["asked"], last)
        places, actions = (torch.tensor(each, device=slot.device) for each in (range(1, SLOTS + 1), ACTIONS))
        after = slot + actions
        open_ = (places == slot)[..., None] & ((after >= 1) & (after <= last))[..., None, :]
        best = values.masked_fill(~open_, -torch.inf).amax((-2, -1), keepdim=True)
        taken = (places == before)[..., None] & (actions == slot - before)[..., None, :] & (slot > 0)[..., None]
        change = self.q_lr * (reward[..., None] + self.q_discount * best - values)
        return {
            "asked": torch.where(slot > 0, slot, kept["asked"]),
            "values": torch.where(taken, values + change, values),
        }


def first_meta() -> Tensor:
    """The LSTM's first weights [(4 H + 1) (H + 1)], always the same.

    It has no input, because all decisions before the current one were no.
    """
    draw = torch.rand((4 * HIDDEN + 1) * (HIDDEN + 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    meta: Tensor = (2 * draw - 1) / HIDDEN**0.5
    meta[-1] = RARE
    return meta


def slot_log_probabilities(meta: Tensor, count: int) -> Tensor:
    """[count], log P of asking after epoch 1, 2, ... and not before, given that it asks after one of these epochs."""
    weights = meta.view(4 * HIDDEN + 1, HIDDEN + 1)  # four gates and the decision, each with its bias
    recurrent, bias = weights[:-1, :-1], weights[:-1, -1]
    h = c = torch.zeros(HIDDEN, dtype=meta.dtype)
    states = []
    for _ in range(count):
        gates = torch.addmv(bias, recurrent, h)
        come, stay, out = gates[: 3 * HIDDEN].sigmoid().chunk(3)
        c = stay * c + come * gates[3 * HIDDEN :].tanh()
        h = out * c.tanh()
        states.append(h)
    asks = torch.stack(states) @ weights[-1, :-1] + weights[-1, -1]
    not_before = logsigmoid(-asks).cumsum(0) - logsigmoid(-asks)
    return (not_before + logsigmoid(asks)).log_softmax(0)


class Proposals(Requests):
    """How the server proposes slots to devices that have not merged yet."""

    meta_lr: NonNegativeFloat = 1e-3
    """With `slot: learned`: the learning rate of the server's network that proposes slots (eta_RL in the paper)."""
    baseline_rate: Chance = 0.1
    """With `slot: learned`: how fast the mean reward follows the rewards (rho in the paper)."""

    def first_memory(self, w: Tensor, clients: int) -> Message:
        """The LSTM, b, which clients have merged, and the LSTM's proposal."""
        meta, met = first_meta(), torch.zeros(clients, dtype=torch.bool)
        return {"meta": meta, "baseline": torch.zeros(1, dtype=meta.dtype), "met": met, "proposal": _proposal(meta, w)}

    def pretrained(self, earlier: Message, w: Tensor) -> Message:
        """The LSTM and b as an earlier run left them, and the LSTM's proposal; no client has merged yet."""
        return {**earlier, "proposal": _proposal(earlier["meta"], w)}

    def proposal(self, memory: Message, client: int) -> Message:
        """Probabilities [SLOTS] for a client that has not merged yet; a device takes those of its L - 1 slots."""
        return {} if bool(memory["met"][client]) else {"proposal": memory["proposal"]}

    def learnt_memory(self, memory: Message, update: Updates, client: int) -> Message:
        """Eq. 7 when a device's first update with a merge arrives."""
        slot = 0 if update.slot is None else int(update.slot)
        if not slot or bool(memory["met"][client]) or "loss_before" not in update.messages:
            return memory
        met = memory["met"].clone()
        met[client] = True
        reward = float(update.messages["loss_before"] - update.messages["loss_after"])
        baseline = (1 - self.baseline_rate) * memory["baseline"] + self.baseline_rate * reward
        count = min(int(update.epochs) - 1, SLOTS)
        with torch.enable_grad():
            theta = memory["meta"].detach().requires_grad_()
            (slope,) = torch.autograd.grad(slot_log_probabilities(theta, count)[slot - 1], theta)
        meta = memory["meta"] + self.meta_lr * (reward - baseline) * slope
        learnt = {"meta": meta, "baseline": baseline, "met": met, "proposal": _proposal(meta, update.w)}
        return {**memory, **learnt}


def _proposal(meta: Tensor, w: Tensor) -> Tensor:
    return slot_log_probabilities(meta, SLOTS).exp().to(w)

"""Testing a model, batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.executor import Score
from fedkeel.params import FlatModel
from fedkeel.task.task import CLASSIFICATION, Task

BATCH = 250  # larger batches of convolutions fall out of the cache

Part = tuple[float, ...] | NDArray[np.generic]
"""What comes of one batch: its tally where metrics add up, else its outputs."""


class Evaluator:
    """Tests on its own copy of the model: what a module keeps of an inference cannot be trained on."""

    def __init__(
        self, module: nn.Module, data: FederatedData, task: Task = CLASSIFICATION, channels_last: bool = False
    ) -> None:
        self._model = FlatModel(copy.deepcopy(module).eval(), channels_last)
        self._data = data
        self.task = task

    @torch.inference_mode()
    def parts(
        self,
        w: Tensor,
        buffers: Tensor,
        samples: Tensor | None,
        batches: Sequence[int],
        on: Held = "test",
        outputs: bool = False,
    ) -> list[Part]:
        """What comes of those batches of the test or validation set, or of these samples of it."""
        self._model.load(w, buffers)
        found: list[Part] = []
        for batch in batches:
            part = slice(batch * BATCH, (batch + 1) * BATCH)
            x, y = self._data.test_batch(part if samples is None else samples[part], on)
            z = self._model.forward(x)
            found.append(z.cpu().numpy() if outputs else self.task.tally(z, y))
        return found

    def count(self, samples: Tensor | None, on: Held = "test") -> int:
        """How many samples that is."""
        return len(self._data.held(on).y) if samples is None else len(samples)

    def score(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None, on: Held = "test") -> Score:
        """On the test or validation set, or on these samples of it."""
        batches = range(-(-self.count(samples, on) // BATCH))
        return self.joined(self.parts(w, buffers, samples, batches, on, not self.task.adds_up), samples, on)

    def joined(self, parts: Sequence[Part], samples: Tensor | None, on: Held) -> Score:
        """From what came of all batches, in their order."""
        if self.task.adds_up:
            return Score(*self.task.total(parts, self.count(samples, on)))  # type: ignore[arg-type]
        y = self._data.held(on).y
        return measured(self.task, together(parts), y if samples is None else y[samples])

    def predict(self, w: Tensor, buffers: Tensor, on: Held = "test") -> Tensor:
        """The outputs for the whole test or validation set."""
        return together(self.parts(w, buffers, None, range(-(-self.count(None, on) // BATCH)), on, True))


@torch.inference_mode()
def measured(task: Task, outputs: Tensor, y: Tensor) -> Score:
    """The loss and metrics of a model's outputs."""
    y = y.to(outputs.device)
    return Score(float(task.loss.each(outputs, y).mean()), task.measure(outputs, y))


def together(parts: Sequence[Part]) -> Tensor:
    """The outputs of all batches."""
    return torch.cat([torch.from_numpy(np.asarray(part)) for part in parts])

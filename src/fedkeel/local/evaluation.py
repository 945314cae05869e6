"""Testing a model, batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel.data.federated import FederatedData
from fedkeel.local.executor import Score
from fedkeel.params import FlatModel

BATCH = 250  # larger batches of convolutions fall out of the cache


class Evaluator:
    """Tests on its own copy of the model: what a module keeps of an inference cannot be trained on."""

    def __init__(self, module: nn.Module, data: FederatedData, channels_last: bool = False) -> None:
        self._model = FlatModel(copy.deepcopy(module).eval(), channels_last)
        self._data = data

    @torch.inference_mode()
    def sums(
        self, w: Tensor, buffers: Tensor, samples: Tensor | None, batches: Sequence[int]
    ) -> list[tuple[int, float]]:
        """(Hits, summed loss) of those batches of the test set, or of these samples of it."""
        self._model.load(w, buffers)
        sums = []
        for batch in batches:
            part = slice(batch * BATCH, (batch + 1) * BATCH)
            x, y = self._data.test_batch(part if samples is None else samples[part])
            logits = self._model.forward(x)
            sums.append((int((logits.argmax(dim=1) == y).sum()), float(cross_entropy(logits, y, reduction="sum"))))
        return sums

    def count(self, samples: Tensor | None) -> int:
        """How many samples that is."""
        return len(self._data.test.y) if samples is None else len(samples)

    def score(self, w: Tensor, buffers: Tensor, samples: Tensor | None = None) -> Score:
        """On the test set, or on these samples of it."""
        total = self.count(samples)
        return score(self.sums(w, buffers, samples, range(-(-total // BATCH))), total)


def score(sums: Sequence[tuple[int, float]], samples: int) -> Score:
    """From the sums of all batches, in their order."""
    return Score(sum(hits for hits, _ in sums) / samples, sum(loss for _, loss in sums) / samples)

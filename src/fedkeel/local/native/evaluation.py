"""Testing a model by the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.evaluation import BATCH, Evaluator
from fedkeel.local.native.gradient import NativeGradient


class NativeEvaluator(Evaluator):
    """Tests in as many threads as its gradient has; what they give does not depend on how many there are."""

    def __init__(self, gradient: NativeGradient, module: nn.Module, data: FederatedData) -> None:
        super().__init__(module, data)
        self._gradient = gradient

    def sums(
        self, w: Tensor, buffers: Tensor, samples: Tensor | None, batches: Sequence[int]
    ) -> list[tuple[int, float]]:
        test = self._data.test
        if self._data.resize or not test.x.is_contiguous() or [*batches] != [*range(batches[0], batches[-1] + 1)]:
            return super().sums(w, buffers, samples, batches)
        part = slice(batches[0] * BATCH, (batches[-1] + 1) * BATCH)
        x, y, which = (test.x[part], test.y[part], None) if samples is None else (test.x, test.y, samples[part])
        hits, losses = self._gradient.network(w.dtype).score(w, x, y, which, BATCH)
        return [*zip(hits.tolist(), losses.tolist(), strict=True)]

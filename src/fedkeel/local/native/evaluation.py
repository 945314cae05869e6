"""Testing a model by the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.evaluation import BATCH, Evaluator, Part
from fedkeel.local.native.gradient import NativeGradient
from fedkeel.task.task import Task


class NativeEvaluator(Evaluator):
    """Tests in as many threads as its gradient has; what they give does not depend on how many there are."""

    def __init__(self, gradient: NativeGradient, module: nn.Module, data: FederatedData, task: Task) -> None:
        super().__init__(module, data, task)
        self._gradient = gradient

    def parts(
        self,
        w: Tensor,
        buffers: Tensor,
        samples: Tensor | None,
        batches: Sequence[int],
        on: Held = "test",
        outputs: bool = False,
    ) -> list[Part]:
        test, in_a_row = self._data.held(on), [*batches] == [*range(batches[0], batches[-1] + 1)]
        if outputs or not self.task.counts_hits or self._data.resize or not test.x.is_contiguous() or not in_a_row:
            return super().parts(w, buffers, samples, batches, on, outputs)
        part = slice(batches[0] * BATCH, (batches[-1] + 1) * BATCH)
        x, y, which = (test.x[part], test.y[part], None) if samples is None else (test.x, test.y, samples[part])
        hits, losses = self._gradient.network(w.dtype).score(w, x, y, which, BATCH)
        count = self.count(samples, on)
        rows = [min(BATCH, count - batch * BATCH) for batch in batches]
        return [*zip(losses.tolist(), rows, hits.tolist(), strict=True)]

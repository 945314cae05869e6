"""Gradients and whole jobs by the native kernels, for models that are chains of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkeel.local.batches import Batch
from fedkeel.local.gradients.chain import Layer
from fedkeel.local.gradients.gradient import Penalised
from fedkeel.local.gradients.jobs import Jobs, Outcomes
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.native.library import Library
from fedkeel.local.native.network import Network
from fedkeel.params import Layout

CALL = 1e11
"""Operations that one thread does in one call, about a second of work: signals are heard between two calls."""


class NativeGradient(VmappedGradient):
    """Softmax cross-entropy behind convolutions, pools, linear layers and ReLUs; matches autograd to rounding.

    Clients are shared out among threads; how many there are changes no bit of a result. What the kernels do not know,
    such as a penalty on the features, is left to vmap.
    """

    descends = True
    reads_by_number = True
    trains_whole_jobs = True

    def __init__(self, library: Library, layers: list[Layer], module: nn.Module, layout: Layout, threads: int) -> None:
        super().__init__(module, layout)
        self._library, self._layers, self.threads = library, layers, threads
        self._networks: dict[torch.dtype, Network] = {}

    def network(self, dtype: torch.dtype) -> Network:
        """The kernels for numbers of this type."""
        if dtype not in self._networks:
            self._networks[dtype] = Network(self._library, self._layers, self._layout, dtype, self.threads)
        return self._networks[dtype]

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        if penalty is not None:
            return super().__call__(w, batch, penalty)
        g = w.new_empty(w.shape)
        return self._sweep(w, batch, batch.weights[:, 0], g, None), g

    def descend(self, w: Tensor, batch: Batch, rate: Tensor, out: Tensor, before: Tensor) -> Tensor:
        # Divided as the kernels do it in whole jobs, so that both have the same bits.
        return self._sweep(w, batch, -rate[:, 0] / torch.from_numpy(batch.sizes), out, before)

    def _sweep(self, w: Tensor, batch: Batch, scale: Tensor, out: Tensor, before: Tensor | None) -> Tensor:
        # Of a client's samples all that count do so equally: they are the first ones.
        samples = batch.samples
        return self.network(w.dtype).gradients(w, *samples.data, batch.sizes, scale, out, before, samples.which)

    def features(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        # Client by client: PyTorch's convolutions are several times as slow with weights of many at once.
        each = (self._features(self._layout.views(row), mine) for row, mine in zip(w, x, strict=True))
        return torch.stack([*each])

    def at_once(self, samples: int) -> int:
        one = samples * sum(layer.products for layer in self._layers) * 6  # twice forward, four times on the way back
        return max(1, int(CALL // max(one, 1))) * self.threads

    def train(self, jobs: Jobs, out: Tensor) -> Outcomes:
        return self.network(out.dtype).run(jobs, out)

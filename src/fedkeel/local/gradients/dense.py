"""Closed-form gradients of fully connected ReLU networks, for a whole stack of clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedkeel.local.batches import Batch
from fedkeel.local.gradients.chain import Layer, NotAChainError, chain
from fedkeel.local.gradients.gradient import Penalised
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.params import Layout
from fedkeel.task.losses import SOFTMAX, Loss


class DenseGradient(VmappedGradient):
    """A loss whose slope has a closed form, behind linear layers and ReLUs; matches autograd to rounding.

    What has no closed form, such as a penalty on the features, is left to vmap.
    """

    descends = True

    def __init__(self, layers: list[Layer], module: nn.Module, layout: Layout, loss: Loss = SOFTMAX) -> None:
        super().__init__(module, layout, loss)
        self._layers = layers
        self._known: list[tuple[Tensor, dict[str, Tensor]]] = []

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, shape: Sequence[int], loss: Loss = SOFTMAX) -> DenseGradient | None:
        """For this module and samples of this shape, where it is such a network and all its parameters are trained."""
        if not loss.closed:
            return None
        try:
            layers = chain(module, layout, shape)
        except NotAChainError:
            return None
        return cls(layers, module, layout, loss) if all(layer.kind == "linear" for layer in layers) else None

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        if penalty is not None:
            return super().__call__(w, batch, penalty)
        g = w.new_empty(w.shape)
        return self._sweep(w, batch, batch.factors, g, None), g

    def descend(self, w: Tensor, batch: Batch, rate: Tensor, out: Tensor, before: Tensor) -> Tensor:
        """In one sweep, without a gradient in between; `out` may be `w`."""
        return self._sweep(w, batch, batch.factors * rate, out, before)

    def _sweep(self, w: Tensor, batch: Batch, weights: Tensor, out: Tensor, before: Tensor | None) -> Tensor:
        # While all clients still stand at the same weights, one large product serves them all.
        shared = w.stride(0) == 0 and len(w) > 1
        views = self._named(w)
        used = self._layout.views(w[0]) if shared else views
        inputs = [batch.x.flatten(2)]
        for layer in self._layers:
            weight, bias = used[_weight(layer)].mT, used[layer.bias] if layer.bias is not None else None
            if shared:
                z = _shared(inputs[-1], weight)
                z = z if bias is None else z + bias
            else:
                z = torch.bmm(inputs[-1], weight) if bias is None else torch.baddbmm(bias[:, None], inputs[-1], weight)
            inputs.append(z.relu_() if layer.relu else z)
        losses, delta = self._loss.slope(inputs.pop(), batch.y, weights)
        targets = self._named(out)
        bases = None if before is None else self._named(before)
        for number in reversed(range(len(self._layers))):
            layer, above = self._layers[number], delta
            if number:
                delta = (_shared if shared else torch.bmm)(above, used[_weight(layer)])
                if self._layers[number - 1].relu:
                    delta = torch.ops.aten.threshold_backward(delta, inputs[number], 0.0)
            if bases is not None:
                torch.baddbmm(bases[_weight(layer)], above.mT, inputs[number], alpha=-1, out=targets[_weight(layer)])
                if layer.bias is not None:
                    torch.sub(bases[layer.bias], above.sum(1), out=targets[layer.bias])
            else:
                torch.bmm(above.mT, inputs[number], out=targets[_weight(layer)])
                if layer.bias is not None:
                    torch.sum(above, dim=1, out=targets[layer.bias])
        return batch.counted(losses)

    def _named(self, w: Tensor) -> dict[str, Tensor]:
        """Views of a stack's vectors; the loop moves the same few in place, step after step."""
        for known, views in self._known:
            if known is w:
                return views
        self._known = [(w, self._layout.views(w)), *self._known[:2]]
        return self._known[0][1]


def _shared(a: Tensor, b: Tensor) -> Tensor:
    """a [k, b, n] times b [n, m] for all clients; turned round, as BLAS is faster with the long side last."""
    return (b.mT @ a.flatten(0, 1).mT).mT.view(*a.shape[:2], -1)


def _weight(layer: Layer) -> str:
    assert layer.weight is not None
    return layer.weight

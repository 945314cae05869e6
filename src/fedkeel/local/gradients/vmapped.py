"""Gradients of any module for a stack of clients, by vectorising autograd over the clients."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from fedkeel.params import Layout


class VmappedGradient:
    """For modules whose forward pass vmap can follow: no branches on data, no buffers that change, no chance."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._layout = layout

        def mean(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(module, parameters, (x,)), y)

        def weighted(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            return cross_entropy(functional_call(module, parameters, (x,)), y, reduction="none") @ weights

        self._mean = vmap(grad_and_value(mean))
        self._weighted = vmap(grad_and_value(weighted))

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """(Loss [k], gradient [k, D])."""
        views = self._layout.views(w)
        parts, loss = self._mean(views, x, y) if weights is None else self._weighted(views, x, y, weights)
        return loss, self._layout.flatten(parts)

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

        def weighted(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            losses = cross_entropy(functional_call(module, parameters, (x,)), y, reduction="none")
            return losses @ weights, losses

        self._gradient = vmap(grad_and_value(weighted, has_aux=True))

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Losses [k, b], gradient [k, D])."""
        parts, (_, losses) = self._gradient(self._layout.views(w), x, y, weights)
        return losses, self._layout.flatten(parts)

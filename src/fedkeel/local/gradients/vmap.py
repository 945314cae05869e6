"""Gradients of any module for a stack of clients, by vectorising autograd over the clients."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from fedkeel.methods.oracle import Penalty
from fedkeel.params import Layout, with_features


class VmappedGradient:
    """For modules whose forward pass vmap can follow: no branches on data, no buffers that change, no chance."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._layout = layout
        self._training = copy.deepcopy(module).train()
        self._frozen = copy.deepcopy(module).eval()

        def weighted(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            losses = cross_entropy(functional_call(self._training, parameters, (x,)), y, reduction="none")
            return losses @ weights, losses

        self._gradient = vmap(grad_and_value(weighted, has_aux=True))

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Losses [k, b], gradient [k, D])."""
        parts, (_, losses) = self._gradient(self._layout.views(w), x, y, weights)
        return losses, self._layout.flatten(parts)

    def with_penalty(
        self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor, penalty: Penalty, given: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """(Losses [k, b] without the penalty, gradient [k, D] with it)."""

        def weighted(
            parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor, given: tuple[Tensor, ...]
        ) -> tuple[Tensor, Tensor]:
            logits, z = with_features(self._training, lambda: functional_call(self._training, parameters, (x,)))
            losses = cross_entropy(logits, y, reduction="none")
            return (losses + penalty(z, *given)) @ weights, losses

        parts, (_, losses) = vmap(grad_and_value(weighted, has_aux=True))(self._layout.views(w), x, y, weights, given)
        return losses, self._layout.flatten(parts)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """[k, b, F], what the heads see, in evaluation mode."""

        def forward(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return with_features(self._frozen, lambda: functional_call(self._frozen, parameters, (x,)))[1]

        features: Tensor = vmap(forward)(self._layout.views(w), x)
        return features

"""Gradients of any module for a stack of clients, by vectorising autograd over the clients."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedkeel.local.batches import Batch
from fedkeel.local.gradients.gradient import Gradient, Penalised
from fedkeel.methods.oracle import Penalty
from fedkeel.params import Layout, with_features
from fedkeel.task.losses import SOFTMAX, Loss


class VmappedGradient(Gradient):
    """For modules whose forward pass vmap can follow: no branches on data, no buffers that change, no chance."""

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss = SOFTMAX) -> None:
        self._module = module
        self._layout = layout
        self._loss = loss

    @cached_property
    def _training(self) -> nn.Module:
        return copy.deepcopy(self._module).train()

    @cached_property
    def _frozen(self) -> nn.Module:
        return copy.deepcopy(self._module).eval()

    @cached_property
    def _gradient(self) -> Any:
        def weighted(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            losses = self._loss.each(functional_call(self._training, parameters, (x,)), y)
            return losses @ weights, losses

        return vmap(grad_and_value(weighted, has_aux=True))

    def _penalised(self, penalty: Penalty) -> Any:
        def weighted(
            parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor, given: tuple[Tensor, ...]
        ) -> tuple[Tensor, Tensor]:
            outputs, z = with_features(self._training, lambda: functional_call(self._training, parameters, (x,)))
            losses = self._loss.each(outputs, y)
            return (losses + penalty(z, *given)) @ weights, losses

        return vmap(grad_and_value(weighted, has_aux=True))

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        told = self._layout.views(w), batch.x, batch.y, batch.factors
        parts, (_, losses) = (
            self._gradient(*told) if penalty is None else self._penalised(penalty[0])(*told, penalty[1])
        )
        return batch.counted(losses), self._layout.flatten(parts)

    def features(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        features: Tensor = vmap(self._features)(self._layout.views(w), x)
        return features

    def _features(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """[b, F], those of one client."""
        return with_features(self._frozen, lambda: functional_call(self._frozen, parameters, (x,)))[1]

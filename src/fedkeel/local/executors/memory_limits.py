"""How many clients may train at once, by the memory that they need."""

from __future__ import annotations

import copy

import torch

from fedkeel.local.build import Workshop
from fedkeel.local.work import batch_sizes
from fedkeel.params import Layout

STACK_BYTES = 256 << 20
"""What one stack may take in memory."""
VECTORS = {"sgd": 6, "adam": 9, "adamw": 9}
"""Of a model's size that a client of a stack needs: weights, gradient, direction, ..."""


def native_limit(workshop: Workshop) -> int:
    """How many clients' vectors fit into `STACK_BYTES`: the kernels keep activations of one client a thread."""
    return STACK_BYTES // (VECTORS[workshop.local.optimizer] * workshop.bytes)


def stack_limit(workshop: Workshop) -> int:
    """How many clients' vectors and activations fit into `STACK_BYTES`; at least one's."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    samples = torch.arange(max(batch_sizes(workshop.data, workshop.local))) % len(workshop.data.train.y)
    x, y = workshop.data.train_batch(samples)
    trial = copy.deepcopy(workshop.module)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        workshop.task.loss.mean(trial(x), y)
    vectors = VECTORS[workshop.local.optimizer] * Layout.of(trial).size * next(trial.parameters()).element_size()
    return max(1, STACK_BYTES // (vectors + 2 * kept))

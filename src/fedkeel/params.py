"""The flat view of a model: one vector of parameters with named slices, and its buffers kept apart.

Algorithms see only vectors `[..., D]`. Buffers (batch-norm statistics) travel beside them as a second
vector `[..., B]`, are averaged plainly, and never enter an algorithm's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from fedkeel.errors import InputError

Part = Literal["all", "body", "head", "none"]
"""A part of a model: the head is its classifier, the body is the rest."""


@dataclass(frozen=True)
class Slice:
    """Where one named tensor lies in a flat vector."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + prod(self.shape)


def _slices(tensors: Sequence[tuple[str, Tensor]]) -> tuple[Slice, ...]:
    slices, start = [], 0
    for name, tensor in tensors:
        slices.append(Slice(name, start, tuple(tensor.shape)))
        start = slices[-1].stop
    return tuple(slices)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's trainable parameters and of its persistent buffers, in flat order."""

    parameters: tuple[Slice, ...]
    buffers: tuple[Slice, ...]
    buffer_bytes: int
    """What the buffers weigh on the wire, in their own dtypes."""
    head_names: frozenset[str]
    linear_head: tuple[str, str | None] | None
    """Names of the head's weight [classes, F] and bias [classes], if it is one linear layer, all of it trained."""

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module`: parameters that require no gradient are constants and do not appear."""
        trainable = _trainable(module)
        if not trainable:
            raise InputError(
                "model: it must have at least one trainable parameter; set requires_grad=True for those to be trained"
            )
        buffers = _buffers(module)
        weight = sum(b.numel() * b.element_size() for _, b in buffers)
        head = {id(p) for p in _head(module).parameters()}
        names = frozenset(name for name, p in trainable if id(p) in head)  # by identity: weights may be tied
        return cls(_slices(trainable), _slices(buffers), weight, names, _linear_head(module, trainable))

    @cached_property
    def size(self) -> int:
        """D, the number of trainable parameters."""
        return self.parameters[-1].stop

    @cached_property
    def layers(self) -> dict[str, slice]:
        """Each module that owns parameters, with the slice of the flat vector that is its own."""
        layers: dict[str, slice] = {}
        for part in self.parameters:
            owner = part.name.rpartition(".")[0]
            first = layers[owner].start if owner in layers else part.start
            layers[owner] = slice(first, part.stop)
        return layers

    @cached_property
    def head(self) -> Tensor:
        """Boolean mask [D] of the classifier's parameters; the rest is the body."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for part in self.parameters:
            mask[part.start : part.stop] = part.name in self.head_names
        return mask

    def mask(self, part: Part) -> Tensor:
        """Boolean mask [D] of a part's parameters."""
        match part:
            case "head":
                return self.head
            case "body":
                return ~self.head
        return torch.full_like(self.head, part == "all")

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Named views [..., *shape] of a flat vector [..., D]."""
        return _views(self.parameters, w)

    def buffer_views(self, b: Tensor) -> dict[str, Tensor]:
        """Named views [..., *shape] of flat buffers [..., B]."""
        return _views(self.buffers, b)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `views`."""
        parts = [tensors[p.name] for p in self.parameters]
        lead = parts[0].shape[: parts[0].dim() - len(self.parameters[0].shape)]
        return torch.cat([t.reshape(*lead, -1) for t in parts], dim=-1)


def _views(slices: Sequence[Slice], flat: Tensor) -> dict[str, Tensor]:
    parts = torch.split(flat, [prod(s.shape) for s in slices], dim=-1)
    return {s.name: part.view((*flat.shape[:-1], *s.shape)) for s, part in zip(slices, parts, strict=True)}


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    kept = module.state_dict().keys()
    return [(name, b) for name, b in module.named_buffers() if name in kept]


def _linear_head(module: nn.Module, trainable: Sequence[tuple[str, Tensor]]) -> tuple[str, str | None] | None:
    head, names = _head(module), {id(p): name for name, p in trainable}
    if type(head) is not nn.Linear or any(id(p) not in names for p in head.parameters()):
        return None
    return names[id(head.weight)], None if head.bias is None else names[id(head.bias)]


def _head(module: nn.Module) -> nn.Module:
    """The attribute `head`, if it is trained, else the last module that owns a trained parameter."""
    head = getattr(module, "head", None)
    if isinstance(head, nn.Module) and any(p.requires_grad for p in head.parameters()):
        return head
    return module.get_submodule(_trainable(module)[-1][0].rpartition(".")[0])


def with_features(module: nn.Module, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """(What `call` returns, the features [b, F] that the module's head is given in it)."""
    seen: list[Tensor] = []
    hook = _head(module).register_forward_pre_hook(
        lambda _, given, named: seen.append([*given, *named.values()][0]), with_kwargs=True
    )
    try:
        output = call()
    finally:
        hook.remove()
    if len(seen) != 1:
        raise InputError(
            f"model: its forward pass must call its head once, on the features of its body; got {len(seen)} calls"
        )
    return output, seen[0].flatten(1)


@torch.no_grad()
def head_objection(module: nn.Module, x: Tensor, logits: bool) -> str | None:
    """Why the head's features cannot be used, or with `logits` its output is not the model's, if there is a reason."""
    try:
        output, z = with_features(module, lambda: module(x))
        if not logits:
            return None
        surplus = output - _head(module)(z)
    except Exception as error:
        return (
            f"the features in front of the model's head cannot be used ({' '.join(str(error).split())}); use a model "
            "that calls its head once, on a tensor of features"
        )
    # The same for all classes of a sample changes no probability: log_softmax may follow.
    if bool((surplus - surplus[:, :1]).abs().max() > 1e-4 * (1 + output.abs().max())):
        return "the model's output is not that of its head; use a model that ends with its head"
    return None


class FlatModel:
    """A module whose parameters are views of one flat vector `w`, so that loading weights is one copy.

    With `channels_last`, images and the filters that see them lie in memory pixel by pixel: the same numbers in
    an order that suits wide convolutions.
    """

    def __init__(self, module: nn.Module, channels_last: bool = False) -> None:
        self.module = module
        self.layout = Layout.of(module)
        self.parameters = [p for _, p in _trainable(module)]
        self.channels_last = channels_last
        self.w = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._reordered: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, view in zip(self.parameters, self.layout.views(self.w).values(), strict=True):
            parameter.data = view
            if channels_last and view.dim() == 4:
                # A clone, even where one channel makes both orders the same: its strides tell PyTorch which is meant.
                parameter.data = view.clone(memory_format=torch.channels_last)
                self._reordered.append((parameter, view))

    def forward(self, x: Tensor) -> Tensor:
        """The module's output."""
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        output: Tensor = self.module(x)
        return output

    @property
    def buffers(self) -> Tensor:
        """A copy [B] of the buffers, in float64, which holds integers too."""
        if not self.layout.buffers:
            return torch.zeros(0, dtype=torch.float64, device=self.w.device)
        return torch.cat([b.detach().reshape(-1).double() for b in self._current_buffers()])

    def load(self, w: Tensor, buffers: Tensor | None = None) -> None:
        """Take weights [D] and, where given, buffers [B]; integer buffers are rounded."""
        self.w.copy_(w)
        for parameter, view in self._reordered:
            parameter.data.copy_(view)
        if buffers is not None and self.layout.buffers:
            views = self.layout.buffer_views(buffers).values()
            for buffer, value in zip(self._current_buffers(), views, strict=True):
                buffer.copy_(value if buffer.is_floating_point() else value.round())

    def _current_buffers(self) -> list[Tensor]:
        """By name each time: a module may put a new tensor in a buffer's place."""
        return [self.module.get_buffer(part.name) for part in self.layout.buffers]

    def release(self) -> nn.Module:
        """The module with parameters that own their memory again; this view ends."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
        return self.module

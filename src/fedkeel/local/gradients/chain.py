"""A module as a chain of layers, where it is one: closed forms and native kernels know what to do with those."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn import functional

from fedkeel.params import Layout

LARGEST = 7
"""The side of the largest filter that is known."""
_RELU: set[Any] = {functional.relu, torch.relu, ("method", "relu")}
_FLATTEN: set[Any] = {torch.flatten, ("method", "flatten")}
_RESHAPE: set[Any] = {("method", "view"), ("method", "reshape"), torch.reshape}
_LOG_SOFTMAX: set[Any] = {functional.log_softmax, torch.log_softmax, ("method", "log_softmax")}
_LENGTHS: set[Any] = {("method", "size"), getattr, operator.getitem}
# Functions that a module of this class does the same as, with the same arguments.
_AS_MODULES: dict[Any, type[nn.Module]] = {
    functional.max_pool2d: nn.MaxPool2d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_KNOWN = (nn.Linear, nn.Conv2d, nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout, *_POOLS)


class NotAChainError(Exception):
    """Why a module is no chain of layers that are known here."""


@dataclass(frozen=True)
class Layer:
    """A layer, by the names of its parameters, and what follows it."""

    kind: Literal["linear", "convolution", "average"]
    inputs: int
    """Features; of images, channels."""
    outputs: int
    weight: str | None = None
    bias: str | None = None
    height: int = 1
    """Of the images that it sees."""
    width: int = 1
    k: int = 0
    """The side of its filters or of its window."""
    pad: int = 0
    pool: bool = False
    """Whether 2x2 max-pooling follows."""
    relu: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what it gives: channels, rows, columns."""
        if self.kind == "linear":
            return self.outputs, 1, 1
        if self.kind == "average":
            return self.outputs, self.height // self.k, self.width // self.k
        rows, columns = (side + 2 * self.pad - self.k + 1 for side in (self.height, self.width))
        return (self.outputs, rows // 2, columns // 2) if self.pool else (self.outputs, rows, columns)

    @property
    def products(self) -> int:
        """Multiplications for one sample, forward."""
        if self.kind == "average":
            return 0
        rows, columns = (side + 2 * self.pad - self.k + 1 if self.k else 1 for side in (self.height, self.width))
        return self.inputs * self.outputs * max(1, self.k) ** 2 * rows * columns


def chain(module: nn.Module, layout: Layout, shape: Sequence[int], training: bool = True) -> list[Layer]:
    """The module's layers for samples of this shape; all of its parameters are trained, each in one layer.

    As they are in training, or where the module is tested: a user's forward pass may depend on that.
    """
    for m in module.modules():
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            raise NotAChainError("the model has hooks")
        if "forward" in vars(m):
            raise NotAChainError("the model has a layer with a forward pass of its own")
    layers = _Reader(module, shape, training).layers()
    names = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    if sorted(names) != sorted(part.name for part in layout.parameters):
        raise NotAChainError("some of the model's parameters are frozen, tied or unused")
    return layers


class _Reader:
    """Goes through a traced module from its input to its output."""

    def __init__(self, module: nn.Module, shape: Sequence[int], training: bool) -> None:
        self._module = module
        self._training = training
        self._shape = tuple(shape)
        """Of a sample as it is here."""
        self._layers: list[Layer] = []
        self._lengths: set[fx.Node] = set()
        self._ended = False

    def layers(self) -> list[Layer]:
        if type(self._module) is nn.Linear:  # a tracer would look inside
            self._linear("", self._module)
            return self._layers
        try:
            nodes = list(fx.Tracer().trace(copy.deepcopy(self._module).train(self._training)).nodes)
        except Exception:  # whatever a user's forward does that cannot be traced
            raise NotAChainError("the model's forward pass cannot be traced") from None
        here = nodes[0]
        for node in nodes[1:-1]:
            what = self._what(node)
            if what in _LENGTHS and node.args[0] in {here, *self._lengths}:
                self._lengths.add(node)  # x.size(0), x.shape, x.shape[0]
                continue
            if not node.args or node.args[0] is not here:
                raise NotAChainError("the model is not a chain of layers")
            self._read(node, what)
            here = node
        if nodes[-1].args[0] is not here or not self._layers or self._layers[-1].relu:
            raise NotAChainError("the model does not end with the logits of a layer")
        if prod(self._layers[-1].shape) != prod(self._shape) or len(self._shape) != 1:
            raise NotAChainError("the model's output is not one vector per sample")
        return self._layers

    def _what(self, node: fx.Node) -> Any:
        """A submodule of a plain class, a function, or ("method", name): an attribute's name says nothing."""
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))
        if node.op == "call_function" and node.target in _AS_MODULES:
            try:
                return _AS_MODULES[node.target](*node.args[1:], **node.kwargs)
            except Exception:  # arguments that a module does not take
                return node.target
        return (
            ("method", node.target) if node.op == "call_method" else node.target if node.op == "call_function" else None
        )

    def _read(self, node: fx.Node, what: Any) -> None:
        if self._ended:
            raise NotAChainError("the model goes on behind its log-softmax")
        if what in _RELU or type(what) is nn.ReLU:
            self._relu()
        elif self._normalises(node, what):
            self._ended = True  # cross-entropy does the same, and doing it twice changes nothing
        elif isinstance(what, nn.Module):
            self._layer(str(node.target), what)
        elif self._flattens(node, what):
            self._shape = (prod(self._shape),)
        else:
            name = what[1] if isinstance(what, tuple) else getattr(what, "__name__", str(what))
            raise NotAChainError(f"the model calls {name}")

    def _layer(self, name: str, layer: nn.Module) -> None:
        match layer:
            case _ if type(layer) not in _KNOWN:
                raise NotAChainError(f"the model has a layer {type(layer).__name__}")
            case nn.Linear():
                self._linear(f"{name}.", layer)
            case nn.Conv2d():
                self._convolution(f"{name}.", layer)
            case nn.MaxPool2d():
                self._max_pool(layer)
            case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
                self._average(layer)
            case nn.Flatten():
                if (layer.start_dim, layer.end_dim) != (1, -1):
                    raise NotAChainError("the model flattens only some dimensions")
                self._shape = (prod(self._shape),)
            case nn.Dropout() if layer.p > 0:
                raise NotAChainError("the model has dropout")

    def _linear(self, name: str, layer: nn.Linear) -> None:
        if len(self._shape) != 1:
            raise NotAChainError("the model has a linear layer on samples of more than one dimension")
        self._append(Layer("linear", layer.in_features, layer.out_features, **_parameters(name, layer)))
        self._shape = (layer.out_features,)

    def _convolution(self, name: str, layer: nn.Conv2d) -> None:
        (k, across), pad = layer.kernel_size, layer.padding
        if pad == "same" and k % 2:
            pad = (k // 2, k // 2)
        elif pad == "valid":
            pad = (0, 0)
        plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
        if not plain or layer.padding_mode != "zeros" or isinstance(pad, str):
            raise NotAChainError("the model has a convolution with stride, dilation, groups or other padding")
        if k != across or k > LARGEST or pad[0] != pad[1] or len(self._shape) != 3:
            raise NotAChainError(f"the model has a convolution that is not square, or larger than {LARGEST}x{LARGEST}")
        _, height, width = self._shape
        parameters = _parameters(name, layer)
        self._append(
            Layer("convolution", layer.in_channels, layer.out_channels, **parameters, height=height, width=width, k=k)
        )
        self._change(pad=int(pad[0]))
        if min(self._shape) < 1:
            raise NotAChainError("the model has a convolution that is larger than its image")

    def _max_pool(self, layer: nn.MaxPool2d) -> None:
        before = self._layers[-1] if self._layers else None
        if before is None or before.kind != "convolution" or before.pool or len(self._shape) != 3:
            raise NotAChainError("the model has a max-pool that does not follow a convolution")
        sides = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding), _pair(layer.dilation)
        if sides != ((2, 2), (2, 2), (0, 0), (1, 1)) or layer.return_indices:
            raise NotAChainError("the model has a max-pool that is not 2x2")
        if min(self._shape[1:]) < 2 or (layer.ceil_mode and any(side % 2 for side in self._shape[1:])):
            raise NotAChainError("the model has a max-pool on an odd number of pixels that rounds up")
        self._change(pool=True)  # a ReLU before it may as well come after it

    def _average(self, layer: nn.AvgPool2d | nn.AdaptiveAvgPool2d) -> None:
        if len(self._shape) != 3 or not self._layers:
            raise NotAChainError("the model averages something else than what a convolution gives")
        channels, height, width = self._shape
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            sides, plain = (height, width), _pair(layer.output_size) == (1, 1)
        else:
            sides = _pair(layer.kernel_size)
            plain = _pair(layer.stride) == sides and _pair(layer.padding) == (0, 0) and not layer.ceil_mode
            plain = plain and layer.divisor_override is None
        if not plain or sides[0] != sides[1] or min(height, width) < sides[0]:
            raise NotAChainError("the model has an average pool that is not square, or overlaps")
        self._append(Layer("average", channels, channels, height=height, width=width, k=sides[0]))
        self._shape = self._layers[-1].shape

    def _append(self, layer: Layer) -> None:
        seen = layer.inputs * layer.height * layer.width
        if seen != prod(self._shape):
            raise NotAChainError("the model's layers do not fit together")
        self._layers.append(layer)

    def _change(self, **what: Any) -> None:
        self._layers[-1] = replace(self._layers[-1], **what)
        self._shape = self._layers[-1].shape

    def _relu(self) -> None:
        if not self._layers or self._layers[-1].kind == "average":
            raise NotAChainError("the model has a ReLU that follows neither a linear layer nor a convolution")
        self._layers[-1] = replace(self._layers[-1], relu=True)

    def _normalises(self, node: fx.Node, what: Any) -> bool:
        """Whether the node is a log-softmax over the classes."""
        if type(what) is nn.LogSoftmax:
            return len(self._shape) == 1 and what.dim in (1, -1)
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) == 2 else None)
        plain = node.kwargs.get("dtype") is None and len(self._shape) == 1
        return what in _LOG_SOFTMAX and plain and dim in (1, -1)

    def _flattens(self, node: fx.Node, what: Any) -> bool:
        """Whether the node makes [n, ...] into [n, features]."""
        if what in _FLATTEN:
            named = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
            return named in ({"start_dim": 1}, {"start_dim": 1, "end_dim": -1})
        if what in _RESHAPE and len(node.args) == 3:
            features = prod(self._shape)
            whole = node.args[1] in self._lengths and node.args[2] in (-1, features)
            return bool(whole or (node.args[1] == -1 and node.args[2] == features))
        return False


def _parameters(name: str, layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    return {"weight": f"{name}weight", "bias": f"{name}bias" if layer.bias is not None else None}


def _pair(value: Any) -> tuple[Any, Any]:
    """A side of both, or of each."""
    return tuple(value) if isinstance(value, tuple | list) else (value, value)

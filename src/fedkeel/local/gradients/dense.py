"""Closed-form gradients of fully connected ReLU networks, for a whole stack of clients at once."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedkeel.local.batches import Batch
from fedkeel.local.gradients.gradient import Penalised
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.params import Layout

_RELU: set[Any] = {functional.relu, torch.relu, ("method", "relu")}
_FLATTEN: set[Any] = {torch.flatten, ("method", "flatten")}
_RESHAPE: set[Any] = {("method", "view"), ("method", "reshape"), torch.reshape}
_LENGTHS: set[Any] = {("method", "size"), getattr, operator.getitem}


@dataclass(frozen=True)
class Layer:
    """A linear layer, by the names of its parameters, and whether a ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


class DenseGradient(VmappedGradient):
    """Softmax cross-entropy behind linear layers and ReLUs; matches autograd to rounding.

    What has no closed form, such as a penalty on the features, is left to vmap.
    """

    descends = True

    def __init__(self, layers: list[Layer], module: nn.Module, layout: Layout) -> None:
        super().__init__(module, layout)
        self._layers = layers
        self._known: list[tuple[Tensor, dict[str, Tensor]]] = []

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> DenseGradient | None:
        """For this module, where it is such a network and all its parameters are trained."""
        layers = _layers(module)
        if layers is None:
            return None
        names = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
        if sorted(names) != sorted(part.name for part in layout.parameters):
            return None  # something is frozen, tied or unused
        return cls(layers, module, layout)

    def __call__(self, w: Tensor, batch: Batch, penalty: Penalised = None) -> tuple[Tensor, Tensor]:
        if penalty is not None:
            return super().__call__(w, batch, penalty)
        g = w.new_empty(w.shape)
        return self._sweep(w, batch, batch.weights, g, None), g

    def descend(self, w: Tensor, batch: Batch, rate: Tensor, out: Tensor, before: Tensor) -> Tensor:
        """In one sweep, without a gradient in between; `out` may be `w`."""
        return self._sweep(w, batch, batch.weights * rate, out, before)

    def _sweep(self, w: Tensor, batch: Batch, weights: Tensor, out: Tensor, before: Tensor | None) -> Tensor:
        # While all clients still stand at the same weights, one large product serves them all.
        shared = w.stride(0) == 0 and len(w) > 1
        views = self._named(w)
        used = self._layout.views(w[0]) if shared else views
        inputs = [batch.x.flatten(2)]
        for layer in self._layers:
            weight, bias = used[layer.weight].mT, used[layer.bias] if layer.bias is not None else None
            if shared:
                z = _shared(inputs[-1], weight)
                z = z if bias is None else z + bias
            else:
                z = torch.bmm(inputs[-1], weight) if bias is None else torch.baddbmm(bias[:, None], inputs[-1], weight)
            inputs.append(z.relu_() if layer.relu else z)
        losses, delta = _cross_entropy(inputs.pop(), batch.y, weights)
        targets = self._named(out)
        bases = None if before is None else self._named(before)
        for number in reversed(range(len(self._layers))):
            layer, above = self._layers[number], delta
            if number:
                delta = (_shared if shared else torch.bmm)(above, used[layer.weight])
                if self._layers[number - 1].relu:
                    delta = torch.ops.aten.threshold_backward(delta, inputs[number], 0.0)
            if bases is not None:
                torch.baddbmm(bases[layer.weight], above.mT, inputs[number], alpha=-1, out=targets[layer.weight])
                if layer.bias is not None:
                    torch.sub(bases[layer.bias], above.sum(1), out=targets[layer.bias])
            else:
                torch.bmm(above.mT, inputs[number], out=targets[layer.weight])
                if layer.bias is not None:
                    torch.sum(above, dim=1, out=targets[layer.bias])
        return losses

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


def _cross_entropy(z: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(Losses [k, b], gradient in the logits [k, b, classes] of their weighted sum)."""
    log_p = z.log_softmax(2)
    label = y.unsqueeze(2)
    losses = log_p.gather(2, label).squeeze(2).neg_()
    return losses, log_p.exp_().scatter_(2, label, -1.0, reduce="add").mul_(weights.unsqueeze(2))


def _layers(module: nn.Module) -> list[Layer] | None:
    """The module as a chain of linear layers and ReLUs, possibly behind a flattening, if it is one."""
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules()):
        return None
    if type(module) is nn.Linear:  # a tracer would look inside
        return [Layer("weight", "bias" if module.bias is not None else None, relu=False)]
    try:
        nodes = list(fx.Tracer().trace(copy.deepcopy(module)).nodes)
    except Exception:  # whatever a user's forward does that cannot be traced
        return None
    layers: list[Layer] = []
    chain, lengths = nodes[0], set[fx.Node]()
    for node in nodes[1:-1]:
        what = _what(node, module)
        if what in _LENGTHS and node.args[0] in {chain, *lengths}:
            lengths.add(node)  # x.size(0), x.shape, x.shape[0]
            continue
        if not node.args or node.args[0] is not chain:
            return None
        if isinstance(what, nn.Linear):
            bias = f"{node.target}.bias" if what.bias is not None else None
            layers.append(Layer(f"{node.target}.weight", bias, relu=False))
        elif what in _RELU or isinstance(what, nn.ReLU):
            if not layers:
                return None
            layers[-1] = replace(layers[-1], relu=True)
        elif layers or not _flattens(node, what, lengths):
            return None
        chain = node
    return layers if layers and not layers[-1].relu and nodes[-1].args[0] is chain else None


def _what(node: fx.Node, module: nn.Module) -> Any:
    """A submodule of a plain class, a function, or ("method", name): an attribute's name says nothing."""
    if node.op == "call_module":
        owner = module.get_submodule(str(node.target))
        return owner if type(owner) in (nn.Linear, nn.ReLU, nn.Flatten) else None
    return ("method", node.target) if node.op == "call_method" else node.target if node.op == "call_function" else None


def _flattens(node: fx.Node, what: Any, lengths: set[fx.Node]) -> bool:
    """Whether the node makes [n, ...] into [n, features]."""
    if isinstance(what, nn.Flatten):
        return (what.start_dim, what.end_dim) == (1, -1)
    if what in _FLATTEN:
        return node.args[1:] == (1,) or (node.args[1:] == () and node.kwargs == {"start_dim": 1})
    if what in _RESHAPE and len(node.args) == 3:
        return bool(node.args[1] in lengths or node.args[1] == -1)
    return False

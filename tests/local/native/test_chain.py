"""Which modules are recognised as chains of layers, with which numbers, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel import models
from fedkeel.local.gradients.chain import Layer, NotAChainError, chain
from fedkeel.params import Layout


def read(module: nn.Module, shape: tuple[int, ...] = (1, 8, 8), **more: bool) -> list[Layer]:
    return chain(module, Layout.of(module), shape, **more)


def convolution(name: str, inputs: int, outputs: int, side: int, k: int, **more: Any) -> Layer:
    """On square images, with a bias."""
    names = {"weight": f"{name}.weight", "bias": f"{name}.bias"}
    return Layer("convolution", inputs, outputs, **{**names, "height": side, "width": side, "k": k, **more})


def linear(name: str, inputs: int, outputs: int, **more: Any) -> Layer:
    return Layer("linear", inputs, outputs, **{"weight": f"{name}.weight", "bias": f"{name}.bias", **more})


def average(channels: int, side: int, k: int) -> Layer:
    return Layer("average", channels, channels, height=side, width=side, k=k)


class Own(nn.Module):
    """How most people write it: for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, 3, 3, padding=1)
        self.two = nn.Conv2d(3, 5, 3)
        self.three = nn.Linear(5, 4)
        self.four = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        x = functional.relu(functional.max_pool2d(self.two(x), 2))
        x = x.view(x.size(0), -1)
        return self.four(functional.relu(self.three(x)))


class ByMethods(Own):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = functional.max_pool2d(self.one(x).relu(), kernel_size=2, stride=2)
        x = functional.max_pool2d(torch.relu(self.two(x)), (2, 2))
        return self.four(self.three(x.reshape(n, 5)).relu())


class Flattened(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.one(x), inplace=True), 2, ceil_mode=True)
        x = functional.max_pool2d(functional.relu(self.two(x)), 2)
        return self.four(functional.relu(self.three(torch.flatten(x, start_dim=1, end_dim=-1))))


class Viewed(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        x = functional.relu(functional.max_pool2d(self.two(x), 2)).view(-1, 5)
        return self.four(functional.relu(self.three(x)))


OWN = [
    convolution("one", 1, 3, 8, 3, pad=1, pool=True, relu=True),
    convolution("two", 3, 5, 4, 3, pool=True, relu=True),
    linear("three", 5, 4, relu=True),
    linear("four", 4, 2),
]


@pytest.mark.parametrize("kind", [Own, ByMethods, Flattened, Viewed])
def test_a_users_network_is_read(kind: type[nn.Module]) -> None:
    assert read(kind()) == OWN
    assert read(kind().eval(), training=True) == OWN
    assert read(kind(), training=False) == OWN


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        ([nn.Linear(6, 4, bias=False)], (6,), [linear("0", 6, 4, bias=None)]),
        ([nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 2)], (1, 2, 3), [linear("1", 6, 4), linear("2", 4, 2)]),
        (
            [nn.Conv2d(2, 3, 5, padding="same"), nn.Identity(), nn.Dropout(0.0), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
            (2, 6, 6),
            [convolution("0", 2, 3, 6, 5, pad=2), average(3, 6, 6)],
        ),
        (
            [nn.Conv2d(2, 3, 4, padding="valid"), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3, 2)],
            (2, 6, 6),
            [convolution("0", 2, 3, 6, 4, relu=True), average(3, 3, 2), linear("4", 3, 2)],
        ),
        (  # sides that differ, a padding larger than the filter, and an odd one that a pool cuts off
            [nn.Conv2d(1, 3, 2, padding=3, bias=False), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 5 * 4, 2)],
            (1, 5, 4),
            [
                Layer("convolution", 1, 3, "0.weight", None, height=5, width=4, k=2, pad=3, pool=True),
                linear("3", 60, 2),
            ],
        ),
        ([nn.Conv2d(1, 2, 7), nn.Flatten()], (1, 7, 7), [convolution("0", 1, 2, 7, 7)]),
        ([nn.Conv2d(1, 2, 7), nn.MaxPool2d(2), nn.Flatten()], (1, 8, 8), [convolution("0", 1, 2, 8, 7, pool=True)]),
        (
            [nn.Conv2d(1, 2, 1), nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)],
            (1, 1, 2),
            [
                Layer("convolution", 1, 2, "0.weight", "0.bias", height=1, width=2, k=1, relu=True),
                linear("3", 4, 2),
            ],
        ),
    ],
)
def test_layers_in_a_row_are_read(layers: list[nn.Module], shape: tuple[int, ...], expected: list[Layer]) -> None:
    module = nn.Sequential(*layers)
    assert read(module, shape) == expected
    out = module(torch.zeros(2, *shape))
    assert out[0].numel() == torch.Size(expected[-1].shape).numel()


def test_a_bare_linear_layer_is_read() -> None:
    assert read(nn.Linear(6, 4), (6,)) == [Layer("linear", 6, 4, "weight", "bias")]


LENET = [("convolution", 5, 2, True, True), ("convolution", 5, 0, True, True)]
DENSE, LOGITS = ("linear", 0, 0, False, True), ("linear", 0, 0, False, False)
PLAIN, POOLED = ("convolution", 3, 1, False, True), ("convolution", 3, 1, True, True)
ZOO: dict[str, tuple[dict[str, Any], tuple[int, int, int], list[tuple[str, int, int, bool, bool]]]] = {
    "linear": ({}, (1, 28, 28), [LOGITS]),
    "mlp-400": ({}, (1, 28, 28), [DENSE, LOGITS]),
    "lenet5": ({}, (1, 28, 28), [*LENET, DENSE, DENSE, LOGITS]),
    "lenet5-wide": ({}, (1, 28, 28), [*LENET, DENSE, DENSE, LOGITS]),
    "mnist-cnn": ({}, (1, 28, 28), [("convolution", 5, 2, True, True)] * 2 + [DENSE, LOGITS]),
    "cifar10-cnn": ({"dropout": 0.0}, (3, 32, 32), [POOLED] * 3 + [DENSE, LOGITS]),
    "cnn": ({}, (3, 32, 32), [("convolution", 2, 0, False, True)] * 2 + [LOGITS]),
    "vgg11": (
        {"norm": "none"},
        (3, 32, 32),
        [POOLED, POOLED, PLAIN, POOLED, PLAIN, POOLED, PLAIN, POOLED, ("average", 1, 0, False, False), LOGITS],
    ),
}


@pytest.mark.parametrize("name", [*ZOO])
def test_the_zoos_models_are_read(name: str) -> None:
    options, shape, expected = ZOO[name]
    module = models.build(name, models.Inputs(shape, 10, None), **options)
    layers = read(module, shape)
    assert [(d.kind, d.k, d.pad, d.pool, d.relu) for d in layers] == expected
    layout = {part.name: part.shape for part in Layout.of(module).parameters}
    for layer in layers:  # each with its own parameters
        if layer.weight is not None:
            filters = (layer.k, layer.k) if layer.kind == "convolution" else ()
            assert layout[layer.weight] == (layer.outputs, layer.inputs, *filters)
    assert layers[-1].outputs == 10


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("cifar10-cnn", {}, "dropout"),
        ("vgg11", {"norm": "batch"}, "a layer BatchNorm2d"),
        ("vgg11", {"norm": "group"}, "a layer GroupNorm"),
        ("resnet20", {"norm": "none"}, "not a chain"),
        ("googlenet", {"norm": "none"}, "not a chain"),
        ("densenet121", {"norm": "none"}, "not a chain"),
        ("alexnet", {}, "a convolution with stride"),
    ],
)
def test_the_zoos_other_models_are_not(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(NotAChainError, match=why):
        read(models.build(name, models.Inputs((3, 32, 32), 10, None), **options), (3, 32, 32))


def image(*layers: nn.Module, width: int = 2, side: int = 8) -> nn.Module:
    """Layers on images of 8 x 8, with whatever linear layer fits behind them."""
    with torch.no_grad():
        features = nn.Sequential(*layers, nn.Flatten())(torch.zeros(2, 1, side, side)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, width))


class Added(Own):
    def forward(self, x: Tensor) -> Tensor:
        return self.four(self.three(functional.avg_pool2d(self.two(self.one(x)), 6).flatten(1)) + 1)


class AnotherWhenTested(Own):
    """Gives probabilities when it is tested."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        return out if self.training else out.softmax(1)


class Branches(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(self.one(x)))


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two((x + self.one(x)).flatten(1))


class Returns(Own):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), 1


class SomeDimensions(nn.Module):
    """Flattens all but the last dimension, which is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1, end_dim=2))


class LocallyNormed(nn.Conv2d):
    """A user's own convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight / self.weight.norm(), self.bias)


def changed(change: Callable[[Own], object]) -> nn.Module:
    module = Own()
    change(module)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module


def conv(*args: Any, **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(*args, **kwargs)


PLACES = "stride, dilation, groups or other padding"
SQUARE = "not square, or larger than 7x7"
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "batch norm": (lambda: image(conv(1, 2, 3), nn.BatchNorm2d(2)), (1, 8, 8), "a layer BatchNorm2d"),
    "group norm": (lambda: image(conv(1, 2, 3), nn.GroupNorm(1, 2)), (1, 8, 8), "a layer GroupNorm"),
    "dropout": (lambda: image(conv(1, 2, 3), nn.Dropout(0.1)), (1, 8, 8), "the model has dropout"),
    "tanh": (lambda: image(conv(1, 2, 3), nn.Tanh()), (1, 8, 8), "a layer Tanh"),
    "stride": (lambda: image(conv(1, 2, 3, stride=2)), (1, 8, 8), PLACES),
    "groups": (lambda: image(conv(1, 2, 3), conv(2, 2, 3, groups=2)), (1, 8, 8), PLACES),
    "dilation": (lambda: image(conv(1, 2, 3, dilation=2)), (1, 8, 8), PLACES),
    "circular": (lambda: image(conv(1, 2, 3, padding=1, padding_mode="circular")), (1, 8, 8), PLACES),
    "even same": (lambda: nn.Sequential(conv(1, 2, 4, padding="same")), (1, 8, 8), PLACES),
    "not square": (lambda: image(conv(1, 2, (3, 1))), (1, 8, 8), SQUARE),
    "padding not square": (lambda: image(conv(1, 2, 3, padding=(1, 0))), (1, 8, 8), SQUARE),
    "kernel 8": (lambda: image(conv(1, 2, 8)), (1, 8, 8), SQUARE),
    "transposed": (lambda: image(nn.ConvTranspose2d(1, 2, 3)), (1, 8, 8), "a layer ConvTranspose2d"),
    "larger than its image": (
        lambda: nn.Sequential(conv(1, 4, 5), nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3), "larger than its image"
    ),
    "channels": (lambda: nn.Sequential(conv(4, 2, 3), nn.Flatten(), nn.Linear(2, 2)), (1, 3, 3), "do not fit"),
    "features": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3), "do not fit"),
    "rounds up": (lambda: image(conv(1, 2, 2), nn.MaxPool2d(2, ceil_mode=True)), (1, 8, 8), "that rounds up"),
    "pool of 3": (lambda: image(conv(1, 2, 3), nn.MaxPool2d(3)), (1, 8, 8), "a max-pool that is not 2x2"),
    "pools overlap": (lambda: image(conv(1, 2, 3), nn.MaxPool2d(2, 1)), (1, 8, 8), "a max-pool that is not 2x2"),
    "padded pool": (lambda: image(conv(1, 2, 3), nn.MaxPool2d(2, padding=1)), (1, 8, 8), "not 2x2"),
    "pool of data": (lambda: image(nn.MaxPool2d(2)), (1, 8, 8), "a max-pool that does not follow a convolution"),
    "two pools": (lambda: image(conv(1, 2, 1), nn.MaxPool2d(2), nn.MaxPool2d(2)), (1, 8, 8), "does not follow"),
    "pool of averages": (lambda: image(conv(1, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2)), (1, 8, 8), "not follow"),
    "averages overlap": (lambda: image(conv(1, 2, 1), nn.AvgPool2d(3, 2)), (1, 8, 8), "not square, or overlaps"),
    "average not square": (lambda: image(conv(1, 2, 1), nn.AvgPool2d((2, 1))), (1, 8, 8), "not square, or overlaps"),
    "padded average": (lambda: image(conv(1, 2, 1), nn.AvgPool2d(2, padding=1)), (1, 8, 8), "overlaps"),
    "average rounds up": (lambda: image(conv(1, 2, 2), nn.AvgPool2d(2, ceil_mode=True)), (1, 8, 8), "overlaps"),
    "other divisor": (lambda: image(conv(1, 2, 2), nn.AvgPool2d(2, divisor_override=3)), (1, 8, 8), "overlaps"),
    "adaptive 2": (lambda: image(conv(1, 2, 2), nn.AdaptiveAvgPool2d(2)), (1, 8, 8), "overlaps"),
    "average of oblongs": (
        lambda: nn.Sequential(conv(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (1, 4, 5), "not square"
    ),
    "average of data": (lambda: image(nn.AvgPool2d(2)), (1, 8, 8), "averages something else"),
    "ReLU at the end": (lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,), "end with the logits"),
    "ReLU and pool at the end": (
        lambda: nn.Sequential(conv(1, 2, 7), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (1, 8, 8), "end with the logits"
    ),
    "ReLU of averages": (lambda: image(conv(1, 2, 1), nn.AvgPool2d(2), nn.ReLU()), (1, 8, 8), "follows neither"),
    "ReLU of data": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), (4,), "follows neither"),
    "no layer": (lambda: nn.Sequential(nn.Flatten(), nn.PReLU()), (4,), "a layer PReLU"),
    "images at the end": (lambda: nn.Sequential(conv(1, 2, 1)), (1, 1, 1), "not one vector per sample"),
    "rows": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten()), (3, 4), "more than one dimension"),
    "flattens the batch": (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), (4,), "only some dimensions"),
    "flattens some": (SomeDimensions, (1, 1, 1), "the model calls flatten"),
    "frozen": (lambda: changed(lambda m: m.one.weight.requires_grad_(False)), (1, 8, 8), "frozen, tied or unused"),
    "unused": (lambda: changed(lambda m: m.add_module("more", nn.Linear(1, 1))), (1, 8, 8), "frozen, tied or unused"),
    "tied": (tied, (4,), "frozen, tied or unused"),
    "used twice": (Twice, (4,), "frozen, tied or unused"),
    "hook": (lambda: changed(lambda m: m.one.register_forward_hook(lambda *_: None)), (1, 8, 8), "has hooks"),
    "pre-hook": (lambda: changed(lambda m: m.two.register_forward_pre_hook(lambda *_: None)), (1, 8, 8), "has hooks"),
    "backward hook": (
        lambda: changed(lambda m: m.two.register_full_backward_hook(lambda *_: None)), (1, 8, 8), "has hooks"
    ),
    "backward pre-hook": (
        lambda: changed(lambda m: m.two.register_full_backward_pre_hook(lambda *_: None)), (1, 8, 8), "has hooks"
    ),
    "parametrized": (
        lambda: changed(lambda m: nn.utils.parametrizations.weight_norm(m.three)), (1, 8, 8), "ParametrizedLinear"
    ),
    "another forward": (
        lambda: changed(lambda m: setattr(m.three, "forward", m.three.forward)), (1, 8, 8), "a forward pass of its own"
    ),
    "own layer": (lambda: image(LocallyNormed(1, 2, 3)), (1, 8, 8), "not a chain"),
    "residual": (Skips, (1, 8, 8), "not a chain"),
    "more arithmetic": (Added, (1, 8, 8), "the model calls add"),
    "two results": (Returns, (1, 8, 8), "end with the logits"),
    "untraceable": (Branches, (1, 8, 8), "cannot be traced"),
    "tokens": (lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)), (2,), "a layer Embedding"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED])
def test_what_is_no_chain_is_told_why(name: str) -> None:
    make, shape, why = REFUSED[name]
    with pytest.raises(NotAChainError, match=why):
        read(make(), shape)


class Logged(Own):
    """As PyTorch's own example for MNIST ends."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(super().forward(x), dim=1)


class LoggedTwice(Own):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(super().forward(x).log_softmax(-1))


class LoggedOverSamples(Own):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(super().forward(x), 0)


def test_a_log_softmax_at_the_end_changes_nothing() -> None:
    assert read(Logged()) == OWN
    assert read(nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(dim=1)), (3,)) == read(
        nn.Sequential(nn.Linear(3, 2)), (3,)
    )
    with pytest.raises(NotAChainError, match="goes on behind its log-softmax"):
        read(LoggedTwice())
    with pytest.raises(NotAChainError, match="the model calls log_softmax"):
        read(LoggedOverSamples())


def test_a_module_that_is_another_one_when_it_is_tested_is_noticed() -> None:
    module = AnotherWhenTested()
    assert read(module) == OWN
    with pytest.raises(NotAChainError, match="the model calls softmax"):
        read(module, training=False)
    assert module.training

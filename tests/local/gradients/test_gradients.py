"""Gradients of stacks against one autograd pass a client."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from fedkeel import models
from fedkeel.local.batches import Batch, Samples
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.params import FlatModel, Layout


def by_autograd(
    module: nn.Module, w: Tensor, x: Tensor, y: Tensor, sizes: list[int]
) -> tuple[list[float], list[Tensor]]:
    flat = FlatModel(module)
    losses, gradients = [], []
    for row, size in enumerate(sizes):
        flat.load(w[row])
        loss = cross_entropy(flat.module(x[row, :size]), y[row, :size])
        parts = torch.autograd.grad(loss, flat.parameters)
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    return losses, gradients


def check(
    gradient: object, module: nn.Module, shape: tuple[int, ...], sizes: list[int], shared: bool, classes: int
) -> None:
    layout = Layout.of(module)
    k, b = len(sizes), max(sizes)
    w = torch.randn(1 if shared else k, layout.size, dtype=torch.float64).expand(k, -1) * 0.3
    w = w if not shared else w[0].expand(k, -1)
    x = torch.randn(k, b, *shape, dtype=torch.float64)
    y = torch.randint(0, classes, (k, b))
    weights = torch.tensor([[1 / size] * size + [0.0] * (b - size) for size in sizes], dtype=torch.float64)
    batch = Batch(Samples((x, y)), np.array(sizes), weights)
    loss, g = gradient(w, batch)  # type: ignore[operator]
    losses, gradients = by_autograd(module, w, x, y, sizes)
    np.testing.assert_allclose((loss.detach() * weights).sum(1), losses, rtol=1e-10)
    torch.testing.assert_close(g, torch.stack(gradients), rtol=1e-9, atol=1e-12)
    if isinstance(gradient, DenseGradient):
        rate = torch.rand(k, 1, dtype=torch.float64)
        elsewhere = torch.randn(k, layout.size, dtype=torch.float64)
        places = [(elsewhere, torch.empty_like(elsewhere)), (w, torch.empty_like(elsewhere)), (w, w.contiguous())]
        for before, out in places:  # the last of them in place, unless the start is shared
            expected = before - rate * g
            gradient.descend(w, batch, rate, out, before)
            torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 6), max_size=3),
    st.booleans(),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, 1000),
)
def test_closed_forms(hidden: list[int], bias: bool, sizes: list[int], shared: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    width = 6
    for units in hidden:
        layers += [nn.Linear(width, units, bias=bias)] + [nn.ReLU()] * (units % 3 > 0)
        width = units
    module = nn.Sequential(*layers, nn.Linear(width, 4)).double()
    gradient = DenseGradient.of(module, Layout.of(module), (2, 3))
    assert gradient is not None
    check(gradient, module, (2, 3), sizes, shared, 4)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bare_linear_layer_has_a_closed_form(bias: bool) -> None:
    module = nn.Linear(6, 4, bias=bias).double()
    gradient = DenseGradient.of(module, Layout.of(module), (6,))
    assert gradient is not None
    check(gradient, module, (6,), [3, 2], False, 4)


class Plain(nn.Module):
    """How most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        return self.second(relu(self.first(x)))


class Reshaped(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x.reshape(-1, 6))))


class Shaped(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(relu(self.first(x.view(x.shape[0], -1))))


class Keeps(Plain):
    """Keeps what it made, which must not spoil the module for a copy."""

    def forward(self, x: Tensor) -> Tensor:
        self.h = relu(self.first(x.reshape(x.size(0), -1)))
        return self.second(self.h)


class Flattened(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(torch.flatten(x, 1)).relu())


@pytest.mark.parametrize("kind", [Plain, Reshaped, Shaped, Keeps, Flattened])
@pytest.mark.parametrize("shared", [False, True])
def test_a_users_network_is_recognised(kind: type[nn.Module], shared: bool) -> None:
    torch.manual_seed(0)
    module = kind().double()
    gradient = DenseGradient.of(module, Layout.of(module), (2, 3))
    assert gradient is not None
    check(gradient, module, (2, 3), [3, 3, 1], shared, 4)


DENSE = ("linear", "mlp-400")


@pytest.mark.slow
def test_the_zoos_dense_models_are_recognised() -> None:
    inputs = models.Inputs((1, 8, 8), 10, None)
    for name in models.names():
        if name == "textcnn":
            continue
        smallest = models.Inputs((1, 32, 32), 10, None)
        module = models.build(name, inputs if name in DENSE else smallest)
        found = DenseGradient.of(module, Layout.of(module), (inputs if name in DENSE else smallest).shape) is not None
        assert found == (name in DENSE), name


class Skip(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.second(x + relu(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(self.a(x)))


class Branch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.second(x if x.sum() > 0 else -x)


class Scaled(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1))) * 2


class Misnamed(Plain):
    """Its attribute is called relu, and is something else."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU6()
        self.flatten = nn.Flatten(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.relu(self.first(x.flatten(1))))


class MisnamedFlatten(Misnamed):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.flatten(x)))


class Sliced(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1))[0])


class Stays(Plain):
    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x.flatten(1))
        self.second(first)
        return first


def frozen() -> nn.Module:
    module = Plain()
    module.first.weight.requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = Plain()
    module.first.register_forward_hook(lambda *_: None)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    "module",
    [
        Skip(),
        Twice(),
        Branch(),
        Scaled(),
        Stays(),
        Misnamed(),
        MisnamedFlatten(),
        Sliced(),
        frozen(),
        hooked(),
        tied(),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_nothing_else_is_taken_for_a_dense_network(module: nn.Module) -> None:
    assert DenseGradient.of(module, Layout.of(module), (4,)) is None


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("name", "options"), [("lenet5", {}), ("resnet20", {"norm": "group"}), ("mnist-cnn", {})])
def test_vmap_on_convolutions(name: str, options: dict[str, object], shared: bool) -> None:
    torch.manual_seed(1)
    module = models.build(name, models.Inputs((1, 12, 12), 10, None), **options).double().train()
    check(VmappedGradient(module, Layout.of(module)), module, (1, 12, 12), [2, 2, 1], shared, 10)

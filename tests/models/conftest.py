from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine cost more than these small batches gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def count() -> Callable[[nn.Module], int]:
    """The number of trainable weights of a model."""
    return lambda model: sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def trace() -> Callable[[nn.Module, Tensor], list[str]]:
    """What each layer makes of one sample, in order: 'Conv2d 6x28x28'."""

    def follow(model: nn.Module, x: Tensor) -> list[str]:
        seen: list[str] = []

        def note(layer: nn.Module, _: object, output: Tensor) -> None:
            seen.append(f"{type(layer).__name__} {'x'.join(map(str, output.shape[1:]))}")

        hooks = [m.register_forward_hook(note) for m in model.modules() if not list(m.children())]
        with torch.no_grad():
            model.eval()(x)
        for hook in hooks:
            hook.remove()
        return seen

    return follow

"""Orders for worker processes, and a workshop that carries them out."""

from typing import Any

import numpy as np
import torch
from torch import nn

from fedkeel import FederatedData
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods import ClientRule
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order

SIZES = [9, 3, 7, 12, 1, 5, 8]


def data(sizes: list[int] = SIZES) -> FederatedData:
    """Clients of these sizes; the samples of client 3 are large."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 6)) + 10 * (i == 3), rng.integers(0, 3, n)) for i, n in enumerate(sizes)]
    return FederatedData.from_clients(parts, test=(rng.normal(size=(1200, 6)), rng.integers(0, 3, 1200)))


def workshop(module: nn.Module | None = None, rule: ClientRule | None = None) -> Workshop:
    """For a small network, or for `module`."""
    torch.manual_seed(0)
    net = module or nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return Workshop(net, data(), rule or ClientRule(), LocalSettings(epochs=2, batch_size=4, momentum=0.5), seed=1)


def orders(shop: Workshop, **more: Any) -> list[Order]:
    """One for each client."""
    flat = FlatModel(shop.module)
    lr = torch.full((2,), 0.1)
    w = flat.w.clone()
    return [Order(i, i, 1, 2, w, flat.buffers, lr, {}, more.get("kept", {})) for i in range(len(SIZES))]


def settings(kind: str, stack: int = 0, workers: int | None = None) -> ExecutorSettings:
    return ExecutorSettings(kind=kind, stack=stack, channels_last=False, workers=workers)

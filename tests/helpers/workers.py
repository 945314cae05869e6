"""Orders for worker processes, a workshop that carries them out, and rules and models that make it hard."""

import faulthandler
import os
import signal
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel import DivergenceError, FederatedData
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods import ClientRule, Job, Message, Oracle
from fedkeel.params import FlatModel, Layout
from fedkeel.wire.orders import Order
from tests.helpers.declared import Anything

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


class Chatty(ClientRule):
    """Sends and keeps something."""

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"moved": w - job.start}, {"last": w, "jobs": job.kept.get("jobs", torch.zeros_like(job.samples)) + 1}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


class Trap(nn.Module):
    """Does something at the sight of client 3, whose samples are large."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.what = what
        self.parent = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if float(x.mean()) > 5 and os.getpid() != self.parent:
            if self.what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "exits":
                os._exit(7)
            if self.what == "crashes":
                faulthandler.disable()
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.what == "memory":
                torch.empty(1 << 60)
            if self.what == "fails":
                raise ValueError("cannot see this")
            if self.what == "ours":
                raise DivergenceError("it went away")
        return self.head(x)


class Fickle(ClientRule):
    """What it sends depends on the round: a type, a shape, or nothing at all."""

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        lead = job.samples.shape[:-1]
        match int(job.round.flatten()[0]):
            case 1:
                return {"x": torch.ones(*lead, 3, dtype=torch.int64)}, {}
            case 2:
                return {"x": torch.full((*lead, 1), 0.5)}, {}
        return {}, {}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()

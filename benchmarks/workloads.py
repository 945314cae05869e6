"""What the speed benchmarks train: five workloads as data, and public yardsticks on real MNIST and CIFAR-10.

Every contender gets the same tensors, clients, model and settings. The samples of W1 to W5 are random numbers from a
fixed seed: how long a step takes depends on shapes, not on content. They are scaled so that training at this learning
rate stays finite and meets no denormal numbers, which would be slow.

P1 is pfl-research's own CIFAR-10 benchmark. From benchmarks/image_classification/configs/baseline.yaml and
benchmarks/model/pytorch/cnn.py of github.com/apple/pfl-research were taken: 50 samples a client, IID, so 1,000 clients;
50 a round; one local epoch in mini-batches of 10 with SGD at .1; a server's step of 1, without weights by samples
(all have as many); a test every 10 rounds; `simple_cnn`: 3x3 convolutions with 32 and 64 channels and ReLUs, 2x2
max-pooling, dropout of .25, 128 units with ReLU, dropout of .5, ten outputs, Xavier's uniform initialisation.
fedkeel's native kernels know no dropout, so PyTorch trains it. P2 is the same without dropout.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData
from fedkeel.data.cache import cache_folder
from fedkeel.errors import FedkeelError
from fedkeel.runner.prepare import federate, prepare

CLASSES, TEST_SAMPLES, SCALE = 10, 200, 0.1
LOCAL = {"algorithm.name": "fedavg", "local.epochs": 1, "local.lr": 0.05, "local.momentum": 0, "seed": 0}


@dataclass(frozen=True)
class Workload:
    """Clients of equal size that train one model of the zoo with FedAvg."""

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    batch: int
    samples: int
    """Of each client."""
    target: float | None
    """Seconds a round of fedkeel's at most, as a share of the plain loop's."""
    rounds: int
    """That are timed unless told otherwise."""
    clients: int = 100
    per_round: int = 10
    options: dict[str, object] = field(default_factory=dict)
    """Of the model."""
    dataset: str | None = None
    """A real one, if it can be had here."""
    settings: dict[str, object] = field(default_factory=dict)
    """That differ from the others'."""

    def data(self) -> FederatedData:
        """Dealt out at random and equally; a small test set, because training is what is timed."""
        return self._real or self._random()

    @property
    def random(self) -> bool:
        """Whether the samples are random numbers."""
        return self._real is None

    @cached_property
    def _real(self) -> FederatedData | None:
        if self.dataset is None:
            return None
        told = [f"dataset.name={self.dataset}", f"dataset.test_limit={TEST_SAMPLES}", f"clients={self.clients}"]
        try:
            return federate(Experiment.load(overrides=told))
        except FedkeelError:
            return None

    def _random(self) -> FederatedData:
        draw = torch.Generator().manual_seed(0)
        count = self.clients * self.samples + TEST_SAMPLES
        x = torch.randn(count, *self.shape, generator=draw).mul_(SCALE)
        y = torch.randint(CLASSES, (count,), generator=draw)
        test = (x[-TEST_SAMPLES:], y[-TEST_SAMPLES:])
        train = (x[:-TEST_SAMPLES], y[:-TEST_SAMPLES])
        return FederatedData.from_arrays(*train, clients=self.clients, partition="iid", test=test, name=self.name)

    def experiment(self, rounds: int, overrides: Sequence[str] = ()) -> Experiment:
        """Tested in the last round only; `overrides` are `key=value` as on the command line."""
        settings: dict[str, object] = {
            **LOCAL,
            "model.name": self.model,
            **{f"model.{option}": value for option, value in self.options.items()},
            "local.batch_size": self.batch,
            "clients": self.clients,
            "per_round": self.per_round,
            "rounds": rounds,
            "evaluate_every": rounds,
            **self.settings,
        }
        settings |= {key: value for key, _, value in (each.partition("=") for each in overrides)}
        return Experiment.load(overrides=[f"{key}={value}" for key, value in settings.items()])

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of a round in layers with weights.

        Two for each multiply-add forward and four backward: for the weights' gradient and for that of the inputs,
        which the first layer needs not.
        """
        empty = FederatedData.from_arrays(
            torch.zeros(CLASSES, *self.shape), torch.arange(CLASSES), clients=1, test=(torch.zeros(1, *self.shape), [0])
        )
        module = prepare(self.experiment(1, ["clients=1", "per_round=1"]), empty)[2].eval()
        found: list[float] = []

        def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
            (weight,) = (each for each in layer.parameters() if each.dim() > 1)
            found.append(output[0, 0].numel() * weight.numel())  # each weight is used once for each pixel of the output

        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        with torch.no_grad():
            module(torch.zeros(1, *self.shape))
        return (6 * sum(found) - 2 * found[0]) * self.samples * self.per_round


IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    each.name: each
    for each in (
        Workload("W1", "LeNet-5, batch 32, 600 samples", "lenet5", IMAGE, 32, 600, target=0.15, rounds=9),
        Workload("W2", "linear, batch 10, 600 samples", "linear", IMAGE, 10, 600, target=0.05, rounds=25),
        Workload("W3", "MLP-400, batch 32, 600 samples", "mlp-400", IMAGE, 32, 600, target=0.33, rounds=15),
        Workload(
            "W4",
            "3-conv CNN, batch 32, 500 samples",
            "cifar10-cnn",
            COLOUR,
            32,
            500,
            target=0.35,
            rounds=5,
            options={"dropout": 0},
        ),
        Workload(
            "W5",
            "linear, 10,000 clients with 6 samples, 1,000 per round",
            "linear",
            IMAGE,
            10,
            6,
            target=0.05,
            rounds=15,
            clients=10_000,
            per_round=1_000,
        ),
    )
}


def pfl_cnn(*, dropout: bool = True) -> nn.Sequential:
    """pfl-research's `simple_cnn` for CIFAR-10, with channels first."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Dropout(0.25)] * dropout + [nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU()]
    layers += [nn.Dropout(0.5)] * dropout + [nn.Linear(128, CLASSES)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return nn.Sequential(*layers)


PUBLIC = {
    name: Workload(
        name,
        f"pfl-research's CIFAR-10, {what}",
        "workloads:pfl_cnn",
        COLOUR,
        10,
        50,
        target=None,
        rounds=3,
        clients=1_000,
        per_round=50,
        options={"dropout": dropout},
        dataset="cifar10",
        settings={"local.lr": 0.1},
    )
    for name, what, dropout in (("P1", "its CNN", "true"), ("P2", "its CNN without dropout", "false"))
}
ALL = {**WORKLOADS, **PUBLIC}

YARDSTICK = {
    **LOCAL,
    "dataset.name": "mnist",
    "model.name": "linear",
    "clients": 1_000,
    "per_round": 10,
    "rounds": 100,
    "local.batch_size": 10,
}
"""Logistic regression on MNIST as a user would run it: what counts is the whole wall time and the accuracy."""


YARDSTICKS: dict[str, dict[str, object]] = {
    "yardstick": YARDSTICK,
    **{
        f"pfl-cifar10{suffix}": {
            **LOCAL,
            **PUBLIC[name].settings,
            "dataset.name": "cifar10",
            "model.name": PUBLIC[name].model,
            "model.dropout": PUBLIC[name].options["dropout"],
            "clients": PUBLIC[name].clients,
            "per_round": PUBLIC[name].per_round,
            "rounds": 5,
            "evaluate_every": 5,
            "local.batch_size": PUBLIC[name].batch,
        }
        for suffix, name in (("", "P1"), ("-no-dropout", "P2"))
    },
}
"""Whole commands, `fedkeel run --set ...`."""


@contextmanager
def fresh_choices() -> Iterator[Path]:
    """The cache as it is, but without remembered choices of an executor: another version may have made them."""
    before = os.environ.get("FEDKEEL_DATA")
    known = cache_folder().resolve()
    with tempfile.TemporaryDirectory() as folder:
        for each in known.iterdir() if known.is_dir() else ():
            if each.is_dir() and each.name != "executors":
                (Path(folder) / each.name).symlink_to(each)
        os.environ["FEDKEEL_DATA"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["FEDKEEL_DATA"]
            if before is not None:
                os.environ["FEDKEEL_DATA"] = before


def add_choice(parser: argparse.ArgumentParser, default: Sequence[str], others: Sequence[str] = ()) -> None:
    """The option `--only W1,W2`."""
    known = [*ALL, *others]

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose from {', '.join(known)}")
        return chosen

    parser.add_argument("--only", type=names, default=list(default), metavar="W1,W2", help=f"of {', '.join(known)}")

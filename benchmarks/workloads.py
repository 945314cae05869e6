"""What the speed benchmarks train: five workloads as data, and a yardstick on real MNIST.

Every contender gets the same tensors, clients, model and settings. The samples are random numbers from a fixed seed:
how long a step takes depends on shapes, not on content. They are scaled so that training at this learning rate stays
finite and meets no denormal numbers, which would be slow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedkeel import Experiment, FederatedData

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
    target: float
    """Seconds a round of fedkeel's, as a share of the plain loop's."""
    rounds: int
    """That are timed unless told otherwise."""
    clients: int = 100
    per_round: int = 10
    options: dict[str, object] = field(default_factory=dict)
    """Of the model."""

    def data(self) -> FederatedData:
        """Dealt out at random and equally; a small test set, because training is what is timed."""
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
        }
        settings |= {key: value for key, _, value in (each.partition("=") for each in overrides)}
        return Experiment.load(overrides=[f"{key}={value}" for key, value in settings.items()])


IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    each.name: each
    for each in (
        Workload("W1", "LeNet-5, batch 32, 600 samples", "lenet5", IMAGE, 32, 600, target=0.67, rounds=9),
        Workload("W2", "linear, batch 10, 600 samples", "linear", IMAGE, 10, 600, target=0.08, rounds=25),
        Workload("W3", "MLP-400, batch 32, 600 samples", "mlp-400", IMAGE, 32, 600, target=0.40, rounds=15),
        Workload(
            "W4",
            "3-conv CNN, batch 32, 500 samples",
            "cifar10-cnn",
            COLOUR,
            32,
            500,
            target=0.45,
            rounds=7,
            options={"dropout": 0},
        ),
        Workload(
            "W5",
            "10,000 clients of 6, 1,000 a round, linear",
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


def add_choice(parser: argparse.ArgumentParser, default: Sequence[str], others: Sequence[str] = ()) -> None:
    """The option `--only W1,W2`."""
    known = [*WORKLOADS, *others]

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not accepted; accepted: {', '.join(known)}")
        return chosen

    parser.add_argument("--only", type=names, default=list(default), metavar="W1,W2", help=f"of {', '.join(known)}")

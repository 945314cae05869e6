"""The bare PyTorch loops that fedkeel is measured against, and how they are checked.

    python benchmarks/bare.py [--only W1,W2] [--threads 1,2] [--rounds 5]   # seconds a round
    python benchmarks/bare.py --check                                      # the same weights as fedkeel after a round

One client after the other on one model, with autograd, and nothing else: no records, no losses. There are two:

plain: weights copied in place, mini-batches taken from one tensor by index, no DataLoader, no optimiser object.
tuned: with every trick that made it faster, without regard for readability: samples gathered once an epoch, layers
called one by one past `nn.Module`, convolutions in channels_last with the filters laid out to match. Tried, and slower:
`torch.optim.SGD` (foreach or fused), gradients joined into one vector, modules called instead of their `forward`,
TorchScript, convolutions in the usual layout. Tried, and the same within noise: `torch.autograd.grad`,
`torch._foreach_sub_`, samples gathered batch by batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from workloads import ALL, WORKLOADS, Workload, add_choice

from fedkeel import Experiment, FederatedData, run, streams
from fedkeel.runner.prepare import prepare

LOOP = "FEDKEEL_BENCHMARK_LOOP"
"""The environment variable that tells the peers' clients which one to train with."""
LOOPS = {False: "plain", True: "tuned"}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
Order = Callable[[int, int, int], Tensor]
"""(client, epoch, count) to a permutation of range(count)."""


def shuffled(_client: int, _epoch: int, count: int) -> Tensor:
    return torch.randperm(count)


class BareLoop:
    """FedAvg on one model whose parameters are views of the flat vector `w`; with every trick, unless told not to."""

    def __init__(self, experiment: Experiment, data: FederatedData, tricks: bool = True) -> None:
        experiment, data, self.module = prepare(experiment, data)
        _refuse_what_it_cannot(experiment, self.module)
        self.local = experiment.local
        self.x, self.y = data.train.x, data.train.y
        self.tricks = tricks
        self.channels_last = tricks and any(isinstance(layer, nn.Conv2d) for layer in self.module.modules())
        if self.channels_last:
            self.x = self.x.permute(0, 2, 3, 1).contiguous()
        parameters = list(self.module.parameters())
        self.w = _flatten(parameters, self.channels_last)
        self.pairs = [(parameter, parameter.detach()) for parameter in parameters]
        self.layers = _chain(self.module, self.inputs(torch.arange(2)))
        self.start, self.mean = self.w.clone(), torch.zeros_like(self.w)
        self.clients = [data.client(client) for client in range(len(data))]

    def inputs(self, samples: Tensor) -> Tensor:
        """These samples, as a convolution likes them best."""
        x = self.x.index_select(0, samples)
        return x.permute(0, 3, 1, 2) if self.channels_last else x

    def train(self, order: Tensor) -> None:
        """One epoch over these samples, in this order, from the weights in `w`."""
        if not self.tricks:
            return self.train_plainly(order)
        size, rate, layers, pairs = self.local.batch_size, self.local.lr, self.layers, self.pairs
        for x, y in zip(self.inputs(order).split(size), self.y.index_select(0, order).split(size), strict=True):
            for layer in layers:
                x = layer(x)
            cross_entropy(x, y).backward()
            for parameter, value in pairs:
                value.sub_(parameter.grad, alpha=rate)
                parameter.grad = None
        return None

    def train_plainly(self, order: Tensor) -> None:
        """The same in a few lines."""
        for batch in order.split(self.local.batch_size):
            cross_entropy(self.module(self.x[batch]), self.y[batch]).backward()
            for parameter, value in self.pairs:
                value.sub_(parameter.grad, alpha=self.local.lr)
                parameter.grad = None

    def train_client(self, client: int, order: Order = shuffled) -> int:
        """Train `w` on a client's samples; returns how many there are."""
        samples = self.clients[client]
        for epoch in range(self.local.epochs):
            self.train(samples[order(client, epoch, len(samples))])
        return len(samples)

    def round(self, clients: Sequence[int], order: Order = shuffled) -> None:
        """Replace `start` by the sample-weighted mean of what these clients make of it."""
        total = sum(len(self.clients[client]) for client in clients)
        self.mean.zero_()
        for client in clients:
            self.w.copy_(self.start)
            samples = self.train_client(client, order)
            self.mean.add_(self.w, alpha=samples / total)
        self.start, self.mean = self.mean, self.start

    def result(self) -> nn.Module:
        """The model with the global weights."""
        self.w.copy_(self.start)
        return self.module


def _refuse_what_it_cannot(experiment: Experiment, module: nn.Module) -> None:
    local = experiment.local
    plain = not (local.momentum or local.weight_decay or local.clip_norm) and local.lr_decay == 1
    if experiment.algorithm.name != "fedavg" or not plain or local.batch_size == "full" or list(module.buffers()):
        raise SystemExit("the bare loop knows FedAvg with plain SGD in mini-batches, on models without buffers, only")


def _flatten(parameters: Sequence[nn.Parameter], channels_last: bool) -> Tensor:
    """Move the parameters into one vector, those of convolutions in channels_last order if so told."""
    moved = [channels_last and p.dim() == 4 for p in parameters]
    natural = [p.detach().permute(0, 2, 3, 1) if m else p.detach() for p, m in zip(parameters, moved, strict=True)]
    w = torch.cat([p.reshape(-1) for p in natural])
    parts = w.split([p.numel() for p in natural])
    for parameter, like, part, m in zip(parameters, natural, parts, moved, strict=True):
        view = part.view(like.shape)
        parameter.data = view.permute(0, 3, 1, 2) if m else view
    return w


def _chain(module: nn.Module, x: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """The `forward` of every layer of a model that is a plain chain of them, as the zoo's small ones are."""
    layers = [layer.forward for layer in module.modules() if not list(layer.children())]
    module.eval()  # dropout would give two different answers
    y = x
    for layer in layers:
        y = layer(y)
    assert torch.equal(y, module(x)), "not a chain of layers"
    module.train()
    return layers


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads inside a PyTorch operation, for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(loop: BareLoop, clients: Sequence[int], count: int) -> float:
    """One round's, with so many threads."""
    with threads(count):
        start = time.perf_counter()
        loop.round(clients)
        return time.perf_counter() - start


def difference(workload: Workload, dtype: str, tricks: bool) -> float:
    """The largest difference of any weight to fedkeel's after one round with the same batches."""
    data, experiment = workload.data(), workload.experiment(1, [f"dtype={dtype}"])
    taking_part: list[int] = []
    theirs = run(experiment, data=data, progress=lambda end: taking_part.extend(a.client for a in end.arrivals))
    loop = BareLoop(experiment, data, tricks)

    def drawn(client: int, epoch: int, count: int) -> Tensor:
        keys = streams.keys(experiment.seed, "batches", 1, client, epoch)
        return torch.from_numpy(streams.permutations(keys, count)[0])

    with threads(1):
        loop.round(taking_part, drawn)
    pairs = zip(loop.result().parameters(), theirs.model.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def check(names: Sequence[str]) -> None:
    """In float64 as well, where rounding leaves no room for a different update rule."""
    good = True
    for name in names:
        for (dtype, tolerance), tricks in product(TOLERANCE.items(), (False, True)):
            largest = difference(ALL[name], dtype, tricks)
            good &= largest <= tolerance
            verdict = "as fedkeel" if largest <= tolerance else f"DIFFERS by more than {tolerance:g}"
            print(f"{name} {LOOPS[tricks]} {dtype}: largest difference {largest:.1e}: {verdict}", flush=True)
    raise SystemExit(not good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser, list(WORKLOADS))
    parser.add_argument("--threads", default="2,1", help="numbers of threads to time")
    parser.add_argument("--rounds", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--check", action="store_true", help="compare with fedkeel instead of timing")
    options = parser.parse_args()
    if options.check:
        check(options.only)
    for name in options.only:
        workload = ALL[name]
        loops = [BareLoop(workload.experiment(rounds=1), workload.data(), tricks) for tricks in (False, True)]
        cases = [(loop, int(count)) for loop in loops for count in options.threads.split(",")]
        clients = range(workload.per_round)
        taken = [[seconds(loop, clients, count) for loop, count in cases] for _ in range(options.rounds + 1)][1:]
        for (loop, count), column in zip(cases, zip(*taken, strict=True), strict=True):
            median = statistics.median(column)
            print(f"{name} {LOOPS[loop.tricks]}: {median:.3f} s a round with {count} thread(s)", flush=True)


if __name__ == "__main__":
    main()

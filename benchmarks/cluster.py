"""Seconds of a round on a Ray cluster, beside worker processes, and a model of it.

    python benchmarks/cluster.py [--json FILE] [--only machine,network] [--seconds S]    # about 15 minutes
    python benchmarks/cluster.py --from benchmarks/results/cluster.json [--model]

`machine`: `executor.kind=ray` on a cluster of its own on this machine, and `processes`, turn by turn in one process,
with 1, 2 and 4 workers. Both get the same orders, from new weights each time, with the same stack and native kernels,
and their results must be equal. 4 workers reserve half a core each. `network`: each worker on a machine of its own,
which is a network namespace here, and the driver on another one; latency and bandwidth as in `network.py` (needs root).
What is timed is `Executor.train`: orders out, training, results back. A round of a run also has a server, which
`rounds.py` times. `--model` fits a model of a round to some of these measurements and says how far it is from the
others, which it has not seen, and what it predicts for 100 machines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import Line, Network
from numpy.typing import NDArray
from report import table
from scipy.optimize import least_squares, nnls
from speed import machine, now

from fedkeel import Experiment, FederatedData
from fedkeel.local.build import Workshop
from fedkeel.local.cluster.executor import LARGEST, SHORTEST
from fedkeel.local.executor import Executor
from fedkeel.local.executors.choose import SERIAL
from fedkeel.local.settings import ExecutorSettings
from fedkeel.params import FlatModel
from fedkeel.runner.choice import first_orders
from fedkeel.runner.prepare import prepare
from fedkeel.wire.many import Orders
from fedkeel.wire.orders import Same, Trained

Row = dict[str, Any]
WARM, LEAST, MOST = 3, 8, 100
WORKERS = (1, 2, 4)
GIGABIT = 125e6
LINES = ((0.0, 0.0), (1.0, 0.0), (10.0, 0.0), (25.0, 0.0), (1.0, GIGABIT))
"""Milliseconds one way, and bytes a second."""
PORT = 6379


@dataclass(frozen=True)
class Case:
    """What is trained: clients of equal size, one epoch of FedAvg in mini-batches of 10."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    per_round: int
    samples: int
    stack: int
    reduced: bool = False
    """Whether only the mean of the weights comes back (`reduce`)."""

    def workshop(self) -> tuple[Workshop, Orders]:
        """Everything that training needs, and the orders of a round."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients * self.samples, *self.shape, generator=draw).mul_(0.1)
        y = torch.randint(10, (len(x),), generator=draw)
        y[:10] = torch.arange(10)
        data = FederatedData.from_arrays(x, y, clients=self.clients, test=(torch.zeros(10, *self.shape), [*range(10)]))
        told: Row = {"model": self.model, "clients": self.clients, "per_round": self.per_round, "rounds": 1}
        experiment, data, module = prepare(Experiment(**told, local={"batch_size": 10}), data)
        rule, _ = experiment.algorithm.rules()
        shop = Workshop(module, data, rule, experiment.local, experiment.seed)
        asks = shop.executor(SERIAL)
        orders = Orders.of(first_orders(experiment, data, FlatModel(module), asks))
        asks.close()
        return shop, orders.but(share=np.full(len(orders), 1 / len(orders))) if self.reduced else orders


IMAGE = (1, 28, 28)
CASES = (
    Case("linear, 210 weights, 10 clients", "linear", (20,), 2_000, 10, 6, 2),
    Case("linear, 210 weights, 1,000 clients", "linear", (20,), 2_000, 1_000, 6, 50),
    Case("linear, 7,850 weights, 10 clients", "linear", IMAGE, 2_000, 10, 6, 2),
    Case("linear, 7,850 weights, 1,000 clients", "linear", IMAGE, 2_000, 1_000, 6, 50),
    Case("linear, 7,850 weights, 1,000 clients, stacks of 250", "linear", IMAGE, 2_000, 1_000, 6, 250),
    Case("LeNet-5, 10 clients", "lenet5", IMAGE, 100, 10, 60, 1),
    Case("MLP-400, 10 clients", "mlp-400", IMAGE, 100, 10, 60, 1),
    Case("linear, 7,850 weights, 1,000 clients, stacks of 250, `reduce`", "linear", IMAGE, 2_000, 1_000, 6, 250, True),
    Case("LeNet-5, 10 clients, `reduce`", "lenet5", IMAGE, 100, 10, 60, 1, True),
    Case("MLP-400, 10 clients, `reduce`", "mlp-400", IMAGE, 100, 10, 60, 1, True),
)


# Measuring, in a process of its own.


def settings(kind: str, case: Case, workers: int, address: str | None = None) -> ExecutorSettings:
    """Nothing is left open."""
    common: Row = {"stack": case.stack, "native": True, "channels_last": False}
    if kind == "ray":
        common |= {"address": address, "cpus": 0.5 if address is None and workers > 2 else None}
    if kind != "vectorised":
        common |= {"workers": workers}
    return ExecutorSettings(kind=kind, **common)  # type: ignore[arg-type]


def timed(executor: Executor, orders: Orders) -> tuple[float, float, Trained]:
    """(Seconds, seconds of this process's processor time, the result) of one round."""
    before, own = time.perf_counter(), time.process_time()
    trained = executor.train(orders)
    return time.perf_counter() - before, time.process_time() - own, trained


def race(executors: dict[str, Executor], orders: Orders, seconds: float, line: Line | None) -> dict[str, Row]:
    """Rounds in turns; all must come to the same results."""
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in executors}
    end, rounds = inf, 0
    while rounds < WARM + LEAST or (rounds < WARM + MOST and time.perf_counter() < end):
        if rounds == WARM:
            end = time.perf_counter() + seconds
        start = orders.start[0] + 1e-3 * torch.randn_like(orders.start[0])  # as in a run, nobody has these weights yet
        told, first = orders.but(start=Same(start, len(orders))), None
        for name, executor in executors.items():
            sent = line.bytes if line else (0.0, 0.0)
            wall, own, trained = timed(executor, told)
            more = line.bytes if line else (0.0, 0.0)
            taken[name].append((wall, own, more[0] - sent[0], more[1] - sent[1]))
            result = torch.cat([trained.w.flatten().double(), *trained.sums.values()])
            first = result if first is None else first
            assert torch.equal(first, result), name
            del trained
        rounds += 1
    found = {}
    for name, each in taken.items():
        wall, own, out, back = np.array(each[WARM:]).T
        found[name] = {
            "rounds": len(wall),
            "median": float(np.median(wall)),
            "quartiles": np.percentile(wall, [25, 75]).tolist(),
            "least": float(wall.min()),
            "driver_cpu": float(np.median(own)),
            **({"bytes_out": float(np.median(out)), "bytes_back": float(np.median(back))} if line else {}),
        }
    return found


def inside(told: Row) -> list[Row]:
    """All cases with so many workers."""
    torch.set_num_threads(1)
    workers, address, rows = told["workers"], told["address"], list[Row]()
    line = Line(Path(told["line"])) if told["line"] else None
    shops = [case.workshop() for case in CASES]
    beside: list[dict[str, Executor]] = [{} for _ in CASES]
    if line is None:
        # Workers are forked before there is a connection to Ray, whose threads a fork would not have.
        for case, (shop, orders), executors in zip(CASES, shops, beside, strict=True):
            executors["processes"] = shop.executor(settings("processes", case, workers))
            executors["processes"].train(orders)
    for case, (shop, _), executors in zip(CASES, shops, beside, strict=True):
        executors["ray"] = shop.executor(settings("ray", case, workers, address))
    try:
        for delay, rate in LINES if line else [(0.0, 0.0)]:
            for case, (shop, orders), executors in zip(CASES, shops, beside, strict=True):
                here = shop.executor(settings("vectorised", case, 1))
                compute = float(np.median([timed(here, orders)[0] for _ in range(7)]))
                here.close()
                if line:
                    line.set(delay / 1e3, rate)
                found = race(executors, orders, told["seconds"], line)
                if line:
                    line.set(0.0, 0.0)
                for name, row in found.items():
                    rows.append(
                        {
                            "place": "network" if line else "machine",
                            "who": name,
                            "case": case.name,
                            "clients": case.per_round,
                            "stack": case.stack,
                            "reduced": case.reduced,
                            "weights": orders.start[0].numel(),
                            "workers": workers,
                            "delay": delay / 1e3,
                            "rate": rate,
                            "compute": compute,
                            **row,
                        }
                    )
                print(f"{workers} worker(s), {delay:g} ms, {rate:g} B/s: {case.name}", file=sys.stderr, flush=True)
    finally:
        for executors in beside:
            for each in executors.values():
                each.close()
    return rows


def measured(places: Sequence[str], seconds: float, counts: Sequence[int]) -> list[Row]:
    """Each number of workers in a process of its own: a process has one connection to Ray."""
    rows: list[Row] = []
    for place in places:
        for workers in counts:
            told = {"workers": workers, "seconds": seconds, "address": None, "line": None}
            if place == "machine":
                command = [sys.executable, __file__, "--inside", json.dumps(told)]
                text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            else:
                text = on_network(told)
            rows += json.loads(text.strip().splitlines()[-1])
    return rows


def on_network(told: Row) -> str:
    """What comes of it on hosts of their own: the first has the driver, each other one a worker."""
    common = ["--disable-usage-stats", "--block", "--object-store-memory=400000000"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *common]
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with Network(told["workers"] + 1) as network:
        here, log = network.address(0), network.folder / "log"
        home = network.folder / "ray"
        head = [f"--node-ip-address={here}", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
        network.start(0, [*ray, "--head", *head, f"--temp-dir={home}"], log)
        time.sleep(8)
        for host in range(1, told["workers"] + 1):
            own = f"--node-ip-address={network.address(host)}"
            network.start(host, [*ray, f"--address={here}:{PORT}", own, "--num-cpus=1"], log)
        time.sleep(10)
        asked = told | {"address": f"{here}:{PORT}", "line": str(network.control)}
        try:
            return network.run(0, [sys.executable, __file__, "--inside", json.dumps(asked)])
        except subprocess.CalledProcessError:
            print(log.read_text(encoding="utf-8")[-5000:], file=sys.stderr)
            raise


# A model of a round.

CORES = os.cpu_count() or 1
FITTED = (1, 4), (0.0, 0.01)
"""Workers and seconds one way of the measurements that the model is fitted to, without limits on bandwidth."""
SMALL = 100e3
"""Bytes of an answer, or of weights, that Ray sends with the call; larger ones are fetched."""
WINDOW = 10 * 1460


def doublings(size: float) -> float:
    """How often TCP's window doubles until so many bytes are on their way; it begins with ten packets."""
    return float(np.log2(1 + size / WINDOW))


def calls(stacks: int, workers: int, stack_bytes: int, seconds: float) -> int:
    """Into how many calls the executor divides so many equal stacks: large ones at first, single stacks at the end."""
    most, rest, made = max(1, LARGEST // (stack_bytes or 1)), stacks, 0
    while rest > 0:
        share = min(rest / workers, max(rest / (2 * workers), SHORTEST / seconds))
        size = min(most, max(1, ceil(share)))
        for _ in range(workers):
            if rest > 0:
                rest -= size
                made += 1
    return made


@dataclass(frozen=True)
class Round:
    """What is trained, and where."""

    clients: int
    stack: int
    weights: int
    compute: float
    """Seconds of training on one core, all clients together."""
    workers: int
    machines: int
    delay: float
    rate: float
    cores: float = inf
    """That driver and workers share; infinite if each has one of its own."""
    carried: bool = False
    """Whether packets are carried by `network.py`, which has a limit of its own."""
    reduced: bool = False
    """Whether the mean of the weights comes back, which the workers of a machine add up one after the other."""

    @classmethod
    def of(cls, row: Row) -> Round:
        """One that was measured here: all machines are this one."""
        names = ("clients", "stack", "weights", "compute", "workers", "delay", "rate", "reduced")
        same = {name: row[name] for name in names}
        apart = row["place"] == "network"
        return cls(**same, machines=row["workers"] if apart else 0, cores=CORES, carried=apart)

    @property
    def stacks(self) -> int:
        return ceil(self.clients / self.stack)

    @property
    def back(self) -> float:
        """Bytes of the clients' weights, or of a sum for each machine, in two float64."""
        if self.reduced:
            return 16.0 * self.weights * min(max(1, self.machines), self.stacks)
        return 4.0 * self.clients * self.weights

    @property
    def out(self) -> float:
        """Bytes of the new weights, once for each machine."""
        return 4.0 * self.weights * min(self.machines, self.stacks)

    @property
    def busy(self) -> int:
        """Workers that have something to do."""
        return min(self.workers, self.stacks)

    @property
    def calls(self) -> int:
        size = 0 if self.reduced else 4 * self.stack * self.weights
        return calls(self.stacks, self.workers, size, self.compute / self.stacks)

    @property
    def chain(self) -> int:
        """Calls that deliver sums, one after the other on each machine."""
        return ceil(self.busy / max(1, min(self.machines, self.stacks))) if self.reduced else 0

    @property
    def most(self) -> int:
        """Calls of the worker that has most."""
        return ceil(self.calls / self.workers)


@dataclass(frozen=True)
class Model:
    """Seconds of a round; the numbers come from measurements.

    max(driver, worker, (driver + all workers) / cores) + fixed + latency + bytes at the driver's link / its rate
    """

    call: float
    """Processor time of the driver for a call, a stack and a byte that comes back."""
    stack: float
    byte: float
    begin: float
    """Processor time of the driver for a round."""
    work: float
    """Seconds of a worker for a call, and for a byte that it sends."""
    sent: float
    fixed: float
    trips: float
    """Round trips for each call of the worker that has most, and for each time that TCP doubles its window."""
    windows: float
    carrier: float
    """Bytes a second that `network.py` can carry."""

    def parts(self, each: Round) -> dict[str, float]:
        """Seconds of everything."""
        sums = each.busy if each.reduced else 0  # each of them is a call, and has a tensor of its own to hand on
        handed = each.busy * 16.0 * each.weights if each.reduced else each.back
        driver = self.begin + self.call * (each.calls + sums) + self.stack * each.stacks + self.byte * each.back
        training = ceil(each.stacks / each.busy) * each.compute / each.stacks
        last = each.chain * (self.work + self.sent * 16.0 * each.weights)
        worker = training + self.work * each.most + (last if each.reduced else self.sent * each.back / each.busy)
        shared = (driver + each.compute + self.work * (each.calls + sums) + self.sent * handed) / each.cores
        rate = min(each.rate or inf, self.carrier if each.carried else inf)
        most, weights = each.most + (1 if each.reduced else 0), 4.0 * each.weights
        answer, answers = (16.0 * each.weights, 1) if each.reduced else (each.back / each.calls, each.most)
        windows = answers * (answer > SMALL) * doublings(answer) + (weights > SMALL) * doublings(weights)
        trips = self.trips * most + self.windows * windows
        return {
            "driver": driver,
            "workers": worker,
            "cores": shared,
            "link": (each.back + each.out) / rate,
            "latency": 2 * each.delay * trips,
        }

    def seconds(self, each: Round) -> float:
        """Of a round."""
        found = self.parts(each)
        return self.fixed + max(found["driver"], found["workers"], found["cores"]) + found["link"] + found["latency"]

    @classmethod
    def fit(cls, rows: Sequence[Row]) -> Model:
        """The driver's from its processor time, the rest from seconds of rounds; relative errors count."""
        rounds = [Round.of(row) for row in rows]
        own = np.array([row["driver_cpu"] for row in rows])
        costs = np.array([[each.calls + each.reduced * each.busy, each.stacks, each.back, 1.0] for each in rounds])
        driver = nnls(costs / own[:, None], np.ones(len(own)))[0]
        seconds = np.log([row["median"] for row in rows])
        first = np.log([1e-3, 1e-9, 5e-3, 1.0, 1.0, 2e8])

        def wrong(logs: Any) -> Any:
            made = cls(*driver, *np.exp(logs))
            return np.log([made.seconds(each) for each in rounds]) - seconds

        found = least_squares(wrong, first, bounds=(-25, 25), loss="soft_l1", f_scale=0.2)
        return cls(*map(float, driver), *map(float, np.exp(found.x)))


def fitted(rows: Sequence[Row]) -> tuple[Model, list[Row], list[Row]]:
    """(The model, the rows that it was fitted to, the others)."""
    rows = [row for row in rows if row["who"] == "ray"]
    used = [row for row in rows if row["workers"] in FITTED[0] and row["delay"] in FITTED[1] and not row["rate"]]
    return Model.fit(used), used, [row for row in rows if row not in used]


def off(model: Model, rows: Sequence[Row]) -> NDArray[np.float64]:
    """By which factor the model is wrong, less 1."""
    return np.array([np.exp(abs(np.log(model.seconds(Round.of(row)) / row["median"]))) - 1 for row in rows])


# Predictions.

FAR = {"workers": 3200, "machines": 100, "delay": 0.25e-3, "rate": 10 * GIGABIT}
"""100 machines with 32 cores, half a millisecond there and back, 10 Gbit/s at the driver."""
MILLION = (
    Case("linear, 7,850 weights, 6 samples", "linear", IMAGE, 2_000, 500, 6, 50),
    Case("LeNet-5, 61,706 weights, 60 samples", "lenet5", IMAGE, 100, 10, 60, 1),
    Case("ResNet-20, 272,474 weights, 60 samples", "resnet20", (3, 32, 32), 20, 4, 60, 1),
)
"""Clients of which there are a million, with 10,000 a round."""
MANY = 10_000
STACKS = (1, 2, 3, 4, 6, 10, 20, 32, 50, 100, 200, 313, 500)


def costs() -> list[Row]:
    """Seconds of one such client on one core of this machine."""
    torch.set_num_threads(1)
    rows = []
    for case in (replace(case, reduced=reduced) for case in MILLION for reduced in (False, True)):
        shop, orders = case.workshop()
        native = shop.not_native is None
        common: Row = {"native": True, "stack": case.stack, "channels_last": False}
        executor = shop.executor(ExecutorSettings(kind="vectorised", **common) if native else SERIAL)
        seconds = float(np.median([timed(executor, orders)[0] for _ in range(6)][1:]))
        executor.close()
        rows.append(
            {
                "case": case.name,
                "reduced": case.reduced,
                "weights": orders.start[0].numel(),
                "seconds": seconds / case.per_round,
                "native": native,
            }
        )
    return rows


def predictions(model: Model, costs: Sequence[Row]) -> list[Row]:
    """The best stack for each, with and without `reduce`, and what limits the round; beside it, stacks of one."""
    rows = []
    for cost in costs:
        ways = []
        for stack in STACKS:
            each = Round(MANY, stack, cost["weights"], MANY * cost["seconds"], **FAR, reduced=cost["reduced"])
            ways.append(
                {
                    **cost,
                    "stack": stack,
                    "calls": each.calls,
                    "back": each.back,
                    **model.parts(each),
                    "total": model.seconds(each),
                }
            )
        best = min(ways, key=lambda way: way["total"])
        rows += [ways[0], best] if best is not ways[0] and not cost["reduced"] else [best]
    return rows


# Tables.


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.{1 if seconds < 0.01 else 0}f}"


def spread(row: Row) -> str:
    return f"{ms(row['median'])} ({ms(row['quartiles'][0])}-{ms(row['quartiles'][1])})"


def on_machine(rows: Sequence[Row]) -> str:
    """Ray beside worker processes."""
    rows = [row for row in rows if row["place"] == "machine"]
    lines = []
    for name, workers in dict.fromkeys((row["case"], row["workers"]) for row in rows):
        both = {row["who"]: row for row in rows if (row["case"], row["workers"]) == (name, workers)}
        ours, beside = both["ray"], both["processes"]
        more = ms(ours["median"] - beside["median"]), ms(ours["driver_cpu"]), ms(ours["compute"])
        lines.append([name, str(workers), str(Round.of(ours).calls), spread(beside), spread(ours), *more])
    heads = ["round", "workers", "calls", "processes", "ray", "difference", "driver's processor", "training"]
    return table(heads, lines)


def on_lines(rows: Sequence[Row], model: Model | None) -> str:
    """Ray on networks."""
    rows = [row for row in rows if row["place"] == "network"]
    kinds = list(dict.fromkeys((row["delay"], row["rate"]) for row in rows))

    def cell(row: Row | None) -> str:
        if row is None:
            return ""
        return ms(row["median"]) + (f" / {ms(model.seconds(Round.of(row)))}" if model else "")

    lines = []
    for name, workers in dict.fromkeys((row["case"], row["workers"]) for row in rows):
        each = {(row["delay"], row["rate"]): row for row in rows if (row["case"], row["workers"]) == (name, workers)}
        sent = [f"{next(iter(each.values()))[way] / 1e6:.2f}" for way in ("bytes_out", "bytes_back")]
        lines.append([name, str(workers), *sent, *(cell(each.get(kind)) for kind in kinds)])
    heads = [f"{2e3 * delay:g} ms" + (f", {8e-9 * rate:g} Gbit/s" if rate else "") for delay, rate in kinds]
    return table(["round", "workers", "MB out", "MB back", *heads], lines)


def formula(model: Model) -> str:
    """With its numbers."""
    ms_ = {name: f"{1e3 * value if value > 1e-6 else 0:.2g}" for name, value in vars(model).items()}
    mb = 1e9
    return (
        f"driver  = {ms_['begin']} ms + {ms_['call']} ms per call + {ms_['stack']} ms per stack "
        f"+ {mb * model.byte:.2g} ms per MB that comes back\n"
        f"worker  = training + {ms_['work']} ms per call + {mb * model.sent:.2g} ms per MB that it sends\n"
        f"fixed   = {ms_['fixed']} ms\n"
        f"latency = round trip x ({model.trips:.2g} per call of the busiest worker "
        f"+ {model.windows:.2g} per doubling of TCP's window)\n"
        f"network.py carries {model.carrier / 1e6:.0f} MB a second\n"
    )


def errors(model: Model, used: Sequence[Row], others: Sequence[Row]) -> str:
    """How far it is from what was measured."""
    kinds = [("fitted", used), ("not used for the fit", others)]
    kinds += [(f"of these, with {n} worker(s)", [row for row in others if row["workers"] == n]) for n in WORKERS]
    text = ""
    for what, rows in kinds:
        if rows:
            middle, high, most = np.percentile(off(model, rows), [50, 90, 100])
            told = f"off by {middle:.0%} in the median, {high:.0%} at the 90th percentile, {most:.0%} at most"
            text += f"- {len(rows)} measurements, {what}: {told}\n"
    return text


def far(model: Model, costs: Sequence[Row]) -> str:
    """Predictions."""
    terms, lines = ("driver", "workers", "link", "latency"), []
    for row in predictions(model, costs):
        found = [f"{row[name]:.2f}" for name in terms]
        rest = [f"**{row['total']:.2f}**", f"{MANY / row['total']:,.0f}", max(terms, key=row.__getitem__)]
        name = row["case"] + (", `reduce`" if row["reduced"] else "")
        lines.append([name, str(row["stack"]), f"{row['calls']:,}", f"{row['back'] / 1e9:.2f}", *found, *rest])
    heads = ["client", "stack", "calls", "GB back", *(f"{name}, s" for name in terms)]
    return table([*heads, "round, s", "clients/s", "limit"], lines)


def told(report: Row, with_model: bool) -> str:
    """Everything, in Markdown."""
    rows = report["rows"]
    text = "Milliseconds of a round on this machine, median (quartiles):\n\n" + on_machine(rows)
    on_network = [row for row in rows if row["place"] == "network"]
    model, used, others = fitted(rows) if with_model and on_network else (None, [], [])
    if on_network:
        text += f"\nOn a network, by round trip{' (measured / model)' if model else ''}:\n\n" + on_lines(rows, model)
    if model:
        text += f"\n{formula(model)}\n{errors(model, used, others)}\n"
        text += "10,000 clients a round on 100 machines with 32 cores, 10 Gbit/s at the driver, predicted:\n\n"
        text += far(model, report["costs"])
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="machine,network", help="machine, network or both")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, at most 100 rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show an earlier --json instead")
    parser.add_argument("--model", action="store_true", help="fit the model, compare it, and predict")
    parser.add_argument("--inside", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends
    if options.inside:
        rows = inside(options.inside)
        print(json.dumps(rows))
        return
    if options.source:
        report = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        counts = [int(each) for each in options.workers.split(",")]
        rows = measured(options.only.split(","), options.seconds, counts)
        report = {"date": now(), "machine": machine(), "rows": rows, "costs": costs()}
    print(told(report, options.model))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

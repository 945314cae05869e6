"""Every synchronous method on real Fashion-MNIST: tuning, runs, and the tables of docs/algorithms/baselines.md.

python benchmarks/baselines.py tune --out DIR             # a few settings of each method, on held-out training images
python benchmarks/baselines.py run --out DIR --seeds 3    # with the best of them; what is finished is not run again
python benchmarks/baselines.py table --out DIR            # from the finished runs, into benchmarks/results and docs
python benchmarks/baselines.py aside                      # the single runs that the page's surprises quote

LeNet-5, 12,000 training images dealt out to 50 clients, 10 of them a round, one local epoch in batches of 32, 50
rounds; labels by Dirichlet(.5) per class, or two classes a client. Two runs at a time, one thread each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import studies
import torch

from fedkeel import Experiment, FederatedData, run
from fedkeel.data import datasets
from fedkeel.data.datasets import Examples
from fedkeel.errors import DivergenceError
from fedkeel.methods import methods

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "baselines.json", HERE.parent / "docs" / "algorithms" / "baselines.md"
PARTITIONS = {"dirichlet": {"kind": "dirichlet", "alpha": 0.5}, "two classes": {"kind": "classes", "classes": 2}}
IMAGES, CLIENTS, PER_ROUND, ROUNDS, TUNING_ROUNDS, TUNING_SEED, HELD_OUT = 12_000, 50, 10, 50, 25, 1000, 5_000
LOCAL = {"epochs": 1, "batch_size": 32, "lr": 0.05}
RATES, SMALL_RATES = (0.05, 0.1, 0.2), (0.01, 0.02)
ADAPTIVE, SERVER_RATES = ("fedadam", "fedyogi", "fedadagrad"), (0.003, 0.01, 0.03, 0.1)
LAST = 3
"""Evaluations, five rounds apart, whose mean is called the final accuracy."""
TARGETS = {"dirichlet": 0.75, "two classes": 0.65}
DIVERGED = "diverged.txt"
FINETUNING_RATE = 0.02
cell = partial(studies.cell, digits=1)
FINETUNED = ("fedavg", "fedbabu", "fedgh")
"""Methods whose clients' models are also fine-tuned at the end."""


@dataclass(frozen=True)
class Case:
    """One run."""

    method: str
    partition: str
    seed: int
    setting: float
    """The local learning rate, or for methods with an adaptive server its learning rate."""

    def folder(self, out: Path) -> Path:
        return out / f"{self.partition.replace(' ', '-')}-{self.method}-{self.setting:g}-seed{self.seed}"

    def experiment(self, rounds: int, every: int, **more: Any) -> Experiment:
        adaptive = self.method in ADAPTIVE
        return Experiment(
            model="lenet5",
            algorithm={"name": self.method, **({"server_lr": self.setting} if adaptive else {})},
            local=LOCAL if adaptive else {**LOCAL, "lr": self.setting},
            per_round=PER_ROUND,
            rounds=rounds,
            evaluate_every=every,
            seed=self.seed,
            executor={"kind": "serial", "channels_last": True},
            **more,
        )


def settings(method: str) -> Sequence[float]:
    if method == "scaffold":  # diverges where others are at their best
        return SMALL_RATES + RATES
    return SERVER_RATES if method in ADAPTIVE else RATES


def tuning_data(partition: str) -> FederatedData:
    """Other clients than in the runs, tested on training images that no client holds."""
    known = datasets.load("fashion-mnist")
    order = torch.from_numpy(np.random.default_rng(TUNING_SEED).permutation(len(known.train.y)))
    train, held_out = (
        Examples(known.train.x[part], known.train.y[part])
        for part in (order[:IMAGES], order[IMAGES : IMAGES + HELD_OUT])
    )
    dealt = Experiment(partition=PARTITIONS[partition]).partition
    return FederatedData.from_dataset(replace(known, train=train, test=held_out), dealt, CLIENTS, TUNING_SEED)


def tune_one(job: tuple[Case, Path]) -> tuple[Case, float]:
    case, out = job
    file = case.folder(out / "tuning") / "accuracy.json"
    if not file.exists():
        try:
            experiment = case.experiment(TUNING_ROUNDS, TUNING_ROUNDS)
            accuracy = run(experiment, data=tuning_data(case.partition)).accuracy
        except DivergenceError:
            accuracy = 0.0
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(accuracy))
    return case, json.loads(file.read_text())


def run_one(job: tuple[Case, Path]) -> Case:
    case, out = job
    folder = case.folder(out / "runs")
    if not (folder / "summary.json").exists() and not (folder / DIVERGED).exists():
        for left in folder.glob("*"):  # of a run that was cut short
            left.unlink()
        experiment = case.experiment(
            ROUNDS,
            5,
            dataset={"name": "fashion-mnist", "train_limit": IMAGES},
            partition=PARTITIONS[case.partition],
            clients=CLIENTS,
            evaluate_clients=True,
            finetune={"epochs": 5, "lr": FINETUNING_RATE} if case.method in FINETUNED else {"epochs": 0},
        )
        try:
            run(experiment, out=folder)
        except DivergenceError as error:
            (folder / DIVERGED).write_text(f"{error}\n")
    return case


def aside_one(job: tuple[str, str, int, dict[str, Any]]) -> str:
    """A run that explains a surprise, in words."""
    about, partition, seed, settings = job
    common = {
        "model": "lenet5",
        "dataset": {"name": "fashion-mnist", "train_limit": IMAGES},
        "partition": PARTITIONS[partition],
        "clients": CLIENTS,
        "per_round": PER_ROUND,
        "rounds": ROUNDS,
        "evaluate_every": 5,
        "seed": seed,
        "executor": {"kind": "serial", "channels_last": True},
    }
    try:
        result = run(Experiment(**{**common, **settings, "local": {**LOCAL, **settings["local"]}}))
    except DivergenceError as error:
        return f"{about}, {partition}, seed {seed}: {error}"
    final = float(np.mean([row.accuracy for row in result.history[-LAST:]]))
    spread = result.summary.get("client_accuracy_estimated")
    own = f", own shares {spread['mean']:.1%}" if spread else ""
    if lost := result.summary.get("finetuning_diverged"):
        own += f", fine-tuning diverged on {len(lost)} of {CLIENTS} clients"
    return f"{about}, {partition}, seed {seed}: {final:.1%}{own}"


def aside() -> None:
    """The single runs of the page's surprises."""
    beta: list[tuple[str, Any]] = [(f"mimelite beta {b:g} at .1", {"name": "mimelite", "beta": b}) for b in (0.5, 0.0)]
    one, all_ = {"local": {"lr": 0.1}}, {"per_round": CLIENTS, "rounds": 25, "local": {"lr": 0.05}}
    jobs = [("fedavg at .1", "two classes", seed, {"algorithm": "fedavg", **one}) for seed in range(3)]
    jobs += [(about, "dirichlet", 0, {"algorithm": algorithm, **one}) for about, algorithm in beta]
    jobs += [
        (
            "scaffold clipped at 10, .1",
            "dirichlet",
            0,
            {"algorithm": "scaffold", "local": {"lr": 0.1, "clip_norm": 10}},
        ),
        ("scaffold option I at .1", "dirichlet", 0, {"algorithm": {"name": "scaffold", "option": "I"}, **one}),
        ("scaffold at .05, everybody takes part", "two classes", 0, {"algorithm": "scaffold", **all_}),
        ("fedbabu fine-tuned at .2", "dirichlet", 0, {"algorithm": "fedbabu", "local": {"lr": 0.2}}),
    ]
    for _ in in_pairs(aside_one, jobs):
        pass


def in_pairs(work: Any, jobs: Sequence[Any]) -> Iterator[Any]:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for number, result in enumerate(pool.imap_unordered(work, jobs), 1):
            print(f"{number}/{len(jobs)} {result}", flush=True)
            yield result


def tune(out: Path, chosen: Sequence[str]) -> None:
    cases = [Case(m, p, TUNING_SEED, s) for m in chosen for p in PARTITIONS for s in settings(m)]
    for _ in in_pairs(tune_one, [(case, out) for case in cases]):
        pass


def tuned(out: Path, method: str, partition: str) -> dict[float, float]:
    """Held-out accuracy of every setting that was tried, the best first."""
    found = {s: tune_one((Case(method, partition, TUNING_SEED, s), out))[1] for s in settings(method)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def diverged(out: Path, method: str, partition: str) -> list[float]:
    """Settings with which some run did not survive."""
    return [
        setting
        for setting in settings(method)
        if any((out / "runs").glob(f"{Case(method, partition, 0, setting).folder(out).name[:-1]}*/{DIVERGED}"))
    ]


def best(out: Path, method: str, partition: str) -> float:
    """The best in tuning of those with which no run diverged."""
    lost = diverged(out, method, partition)
    left = [setting for setting in tuned(out, method, partition) if setting not in lost]
    if not left:
        raise SystemExit(f"{method} diverged on {partition} with all of {settings(method)}; give it smaller ones")
    return left[0]


def run_all(out: Path, chosen: Sequence[str], seeds: int) -> None:
    """A method with a run that diverges starts anew with its next best setting."""
    done: set[Case] = set()
    while True:
        cases = [Case(m, p, s, best(out, m, p)) for s in range(seeds) for p in PARTITIONS for m in chosen]
        if done.issuperset(cases):
            return
        done.update(in_pairs(run_one, [(case, out) for case in cases if case not in done]))


def collect(out: Path, chosen: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    rows = []
    for partition in PARTITIONS:
        for method in chosen:
            setting, lost = best(out, method, partition), diverged(out, method, partition)
            tried, runs = tuned(out, method, partition), []
            for seed in range(seeds):
                folder = Case(method, partition, seed, setting).folder(out / "runs")
                summary = json.loads((folder / "summary.json").read_text())
                history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
                curve = {row["round"]: row["accuracy"] for row in history}
                reached = [at for at, accuracy in curve.items() if accuracy >= TARGETS[partition]]
                runs.append(
                    {
                        "accuracy": float(np.mean([row["accuracy"] for row in history[-LAST:]])),
                        "rounds_to_target": min(reached, default=None),
                        "bytes_up": summary["bytes_up"],
                        "bytes_down": summary["bytes_down"],
                        "clients": summary["client_accuracy_estimated"],
                        "finetuned": summary.get("client_accuracy_finetuned_estimated"),
                        "seconds_per_round": summary["seconds_per_round_median"],
                    }
                )
            row = {"method": method, "partition": partition, "setting": setting, "diverged": lost, "tried": tried}
            rows.append({**row, "runs": runs})
    return rows


def tables(rows: Sequence[dict[str, Any]]) -> str:
    texts = []
    for partition in PARTITIONS:
        mine = {row["method"]: row for row in rows if row["partition"] == partition}
        base = [each["accuracy"] for each in mine["fedavg"]["runs"]]
        traffic = mine["fedavg"]["runs"][0]
        lines = [
            f"### {partition.capitalize()}\n",
            f"| method | setting | accuracy | against FedAvg | rounds to {TARGETS[partition]:.0%} | bytes up, down "
            "| own share: mean | worst tenth |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        ranked = sorted(mine.values(), key=lambda row: -float(np.mean([r["accuracy"] for r in row["runs"]])))
        for row in ranked:
            runs = row["runs"]
            personal = row["method"] == "fedgh"
            accuracy = [each["accuracy"] for each in runs]
            against = [a - b for a, b in zip(accuracy, base, strict=True)]
            reached = [each["rounds_to_target"] for each in runs]
            rate = f"{'server_lr' if row['method'] in ADAPTIVE else 'lr'} {row['setting']:g}"
            if row["diverged"]:
                rate += f" ({', '.join(f'{lost:g}' for lost in row['diverged'])} diverged)"
            factors = (runs[0][key] / traffic[key] for key in ("bytes_up", "bytes_down"))
            lines.append(
                f"| {row['method']} | {rate} | {'no global model' if personal else cell(accuracy)} "
                f"| {'' if personal or row['method'] == 'fedavg' else cell(against, sign=True)} "
                f"| {'' if personal else ', '.join(str(r or '-') for r in reached)} "
                f"| {', '.join(f'{f:.3g}x' for f in factors)} "
                f"| {cell([each['clients']['mean'] for each in runs])} "
                f"| {cell([each['clients']['worst_decile'] for each in runs])} |"
            )
        lines += [
            "\nClients' own models after five epochs of fine-tuning, on their own shares:\n",
            "| method | mean | std | worst tenth |",
            "|---|--:|--:|--:|",
        ]
        for name in (name for name in FINETUNED if name in mine):
            found = [each["finetuned"] for each in mine[name]["runs"]]
            columns: list[str] = ["diverged"] * 3
            if all(found):
                columns = [cell([each[key] for each in found]) for key in ("mean", "std", "worst_decile")]
            lines.append(f"| {name} | {' | '.join(columns)} |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def publish(rows: list[dict[str, Any]]) -> None:
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    begin, end = "<!-- tables -->\n", "<!-- end of tables -->"
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(before + begin + "\n" + tables(rows) + "\n" + end + rest.partition(end)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "run", "table", "aside"])
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=sorted(methods()))
    given = parser.parse_args()
    match given.what:
        case "tune":
            tune(given.out, given.methods)
        case "run":
            run_all(given.out, given.methods, given.seeds)
        case "aside":
            aside()
        case "table":
            publish(collect(given.out, given.methods, given.seeds))


if __name__ == "__main__":
    main()

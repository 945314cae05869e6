"""The studies of experiments/studies: comparisons and ablations of the papers, over seeds, as tables with intervals.

python benchmarks/studies.py list
python benchmarks/studies.py run mnist-linear --out DIR --seeds 3    # what is finished is not run again
python benchmarks/studies.py run fedasmu --only FedASMU,FedAvg --workers 1
python benchmarks/studies.py table mnist-linear --out DIR            # into benchmarks/results and docs/algorithms
python benchmarks/studies.py show mnist-linear                       # the commands of its single runs

A study is a file that names an experiment, scenes and variants, each with settings on top as on the command line; every
variant runs in every scene with every seed, or with the first few, if the study says so. Two runs at a time, one thread
each. A run is done as its experiment says, but not in worker processes of its own, if the executor is left open.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from scipy import stats

from fedkeel import Experiment, run
from fedkeel.errors import DivergenceError

HERE = Path(__file__).parent
STUDIES, RESULTS, PAGES = HERE.parent / "experiments" / "studies", HERE / "results", HERE.parent / "docs" / "algorithms"
DIVERGED = "diverged.txt"


@dataclass(frozen=True)
class Study:
    """What is compared."""

    name: str
    about: str
    base: Path
    scenes: dict[str, list[str]]
    variants: dict[str, list[str]]
    target: float
    last: int
    """Evaluations at the end whose mean is called the final accuracy."""
    until: int | None
    """The last round that counts, if not all do."""
    reference: str | None
    """The variant that the others are compared with, seed by seed."""
    over: Literal["rounds", "time"]
    """What the way to the target is measured in."""
    seeds: Mapping[str, int]
    """Variants that run only with the first so many seeds."""
    first_seed: int
    """Where seeds are counted from: settings are not chosen on the seeds that they are compared on."""

    @classmethod
    def read(cls, name: str) -> Study:
        path = STUDIES / f"{name}.yaml"
        if not path.exists():
            raise SystemExit(f"no study {name!r}; there are: {', '.join(names())}")
        told = yaml.safe_load(path.read_text())
        base = (path.parent / told.pop("base")).resolve()
        left_out = {
            "scenes": {"": []},
            "reference": None,
            "until": None,
            "over": "rounds",
            "seeds": {},
            "first_seed": 0,
        }
        return cls(name=name, base=base, **{**left_out, **told})

    def cases(self, seeds: int, only: Collection[str] = ()) -> list[Case]:
        """Of all variants, or only of some."""
        return [
            Case(self.name, scene, variant, s)
            for s in range(self.first_seed, self.first_seed + seeds)
            for scene in self.scenes
            for variant in only or self.variants
            if s - self.first_seed < self.seeds.get(variant, seeds)
        ]

    def chosen(self, words: str) -> list[str]:
        """The variants that are named, with commas between them; one name may hold commas itself."""
        names = [words] if words in self.variants else [word.strip() for word in words.split(",") if word.strip()]
        if unknown := [name for name in names if name not in self.variants]:
            raise SystemExit(f"no variant {', '.join(unknown)}; there are: {'; '.join(self.variants)}")
        return names


@dataclass(frozen=True)
class Case:
    """One run."""

    study: str
    scene: str
    variant: str
    seed: int

    @property
    def settings(self) -> list[str]:
        study = Study.read(self.study)
        return [*study.scenes[self.scene], *study.variants[self.variant], f"seed={self.seed}"]

    def experiment(self) -> Experiment:
        return Experiment.load(Study.read(self.study).base, self.settings)

    def folder(self, out: Path) -> Path:
        words = "-".join(filter(None, [self.scene, self.variant, f"seed{self.seed}"]))
        return out / self.study / "".join(c if c.isalnum() or c in "-.%" else "_" for c in words)


def names() -> list[str]:
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def run_one(job: tuple[Case, Path]) -> Case:
    case, out = job
    folder = case.folder(out)
    if not (folder / "summary.json").exists() and not (folder / DIVERGED).exists():
        for left in folder.glob("*"):  # of a run that was cut short
            left.unlink()
        try:
            run(case.experiment(), out=folder)
        except DivergenceError as error:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / DIVERGED).write_text(f"{error}\n")
    return case


def run_all(study: Study, out: Path, seeds: int, only: Collection[str] = (), workers: int = 2) -> None:
    jobs = [(case, out) for case in study.cases(seeds, only)]
    for case, _ in jobs:
        case.experiment()  # whatever is wrong with a setting is told before the first run
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, case in enumerate(pool.imap_unordered(run_one, jobs), 1):
            print(f"{number}/{len(jobs)} {case}", flush=True)


def collect(study: Study, out: Path, seeds: int) -> list[dict[str, Any]]:
    rows = []
    for case in study.cases(seeds):
        folder = case.folder(out)
        row: dict[str, Any] = {"scene": case.scene, "variant": case.variant, "seed": case.seed}
        if (folder / DIVERGED).exists():
            rows.append({**row, "diverged": (folder / DIVERGED).read_text().strip()})
            continue
        if not (folder / "summary.json").exists():
            raise SystemExit(f"not run yet: {case}; first: studies.py run {study.name} --out {out} --seeds {seeds}")
        history = [e for e in lines(folder / "history.jsonl") if e["round"] <= (study.until or e["round"])]
        curve = [each["accuracy"] for each in history]
        row |= {
            "accuracy": float(np.mean(curve[-study.last :])),
            "mean_accuracy": float(np.mean(curve)),
            "best_accuracy": max(curve),
            **to_target(history, study.target),
            **{key: history[-1][key] for key in ("round", "virtual_seconds", "updates", "bytes_up", "bytes_down")},
            "rates": rates(folder, study.until),
        }
        if "local_accuracy" in history[-1]:
            spread = [each["local_accuracy"] for each in history[-study.last :]]
            row["local_accuracy"] = {key: float(np.mean([each[key] for each in spread])) for key in spread[0]}
        last = lines(folder / "rounds.jsonl")[-1] if (folder / "rounds.jsonl").exists() else {}
        row["report"] = {key: last[key] for key in ("gradient_bound", "smoothness") if key in last}
        rows.append(row)
    return rows


def to_target(history: Sequence[Mapping[str, Any]], target: float) -> dict[str, float | None]:
    """What it took until the first evaluation at the target; nothing if there is none."""
    row = next((each for each in history if each["accuracy"] >= target), None)
    return {
        "rounds_to_target": row and row["round"],
        "seconds_to_target": row and row["virtual_seconds"],
        "updates_to_target": row and row["updates"],
        "bytes_to_target": row and row["bytes_up"] + row["bytes_down"],
    }


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def rates(folder: Path, until: int | None) -> tuple[float, float]:
    """The mean learning rate of the first round and of the last."""
    rows = [row for row in lines(folder / "clients.jsonl") if row["round"] <= (until or row["round"])]
    ends = (rows[0]["round"], rows[-1]["round"])
    first, last = (np.concatenate([r["learning_rates"] for r in rows if r["round"] == end]).mean() for end in ends)
    return float(first), float(last)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(Mean, half of the 95 % interval of Student's t)."""
    mean, count = float(np.mean(values)), len(values)
    half = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5) if count > 1 else float("nan")
    return mean, half


def cell(values: Sequence[float], sign: bool = False, factor: float = 100, digits: int = 2) -> str:
    mean, half = (factor * each for each in interval(values))
    return f"{mean:{'+' if sign else ''}.{digits}f}" + (f" ± {half:.{digits}f}" if len(values) > 1 else "")


def table(study: Study, rows: Sequence[dict[str, Any]]) -> str:
    texts = []
    for scene in study.scenes:
        found = {v: [r for r in rows if (r["scene"], r["variant"]) == (scene, v)] for v in study.variants}
        told = {v: cells(study, runs, found.get(study.reference or "", [])) for v, runs in found.items() if whole(runs)}
        headers = list(dict.fromkeys(header for each in told.values() for header in each))
        out = [f"**{scene}**\n"] if scene else []
        out += ["| " + " | ".join(["", *headers]) + " |", "|---|" + "--:|" * len(headers)]
        for variant, runs in found.items():
            line = [told[variant].get(header, "") for header in headers] if variant in told else stopped(runs)
            out.append("| " + " | ".join([variant, *line]) + " |")
        texts.append("\n".join(out))
    return "\n\n".join(texts) + "\n"


def whole(runs: Sequence[dict[str, Any]]) -> bool:
    return not any("diverged" in run for run in runs)


def stopped(runs: Sequence[dict[str, Any]]) -> list[str]:
    return ["stopped: " + "; ".join(f"seed {run['seed']}: {run['diverged']}" for run in runs if "diverged" in run)]


def cells(study: Study, runs: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A variant's row, by header."""
    row = {}
    by_seed = {other["seed"]: other for other in base if whole(base)}
    pairs = [(run, by_seed[run["seed"]]) for run in runs if run["seed"] in by_seed]
    measures = {"accuracy": "final accuracy", "mean_accuracy": "mean over all rounds"}
    for key, header in list(measures.items())[: 1 if study.over == "time" else None]:
        row[header] = cell([run[key] for run in runs])
        if pairs:
            gaps = [run[key] - other[key] for run, other in pairs]
            same = runs[0]["variant"] == study.reference
            row[f"{header}, against {study.reference}"] = "" if same else cell(gaps, sign=True)
    if study.over == "time":
        row |= times(study, runs, pairs)
    else:
        row[f"rounds to {study.target:.0%}"] = ", ".join(str(run["rounds_to_target"] or "-") for run in runs)
        ends = [np.mean([run["rates"][end] for run in runs]) for end in (0, 1)]
        row["learning rate, first to last round"] = " to ".join(f"{rate:.3g}" for rate in ends)
    if "local_accuracy" in runs[0]:
        own = [cell([run["local_accuracy"][key] for run in runs]) for key in ("mean", "std")]
        row["participants' own models: mean, std"] = ", ".join(own)
    for name in runs[0]["report"]:
        row[name] = cell([run["report"][name] for run in runs], factor=1, digits=1)
    return row


def times(
    study: Study, runs: Sequence[dict[str, Any]], pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> dict[str, str]:
    """The way to the target on the virtual clock, seed by seed."""
    goal = f"to {study.target:.0%}"
    scales = {
        f"virtual seconds {goal}": ("seconds_to_target", 1),
        f"uploads {goal}": ("updates_to_target", 1),
        f"MB {goal}, up and down": ("bytes_to_target", 1e-6),
    }
    row = {
        header: ", ".join("-" if run[key] is None else f"{factor * run[key]:.0f}" for run in runs)
        for header, (key, factor) in scales.items()
    }
    if pairs:
        same = runs[0]["variant"] == study.reference
        row[f"times as fast as {study.reference}, least"] = "" if same else speed_up(pairs)
    return row


def speed_up(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """The least over seeds of the other's virtual seconds to the target against one's own.

    Where the other never came there, it took longer than its whole run.
    """
    if any(own["seconds_to_target"] is None for own, _ in pairs):
        return "-"
    ratios = []
    for own, other in pairs:
        late = other["seconds_to_target"] is None
        seconds = other["virtual_seconds"] if late else other["seconds_to_target"]
        ratios.append((seconds / own["seconds_to_target"], late))
    least, late = min(ratios)
    return f"{'> ' if late else ''}{least:.2f}"


def publish(study: Study, rows: list[dict[str, Any]]) -> None:
    (RESULTS / f"study-{study.name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    begin, end = f"<!-- study {study.name} -->\n", f"<!-- end of {study.name} -->"
    for page in PAGES.glob("*.md"):
        before, found, rest = page.read_text().partition(begin)
        if found:
            page.write_text(before + begin + "\n" + table(study, rows) + "\n" + end + rest.partition(end)[2])
    print(table(study, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "show", "run", "table"])
    parser.add_argument("study", nargs="?")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", metavar="VARIANT[,VARIANT]", default="", help="of run and show")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    given = parser.parse_args()
    if given.what == "list":
        for name in names():
            print(f"{name}: {Study.read(name).about}")
        return
    study = Study.read(given.study or "")
    only = study.chosen(given.only)
    match given.what:
        case "show":
            for case in study.cases(given.seeds, only):
                print(shlex.join(["fedkeel", "run", str(study.base), *case.settings]))
        case "run":
            run_all(study, given.out, given.seeds, only, given.workers)
        case "table":
            publish(study, collect(study, given.out, given.seeds))


if __name__ == "__main__":
    main()

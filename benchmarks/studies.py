"""The tables of docs/algorithms, from comparisons of the studies in experiments/studies.

fedkeel compare experiments/studies/mnist-linear.yaml --out DIR    # runs it; what is finished is not run again
python benchmarks/studies.py publish mnist-linear DIR              # into benchmarks/results and docs/algorithms
python benchmarks/studies.py show mnist-linear                     # the table of the stored results

A study compared by rounds has columns for rounds and learning rates; others tell the way to the target in virtual
seconds, uploads and bytes. What lies behind the point where runs are compared does not count. One that is compared at
equal time also has the accuracies after equally many uploads: as many as the run with the fewest had.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.errors import FedkeelError, InputError, label, unknown
from fedkeel.study.files import StudyFile, comparison
from fedkeel.study.results import Outcome, collect
from fedkeel.study.statistics import Difference, Interval, interval, paired
from fedkeel.study.store import Store

HERE = Path(__file__).parent
STUDIES, RESULTS, PAGES = HERE.parent / "experiments" / "studies", HERE / "results", HERE.parent / "docs" / "algorithms"
BOUNDS = ("gradient_bound", "smoothness")
"""What a method may say of its last round."""
ERRORS = ("error_completed", "error_untouched", "error_best_factor")
"""What a method may say of every round: the mean is told."""
Row = Mapping[str, Any]
"""A run as it is stored."""


def names() -> list[str]:
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def read(name: str) -> StudyFile:
    if name not in names():
        raise unknown("study", name, names())
    study = StudyFile.read(STUDIES / f"{name}.yaml")
    if study.target is None:
        raise InputError(f"study {name}: it has no target; add one, such as target: 0.7")
    return study


def rows(study: StudyFile, folder: Path) -> list[Row]:
    """The runs of a study, all of which must have ended."""
    store = Store(folder)
    plan = store.plan()
    full = comparison(study, seeds=sorted({case.seed for case in plan.cases}))
    store.check(full)
    known = {(case.scene, case.variant) for case in plan.cases}
    for case in full.cases:
        if (case.scene, case.variant) not in known:
            raise _incomplete(folder, f"no run of {label(case.variant)}")
    found = collect(plan.model_copy(update={"measure": full.measure}), folder)
    for run in found.outcomes:
        if run.state != "finished" and not store.final(run.name):
            raise _incomplete(folder, f"the run {run.name}: {run.failure or run.state}")
        if run.state == "finished" and not run.kept:
            raise _incomplete(folder, f"the run {run.name}: no evaluation where runs are compared")
    if full.measure.at != "time":
        return [row(run) for run in found.outcomes]
    counted = replace(full.measure, at="uploads", until=None)
    by_uploads = collect(plan.model_copy(update={"measure": counted}), folder)
    pairs = zip(found.outcomes, by_uploads.outcomes, strict=True)
    return [row(run) | at_uploads(same, by_uploads.limits) for run, same in pairs]


def at_uploads(run: Outcome, limits: Mapping[str, float]) -> Row:
    """What is stored of a run where all runs of its scene have had equally many uploads."""
    return {} if run.state == "failed" else {"uploads": int(limits[run.scene]), "accuracy_at_uploads": run.value}


def _incomplete(folder: Path, what: str) -> InputError:
    return InputError(f"comparison {label(str(folder))} is not complete ({what}); finish it with fedkeel compare")


def row(run: Outcome) -> Row:
    """What is stored of a run, up to where runs are compared."""
    told = {"scene": run.scene, "variant": run.variant, "seed": run.seed}
    if run.state == "failed":
        return {**told, "diverged": run.failure}
    assert run.record is not None
    last = run.history[max(0, run.kept - run.measure.last) : run.kept]
    own = [each["local_accuracy"] for each in last if "local_accuracy" in each]
    return {
        **told,
        "accuracy": run.value,
        "mean_accuracy": float(np.mean(run.record.column("accuracy")[: run.kept])),
        "best_accuracy": run.best,
        **to_target(run),
        **{key: run.position[key] for key in ("round", "virtual_seconds", "updates", "bytes_up", "bytes_down")},
        "rates": rates(run),
        **({"local_accuracy": {key: float(np.mean([each[key] for each in own])) for key in own[0]}} if own else {}),
        "report": {key: run.report[key] for key in BOUNDS if key in run.report} | errors(run),
    }


def errors(run: Outcome) -> dict[str, float]:
    """Means over the rounds that count and that tell."""
    assert run.record is not None
    told = [each for each in run.record.rounds() if each["round"] <= run.position["round"]]
    found = {key: [each[key] for each in told if key in each] for key in ERRORS}
    return {key: float(np.mean(values)) for key, values in found.items() if values}


def to_target(run: Outcome) -> dict[str, float | None]:
    """What it took until the first evaluation at the target; nothing if there is none that counts."""
    reached = run.rounds_to_target is not None and run.rounds_to_target <= run.position["round"]
    return {
        "rounds_to_target": run.rounds_to_target if reached else None,
        "seconds_to_target": run.seconds_to_target if reached else None,
        "updates_to_target": run.uploads_to_target if reached else None,
        "bytes_to_target": run.bytes_to_target if reached else None,
    }


def rates(run: Outcome) -> tuple[float, float]:
    """The mean learning rate of the first round and of the last."""
    assert run.record is not None
    found: dict[int, list[float]] = {}
    for arrival in run.record.arrivals():
        if arrival["round"] <= run.position["round"]:
            found.setdefault(arrival["round"], []).extend(arrival["learning_rates"])
    by_round = list(found.values())
    return float(np.mean(by_round[0])), float(np.mean(by_round[-1]))


def cell(values: Sequence[float], sign: bool = False, factor: float = 100, digits: int = 2) -> str:
    """A mean, with half of its interval if there is one."""
    return _cell(interval(values), sign, factor, digits)


def _cell(found: Interval | Difference, sign: bool = False, factor: float = 100, digits: int = 2) -> str:
    mean = f"{factor * found.mean:{'+' if sign else ''}.{digits}f}"
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ± {factor * (found.high - found.low) / 2:.{digits}f}"


def table(study: StudyFile, rows: Sequence[Row]) -> str:
    """One for each scene, in Markdown."""
    texts = []
    for scene in dict.fromkeys(row["scene"] for row in rows):
        found: dict[str, list[Row]] = {}
        for row in rows:
            if row["scene"] == scene:
                found.setdefault(row["variant"], []).append(row)
        base = found.get(study.reference or "", [])
        told = {v: cells(study, runs, base if whole(base) else []) for v, runs in found.items() if whole(runs)}
        headers = list(dict.fromkeys(header for each in told.values() for header in each))
        lines = [f"**{scene}**\n"] if scene else []
        lines += ["| " + " | ".join(["", *headers]) + " |", "|---|" + "--:|" * len(headers)]
        for variant, runs in found.items():
            line = [told[variant].get(header, "") for header in headers] if variant in told else stopped(runs)
            lines.append("| " + " | ".join([variant, *line]) + " |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def whole(runs: Sequence[Row]) -> bool:
    return not any("diverged" in run for run in runs)


def stopped(runs: Sequence[Row]) -> list[str]:
    return ["stopped: " + "; ".join(f"seed {run['seed']}: {run['diverged']}" for run in runs if "diverged" in run)]


def cells(study: StudyFile, runs: Sequence[Row], base: Sequence[Row]) -> dict[str, str]:
    """A variant's line, by header."""
    by_rounds = study.at in (None, "rounds")
    line = measured(study, runs, base, "accuracy", "final accuracy")
    if by_rounds:
        line |= measured(study, runs, base, "mean_accuracy", "mean over all rounds")
        line[f"rounds to {study.target:.0%}"] = ", ".join(str(run["rounds_to_target"] or "-") for run in runs)
        ends = [np.mean([run["rates"][end] for run in runs]) for end in (0, 1)]
        line["learning rate, first to last round"] = " to ".join(f"{rate:.3g}" for rate in ends)
    else:
        line |= way(study, runs, base)
        if "uploads" in runs[0]:
            line |= measured(study, runs, base, "accuracy_at_uploads", f"after {runs[0]['uploads']} uploads")
    if "local_accuracy" in runs[0]:
        own = [cell([run["local_accuracy"][key] for run in runs]) for key in ("mean", "std")]
        line["participants' own models: mean, std"] = ", ".join(own)
    for name in runs[0]["report"]:
        line[name.replace("_", " ")] = cell(
            [run["report"][name] for run in runs], factor=1, digits=3 if name in ERRORS else 1
        )
    return line


def measured(study: StudyFile, runs: Sequence[Row], base: Sequence[Row], key: str, header: str) -> dict[str, str]:
    """A measure, and its difference to the reference seed by seed."""
    ours, theirs = ({run["seed"]: run[key] for run in each} for each in (runs, base))
    line = {header: cell([*ours.values()])}
    gap = paired(ours, theirs)
    if gap is not None:
        line[f"{header}, against {study.reference}"] = "" if runs is base else _cell(gap, sign=True)
    return line


def way(study: StudyFile, runs: Sequence[Row], base: Sequence[Row]) -> dict[str, str]:
    """The way to the target, seed by seed."""
    goal = f"to {study.target:.0%}"
    scales = {
        f"virtual seconds {goal}": ("seconds_to_target", 1),
        f"uploads {goal}": ("updates_to_target", 1),
        f"MB {goal}, up and down": ("bytes_to_target", 1e-6),
    }
    line = {
        header: ", ".join("-" if run[key] is None else f"{factor * run[key]:.0f}" for run in runs)
        for header, (key, factor) in scales.items()
    }
    by_seed = {other["seed"]: other for other in base}
    pairs = [(run, by_seed[run["seed"]]) for run in runs if run["seed"] in by_seed]
    if pairs:
        line[f"smallest speed-up over {study.reference}"] = "" if runs is base else speed_up(pairs)
    return line


def speed_up(pairs: Sequence[tuple[Row, Row]]) -> str:
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


def publish(name: str, folder: Path) -> str:
    """Store the runs of a finished comparison, and put their table into the pages that have a place for it."""
    study = read(name)
    found = rows(study, folder)
    text = table(study, found)
    pages = {page: filled for page in sorted(PAGES.glob("*.md")) if (filled := with_table(page, name, text))}
    if not pages:
        print(f"no page of {PAGES} has <!-- study {name} -->: the results are only stored", file=sys.stderr)
    (RESULTS / f"study-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    for page, filled in pages.items():
        page.write_text(filled)
    return text


def with_table(page: Path, name: str, text: str) -> str | None:
    """The page with the table between the marks; None if it has no marks."""
    begin, end = f"<!-- study {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(begin)
    if not found:
        return None
    if end not in rest:
        raise InputError(f"page {page.name}: {begin.strip()} has no end; add {end} after it")
    return before + begin + "\n" + text + "\n" + end + rest.partition(end)[2]


def results(name: str) -> list[Row]:
    """The stored results."""
    if name not in names():
        raise unknown("study", name, names())
    file = RESULTS / f"study-{name}.json"
    if not file.exists():
        raise InputError(f"study {name}: no results are stored; first: studies.py publish {name} DIR")
    found: list[Row] = json.loads(file.read_text())
    return found


def stored(name: str) -> str:
    """The table of the stored results."""
    return table(read(name), results(name))


def shown_on(name: str) -> list[Path]:
    """Those that have a place for the table of a study."""
    return [page for page in sorted(PAGES.glob("*.md")) if f"<!-- study {name} -->" in page.read_text()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    for what in ("publish", "show"):
        parts.add_parser(what).add_argument("study", metavar="NAME")
    parts.choices["publish"].add_argument("folder", metavar="DIR", type=Path, help="made by fedkeel compare")
    given = parser.parse_args()
    try:
        print(publish(given.study, given.folder) if given.what == "publish" else stored(given.study))
    except FedkeelError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""The tables of the page: what each variant came to, also over all scenes, and the runs that came to no end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from fedkeel.record.measured import Measured
from fedkeel.report.page.compact import EXACT, number, plain
from fedkeel.study.places import UNITS
from fedkeel.study.results import Outcome, Results
from fedkeel.study.statistics import Difference, Interval
from fedkeel.study.table import Line, lines, many_tasks, verdict


def standings(results: Results) -> list[dict[str, Any]]:
    """The lines of the table, with the places of scene and variant instead of their names."""
    return [_line(line, results.scenes.index, results.variants.index) for line in lines(results)]


def _line(line: Line, scene: Callable[[str], int], variant: Callable[[str], int]) -> dict[str, Any]:
    told = {each.name: _value(getattr(line, each.name)) for each in fields(line)}
    return {**told, "scene": scene(line.scene), "variant": variant(line.variant)}


def _value(value: Any) -> Any:
    if isinstance(value, Difference):
        return {**plain(asdict(value), EXACT), "clear": value.clear}
    return plain(asdict(value), EXACT) if isinstance(value, Interval) else value


def verdicts(results: Results) -> list[str]:
    """Why nobody is clearly best in a scene, where nobody is."""
    return [verdict(results, scene) for scene in results.scenes]


def over_scenes(results: Results) -> list[dict[str, Any]]:
    """What variants came to over all scenes; nothing where there is one."""
    return [
        {
            "variant": results.variants.index(task.variant),
            "middle": _value(task.middle),
            "improvement": _value(task.improvement),
            "profile": {
                "x": [number(at) for at, _ in task.profile],
                "mean": [number(share.mean) for _, share in task.profile],
                "low": [number(share.low) for _, share in task.profile],
                "high": [number(share.high) for _, share in task.profile],
            },
        }
        for task in many_tasks(results)
    ]


def unsuccessful(results: Results) -> list[dict[str, Any]]:
    """Runs that failed, each with its reason."""
    return [
        {
            "scene": results.scenes.index(run.scene),
            "variant": results.variants.index(run.variant),
            "seed": run.seed,
            "reason": run.failure,
            "round": run.history[-1].get("round") if run.history else None,
        }
        for run in results.outcomes
        if run.state == "failed"
    ]


def going_on(results: Results) -> list[dict[str, Any]]:
    """How far runs are that a process works on."""
    return [
        {
            "scene": results.scenes.index(run.scene),
            "variant": results.variants.index(run.variant),
            "seed": run.seed,
            "round": run.history[-1].get("round") if run.history else 0,
            "rounds": run.record.experiment.get("rounds"),
            "seconds": number(run.history[-1].get("virtual_seconds") if run.history else 0.0),
            "limit_seconds": run.record.experiment.get("limit_seconds"),
            "value": number(run.last),
        }
        for run in results.outcomes
        if run.state == "going on" and run.record is not None
    ]


def figures(results: Results) -> dict[str, Any] | None:
    """The numbers of a run that is alone."""
    if len(results.outcomes) != 1:
        return None
    run = results.outcomes[0]
    last: dict[str, Any] = run.history[-1] if run.history else {}
    told = {
        "value": run.value,
        "best": run.best,
        "validation": run.validation,
        "loss": run.loss,
        "others": _others(run),
        "tested_by": None if last.get("tested_by") is None else len(last["tested_by"]),
        "rounds": last.get("round"),
        "virtual_seconds": run.summary.get("virtual_seconds", last.get("virtual_seconds")),
        "uploads": last.get("updates"),
        "bytes_up": last.get("bytes_up"),
        "bytes_down": last.get("bytes_down"),
        "rounds_to_target": run.rounds_to_target,
        "seconds_to_target": run.seconds_to_target,
        "uploads_to_target": run.uploads_to_target,
        "bytes_to_target": run.bytes_to_target,
    }
    return {
        **plain(told, EXACT),
        "clients": None if run.of_clients is None else plain(run.of_clients, EXACT),
        "estimated": run.estimated,
    }


def _others(run: Outcome) -> list[dict[str, Any]]:
    """The other metrics of the last evaluation."""
    if run.record is None or not run.history:
        return []
    others = [metric for metric in run.record.metrics if metric.name != run.metric.name]
    return [{**judged(metric), "value": run.record.column(metric.name)[-1]} for metric in others]


def judged(metric: Measured) -> dict[str, Any]:
    """A metric as the page needs to know it."""
    return {"name": metric.name, "words": metric.words, "better": metric.better, "share": metric.share}


def compared(results: Results) -> dict[str, Any]:
    """How the runs are compared, and where in each scene."""
    measure = results.measure
    return {
        **plain(asdict(measure)),
        "unit": UNITS[measure.at],
        "judged": judged(results.metric),
        "judged_by": results.judged_by,
        "on_validation": results.on_validation,
        "validated": any(run.record and run.record.validated for run in results.outcomes),
        "limits": [number(results.limits.get(scene)) for scene in results.scenes],
    }

"""All that the page shows, as plain values that can be written as JSON: few numbers, whatever the size of the runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import fedkeel
from fedkeel.record.places import resumption
from fedkeel.report import palette
from fedkeel.report.page import classes, clients, curves, jobs, labels, predictions, settings, sites, tables
from fedkeel.report.page.cells import cells
from fedkeel.study.results import LEFT, Results

SCHEMA = 1


def digest(results: Results) -> dict[str, Any]:
    """What the page shows of these runs, finished or not."""
    found = cells(results)
    states = Counter(run.state for run in results.outcomes)
    return {
        "schema": SCHEMA,
        "fedkeel": fedkeel.__version__,
        "title": results.title,
        "scenes": results.scenes,
        "variants": [_variant(place, name) for place, name in enumerate(results.variants)],
        "seeds": results.seeds,
        "runs": {"all": len(results.outcomes), **states},
        "complete": not any(states[state] for state in LEFT),
        "clock": sites.clock(results),
        "measure": tables.compared(results),
        "notes": list(results.notes),
        "figures": tables.figures(results),
        "lines": tables.standings(results),
        "verdicts": tables.verdicts(results),
        "tasks": tables.over_scenes(results),
        "failed": tables.unsuccessful(results),
        "going_on": tables.going_on(results),
        "curves": curves.curves(found, results.metric.name),
        "seed_lines": curves.seeds(found, results.metric.name),
        "jobs": jobs.jobs(found),
        "timelines": jobs.timelines(found),
        "faults": jobs.faults(found),
        "sites": sites.by_site(found),
        "predictions": predictions.predictions(found),
        "clients": clients.client_values(found, results.metric),
        "named_clients": clients.named_clients(found, results.metric),
        "classes": classes.classes(found, results.metric),
        "labels": labels.labels(found),
        "differing": settings.differing(found, results.scenes, results.variants),
        "settings": settings.in_full(found),
        "command": results.command,
        "way_on": _way_on(results),
    }


def _way_on(results: Results) -> str:
    """The command that goes on with runs that were stopped, where one does."""
    stopped = [run for run in results.outcomes if run.state == "stopped"]
    if stopped and results.planned:
        return results.command
    return resumption(stopped[0].folder) if len(stopped) == 1 else ""


def _variant(place: int, name: str) -> dict[str, Any]:
    style = palette.style(place)
    return {"name": name, "light": style.light, "dark": style.dark, "dash": list(style.dash)}

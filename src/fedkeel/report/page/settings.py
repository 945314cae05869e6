"""The settings of the runs: those that differ, all of them, and how to repeat a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.config import yamltext
from fedkeel.config.spelling import dotted, flow
from fedkeel.record.places import repetition
from fedkeel.report.page.cells import Cell
from fedkeel.study.adhoc import ASIDE

MISSING = "\N{EN DASH}"
LONGEST = 200
"""Characters of a value that is shown."""

Flat = dict[str, str]


def differing(cells: Sequence[Cell], scenes: Sequence[str], variants: Sequence[str]) -> list[dict[str, Any]]:
    """Tables of settings that are not the same everywhere: by variant, by scene, and those that need both."""
    known = {(cell.scene, cell.variant): flat(cell.described) for cell in cells if cell.described is not None}
    names = dict.fromkeys(name for each in known.values() for name in each)
    differ = [name for name in names if len({each.get(name, MISSING) for each in known.values()}) > 1]
    by_variant = [name for name in differ if _decided(known, name, 1)]
    by_scene = [name for name in differ if name not in by_variant and _decided(known, name, 0)]
    rest = [name for name in differ if name not in by_variant and name not in by_scene]
    variant_keys = {key[1]: key for key in reversed(known)}
    scene_keys = {key[0]: key for key in reversed(known)}
    told = [
        ("variant", by_variant, [(variants[v], variant_keys[v]) for v in sorted(variant_keys)]),
        ("scene", by_scene, [(scenes[s], scene_keys[s]) for s in sorted(scene_keys)]),
        ("run", rest, [(f"{scenes[key[0]]}, {variants[key[1]]}", key) for key in known]),
    ]
    return [
        _table(by, [name for name, _ in columns], [known[key] for _, key in columns], chosen)
        for by, chosen, columns in told
        if chosen
    ]


def _table(by: str, columns: Sequence[str], values: Sequence[Flat], names: Sequence[str]) -> dict[str, Any]:
    """A row for each setting that several columns have; what only one has is listed under its name."""
    alone = [name for name in names if sum(name in each for each in values) == 1 and len(columns) > 1]
    own = [[f"{name}={each[name]}" for name in alone if name in each] for each in values]
    return {
        "by": by,
        "columns": list(columns),
        "rows": [[name, *(each.get(name, MISSING) for each in values)] for name in names if name not in alone],
        "own": own if alone else [],
    }


def _decided(known: Mapping[tuple[int, int], Flat], name: str, by: int) -> bool:
    """Whether the scene (0) or the variant (1) alone decides the value."""
    values: dict[int, set[str]] = {}
    for key, each in known.items():
        values.setdefault(key[by], set()).add(each.get(name, MISSING))
    return all(len(each) == 1 for each in values.values())


def flat(experiment: Mapping[str, Any]) -> Flat:
    """Settings by their dotted names, as on the command line."""
    return {name: _short(value) for name, value in dotted(experiment, ASIDE).items()}


def _short(value: Any) -> str:
    text = flow(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def in_full(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of every cell all settings of its first run, and the command that repeats that."""
    return [
        {**cell.key, "yaml": yamltext.write(cell.described), "command": _command(cell)}
        for cell in cells
        if cell.described is not None
    ]


def _command(cell: Cell) -> str:
    run = cell.first or cell.outcomes[0]
    return repetition(run.folder)

"""What a run's results depend on beside its experiment: the instruction set of the native kernels that trained it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

INSTRUCTION_SET = "instruction_set"
"""The key in `run.json` and `summary.json`; null where no native kernels were used. A run that went on with other ones
has both, in their order: `avx512, avx2`."""


def other_instruction_set(began: object, now: str | None, usable: Collection[str]) -> str | None:
    """What to tell of a run that goes on with other native kernels than it began with, None if it does not.

    `usable` are the instruction sets that could be used here.
    """
    began = str(began).split(", ")[0] if began else None
    if began == now:
        return None
    told = "rounding differs, so that accuracies may differ a little from those of a run without interruption"
    if not now:
        return f"the run began with native kernels ({began}) and goes on without: {told}"
    if not began:
        return f"the run began without native kernels and goes on with some ({now}): {told}"
    way = f"; FEDKEEL_ISA={began} goes on as it began" if began in usable else ""
    return f"the run began with native kernels for {began} and goes on with those for {now}: {told}{way}"


def continued(text: str, now: Mapping[str, Any]) -> str:
    """The content of `run.json` for a run that goes on: with today's kernels beside those that it began with."""
    told, today = json.loads(text), now.get(INSTRUCTION_SET)
    known = str(told.get(INSTRUCTION_SET) or "").split(", ")
    if not today or known == [""] or today in known:
        return text
    return json.dumps({**told, INSTRUCTION_SET: ", ".join([*known, today])}) + "\n"


def renewed(text: str, now: Mapping[str, Any]) -> str:
    """The content of `run.json` for a run that starts anew: all of its results will be of today's kernels."""
    told = json.loads(text)
    if told.get(INSTRUCTION_SET) == now.get(INSTRUCTION_SET):
        return text
    return json.dumps({**told, INSTRUCTION_SET: now.get(INSTRUCTION_SET)}) + "\n"

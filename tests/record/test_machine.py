"""The instruction set that a run was trained with: recorded, and told where a run goes on with another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkeel.local.native import library
from fedkeel.record.machine import INSTRUCTION_SET, continued, other_instruction_set, renewed
from fedkeel.runner import choice
from tests.helpers import federation
from tests.helpers.folders import faulty, resumed, stopped, stopped_again

DIFFER = "rounding differs, so that accuracies may differ a little from those of a run without interruption"


@pytest.mark.parametrize("isa", ["avx2", None])
def test_nothing_is_told_where_nothing_has_changed(isa: str | None) -> None:
    assert other_instruction_set(isa, isa, ()) is None


def test_another_instruction_set_is_told() -> None:
    told = f"the run began with native kernels for avx512 and goes on with those for avx2: {DIFFER}"
    assert other_instruction_set("avx512", "avx2", ("avx2", "base")) == told


def test_the_first_one_is_offered_where_it_can_be_had() -> None:
    told = other_instruction_set("avx2", "avx512", ("avx512", "avx2", "base"))
    assert told == (
        f"the run began with native kernels for avx2 and goes on with those for avx512: {DIFFER}; "
        "FEDKEEL_ISA=avx2 goes on as it began"
    )


def test_kernels_that_come_or_go_are_told() -> None:
    assert other_instruction_set("avx2", None, ()) == (
        f"the run began with native kernels (avx2) and goes on without: {DIFFER}"
    )
    assert other_instruction_set(None, "avx2", ("avx2",)) == (
        f"the run began without native kernels and goes on with some (avx2): {DIFFER}"
    )


def test_a_run_that_went_on_with_others_names_all_of_them() -> None:
    before = '{"schema": 2, "instruction_set": "avx512"}\n'
    assert continued(before, {INSTRUCTION_SET: "avx512"}) == before
    after = continued(before, {INSTRUCTION_SET: "avx2"})
    assert json.loads(after) == {"schema": 2, "instruction_set": "avx512, avx2"}
    assert continued(after, {INSTRUCTION_SET: "avx512"}) == after
    assert continued('{"schema": 2}', {INSTRUCTION_SET: "avx2"}) == '{"schema": 2}'
    assert other_instruction_set("avx512, avx2", "avx512", ()) is None
    assert "began with native kernels for avx512" in str(other_instruction_set("avx512, avx2", "avx2", ()))


def test_a_run_that_starts_anew_is_of_today() -> None:
    before = '{"schema": 2, "instruction_set": "avx2"}\n'
    assert renewed(before, {INSTRUCTION_SET: "avx2"}) == before
    assert json.loads(renewed(before, {INSTRUCTION_SET: "base"})) == {"schema": 2, "instruction_set": "base"}
    assert json.loads(renewed(before, {})) == {"schema": 2, "instruction_set": None}
    assert renewed('{"schema": 2}', {INSTRUCTION_SET: None}) == '{"schema": 2}'


class Machine:
    """One whose native kernels are of some instruction set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        patch.setattr(library, "usable", lambda: ("avx512", "avx2", "base"))

    def becomes(self, isa: str | None) -> None:
        self._patch.setattr(choice, "instruction_set", lambda _: isa)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def recorded(folder: Path, file: str = "run.json") -> object:
    return json.loads((folder / file).read_text())[INSTRUCTION_SET]


def given() -> dict[str, Any]:
    return {"data": federation.data(), "model": federation.net()}


def test_a_run_that_goes_on_elsewhere_is_told_and_recorded(tmp_path: Path, machine: Machine) -> None:
    out = tmp_path / "a"
    machine.becomes("avx2")
    stopped(faulty("fedavg", "serial"), out, 2, **given())
    assert recorded(out) == "avx2"
    assert stopped_again(out, 3, **given()) == [f"{out} goes on after round 2"]
    machine.becomes("avx512")
    _, told = resumed(out, **given())
    assert told == [
        f"the run began with native kernels for avx2 and goes on with those for avx512: {DIFFER}; "
        "FEDKEEL_ISA=avx2 goes on as it began",
        f"{out} goes on after round 3",
    ]
    assert recorded(out) == recorded(out, "summary.json") == "avx2, avx512"


def test_a_run_that_starts_anew_elsewhere_is_recorded_so(tmp_path: Path, machine: Machine) -> None:
    out = tmp_path / "a"
    machine.becomes("avx2")
    stopped(faulty("fedavg", "serial"), out, 1, **given())
    for inside in (out / "checkpoint").iterdir():
        inside.rename(tmp_path / inside.name)
    machine.becomes("base")
    _, told = resumed(out, **given())
    assert told == [f"{out} has no checkpoint yet: the run starts again from round 1"]
    assert recorded(out) == recorded(out, "summary.json") == "base"


def test_a_run_without_native_kernels_has_none_recorded(tmp_path: Path) -> None:
    stopped(faulty("fedavg", "serial"), tmp_path / "a", 1, **given())
    assert recorded(tmp_path / "a") is None

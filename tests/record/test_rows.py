"""Typed rows: what is written is what is read, and what is not a row is told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import InputError, run
from fedkeel.record.recorded import RowError
from fedkeel.record.rows import KINDS, Arrival, Arrivals, Evaluation, Refused, Round, RoundEnd, Unfinished
from tests.helpers import federation
from tests.helpers.folders import faulty, rows

EVALUATION = Evaluation(
    round=1,
    version=1,
    virtual_seconds=2.5,
    wall_seconds=1.0,
    metrics={"accuracy": 0.5},
    loss=1,
    bytes_up=3,
    bytes_down=4,
    updates=5,
)
UNFINISHED = Unfinished(3, 2, 1, 0.0, 0.5, 2.0, "too late", 10, 0)


@pytest.mark.slow
def test_the_files_of_a_run_hold_the_rows_that_were_told(tmp_path: Path) -> None:
    ends: list[RoundEnd] = []
    faults = {"lost_upload": 0.2, "corrupt": 0.2, "twice": 0.2}
    described = faulty("fedasmu", rounds=8, faults=faults, evaluate_every=3, fleet={"speed_ratio": 5})
    run(described, tmp_path / "a", data=federation.data(), model=federation.net(4), progress=ends.append)
    told = {
        "history": [end.evaluation for end in ends if end.evaluation],
        "clients": [row for end in ends for row in end.arrivals],
        "rounds": [end.row for end in ends],
        "unfinished": [row for end in ends for row in end.unfinished],
        "refused": [row for end in ends for row in end.refused],
    }
    for name, kind in KINDS.items():
        found = [kind.read(row) for row in rows(tmp_path / "a", name)]
        assert found[: len(told[name])] == told[name]
        assert found, name
        assert name in ("unfinished", "refused") or len(found) == len(told[name])
    assert any(arrival.merged is not None for arrival in told["clients"])


def test_keys_stand_in_the_order_of_the_fields() -> None:
    assert [*UNFINISHED.plain()] == [field.name for field in fields(Unfinished)]
    known = [field.name for field in fields(Evaluation)]
    absent = ("train_loss", "local_accuracy", "validation", "clients", "clients_estimated", "by_class", "tested_by")
    expected = ["accuracy" if name == "metrics" else name for name in known if name not in absent]
    assert [*EVALUATION.plain()] == expected


def test_metrics_are_known_by_their_names() -> None:
    row = Evaluation.read({**EVALUATION.plain(), "auroc": 0.7, "rmse": None})
    assert (row.accuracy, row.auroc, row.rmse, row["auroc"], row.first) == (0.5, 0.7, None, 0.7, 0.5)
    assert row.metrics == {"accuracy": 0.5, "auroc": 0.7, "rmse": None}
    with pytest.raises(AttributeError, match="no f1; its metrics are accuracy, auroc, rmse"):
        _ = row.f1
    without = {name: value for name, value in EVALUATION.plain().items() if name != "accuracy"}
    with pytest.raises(RowError, match="no metric"):
        Evaluation.read(without)


def test_validation_is_what_runs_are_tuned_by() -> None:
    assert (EVALUATION.tuned("accuracy"), EVALUATION.tuned("loss")) == (0.5, 1)
    row = replace(EVALUATION, validation={"accuracy": 0.25, "loss": 2.0})
    assert (row.tuned("accuracy"), row.tuned("loss")) == (0.25, 2.0)
    assert Evaluation.read(row.plain()) == row


@given(st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.floats(-1, 1), st.lists(st.integers(), max_size=2))))
def test_what_a_rule_reports_are_keys_of_the_round(report: dict[str, Any]) -> None:
    row = Round(3, None, 4, 0, 1, report)
    plain = row.plain()
    assert plain == {"round": 3, "train_loss": None, "arrived": 4, "lost": 0, "refused": 1, **report}
    assert Round.read(json.loads(json.dumps(plain))) == row


@pytest.mark.parametrize("name", ["round", "lost", "report"])
def test_a_rule_cannot_report_under_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(InputError, match=f"^report: a round's row has a key {name} already; choose another name"):
        Round(3, None, 4, 0, 1, {name: 1})


def test_a_row_that_was_read_with_a_name_that_is_taken_is_damaged() -> None:
    with pytest.raises(RowError, match=r"^report is no key of a row$"):
        Round.read({**Round(3, None, 4, 0, 1, {}).plain(), "report": {}})


def test_a_key_of_a_later_version_is_left_out() -> None:
    assert Unfinished.read({**UNFINISHED.plain(), "battery": 0.3}) == UNFINISHED
    assert Evaluation.read({**EVALUATION.plain(), "battery": [0.3]}) == EVALUATION  # a number would be a metric


@pytest.mark.parametrize("told", [None, 3, "row", [1, 2], [["round", 1]]])
def test_what_is_no_row(told: object) -> None:
    for kind in KINDS.values():
        with pytest.raises(RowError, match="it is no row"):
            kind.read(told)


@pytest.mark.parametrize(
    ("row", "changes", "said"),
    [
        (UNFINISHED, {"client": "three"}, "client is a str"),
        (UNFINISHED, {"client": True}, "client is a bool"),
        (UNFINISHED, {"client": 3.0}, "client is a float"),
        (UNFINISHED, {"why": None}, "why is a NoneType"),
        (EVALUATION, {"local_accuracy": [1]}, "local_accuracy is a list"),
        (Refused(1, 2, 3, 4, None, 5.0, "norm", "", 6, 7), {"dispatched": "early"}, "dispatched is a str"),
    ],
)
def test_a_value_that_fits_no_field(row: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError, match=said):
        type(row).read({**row.plain(), **changes})


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_key_that_is_missing(kind: Any) -> None:
    with pytest.raises(RowError, match=r"^(round|client) is missing$"):
        kind.read({})


def test_arrivals_have_the_columns_of_an_arrival() -> None:
    required = [field.name for field in fields(Arrival)][:16]
    two = Arrivals(**{name: [1, 2] for name in required})
    assert two[1] == Arrival(*[2] * 16)
    assert [*two] == [two[0], two[1]] == two[:]
    for wrong in ({**two.columns, "clients": [1, 2]}, {"client": [1, 2]}, {**two.columns, "slot": [1]}):
        with pytest.raises(TypeError, match="columns"):
            Arrivals(**wrong)
    assert len(Arrivals()) == 0
    both = Arrivals()
    both.extend(two)
    both.extend(two)
    assert both.columns["client"] == [1, 2, 1, 2]
    assert two.columns["client"] == [1, 2]


def test_columns_that_only_repeat_their_default_are_not_written() -> None:
    required = {field.name: [1, 2] for field in [*fields(Arrival)][:16]}
    told = Arrivals(**required, accepted=[True, True], slot=[None, 3], merged=[None, None], notes=[None, None])
    assert [*told.plain] == [*required, "slot"]


def test_rows_are_read_without_pytorch() -> None:
    """Whoever watches a run from another process starts at once; the server core can import the row types."""
    code = (
        "import sys, fedkeel; fedkeel.follow, fedkeel.Round, fedkeel.Evaluation, fedkeel.Unfinished, fedkeel.Refused; "
        "print([name for name in ('torch', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

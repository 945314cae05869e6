"""Files of rows: what is written, cut off again, and noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.record.rowfile import START, RowFile, line, lines
from tests.helpers.disk import largest_file


def test_nothing_is_changed_before_it_is_known_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n")
    rows = RowFile(path)
    rows.close()
    assert path.read_text() == "1\n2\n"


def test_rows_go_on_behind_a_position(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "a.jsonl")
    rows.rewind(START)
    rows.add(["1\n"])
    known = rows.position
    assert known == {"bytes": 2, "crc32": crc32(b"1\n")}
    rows.add(["2\n", "3\n"])
    rows.sync()
    assert rows.position == {"bytes": 6, "crc32": crc32(b"1\n2\n3\n")}
    assert rows.path.read_text() == "1\n2\n3\n"
    rows.close()
    again = RowFile(tmp_path / "a.jsonl")
    assert again.objection(known) is None
    again.rewind(known)
    again.add(["4\n"])
    again.close()
    assert rows.path.read_text() == "1\n4\n"
    assert again.position == {"bytes": 4, "crc32": crc32(b"1\n4\n")}


def test_what_is_not_as_it_was_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = RowFile(path)
    rows.add(["one\n", "two\n"])
    known = rows.position
    assert rows.objection(known) is None
    assert rows.objection(START) is None
    path.write_text("one\ntwo\nthree\n")
    assert rows.objection(known) is None
    path.write_text("one\ntwo")
    assert rows.objection(known) == "a.jsonl is 1 bytes shorter than it was"
    path.write_text("one\ntwu\n")
    assert rows.objection(known) == "a.jsonl is not as it was"
    rows.close()


def test_large_files_are_looked_at_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.record.rowfile._CHUNK", 7)
    rows = RowFile(tmp_path / "a.jsonl")
    for number in range(20):
        rows.add([f"{number}\n"])
    assert rows.objection(rows.position) is None
    rows.close()


def test_letters_beyond_ascii_are_counted_in_bytes(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "a.jsonl")
    rows.add(["Ü\n"])
    assert rows.position["bytes"] == (tmp_path / "a.jsonl").stat().st_size == 3
    rows.close()


def test_a_full_disk_is_an_error_once_and_loses_nothing_that_was_known(tmp_path: Path) -> None:
    rows = RowFile(tmp_path / "a.jsonl")
    rows.rewind(START)
    rows.add(["known\n"])
    known = rows.position
    with largest_file(10), pytest.raises(OSError, match="File too large"):
        rows.add(["far too long\n"])
    assert rows.position == known
    with largest_file(10):
        rows.close()
    again = RowFile(tmp_path / "a.jsonl")
    assert again.objection(known) is None
    again.rewind(known)
    assert again.path.read_text() == "known\n"
    again.close()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)


@given(st.data(), st.integers(0, 4))
def test_columns_are_written_as_rows(data: st.DataObject, count: int) -> None:
    """Numbers and short lists, the same in all rows or not."""
    numbers = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
    column = st.one_of(
        st.lists(numbers, min_size=count, max_size=count),
        st.lists(st.lists(numbers, max_size=2), min_size=count, max_size=count),
        VALUES.map(lambda value: [value] * count),
    )
    columns: dict[str, list[Any]] = {"client": [*range(count)], "a": data.draw(column), "b": data.draw(column)}
    written = "".join(lines(columns))
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert [json.loads(each) for each in written.splitlines()] == rows


FEW = {
    "int": [-1, 0, 1, 10**20],
    "float": [-0.0, 0.0, 1.0, 1.5, 1e-7, 1e22],
    "mixed": [-0.0, 0, 1, 1.0, None, True, False],
    "list": [[], [0.5], [-0.0, 1]],
}


@pytest.mark.parametrize("kind", FEW)
@given(data=st.data())
def test_few_values_in_many_rows_are_written_as_each_is(kind: str, data: st.DataObject) -> None:
    """To the letter, as one by one; a column of equal values says the same as its first."""
    column = data.draw(st.lists(st.sampled_from(FEW[kind]), min_size=2, max_size=30))
    if column.count(column[0]) == len(column):
        column = [*column, "another"]
    columns = {"client": [*range(len(column))], "a": column, "%s": [0.25] * len(column)}
    rows = zip(*columns.values(), strict=True)
    assert "".join(lines(columns)) == "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


@pytest.mark.parametrize("column", [[float("nan")] * 2, [1.0, float("inf")], [1.0, float("inf")] * 9])
def test_a_column_with_numbers_that_are_none_is_not_written(column: list[float]) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        "".join(lines({"client": [*range(len(column))], "a": column}))


def test_numbers_that_are_none_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        line({"a": float("nan")})

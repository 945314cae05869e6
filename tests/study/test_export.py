"""Tables as files: read back, they say the same."""

from __future__ import annotations

import csv
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedkeel.errors import InputError
from fedkeel.study.export import What, as_csv, caption, cells, export, latex, markdown, told, write
from fedkeel.study.plan import Measure
from fedkeel.study.results import Results, collect
from fedkeel.study.store import Store
from fedkeel.study.table import columns, evaluations, lines, run_columns
from tests.helpers.studies import by_hand, fill, row

ODD = r"a&b %_$#{}~^\ |x"


def gathered(place: Path, names: tuple[str, str] = ("plain", "other"), measure: Measure | None = None) -> Results:
    """Two seeds each; the second variant is clear of the first."""
    made = by_hand([("", name, seed) for name in names for seed in (0, 1)], measure or Measure(reference=names[0]))
    plan = replace(made, cases=tuple(replace(case, name=f"run{n}") for n, case in enumerate(made.cases)))
    runs = {
        (name, seed): [row(1, 0.1 + seed / 7), row(2, 0.5 + place / 3 + seed / 70)]
        for place, name in enumerate(names)
        for seed in (0, 1)
    }
    fill(plan, place, runs)
    return collect(plan, place)


def test_csv_read_back_has_the_same_numbers(tmp_path: Path) -> None:
    found = gathered(tmp_path, ('with "quotes", commas', "line\nbreak"))
    for what, rows in (("table", columns(found)), ("runs", run_columns(found)), ("history", evaluations(found))):
        path = export(found, tmp_path / f"{what}.csv", what)  # type: ignore[arg-type]
        with path.open(newline="", encoding="utf-8") as file:
            back = list(csv.DictReader(file))
        assert len(back) == len(rows) > 0
        for one, other in zip(back, rows, strict=True):
            assert one.keys() == other.keys()
            for name, value in other.items():
                assert one[name] == ("" if value is None else str(value))
                assert not isinstance(value, float) or float(one[name]) == value


def test_csv_has_all_columns_of_rows_that_differ() -> None:
    text = as_csv([{"a": 1}, {"a": 2, "b": 0.1}])
    assert text == "a,b\n1,\n2,0.1\n"


def test_parquet_read_back_has_the_same_values(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = gathered(tmp_path)
    for what, rows in (("table", columns(found)), ("runs", run_columns(found)), ("history", evaluations(found))):
        path = export(found, tmp_path / f"{what}.parquet", what)  # type: ignore[arg-type]
        assert parquet.read_table(path).to_pylist() == rows


def test_parquet_holds_the_largest_seed(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    plan = by_hand([("", "a", 2**64 - 1), ("", "a", 0)])
    fill(plan, tmp_path, {("a", 0): [row(1, 0.5)], ("a", 2**64 - 1): [row(1, 0.5)]})
    path = export(collect(plan, tmp_path), tmp_path / "runs.parquet", "runs")
    assert parquet.read_table(path)["seed"].to_pylist() == [2**64 - 1, 0]


def test_without_pyarrow_a_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gathered(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError, match=r"needs the package pyarrow; install it with pip install 'fedkeel\[parquet\]'"
    ):
        export(found, tmp_path / "table.parquet")
    assert not (tmp_path / "table.parquet").exists()


def test_the_name_of_a_file_says_its_format_unless_one_is_asked_for(tmp_path: Path) -> None:
    found = gathered(tmp_path)
    assert export(found, tmp_path / "t.TEX").read_text() == latex(found)
    assert export(found, tmp_path / "deep" / "t.md").read_text() == markdown(found)
    assert export(found, tmp_path / "t.txt", form="csv").read_text() == as_csv(columns(found))
    with pytest.raises(
        InputError,
        match=r"out: t.txt does not end in the name of a format; use .csv, .parquet, .tex, .md, or give --format",
    ):
        export(found, tmp_path / "t.txt")


@pytest.mark.parametrize("what", ["runs", "history"])
@pytest.mark.parametrize("form", ["latex", "markdown"])
def test_only_tables_are_typeset(what: What, form: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"format must be csv or parquet for {what}; got {form}"):
        told(gathered(tmp_path), what, form)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_file_that_cannot_be_written_is_told(name: str, tmp_path: Path) -> None:
    found = gathered(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"cannot be written .*; choose another file"):
        export(found, tmp_path / name)
    assert [path.name for path in tmp_path.glob("*.partial")] == []


def test_a_file_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.csv", "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        write(tmp_path / "t.csv", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("t.csv", "old")]


def unescaped(cell: str) -> str:
    """What LaTeX prints of our escapes."""
    words = {"textasciitilde": "~", "textasciicircum": "^", "textbackslash": "\\"}
    return re.sub(r"\\(?:(text\w+)\{\}|(.))", lambda found: words[found[1]] if found[1] else found[2], cell)


def test_latex_prints_names_as_they_are(tmp_path: Path) -> None:
    text = latex(gathered(tmp_path, ("plain", ODD)))
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r" & accuracy, \% & against plain \\"
    assert [lines[1], lines[3], *lines[6:8]] == [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
    name = lines[5].split(" & ")[0]
    assert unescaped(name) == ODD
    assert not re.search(r"[&%$#_{}~^\\]", re.sub(r"\\(text\w+\{\}|.)", "", name))
    assert r"$\pm$" in lines[5]
    assert all(line.startswith("%") for line in lines[8:])
    header = latex(gathered(tmp_path / "reference", (ODD, "x"))).splitlines()[2]
    assert unescaped(header.split(" & ", 2)[2].removesuffix(r" \\")) == f"against {ODD}"


def split(line: str) -> list[str]:
    """The cells of a line of a table in Markdown, as they are printed."""
    found = re.findall(r"((?:\\.|[^|\\])*)\|", line)
    assert "|".join(["", *found[1:], ""]) == line
    return [re.sub(r"\\(.)", r"\1", cell).strip() for cell in found[1:]]


@pytest.mark.parametrize("names", [("plain", ODD), (ODD, "plain"), ("a\\", "b\\|c\nd")])
def test_markdown_prints_names_as_they_are(names: tuple[str, str], tmp_path: Path) -> None:
    lines = markdown(gathered(tmp_path, names)).splitlines()
    assert split(lines[0])[0::2] == ["", f"against {names[0]}"]
    assert [split(line)[0] for line in lines[2:4]] == [name.replace("\n", " ") for name in names]
    assert {len(split(line)) for line in lines[:4]} == {3}


def test_the_best_is_bold_and_those_level_are_marked(tmp_path: Path) -> None:
    plan = by_hand([("", name, seed) for name in ("a", "b") for seed in range(3)], Measure(reference="a"))
    runs = {
        (name, seed): [row(1, (0.2 + seed / 1000 if name == "a" else 0.6) + seed / 100)]
        for name in ("a", "b")
        for seed in range(3)
    }
    fill(plan, tmp_path, runs)
    best = collect(plan, tmp_path)
    assert "| b | **61.00 ± 2.48** | +39.90 (+39.65 to +40.15) |" in markdown(best)
    assert r"b & \textbf{61.00 $\pm$ 2.48} & +39.90" in latex(best)
    fill(plan, tmp_path / "level", {key: [row(1, 0.5 + key[1] / 10 + (key == ("a", 0)))] for key in runs})
    level = collect(plan, tmp_path / "level")
    assert markdown(level).count(" · |") == 2
    assert latex(level).count(r" $\cdot$ &") == 2


def test_a_target_is_told_as_it_was_given(tmp_path: Path) -> None:
    found = gathered(tmp_path, measure=Measure(target=0.565, reference="plain"))
    header, rows = cells(found, lines(found), str, "")
    assert header == ["", "accuracy, %", "against plain", "rounds to 56.5%", "virtual seconds to 56.5%", "MB to 56.5%"]
    assert rows[0][3] == "not reached"
    assert rows[1][3:] == ["2", "20", "1.4e-05"]


def test_what_some_seeds_reached_is_told_with_how_many(tmp_path: Path) -> None:
    found = gathered(tmp_path, measure=Measure(target=0.505, reference="plain"))
    header, rows = cells(found, lines(found), str, "")
    assert rows[0][header.index("rounds to 50.5%")] == "2 (1 of 2)"


def test_runs_that_are_not_finished_have_a_column(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0), ("", "a", 1), ("", "b", 0)])
    fill(plan, tmp_path, {("a", 0): [row(1, 0.5)]})
    Store(tmp_path).fail("a-1", "DivergenceError", "it diverged")
    found = collect(plan, tmp_path)
    header, rows = cells(found, lines(found), str, "")
    assert header == ["", "accuracy, %", "runs"]
    assert rows == [["a", "50.00", "1 of 2, 1 failed"], ["b", "", "0 of 1, 1 to come"]]


def test_a_comparison_without_a_finished_run_is_a_table_too(tmp_path: Path) -> None:
    plan = by_hand([("", "a", 0), ("", "b", 0)])
    Store(tmp_path).keep(plan)
    found = collect(plan, tmp_path)
    assert markdown(found).splitlines()[:4] == [
        "|  | runs |", "|---|--:|", "| a | 0 of 1, 1 to come |", "| b | 0 of 1, 1 to come |"
    ]  # fmt: skip
    assert r"\begin{tabular}{lr}" in latex(found)
    assert len(list(csv.DictReader(io.StringIO(told(found, "table", "csv"))))) == 2
    assert told(found, "history", "csv").strip() == ""


def test_a_caption_explains_only_the_marks_that_there_are(tmp_path: Path) -> None:
    plan = by_hand([("", name, seed) for name in ("low", "high") for seed in range(3)])
    scores = {"low": [0.1, 0.11, 0.12], "high": [0.81, 0.82, 0.831]}
    fill(plan, tmp_path, {(name, n): [row(1, each)] for name, found in scores.items() for n, each in enumerate(found)})
    best = caption(collect(plan, tmp_path), "*")
    assert best.endswith("*: clearly better than all others, corrected for their number.")
    assert "Bold: clearly better" in caption(collect(plan, tmp_path))
    assert "dot" not in best


def test_a_caption_says_where_runs_are_compared(tmp_path: Path) -> None:
    assert caption(gathered(tmp_path)) == (
        "Test accuracy at 2 rounds, seeds 0, 1. ± and ranges: 95 % intervals over seeds, not corrected for the number "
        "of comparisons. A dot: may be best, as its difference to the best mean may be noise."
    )
    plan = by_hand([("", "a", 4)], Measure("time", last=3))
    fill(plan, tmp_path / "one", {("a", 4): [row(1, 0.5)]})
    assert caption(collect(plan, tmp_path / "one")) == (
        "Test accuracy at 10 virtual seconds (mean of the last 3 evaluations, or of all where there are fewer), "
        "seed 4. Differences may be noise."
    )

"""docs/results.md: it is what the stored results make, nothing is left out, and publishing loses nothing."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedkeel.errors import InputError
from fedkeel.study.export import as_csv
from fedkeel.study.papers import catalogue, tables
from fedkeel.study.papers.catalogue import Item
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.plan import plan
from fedkeel.study.statistics import Interval
from tests.helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import evidence
import papers
import results_page
import studies
import verdicts
from verdicts import Verdict, Verdicts

RESULTS = [item for paper in catalogue.papers() for item in paper.items if item.cells]
IID, DIR = "cifar10+cifar10-cnn, iid, 20 %", "cifar10+cifar10-cnn, Dir 0.6, 20 %"
FIGURE, TABLE = "fedagg-journal/figure7", "fedagg-journal/table3"


def item(path: str) -> Item:
    return catalogue.find([path])[0]


def section(text: str, path: str) -> str:
    """What the page says of an item."""
    return text.partition(f'<a id="{path.replace("/", "-")}"></a>')[2].partition("<a id=")[0]


@pytest.fixture(scope="module")
def text() -> str:
    return results_page.page(papers.read())


@pytest.mark.slow
def test_the_page_is_what_the_command_makes(text: str) -> None:
    assert papers.PAGE.read_text() == text, "first: python benchmarks/papers.py page"


@pytest.mark.slow
def test_every_item_has_its_line_and_every_result_its_section(text: str) -> None:
    for paper in catalogue.papers():
        part = text.partition(f'<a id="{paper.name}"></a>')[2]
        for each in paper.items:
            line = next(line for line in part.splitlines() if each.title in line.partition(" | ")[0])
            assert each.entry.caption in line
            if not each.cells:
                assert each.entry.why in line
    for each in RESULTS:
        words = " ".join(section(text, each.path).split())
        assert f"### {each.title}: {each.entry.caption}" in words
        assert each.entry.claim in words


@pytest.mark.slow
def test_every_row_is_run_or_has_a_reason(text: str) -> None:
    stored, said = papers.read(), verdicts.read()
    for paper in catalogue.papers():
        for path, made in evidence.of_paper(paper, stored, said).items():
            assert sorted([*made.found, *made.reasons]) == sorted(made.item.rows), path
            assert all(made.reasons.values())
            if made.item is made.root:
                assert section(text, path).count("- Not run (") == len({*made.reasons.values()})


def test_what_is_stored_is_of_items_rows_methods_and_quantities_that_exist() -> None:
    for path, rows in papers.read().items():
        family = [each for each in RESULTS if path in (each.path, f"{each.paper}/{each.entry.like}")]
        cells = {(cell.row, cell.column) for cell in item(path).cells}
        for row, scales in rows.items():
            assert scales.keys() <= {"small", "full"}
            for kept in scales.values():
                for method, figures in kept.get("methods", {}).items():
                    assert (row, method) in cells
                    assert figures.keys() <= {name for each in family for name in each.shows}


def made(paper: str, stored: Mapping[str, Any], **entries: Verdict) -> tuple[dict[str, evidence.Evidence], list[str]]:
    """What there is of a paper with these entries (by the name of the item), and what does not fit."""
    papers_of = {name: verdicts.OfPaper(page="", summary="") for name in catalogue.NAMES}
    items = {f"{paper}/{name}": each for name, each in entries.items()}
    said = Verdicts(overall="", absent=("cifar100", "emnist-letters"), papers=papers_of, items=items)
    chosen = next(each for each in catalogue.papers() if each.name == paper)
    found = evidence.of_paper(chosen, stored, said)
    return found, [words for each in found.values() for words in evidence.problems(each, said)]


def kept(ours: float, quantity: str = "accuracy", *, methods: tuple[str, ...] = ("fedavg",)) -> dict[str, Any]:
    figure = {"ours": ours, "low": ours - 0.01, "high": ours + 0.01, "seeds": 3, "measured": 3, "state": ""}
    return {"scaled_down": "", "methods": {method: {quantity: figure} for method in methods}}


def test_an_item_with_neither_a_result_nor_a_reason_is_named() -> None:
    _, wrong = made("fedagg-conference", {})
    assert "fedagg-conference/table1: mnist+linear, iid has neither a result nor a reason" in wrong[0]
    assert len(wrong) == 4  # two rows, and each of them once more in a figure
    found, wrong = made("fedagg-conference", {}, table1=Verdict(why="no time"))
    assert wrong == []
    assert found["fedagg-conference/figure2"].reasons == {"mnist+linear, noniid": "no time"}
    stored = {"fedagg-conference/table1": {row: {"small": kept(0.9)} for row in item("fedagg-conference/table1").rows}}
    found, wrong = made("fedagg-conference", stored, table1=Verdict(verdict="holds"))
    assert wrong == []
    assert found["fedagg-conference/figure2"].word == "holds"


def test_words_that_do_not_fit_the_results_are_named() -> None:
    stored = {"fedagg-conference/table1": {row: {"small": kept(0.9)} for row in item("fedagg-conference/table1").rows}}
    _, wrong = made("fedagg-conference", stored, table1=Verdict(why="no time"))
    assert "fedagg-conference/table1: there are results, but its verdict is not run; choose holds" in wrong[0]
    assert wrong[1] == "fedagg-conference/table1: no row needs its why; remove it"
    _, wrong = made("fedagg-conference", {}, table1=Verdict(verdict="holds", why="no time"))
    assert wrong == ["fedagg-conference/table1: there is no result, but its verdict is holds; set it to not run"]


def test_absent_data_and_rows_that_were_left_out_are_reasons_by_themselves() -> None:
    slow = {TABLE: {IID: {"small": {"left_out": "left out: it takes about 3 hours"}}}}
    found, wrong = made("fedagg-journal", slow)
    reasons = found[TABLE].reasons
    assert "too slow" in reasons[IID] == found[FIGURE].reasons[IID]
    assert reasons["cifar100+vgg11, iid, 20 %"].startswith("we did not have the data set cifar100")
    assert reasons["emnist-letters+lenet5, iid, 20 %"].startswith("we did not have the data set emnist-letters")
    assert reasons[DIR] == ""
    named = [each for each in wrong if each.startswith((TABLE, FIGURE))]
    assert any(DIR in each for each in named)
    assert not any(IID in each or "cifar100" in each or "emnist" in each for each in named)


def test_the_paper_s_setting_is_shown_in_place_of_a_smaller_one() -> None:
    row = "mnist+linear, iid"
    stored = {"fedagg-conference/table1": {row: {"small": kept(0.8), "full": kept(0.9)}}}
    found, _ = made("fedagg-conference", stored)
    line = found["fedagg-conference/table1"].line(row, "fedavg", "accuracy")
    assert line is not None
    assert (line.own, line.paper, line.counted) == ("0.9000 ± 0.0100", "0.9084", "3")
    assert results_page._figure(line) == "0.9000 ± 0.0100 (0.9084)"
    assert found["fedagg-conference/table1"].line(row, "fedadam", "accuracy") is None


def test_hours_are_those_of_the_plan() -> None:
    (planned,) = plan([item("fedlga/figure9")], "small", ["cifar10", "5"])
    assert planned.seconds
    assert evidence.hours(planned.item, "cifar10+resnet20, K 5", "small") == pytest.approx(planned.seconds / 3600 / 2)
    assert evidence.hours(item("fedent/figure2"), "cifar10+cifar10-cnn, iid", "full") == 0


def test_a_study_stands_beside_the_paper_s_figures_and_is_told_once_of_a_paper() -> None:
    table = item(TABLE)
    rows = studies.results("mnist-linear")
    study = verdicts.Covering(
        name="mnist-linear", scenes={"iid, 20 %": "mnist+linear, iid, 20 %"}, variants=("fedavg", "fedavg at 0.1")
    )
    mean = 100 * sum(r["accuracy"] for r in rows if (r["scene"], r["variant"]) == ("iid, 20 %", "fedavg")) / 3
    told: results_page.Told = {}
    words, lines = results_page._study(table, study, told)
    assert "[mnist-linear](algorithms/fedagg.md)" in words
    first, second = lines.splitlines()[2:]
    assert first.startswith(f"| fedavg | {mean:.2f} ± ")
    assert first.endswith("(88.23) |")
    assert "(" not in second  # the paper has no such run
    (words,) = results_page._study(item("fedagg-journal/table5"), study, told)
    assert "as in [Table 3](#fedagg-journal-table3)." in words
    assert "See [Table 3](#fedagg-journal-table3) for the other numbers." in words
    assert len(list(results_page._study(item("fedent/figure9"), study, told))) == 2


def test_targets_of_a_study_are_told_seed_by_seed_and_what_diverged_is_not_hidden() -> None:
    runs = [{"seconds_to_target": 12.4}, {"seconds_to_target": None}]
    assert results_page._measured(runs, "virtual seconds to target") == "12, -"
    assert results_page._measured([*runs, {"diverged": "training diverged"}], "virtual seconds to target") == "stopped"
    assert results_page._measured([], "accuracy") == ""


def test_the_longer_side_of_a_table_goes_down() -> None:
    row = "mnist+linear, iid"
    names = ("fedavg", "fedadam", "fedyogi", "fedadagrad", "fedagg")
    found, _ = made("fedagg-conference", {"fedagg-conference/table1": {row: {"small": kept(0.9, methods=names)}}})
    lines = results_page._table(found["fedagg-conference/table1"], [row], "accuracy").splitlines()
    assert lines[0] == "| accuracy | mnist+linear, iid |"
    assert lines[2] == "| fedavg | 0.9000 ± 0.0100 (0.9084) |"
    assert len(lines) == 7


def test_where_settings_differ_is_told_once_and_of_what_was_run() -> None:
    conference = next(each for each in catalogue.papers() if each.name == "fedagg-conference")
    names = ("fedavg", "fedagg")
    stored = {"fedagg-conference/table1": {"mnist+linear, iid": {"small": kept(0.9, methods=names)}}}
    found, _ = made("fedagg-conference", stored)
    _, words = results_page._settings(conference, found)
    assert [each.partition(": ")[0] for each in words.splitlines()] == ["- mnist+linear", "- fedadagrad", "- fedagg"]
    stored["fedagg-conference/table1"]["mnist+linear, noniid"] = {"small": kept(0.8, methods=names)}
    found, _ = made("fedagg-conference", stored)
    _, words = results_page._settings(conference, found)
    assert words.count("- noniid: Dirichlet's parameter is 0.5; the paper gives none.") == 1
    assert list(results_page._settings(conference, made("fedagg-conference", {})[0])) == []


def line(row: str, quantity: Any, ours: float | None, state: str = "", **more: Any) -> Line:
    found = None if ours is None else Interval(ours, ours - 1, ours + 1, 3)
    return Line(row, "fedavg", quantity, 64.95, found, 3, state, **more)


def folder(place: Path, path: str, *found: Line, scale: str = "small") -> Path:
    """As `fedkeel reproduce` leaves it."""
    table = place / "items" / path.replace("/", "-") / "table.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(as_csv([{"scale": scale, **tables.record(each)} for each in found]))
    return place


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setattr(papers, "STORED", tmp_path / "papers.json")
    monkeypatch.setattr(papers, "PAGE", tmp_path / "page.md")
    return tmp_path


def ours(row: str, scale: str = "small") -> dict[str, float]:
    return {name: figure["ours"] for name, figure in papers.read()[TABLE][row][scale]["methods"]["fedavg"].items()}


def test_publishing_adds_rows_scales_and_quantities_and_loses_none(store: Path) -> None:
    small = {"smaller": ("100 -> 30 rounds", "10,000 of 50,000 training samples")}
    papers.publish(folder(store / "a", TABLE, line(IID, "accuracy %", 60.0, **small)))
    papers.publish(folder(store / "b", TABLE, line(DIR, "accuracy %", 50.0)))
    papers.publish(folder(store / "c", TABLE, line(IID, "accuracy %", 70.0), scale="full"))
    both = line(IID, "accuracy %", 61.0, **small), line(IID, "training loss", 1.5, **small)
    papers.publish(folder(store / "d", FIGURE, *both))  # its runs are those of the table
    papers.publish(folder(store / "e", "fedent/table3", line("cifar10+cifar10-cnn, Dir 1.0", "accuracy %", 40.0)))
    assert papers.read().keys() == {TABLE, "fedent/table3"}
    assert (ours(IID), ours(DIR)) == ({"accuracy %": 61.0, "training loss": 1.5}, {"accuracy %": 50.0})
    assert ours(IID, "full") == {"accuracy %": 70.0}
    assert papers.read()[TABLE][IID]["small"]["scaled_down"] == "100 -> 30 rounds; 10,000 of 50,000 training samples"
    papers.publish(store / "a")
    assert ours(IID) == {"accuracy %": 60.0, "training loss": 1.5}
    before = papers.STORED.read_bytes()
    papers.publish(store / "a")
    assert papers.STORED.read_bytes() == before
    assert list(json.loads(before)) == sorted(json.loads(before))
    papers.publish(folder(store / "f", TABLE, line(IID, "accuracy %", 62.0, smaller=("100 -> 50 rounds",))))
    assert ours(IID) == {"accuracy %": 62.0}  # a loss of another setting does not go with it


def test_only_finished_rows_are_taken_over(store: Path) -> None:
    slow = "left out: it takes about 3.1 hours; --rows with its words runs it"
    first = line(IID, "accuracy %", None, "not run yet"), line(DIR, "accuracy %", None, slow)
    assert papers.publish(folder(store / "a", TABLE, *first)) == [f"{TABLE}, {IID}: not run yet"]
    assert papers.read() == {TABLE: {DIR: {"small": {"left_out": slow}}}}
    missed = line(IID, "accuracy %", None, "failed in 3 of 3 seeds: training diverged")
    assert papers.publish(folder(store / "b", TABLE, missed, line(DIR, "accuracy %", 55.0))) == []
    assert papers.read()[TABLE][IID]["small"]["methods"]["fedavg"]["accuracy %"]["state"] == missed.state
    assert papers.publish(store / "a") == [f"{TABLE}, {IID}: not run yet", f"{TABLE}, {DIR}: {slow}"]
    assert ours(DIR) == {"accuracy %": 55.0}
    lacking = line(DIR, "accuracy %", None, "data set cifar10: no file there")
    assert papers.publish(folder(store / "c", "fedagg-journal/table5", lacking)) == [
        f"fedagg-journal/table5, {DIR}: data set cifar10: no file there"
    ]
    assert papers.read().keys() == {TABLE}


def test_what_no_item_has_is_refused(store: Path) -> None:
    fine = line(IID, "accuracy %", 60.0)
    for place, message in (
        (folder(store / "a", "fedagg-journal/table33", fine), "item in .*'fedagg-journal-table33' is not known"),
        (folder(store / "b", "fedent/table1", fine), "'fedent-table1' is not known"),
        (folder(store / "c", TABLE, line("mnist+linear", "accuracy %", 60.0)), "table3 has no mnist.linear, fedavg"),
        (folder(store / "d", TABLE, line(IID, "training loss", 1.0)), "has no .*, training loss; first"),
        (folder(store / "e", TABLE, fine, scale="tiny"), "the scale tiny mean nothing; publish small or full"),
        (store / "nowhere", "has no items/.*/table.csv; give a folder of fedkeel reproduce"),
    ):
        with pytest.raises(InputError, match=message):
            papers.publish(place)
    table = folder(store / "f", TABLE, fine) / "items" / "fedagg-journal-table3" / "table.csv"
    table.write_text(as_csv([tables.record(fine)]))
    with pytest.raises(InputError, match="no column scale or measured; first: run fedkeel reproduce again"):
        papers.publish(store / "f")
    assert not papers.STORED.exists()


def test_the_commands(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results_page, "page", lambda stored: f"a page of {sorted(stored)}\n")

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["papers.py", *words])
        papers.main()

    with pytest.raises(SystemExit, match=r"page\.md is out of date; first: papers\.py page"):
        run("check")
    run("page")
    run("check")
    run("publish", str(folder(store / "a", TABLE, line(IID, "accuracy %", 60.0), line(DIR, "accuracy %", None, "?"))))
    assert capsys.readouterr().err == f"not taken over: {TABLE}, {DIR}: ?\n"
    with pytest.raises(SystemExit, match="out of date"):
        run("check")
    run("page")
    assert papers.PAGE.read_text() == f"a page of ['{TABLE}']\n"
    with pytest.raises(SystemExit, match="has no items"):
        run("publish", str(store / "b"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"papers": {"fedgag": {"page": "", "summary": ""}}}, "verdicts.yaml: paper: 'fedgag' is not known"),
        ({"papers": {}}, "verdicts.yaml: papers has no fedagg-journal"),
        ({"absent": ["mnits"]}, "data set: 'mnits' is not known"),
        ({"items": {"fedent/table33": {}}}, "item: 'fedent/table33' is not known"),
        ({"items": {"fedent/table3": {"verdict": "maybe"}}}, "maybe"),
        ({"study": {"name": "mnist-liner", "scenes": {}}}, "study: 'mnist-liner' is not known"),
        ({"study": {"name": "fedent-gamma", "scenes": {"shards": "mnist+mnist-cnn, iid"}}}, "scene of fedent-gamma"),
        ({"study": {"name": "fedent-gamma", "scenes": {"shards, 20 %": "mnist"}}}, "fedent/figure9: row: 'mnist'"),
        ({"study": {"name": "fedent-gamma", "scenes": {}, "variants": ["gamma 1"]}}, "variant of fedent-gamma"),
    ],
)
def test_verdicts_of_what_does_not_exist_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "study" in change:
        change = {"items": {"fedent/figure9": {"studies": [change["study"]]}}}
    every = {name: {"page": "", "summary": ""} for name in catalogue.NAMES}
    (tmp_path / "verdicts.yaml").write_text(json.dumps({"overall": "", "papers": every, "items": {}, **change}))
    monkeypatch.setattr(verdicts, "FILE", tmp_path / "verdicts.yaml")
    with pytest.raises(InputError, match=message):
        verdicts.read()

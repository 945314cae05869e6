"""From the papers' items to runs, and from runs to lines beside the papers' figures."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkeel import api
from fedkeel.cli import reproduce as command
from fedkeel.config import usercode
from fedkeel.data import datasets
from fedkeel.data.datasets import Scaling
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.errors import InputError
from fedkeel.record.runs import RunRecord
from fedkeel.study.engine import Begun
from fedkeel.study.papers import catalogue, few, lines, plan, scales, standin, tables
from fedkeel.study.papers.lines import Line
from fedkeel.study.papers.plan import ItemPlan
from fedkeel.study.papers.quantities import QUANTITIES
from fedkeel.study.papers.scales import Scale
from fedkeel.study.plan import Measure
from fedkeel.study.reproduce import Reproduced, reproduce
from fedkeel.study.results import Outcome
from fedkeel.study.statistics import interval
from fedkeel.study.store import Store
from tests.helpers.studies import row, write_run


@pytest.fixture(autouse=True)
def _no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has none of the data sets."""
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "data"))


def planned(path: str, scale: Scale, rows: Sequence[str] = (), seeds: Sequence[int] | None = None) -> list[ItemPlan]:
    return plan.plan(catalogue.find(path.split()), scale, rows, seeds)


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_every_experiment_of_every_item_is_accepted(scale: Scale) -> None:
    results = [item for paper in catalogue.papers() for item in paper.items if item.cells]
    made = plan.plan(results, scale)
    assert [each.item for each in made] == results
    for each in made:
        for cell in each.cells:
            count = scales.scaled(cell.cell.settings, scale).seeds if cell.cell.exists else 0
            assert len(cell.cases) == count
    assert len(plan.cases(made)) > 500


def test_every_item_at_the_smallest_scale_can_deal_out_its_data() -> None:
    """The partitions of the papers with so few samples and clients, for every scene once."""
    cases = plan.cases(planned("all", "tiny"))
    scenes = {(e.dataset, e.partition, e.clients, e.model.name): e for e in (case.experiment for case in cases)}
    assert len(scenes) > 40
    for experiment in scenes.values():
        counts = lines.federate(experiment).label_counts()
        dataset, _ = standin.meant(experiment.dataset.name.partition(":")[2])
        assert counts.shape == (experiment.clients, ENTRIES[dataset].classes)
        assert counts.sum(axis=1).min() >= 1


def test_full_is_the_setting_of_the_paper() -> None:
    (cell, *_) = planned("fedagg-journal/table3", "full", ["linear"])[0].cells
    experiment = cell.cases[0].experiment
    assert (experiment.clients, experiment.rounds, experiment.participants) == (100, 30, 20)
    assert (experiment.dataset.name, experiment.dataset.train_limit) == ("mnist", None)
    assert [case.seed for case in cell.cases] == [0, 1, 2]
    assert cell.smaller == ()


def test_tiny_says_what_is_smaller_and_what_stands_in() -> None:
    (cell, *_) = planned("fedlga/table5", "tiny", ["cifar100"])[0].cells
    experiment = cell.cases[0].experiment
    assert experiment.dataset.name == "fedkeel.study.papers.standin:cifar100"
    assert cell.smaller == ("300 -> 2 rounds", "50 -> 10 clients", "10 -> 2 clients per round", "5 -> 2 local epochs")
    assert cell.stand_in == "random images, 3 x 32 x 32, 100 classes; accuracy means nothing"
    assert (experiment.fleet.rho, experiment.fleet.tau_max) == (0.5, 1)
    assert not cell.left_out


def test_tiny_takes_real_samples_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "is_cached", lambda _: True)
    (cell, *_) = planned("fedagg-journal/table3", "tiny", ["linear"])[0].cells
    assert cell.cases[0].experiment.dataset.name == "fedkeel.study.papers.few:mnist_unit"
    assert cell.stand_in == ""
    assert cell.smaller[-2:] == ("40 of 60,000 training samples", "100 of 10,000 test samples")


@pytest.mark.parametrize(("scaling", "whole"), [("standard", False), ("unit", False), ("none", True)])
def test_small_data_is_scaled_as_the_item_says(scaling: Scaling, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (item,) = catalogue.find(["fedagg-journal/table3"])
    cell = item.cells[0]
    cell = replace(cell, settings={**cell.settings, "dataset.normalise": scaling})
    suffix = "" if scaling == "standard" else f"_{scaling}"
    for source, cached in (("standin", False), ("few", True)):
        monkeypatch.setattr(plan, "is_cached", lambda _, cached=cached: cached)
        experiment = plan._planned(cell, item, "tiny", None).cases[0].experiment
        assert experiment.dataset.name == f"fedkeel.study.papers.{source}:mnist{suffix}"
        assert experiment.dataset.normalise == "standard"
    x = usercode.call(standin.function("mnist", scaling), "dataset.name", {}).train.x
    assert (x.min() < -2) == (scaling == "standard")
    assert (x.max() == 255, x.max() == 1) == (scaling == "none", scaling == "unit")
    assert bool((x == x.round()).all()) == whole
    mine = usercode.call(few.function("fashion-mnist-mini", scaling), "dataset.name", {}).train.x
    every = {image.numpy().tobytes() for image in datasets.load("fashion-mnist-mini", scaling=scaling).train.x}
    assert all(image.numpy().tobytes() in every for image in mine)


def test_an_item_about_epochs_keeps_them() -> None:
    epochs = {cell.cases[0].experiment.local.epochs for cell in planned("fedlga/figure6", "tiny")[0].cells}
    assert epochs == {2, 5, 8, 10}
    assert {cell.cases[0].experiment.local.epochs for cell in planned("fedlga/figure7", "tiny")[0].cells} == {2}


@pytest.mark.parametrize(("column", "field"), [("fedbuff", "buffer_size"), ("port", "minimum")])
def test_a_small_run_fills_the_buffer_of_its_server(column: str, field: str) -> None:
    cells = planned("fedasmu-fedssmu/table4", "tiny", ["imdb"])[0].cells
    experiment = next(cell for cell in cells if cell.cell.column == column).cases[0].experiment
    assert getattr(experiment.algorithm.rules()[1], field) == experiment.per_round == 2


def test_items_share_their_runs() -> None:
    table, figure = planned("fedagg-journal/table3 fedagg-journal/figure5", "tiny")
    names = {case.name for case in plan.cases([table])}
    assert {case.name for case in plan.cases([figure])} < names
    assert len(plan.cases([table, figure])) == len(names) == 178
    assert all(name.endswith("-seed0") for name in names)
    assert plan.cases([table])[0].name.startswith("mnist-linear-iid-fedavg-")


def test_other_seeds_can_be_chosen() -> None:
    (made,) = planned("fedagg-conference/figure1", "full", seeds=[7, 9])
    assert {case.seed for case in plan.cases([made])} == {7, 9}
    assert len({case.name.rpartition("-")[0] for case in plan.cases([made])}) == 5


def test_words_that_no_row_has_are_refused() -> None:
    with pytest.raises(InputError, match="no row has mnist and vgg11; choose words of these rows: mnist"):
        planned("fedagg-journal/table3", "tiny", ["mnist", "vgg11"])


def test_a_small_item_fits_into_its_hours_and_names_what_it_leaves_out() -> None:
    (made,) = planned("fedagg-journal/table3", "small")
    budget = scales.scales().small.hours
    assert made.seconds is not None
    assert 0.5 * budget < made.seconds / 3600 / plan.CORES <= budget
    left_out = {cell.cell.row: cell.left_out for cell in made.cells if cell.left_out and cell.cell.exists}
    assert "cifar100+vgg11, iid, 100 %" in left_out
    assert left_out["cifar100+vgg11, iid, 100 %"].startswith("left out: it takes about ")
    assert "mnist+linear, iid, 20 %" not in left_out
    (asked,) = planned("fedagg-journal/table3", "small", ["vgg11", "100"])
    assert not any(cell.left_out for cell in asked.cells)
    for each in planned("all", "small"):
        assert each.seconds is None or each.seconds / 3600 / plan.CORES <= budget


def test_the_cost_of_a_run_is_its_samples_and_tests() -> None:
    settings = catalogue.find(["fedlga/table5"])[0].cells[0].settings
    small = scales.scaled(settings, "small")
    rule = scales.scales().small.rules["fashion-mnist+mlp-400"]
    trained, tested = 100 * 10 * 300 * 5, 100 * 2000 / 3
    assert small.seconds == pytest.approx((trained + tested) * rule.milliseconds / 1000)


def test_methods_that_differ_in_pace_have_the_same_virtual_time_at_every_scale() -> None:
    cells = [cell.settings for item in catalogue.find(["fedasmu-fedssmu"]) for cell in item.cells]
    assert len(cells) > 100
    for settings in cells:
        full, small, tiny = (scales.scaled(settings, scale) for scale in ("full", "small", "tiny"))
        for made in (full.settings, small.settings):
            mean = made["fleet.fastest_job_seconds"] * (1 + made["fleet.speed_ratio"]) / 2
            uploads = min(made["per_round"] / made["schedule.trigger_seconds"], made["clients"] / mean)  # a second
            assert made["rounds"] * made["per_round"] > 1.5 * uploads * made["limit_seconds"]  # time ends the run
        rounds = small.settings["limit_seconds"] / made["fleet.fastest_job_seconds"] / made["fleet.speed_ratio"]
        assert rounds >= 3  # of methods that wait for the slowest device, each of them tested
        assert small.settings["evaluate_every"] == 1
        assert any("virtual seconds" in each for each in small.smaller)
        assert "limit_seconds" not in tiny.settings  # two rounds, as of any paper


def test_rows_whose_data_cannot_be_had_are_left_out_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(name: str) -> Path:
        if name == "mnist":
            return Path()
        raise InputError(f"{name}: no source provides it")

    monkeypatch.setattr(plan.datasets, "get", get)
    (made,) = plan.fetched(planned("fedagg-journal/table5", "full"))
    told = {cell.cell.row: cell.left_out for cell in made.cells}
    assert told["mnist+linear, iid, 20 %"] == ""
    assert told["cifar100+vgg11, iid, 20 %"] == "cifar100: no source provides it"
    assert {case.experiment.dataset.name for case in plan.cases([made])} == {"mnist"}
    with pytest.raises(InputError, match="cifar100: no source provides it"):
        plan.fetched(planned("fedagg-journal/table5", "full", ["cifar100"]))


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "fashion-mnist-mini"])
def test_stand_ins_have_the_shape_of_the_data_set(name: str) -> None:
    entry, data = ENTRIES[name], getattr(standin, name.replace("-", "_"))()
    assert tuple(data.train.x.shape) == (standin.TRAIN, *entry.shape)
    assert (data.classes, data.vocabulary) == (entry.classes, entry.vocabulary)
    counts = np.bincount(data.train.y.numpy(), minlength=entry.classes)
    assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1
    assert standin.function(name) == f"fedkeel.study.papers.standin:{name.replace('-', '_')}"


def test_a_few_real_samples_are_drawn_from_all() -> None:
    few._few.cache_clear()
    data = few.fashion_mnist_mini()
    assert (len(data.train), len(data.test)) == (standin.TRAIN, standin.TEST)
    assert np.bincount(data.train.y.numpy()).min() > 60  # of 100 each, in a file that may be sorted
    with pytest.raises(AttributeError):
        few.nothing()


def test_runs_are_made_once_and_stand_beside_the_figures_of_the_paper(tmp_path: Path) -> None:
    made = planned("fedagg-conference", "tiny")
    begun: list[Begun] = []

    def watch(event: object) -> None:
        begun.extend([event] if isinstance(event, Begun) else [])

    for _ in range(2):
        table, first, second = reproduce(made, tmp_path / "out", jobs=1, watch=watch)
    assert [(len(each.cases), each.total) for each in begun] == [(10, 10), (0, 10)]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 10
    assert len(table.lines) == 10
    of_both = (*first.lines, *second.lines)  # with the rounds to a target, too
    assert tuple(each for each in of_both if each.quantity == "accuracy") == table.lines
    assert len(of_both) == 20
    assert not [*(tmp_path / "out" / "runs").rglob("*.safetensors")]
    line = table.lines[0]
    assert (line.row, line.column, line.printed, line.seeds) == ("mnist+linear, iid", "fedavg", 0.9084, 1)
    case = made[0].cells[0].cases[0]
    record = RunRecord.read(tmp_path / "out" / "runs" / case.name)
    assert line.ours is not None
    assert line.ours.mean == record.history[-1]["accuracy"] == api.run(case.experiment).accuracy
    assert line.difference == pytest.approx(line.ours.mean - 0.9084)
    with (table.folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ours"]) for row in rows] == [each.ours.mean for each in table.lines if each.ours]
    assert {(row["scale"], row["measured"]) for row in rows} == {("tiny", "1")}
    assert rows[0]["stand_in"].startswith("random images, 1 x 28 x 28")
    page = (table.folder / "table.md").read_text()
    assert f"| mnist+linear, iid | fedavg | accuracy | 0.9084 | {line.own} | 1 |" in page
    assert "- a: scaled down: 30 -> 2 rounds, 10 -> 4 clients, 5 -> 2 local epochs" in page
    assert "fedkeel reproduce fedagg-conference/table1 --scale tiny" in page


def test_runs_that_are_not_there_or_failed_say_so(tmp_path: Path) -> None:
    (made,) = planned("fedagg-conference/figure1", "tiny")
    told = lines.lines(made, tmp_path)
    assert {line.own for line in told} == {"not run yet"}
    name = made.cells[1].cases[0].name
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / f"{name}.json").write_text('{"kind": "DivergenceError", "error": "it diverged"}')
    assert [line.own for line in lines.lines(made, tmp_path)][1:4] == [
        "not run yet",
        "failed: it diverged",
        "failed: it diverged",
    ]


def test_runs_of_an_item_can_be_reported_as_a_comparison(tmp_path: Path) -> None:
    (made,) = planned("fedlga/table6", "full", ["fmnist"])
    found = Reproduced(made, (), tmp_path, command="fedkeel reproduce it").comparison()
    assert found is not None
    assert found.command == "fedkeel reproduce it"
    assert (found.scenes, len(found.variants), found.seeds) == (["fmnist+mlp-400"], 12, [0, 1, 2])
    assert found.measure.target == 0.65
    (unequal,) = planned("fedlga/table6", "full")
    both = Reproduced(unequal, (), tmp_path).comparison()
    assert both is not None
    assert both.measure.target is None


@pytest.mark.parametrize(
    ("state", "failed"),
    [("failed: why", True), ("not run yet", True), ("not recorded", True), ("not reached", False), ("left out", False)],
)
def test_a_line_without_a_figure_that_it_should_have_is_a_failure(state: str, failed: bool, tmp_path: Path) -> None:
    (made,) = planned("fedagg-conference/figure1", "tiny")
    assert bool(Reproduced(made, (replace(line([], 1), state=state),), tmp_path).failed) is failed


def test_an_item_about_data_trains_nothing(tmp_path: Path) -> None:
    (done,) = reproduce(planned("fedent/figure2", "tiny"), tmp_path)
    assert not (tmp_path / "runs").exists()
    iid, mild, strong = (line.ours.mean for line in done.lines if line.ours)
    assert 0 < iid < mild
    assert iid < strong
    assert [each.row for each in done.labels] == [line.row for line in done.lines]
    assert done.labels[0].counts.shape == (10, 10)


def test_rounds_and_seconds_to_a_target() -> None:
    rows = [
        {"round": r, "virtual_seconds": 10.0 * r, "accuracy": a, "updates": r, "bytes_up": 0, "bytes_down": 0}
        for r, a in ((1, 0.1), (2, 0.5), (3, 0.4))
    ]
    record = RunRecord(Path(), {}, rows)
    summary = {"seconds_per_round_median": 1.5}
    run = Outcome(
        "a", "", "", 0, Path(), state="finished", record=record, summary=summary, kept=3, measure=Measure(target=0.5)
    )
    found = {name: quantity.read(run) for name, quantity in QUANTITIES.items() if quantity.of_target}
    assert found == {"rounds to target": 2, "virtual seconds to target": 20.0, "seconds to target": 3.0}
    assert QUANTITIES["best accuracy %"].read(run) == 50
    assert QUANTITIES["accuracy %"].read(run) == 40
    never = replace(run, measure=Measure(target=0.9))
    assert [quantity.read(never) for quantity in QUANTITIES.values() if quantity.of_target] == [None] * 3


def line(values: Sequence[float], seeds: int, printed: catalogue.Printed = 100.0) -> Line:
    ours = interval(values) if values else None
    return Line("r", "c", "rounds to target", printed, ours, seeds, "" if values else "not reached")


def test_a_line_tells_its_seeds_and_its_interval() -> None:
    assert (line([60], 1).own, line([60], 1).counted) == ("60.0", "1")
    assert line([60, 62], 3).own == "61.0 ± 12.7"  # Student's t: 12.706 standard errors of 1
    assert line([60, 62], 3).counted == "2 of 3"
    assert (line([], 3).own, line([], 3).counted) == ("not reached", "0 of 3")
    assert (line([], 0).counted, tables.difference(line([60], 1))) == ("", "-40.0")
    assert line([60, 62], 2).difference == -39
    assert line([60], 1, "not-reached").difference is None
    assert line([60], 1, "unreadable").paper == "unreadable"
    assert line([60], 1, 243896.0).paper == "243,896"


def test_marks_are_letters_with_a_meaning() -> None:
    first = replace(line([1], 1), smaller=("3 -> 2 rounds",), differs=("no Adam",))
    second = replace(line([1], 1), stand_in="random images")
    letters = tables.notes([first, second])
    assert letters == {
        "scaled down: 3 -> 2 rounds": "a",
        "differs from the paper: no Adam": "b",
        "stand-in: random images": "c",
    }
    assert [tables.marks(each, letters) for each in (first, second)] == ["a b", "c"]
    assert [tables._letter(place) for place in (25, 26, 27)] == ["z", "aa", "ab"]


def invoke(*words: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(command.app, [*words], catch_exceptions=False)
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_the_list_names_every_table_and_figure() -> None:
    told = invoke("--list")
    for paper in catalogue.papers():
        assert all(item.path in told for item in paper.items)
    assert "21 tables and 46 figures; 51 of these items are results" in told


def test_what_is_no_result_is_told_in_a_sentence() -> None:
    assert invoke("fedent/table1") == (
        "fedent/table1: Key notations and their meanings; not a result: It lists symbols."
    )


def test_a_rehearsal_counts_rows_and_runs() -> None:
    told = invoke("fedagg-journal/table3", "fedagg-journal/table5", "--scale", "full", "--dry-run", "--rows", "linear")
    assert "fedagg-journal/table3 4 0 72 " in told
    assert "fedagg-journal/table5 2 0 30 " in told
    assert "84 runs in total" in told


def test_the_command_draws_the_heat_maps_of_data(tmp_path: Path) -> None:
    told = invoke("fedent/figure2", "--scale", "tiny", "--rows", "iid", "--out", str(tmp_path))
    assert "stand-in: random images, 3 x 32 x 32, 10 classes" in told
    assert [path.name for path in (tmp_path / "items" / "fedent-figure2").glob("*.png")] == [
        "cifar10+cifar10-cnn-iid.png"
    ]


def test_failed_seeds_are_told_beside_what_the_others_came_to(tmp_path: Path) -> None:
    (made,) = planned("fedagg-conference/figure1", "tiny", seeds=[0, 1, 2])
    first = made.cells[0].cases
    write_run(tmp_path / "runs" / first[0].name, [row(1, 0.25)])
    for case in first[1:]:
        Store(tmp_path).fail(case.name, "DivergenceError", "it diverged")
    line = lines.lines(made, tmp_path)[0]
    assert (line.own, line.counted) == ("0.2500", "1 of 3")
    assert line.state == "failed in 2 of 3 seeds: it diverged"
    assert Reproduced(made, (line,), tmp_path).failed == [line]
    assert tables.notes([line])[line.state] == "a"
    told = tables.record(line)
    assert (told["state"], told["seeds"], told["measured"]) == (line.state, 3, 1)

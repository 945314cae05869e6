"""The papers' tables and figures: all of them, with the figures and settings that the papers print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel.errors import InputError
from fedkeel.study.papers import catalogue, tables
from fedkeel.study.papers.catalogue import Item

PRINTED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "tables.yaml").read_text())
PARTITIONS = {"dirichlet-0.6": "Dir 0.6", "dirichlet-1.0": "Dir 1.0", "dirichlet-0.5": "Dir 0.5"}
MISSING = {None: "none"}


def item(path: str) -> Item:
    return catalogue.find([path])[0]


def figures(path: str, place: int = 0) -> dict[tuple[str, str], Any]:
    """A quantity of every cell."""
    return {(cell.row, cell.column): cell.printed[place] for cell in item(path).cells}


def expected(row: str, columns: list[str], values: list[Any]) -> dict[tuple[str, str], Any]:
    return {(row, column): MISSING.get(value, value) for column, value in zip(columns, values, strict=True)}


def test_every_table_and_figure_of_the_papers_is_named() -> None:
    counts = {
        paper.name: [sum(each.name.startswith(kind) for each in paper.items) for kind in ("table", "figure")]
        for paper in catalogue.papers()
    }
    assert counts == {
        "fedagg-journal": [6, 12],
        "fedagg-conference": [1, 2],
        "fedent": [4, 13],
        "fedlga": [6, 10],
        "fedasmu-fedssmu": [4, 9],
    }
    for paper in catalogue.papers():
        for kind, count in zip(("table", "figure"), counts[paper.name], strict=True):
            numbers = [each.name for each in paper.items if each.name.startswith(kind)]
            assert numbers == [f"{kind}{number}" for number in range(1, count + 1)]


def test_what_is_not_run_says_why() -> None:
    others = [each for paper in catalogue.papers() for each in paper.items if not each.cells]
    assert len(others) == 17
    for each in others:
        assert each.entry.kind == "not a result"
        assert each.entry.why.endswith("."), each.path


def test_fedagg_journal_compares_optimisers_of_clients() -> None:
    (item,) = catalogue.find(["fedagg-journal/figure2"])
    sgd, adam = item.cells
    assert [cell.printed for cell in item.cells] == [("not printed", "not printed")] * 2
    changed = {key: (sgd.settings.get(key), value) for key, value in adam.settings.items()}
    assert {key: pair for key, pair in changed.items() if pair[0] != pair[1]} == {
        "local.optimizer": (None, "adam"),
        "local.lr": (0.01, 0.001),
    }
    assert adam.settings["participation"] == 0.2
    assert any("PyTorch's defaults" in each for each in adam.differs)


@pytest.mark.parametrize("name", ["table3", "table5"])
def test_fedagg_journal_accuracies(name: str) -> None:
    printed = PRINTED["fedagg-journal"][name]
    wanted: dict[tuple[str, str], Any] = {}
    for dataset, model, partition, *share, values in printed["rows"]:
        row = f"{dataset}+{model}, {PARTITIONS.get(partition, partition)}, {(share or [0.2])[0] * 100:.0f} %"
        wanted |= expected(row, printed["columns"], values)
    assert figures(f"fedagg-journal/{name}") == wanted


def test_fedagg_journal_architectures() -> None:
    printed = PRINTED["fedagg-journal"]["table6"]
    wanted: dict[tuple[str, str], Any] = {}
    for place, model in enumerate(printed["columns"]):
        values = [printed[method][place] for method in ("fedavg", "fedagg")]
        wanted |= expected(f"cifar10+{model}, iid, 20 %", ["fedavg", "fedagg"], values)
    assert figures("fedagg-journal/table6") == wanted


def test_fedagg_conference_accuracies() -> None:
    printed = PRINTED["fedagg-conference"]["table1"]
    assert figures("fedagg-conference/table1") == {
        (f"mnist+linear, {scene}", method): value
        for scene in ("iid", "noniid")
        for method, value in printed[scene].items()
    }


def test_fedent_accuracies_and_bounds() -> None:
    printed = PRINTED["fedent"]["table3"]
    wanted: dict[tuple[str, str], Any] = {}
    for dataset, model, partition, values in printed["rows"]:
        wanted |= expected(f"{dataset}+{model}, {PARTITIONS.get(partition, partition)}", printed["columns"], values)
    assert figures("fedent/table3") == wanted
    bounds = {cell.row.partition(",")[0]: cell.printed for cell in item("fedent/table2").cells}
    assert bounds == {scene: (each["D"], each["L"]) for scene, each in PRINTED["fedent"]["table2"].items()}


def test_fedlga_seconds_and_rounds() -> None:
    scenes = {"fmnist": "fmnist+mlp-400", "cifar10": "cifar10+resnet20", "cifar100": "cifar100+resnet20"}
    seconds = PRINTED["fedlga"]["table5"]
    for place, kind in enumerate(("single", "total")):
        assert figures("fedlga/table5", place) == {
            (scene, method): values[seconds["columns"].index(f"{dataset}_{kind}")]
            for dataset, scene in scenes.items()
            for method, values in seconds.items()
            if method != "columns"
        }
    rounds = dict(PRINTED["fedlga"]["table6"])
    order = rounds.pop("columns")
    late = rounds.pop("fedlga")
    wanted = {(scenes[d], method): v[order.index(d)] for method, v in rounds.items() for d in order}
    for tau, values in late.items():
        column = f"fedlga, tau_max {tau.removeprefix('tau_max_0')}"
        wanted |= {(scenes[dataset], column): values[order.index(dataset)] for dataset in order}
    assert figures("fedlga/table6") == wanted
    best = PRINTED["fedlga"]["best_accuracy_cifar10"]
    assert best == {m: v for (row, m), v in figures("fedlga/figure5").items() if v != "not printed"}


def test_fedasmu_accuracies_and_times() -> None:
    printed = dict(PRINTED["fedasmu-fedssmu"]["table4"])
    scenes = printed.pop("columns")
    for quantity in (0, 1):
        wanted = {}
        for method, values in printed.items():
            for scene, value in zip(scenes, values, strict=True):
                model, dataset = scene.split("+")
                wanted[f"{dataset}+{model}", method] = value if value == "unreadable" else value[quantity]
        assert figures("fedasmu-fedssmu/table4", quantity) == wanted


@pytest.mark.parametrize("paper", ["fedagg-journal", "fedent"])
def test_settings_are_those_of_the_tables_of_hyper_parameters(paper: str) -> None:
    printed = PRINTED[paper]["table4"]
    baselines = printed["baselines"]
    seen = set()
    for cell in item(f"{paper}/table3").cells:
        scene = cell.row.partition(",")[0]
        given, method = printed[scene], cell.column
        found = {"lr": "local.lr", "batch": "local.batch_size", "rounds": "rounds", "epochs": "local.epochs"}
        assert {name: cell.settings[key] for name, key in found.items()} == given, cell
        for name, value in {**baselines, "fedent": printed.get("fedent", {})}.get(method, {}).items():
            assert cell.settings[f"algorithm.{name}"] == value, cell
        seen.add(scene)
    assert seen == {each for each in printed if "+" in each}


def test_fedasmu_rates_and_targets_are_those_of_its_table() -> None:
    printed, targets = PRINTED["fedasmu-fedssmu"]["table3"], PRINTED["fedasmu-fedssmu"]["targets"]
    rates = ("lambda_lr", "sigma_lr", "iota_lr", "gamma_lr", "upsilon_lr")
    checked = 0
    for cell in item("fedasmu-fedssmu/table4").cells:
        dataset, model = cell.row.split("+")
        place = printed["columns"].index(f"{model}+{dataset}")
        assert cell.settings["local.lr"] == printed["lr"][place]
        assert cell.settings["target_accuracy"] == targets[f"{model}+{dataset}"]
        if cell.column in ("fedasmu", "fedssmu"):
            assert [cell.settings[f"algorithm.{rate}"] for rate in rates] == [printed[rate][place] for rate in rates]
            checked += 1
        else:
            assert not any(f"algorithm.{rate}" in cell.settings for rate in rates)
    assert checked == 24


def test_fedlga_setting_is_that_of_its_text() -> None:
    printed = PRINTED["fedlga"]["setting"]
    for cell in item("fedlga/table5").cells:
        dataset = cell.row.partition("+")[0]
        wanted = {
            "clients": printed["clients"],
            "per_round": printed["per_round"],
            "local.epochs": printed["epochs"],
            "local.batch_size": printed["batch"],
            "fleet.rho": printed["rho"],
            "fleet.tau_max": printed["tau_max"] - 1,
            "partition.classes": printed["classes_per_client"][dataset],
            "target_accuracy": printed["target"][dataset] / 100,
        }
        assert {key: cell.settings[key] for key in wanted} == wanted


def test_a_figure_that_shows_the_runs_of_a_table_has_its_figures() -> None:
    table, figure = figures("fedagg-journal/table3"), figures("fedagg-journal/figure6")
    assert len(figure) == 21
    assert figure.items() <= table.items()
    assert {row for row, _ in figure} == {
        f"emnist-letters+lenet5, {each}, 20 %" for each in ("iid", "Dir 0.6", "Dir 1.0")
    }
    assert item("fedagg-journal/figure6").shows == ("accuracy %", "training loss")
    assert {cell.printed[1] for cell in item("fedagg-journal/figure6").cells} == {"not printed"}


def test_the_four_ways_to_have_no_figure_are_kept_apart() -> None:
    assert figures("fedagg-journal/table3")["mnist+linear, iid, 20 %", "fedbabu"] == "none"
    assert figures("fedasmu-fedssmu/table4", 1)["cifar10+alexnet", "port"] == "not-reached"
    assert figures("fedasmu-fedssmu/table4")["cifar10+lenet5", "fedlws"] == "unreadable"
    assert figures("fedlga/figure6")["fmnist+mlp-400, E 8", "fedprox"] == "not printed"
    assert figures("fedlga/figure6")["fmnist+mlp-400, E 8", "fedlga"] == 52


@pytest.mark.parametrize("kind", ["fedagg-journal", "fedent/figure9", "ALL", "fedlga/"])
def test_items_are_found_by_paper_by_name_and_all(kind: str) -> None:
    found = [each.path for each in catalogue.find([kind, kind])]
    wanted = {
        "fedagg-journal": 18,
        "fedent/figure9": 1,
        "ALL": sum(len(paper.items) for paper in catalogue.papers()),
        "fedlga/": 16,
    }
    assert len(found) == len(set(found)) == wanted[kind]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("fedagg-jurnal", "did you mean fedagg-journal"),
        ("fedagg-journal/tabel3", "item of fedagg-journal: 'tabel3' is not known; did you mean table3"),
        ("fedent/table9", "; did you mean table|; choose one of figure1, .*table4$"),
    ],
)
def test_unknown_items_are_refused_with_near_ones(word: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        catalogue.find([word])


def test_rows_are_chosen_by_whole_words_first() -> None:
    rows = ["mnist+linear, iid, 20 %", "emnist-letters+lenet5, iid, 20 %", "cifar10+cifar10-cnn, Dir 0.6, 20 %"]
    assert catalogue.matching(rows, ["mnist"]) == rows[:1]
    assert catalogue.matching(rows, ["MNIST", "iid"]) == rows[:1]
    assert catalogue.matching(rows, ["iid"]) == rows[:2]
    assert catalogue.matching(rows, ["letters"]) == rows[1:2]
    assert catalogue.matching(rows, ["iid", "cifar10"]) == []
    assert catalogue.matching(rows, []) == rows


def test_remarks_say_where_no_numbers_are_printed() -> None:
    assert tables.remarks(item("fedent/figure10"))[-1] == "The paper prints no numbers here."
    assert "those of table3" in tables.remarks(item("fedent/figure3"))[-1]
    assert tables.remarks(item("fedent/table2")) == []


def test_claims_that_are_only_in_the_text_are_kept() -> None:
    """A result of which a paper says nothing is the exception."""
    results = [each for paper in catalogue.papers() for each in paper.items if each.cells]
    assert [each.path for each in results if not each.entry.claim] == ["fedent/table2"]
    for path, words in {
        "fedagg-conference/table1": "at least 1 %",
        "fedent/table3": "by 11 % over FedAvg, 4 % over FedAdam, 9 % over FedProx and 7 % over FedDyn",
        "fedlga/figure3": "145 rounds, 1.9 times as fast as FedAvg, 1.5 (FedProx), 1.8 (FedNova), 1.3 (SCAFFOLD)",
        "fedlga/figure6": "52, and FedAvg 104",
        "fedlga/figure9": "78 rounds with K = 25, which is 46.2 % faster",
        "fedasmu-fedssmu/table4": "70.35 % to 93.77 %",
        "fedasmu-fedssmu/figure9": "67.84 % to 82.26 %",
    }.items():
        assert words in item(path).entry.claim, path


def test_the_gains_of_fedasmu_are_those_of_its_table() -> None:
    """The claim prints, of each asynchronous method, the least and the largest gain over all columns of Table 4."""
    table = {quantity: figures("fedasmu-fedssmu/table4", quantity) for quantity in (0, 1)}
    claim = item("fedasmu-fedssmu/table4").entry.claim
    for other in ("fedasync", "port", "asofed", "fedbuff", "fedsa"):
        for quantity, sign in ((0, 1), (1, -1)):
            ours = {row: value for (row, method), value in table[quantity].items() if method == "fedasmu"}
            theirs = {row: value for (row, method), value in table[quantity].items() if method == other}
            gains = [100 * sign * (ours[row] / v - 1) for row, v in theirs.items() if not isinstance(v, str)]
            assert f"{min(gains):.2f} % to {max(gains):.2f} %" in claim, other

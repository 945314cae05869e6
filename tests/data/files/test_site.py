"""Sites that read their own files and pool statistics, against one simulation over all files, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedkeel.data.federated import FederatedData
from fedkeel.data.files.schema import Schema, agree
from fedkeel.data.files.settings import FileSettings
from fedkeel.data.files.site import read_site
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError
from tests.helpers.sites import Member, Server, same_rows, together
from tests.helpers.tables import Table, part, patients, write_csv

NAMES = ("Bern", "Genf", "Ulm")
CLASSES = ("died", "left", "stayed")
SEED = 4

TABLES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "standard, mean": ({"missing": "mean"}, ["summary"]),
    "standard, median": ({"missing": "median", "indicator": True}, ["summary", *["total"] * 8]),
    "standard, drop": ({"missing": "drop"}, ["summary"]),
    "unit, constant": ({"missing": "constant", "fill": -2.5, "normalise": "unit", "indicator": True}, ["summary"]),
    "unit, median, codes": (
        {"missing": {"age": "median", "*": "error"}, "normalise": "unit", "encode": "codes"},
        ["summary", *["total"] * 8],
    ),
    "none, mean": ({"missing": "mean", "normalise": "none"}, ["summary"]),
    "none, median": ({"missing": "median", "normalise": "none"}, ["summary", *["total"] * 8]),
    "none, constant": ({"missing": "constant", "normalise": "none"}, ["summary"]),
    "none, median, no words": (
        {"missing": "median", "normalise": "none", "ignore": ["sex"]},
        ["summary", *["total"] * 8],
    ),
    "none, no words": ({"missing": "constant", "normalise": "none", "ignore": ["sex"]}, []),
    "none, no words, indicator": (
        {"missing": "constant", "normalise": "none", "ignore": ["sex"], "indicator": True},
        ["summary"],
    ),
    "numbers as categories": ({"missing": "drop", "categorical": ["pressure"], "validation": 0.2}, ["summary"]),
    "own statistics": ({"missing": "median", "statistics": "client", "ignore": ["sex"]}, []),
    "own statistics, words": ({"missing": "mean", "statistics": "client", "indicator": True}, ["summary"]),
    "own statistics, unit": ({"missing": "mean", "statistics": "client", "normalise": "unit"}, ["summary"]),
    "a number as target": (
        {"missing": "mean", "target": "pressure", "target_type": "number", "categorical": ["outcome"]},
        ["summary"],
    ),
}


def unequal() -> dict[str, Table]:
    """Three hospitals: the first one lacks no value and a class, the second has a category of its own, the last one has
    two rows."""
    table = patients()
    by_name = {name: part(table, [r for r, who in enumerate(table["hospital"]) if who == name]) for name in NAMES}
    for each in by_name.values():
        del each["hospital"]
    bern = by_name["Bern"]
    bern["age"] = [40.25 if age is None else age for age in bern["age"]]
    bern["outcome"] = ["died" if outcome == "left" else outcome for outcome in bern["outcome"]]
    by_name["Genf"]["sex"][::5] = ["d"] * len(by_name["Genf"]["sex"][::5])
    by_name["Ulm"] = part(by_name["Ulm"], [3, 5])
    by_name["Ulm"]["age"] = [71.5, 68.0]
    return by_name


def settings(name: str, **how: Any) -> DatasetSettings:
    return DatasetSettings(name=name, **how)


def sites(how: FileSettings, paths: list[str]) -> tuple[list[FederatedData], Server]:
    def one(client: int, pool: Member) -> FederatedData:
        return read_site(how, paths[client], client, NAMES).load(SEED, pool)

    return together(NAMES, one)


def check(found: list[FederatedData], whole: FederatedData) -> None:
    assert whole.client_names == NAMES
    for client, site in enumerate(found):
        same_rows(site, whole, client)


@pytest.mark.parametrize("which", TABLES)
def test_csv_files(tmp_path: Path, which: str) -> None:
    how, exchanges = TABLES[which]
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in unequal().items()]
    usual = {"target": "outcome"} | ({} if "target" in how else {"classes": CLASSES})
    asked = settings(f"{tmp_path}/", client="file", **usual | how)
    found, server = sites(asked, paths)
    check(found, FederatedData.from_settings(asked, seed=SEED))
    assert [each[0].kind.replace("counts", "total") for each in server.seen] == exchanges


def test_only_what_is_needed_is_told(tmp_path: Path) -> None:
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in unequal().items()]
    told = {}
    for statistics, scaling in (("federated", "standard"), ("federated", "unit"), ("client", "standard")):
        asked = settings(
            f"{tmp_path}/", target="outcome", classes=CLASSES, missing="median", statistics=statistics,
            normalise=scaling,
        )  # fmt: skip
        _, server = sites(asked, paths)
        (first,) = server.seen[0][:1]
        assert first.facts["categories"] == {"sex": ["f", "m"]}
        told[statistics, scaling] = {
            name: each.isnan().tolist() for name, each in first.tensors.items() if name != "count"
        }
    nothing, switches_not = [True] * 3, [False, True, False]  # age, smoker, pressure
    assert told == {
        ("federated", "standard"): {"mean": switches_not, "squares": switches_not, "low": nothing, "high": nothing},
        ("federated", "unit"): {"mean": nothing, "squares": nothing, "low": switches_not, "high": switches_not},
        ("client", "standard"): dict.fromkeys(("mean", "squares", "low", "high"), nothing),
    }


def test_parquet_files(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, table in unequal().items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    asked = settings(f"{tmp_path}/", target="outcome", classes=CLASSES, missing="median", validation=0.1)
    found, _ = sites(asked, [f"{tmp_path}/{name}.parquet" for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))


def test_a_folder_of_tables_is_one_site(tmp_path: Path) -> None:
    tables = unequal()
    half = len(tables["Genf"]["age"]) // 2
    (tmp_path / "Genf").mkdir()
    write_csv(tmp_path / "Genf" / "a.csv", part(tables["Genf"], range(half)))
    write_csv(tmp_path / "Genf" / "b.csv", part(tables["Genf"], range(half, len(tables["Genf"]["age"]))))
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in tables.items()]
    asked = settings(f"{tmp_path}/", target="outcome", classes=CLASSES, missing="mean")
    found, _ = sites(asked, [paths[0], str(tmp_path / "Genf"), paths[2]])
    check(found, FederatedData.from_settings(asked, seed=SEED))


def matrix(gaps: bool) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(8)
    parts = {}
    for name, rows in zip(NAMES, (20, 31, 9), strict=True):
        x = rng.normal(rng.normal(), 3, (rows, 4))
        if gaps:
            x[rng.random(x.shape) < 0.1] = np.nan
        parts[name] = {"x": x, "y": rng.integers(0, 2 if name == "Bern" else 3, rows)}
    return parts


def one_archive(path: Path, parts: dict[str, dict[str, np.ndarray]]) -> str:
    """All sites' arrays in one, with a name for each row."""
    keys = [*next(iter(parts.values()))]
    held = {key: np.concatenate([each[key] for each in parts.values()]) for key in keys}
    for key in [key for key in keys if key.startswith("x")]:
        whose = [np.repeat(name, len(each[key])) for name, each in parts.items()]
        held[key.replace("x", "client", 1)] = np.concatenate(whose)
    np.savez(path, **held)
    return str(path)


@pytest.mark.parametrize(
    "how",
    [
        {"missing": "mean"},
        {"missing": "median", "normalise": "unit", "indicator": True},
        {"missing": "drop", "statistics": "client", "validation": 0.2},
    ],
)
def test_archives_of_tables(tmp_path: Path, how: dict[str, Any]) -> None:
    parts = matrix(gaps=True)
    asked = settings(one_archive(tmp_path / "all.npz", parts), classes=[0, 1, 2], **how)
    for name, held in parts.items():
        np.savez(tmp_path / name, **held)  # type: ignore[arg-type]
    found, _ = sites(asked, [f"{tmp_path}/{name}.npz" for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))


@pytest.mark.parametrize(
    ("how", "exchanges"),
    [({}, 1), ({"normalise": "unit"}, 1), ({"normalise": "none"}, 0), ({"statistics": "client"}, 0)],
)
def test_archives_of_images_with_their_own_test_rows(tmp_path: Path, how: dict[str, Any], exchanges: int) -> None:
    rng = np.random.default_rng(3)
    parts = {}
    for name, rows in zip(NAMES, (12, 7, 15), strict=True):
        parts[name] = {}
        for which, count in (("", rows), ("_test", 3)):
            parts[name] |= {f"x{which}": rng.normal(size=(count, 2, 3, 3)), f"y{which}": rng.normal(size=count)}
        np.savez(tmp_path / name, **parts[name])  # type: ignore[arg-type]
    asked = settings(one_archive(tmp_path / "all.npz", parts), **how)
    found, server = sites(asked, [f"{tmp_path}/{name}.npz" for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))
    assert len(server.seen) == exchanges


def test_token_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    parts = {name: {"x": rng.integers(0, 9, (10, 5)), "y": rng.integers(0, 4, (10, 5))} for name in NAMES}
    asked = settings(one_archive(tmp_path / "all.npz", parts), vocabulary=12, classes=list("abcdef"))
    for name, held in parts.items():
        np.savez(tmp_path / name, **held)  # type: ignore[arg-type]
    found, server = sites(asked, [f"{tmp_path}/{name}.npz" for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))
    assert (found[0].classes, found[0].vocabulary, server.seen) == (6, 12, [])


def test_samples_and_targets_in_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = matrix(gaps=False)
    monkeypatch.chdir(tmp_path)
    for key in "xy":
        np.save(tmp_path / f"{key}.npy", np.concatenate([each[key] for each in parts.values()]))
    np.save(tmp_path / "client.npy", np.repeat(NAMES, [len(each["x"]) for each in parts.values()]))
    for name, held in parts.items():
        (tmp_path / name).mkdir()
        for key in "xy":
            np.save(tmp_path / name / f"{key}.npy", held[key])
    asked = settings("x.npy", target="y.npy", client="client.npy", classes=[0, 1, 2])
    found, _ = sites(asked, [f"{name}/x.npy" for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))


@pytest.mark.parametrize("how", [{}, {"normalise": "unit"}, {"normalise": "none", "resize": 3}, {"validation": 0.2}])
def test_folders_of_images(tmp_path: Path, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    for client, name in enumerate(NAMES):
        for number in range(6 + 4 * client):
            folder = tmp_path / name / ["ill", "well", "new"][number % (2 if client == 0 else 3)]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (4, 5, 3), np.uint8)).save(folder / f"{number}.png")
    asked = settings(f"{tmp_path}/", client="folder", classes=["ill", "new", "well"], **how)
    found, server = sites(asked, [str(tmp_path / name) for name in NAMES])
    check(found, FederatedData.from_settings(asked, seed=SEED))
    assert len(server.seen) == (how.get("normalise", "standard") == "standard")


def test_the_column_of_clients_is_no_feature(tmp_path: Path) -> None:
    tables = {name: {"hospital": [name] * len(t["age"]), **t} for name, t in unequal().items()}
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in tables.items()]
    asked = settings(f"{tmp_path}/", target="outcome", client="hospital", classes=CLASSES, missing="mean")
    found, _ = sites(asked, paths)
    check(found, FederatedData.from_settings(asked, seed=SEED))


def test_columns_that_differ_are_found_and_told(tmp_path: Path) -> None:
    tables = unequal()
    tables["Genf"]["pressure"] = ["high"] * len(tables["Genf"]["pressure"])
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in tables.items()]
    asked = settings(f"{tmp_path}/", target="outcome", classes=CLASSES, missing="mean")
    with pytest.raises(InputError, match=r"^data: Genf has columns of other names or kinds, or in another order"):
        sites(asked, paths)
    schemas = [read_site(asked, path, client, NAMES).schema for client, path in enumerate(paths)]
    with pytest.raises(InputError, match=r"^data: column 'pressure' holds numbers at Bern, Ulm, but words at Genf"):
        agree(schemas, NAMES)


@pytest.mark.parametrize("column", ["sex", "smoker", "age"])
def test_a_column_without_values_is_read_as_elsewhere_and_columns_are_put_in_one_order(
    tmp_path: Path, column: str
) -> None:
    tables = unequal()
    tables["Ulm"][column] = [None] * len(tables["Ulm"][column])
    tables["Genf"] = {name: tables["Genf"][name] for name in reversed(tables["Genf"])}
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in tables.items()]
    asked = settings(f"{tmp_path}/", target="outcome", classes=CLASSES, missing="mean")
    read = [read_site(asked, path, client, NAMES) for client, path in enumerate(paths)]
    agreed = agree([Schema.from_wire(site.schema.to_wire()) for site in read], NAMES)
    found, _ = together(NAMES, lambda client, pool: read[client].load(SEED, pool, agreed))
    check(found, FederatedData.from_settings(asked, seed=SEED))
    with pytest.raises(InputError, match="Genf"):
        sites(asked, paths)


def test_numbers_as_categories_that_are_written_otherwise_than_words_are_refused(tmp_path: Path) -> None:
    wards = dict(zip(NAMES, ("1", "a", "1.0"), strict=True))
    tables: dict[str, Table] = {name: {"ward": [ward] * 2, "y": [1.5, 2.5]} for name, ward in wards.items()}
    paths = [str(write_csv(tmp_path / f"{name}.csv", table)) for name, table in tables.items()]
    asked = settings(f"{tmp_path}/", target="y", categorical=["ward"])
    schemas = [read_site(asked, path, client, NAMES).schema for client, path in enumerate(paths)]
    assert agree(schemas[:2], NAMES[:2]).columns == {"ward": ("words",)}
    assert agree(schemas[::2], NAMES[::2]).columns == {"ward": ("numbers",)}
    with pytest.raises(InputError, match=r"column 'ward' holds words at Bern, Genf, but numbers at Ulm"):
        agree(schemas, NAMES)


@pytest.mark.parametrize(
    ("field", "other", "said"),
    [
        ("samples", "numbers of shape [3]", r"samples are a table at Bern, Ulm, but numbers of shape \[3\] at Genf"),
        ("targets", "numbers of shape []", r"targets are classes a, b of shape \[\] at Bern, Ulm, but numbers"),
        ("parts", ("training", "test"), r"rows are for training at Bern, Ulm, but training, test at Genf"),
        ("columns", {"age": ("numbers",), "sex": ("words",)}, r"column 'sex' is not there at Bern, Ulm, but there at"),
    ],
)
def test_everything_that_sites_must_share_is_compared(field: str, other: Any, said: str) -> None:
    usual = {"samples": "a table", "targets": "classes a, b of shape []", "parts": ("training",)}
    columns = {"age": ("numbers",)}
    same = Schema(**usual, columns=columns)  # type: ignore[arg-type]
    strange = Schema(**{**usual, "columns": columns, field: other})
    assert agree([same, same], NAMES[:2]) == same
    assert strange.digest != same.digest
    with pytest.raises(InputError, match=said):
        agree([same, strange, same], NAMES)


def test_a_schema_that_is_none_is_refused() -> None:
    for facts in ({}, {"samples": "", "targets": "", "parts": 3, "columns": []}, {"columns": [["age"]]}):
        with pytest.raises(InputError, match="a schema must tell"):
            Schema.from_wire(facts)


def test_a_site_may_lack_what_others_agreed_on_only_by_mistake(tmp_path: Path) -> None:
    path = str(write_csv(tmp_path / "a.csv", {"age": [1, 2], "y": [0.5, 1.5]}))
    site = read_site(settings(path, target="y"), path, 0, NAMES)
    for other, said in (
        (
            {"columns": {"weight": ("numbers",)}},
            "column 'weight' is there at the other sites, but not there at this site",
        ),
        ({"columns": {"age": ("words",)}}, "column 'age' holds words at the other sites, but numbers at this site"),
        (
            {"samples": "bytes of shape [3]"},
            r"samples are bytes of shape \[3\] at the other sites, but a table at this",
        ),
        ({"targets": "classes of shape []"}, r"targets are classes of shape \[\] at the other sites, but numbers"),
        ({"parts": ("training", "test")}, "rows are for training, test at the other sites, but training at this site"),
    ):
        server = Server(NAMES)
        with pytest.raises(InputError, match=said):
            site.load(SEED, Member(server, 0), replace(site.schema, **other))
        assert server.seen == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, r"dataset.classes must name all classes in their order, as a site may not have samples of each"),
        ({"classes": ["died"]}, r"dataset.classes must name every class of 'outcome'"),
        ({"classes": CLASSES, "test": "test.csv"}, r"dataset.test must be a share on a site"),
        ({"classes": CLASSES, "client": "hospital"}, r"'hospital' names 3 clients, one of Bern, Genf, Ulm"),
    ],
)
def test_what_only_all_sites_could_tell_is_refused(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    path = str(write_csv(tmp_path / "a.csv", patients(missing=0)))
    with pytest.raises(InputError, match=said):
        read_site(settings(path, target="outcome", **how), path, 0, NAMES)


def test_classes_of_arrays_and_of_folders_must_be_named(tmp_path: Path) -> None:
    for which, y in (("one", np.arange(4)), ("tokens", np.arange(8).reshape(4, 2))):
        np.savez(tmp_path / which, x=np.zeros((4, 3)), y=y)
        with pytest.raises(InputError, match=r"dataset\.classes must name all classes"):
            read_site(FileSettings(), f"{tmp_path}/{which}.npz", 0, NAMES)
    np.savez(tmp_path / "labels", x=np.zeros((4, 3)), y=np.eye(4, dtype=int))
    assert read_site(FileSettings(), f"{tmp_path}/labels.npz", 0, NAMES).schema.targets == "labels of shape [4]"
    (tmp_path / "images" / "ill").mkdir(parents=True)
    Image.new("L", (3, 3)).save(tmp_path / "images" / "ill" / "1.png")
    with pytest.raises(InputError, match=r"dataset\.classes must name all classes"):
        read_site(FileSettings(), f"{tmp_path}/images", 0, NAMES)


def test_names_of_people_do_not_leave_a_site(tmp_path: Path) -> None:
    """Neither few, nor more than there can be categories; nothing is told before that is found."""
    for people, rows, said in (
        (4, 7, "4 different words in 7 rows"),
        (12, 20, "12 different words in 20 rows"),
        (1500, 3200, "1,[0-9]{3} different words"),
    ):
        table = {"who": [f"p{number % people}" for number in range(rows)], "y": [0.5] * rows}
        path = str(write_csv(tmp_path / "a.csv", table))
        server = Server(["a"])
        with pytest.raises(InputError, match=said):
            read_site(settings(path, target="y"), path, 0, ["a"]).load(SEED, Member(server, 0))
        assert server.seen == []
    read_site(settings(path, target="y", categorical=["who"]), path, 0, ["a"])
    few = {"who": ["Ada", "Kurt", *[""] * 18], "sex": ["f", "m"] * 10, "y": [0.5] * 20}
    path = str(write_csv(tmp_path / "few.csv", few))
    with pytest.raises(InputError, match="column 'who' has 2 different words in 2 rows"):
        read_site(settings(path, target="y", missing="constant"), path, 0, ["a"])
    small = str(write_csv(tmp_path / "small.csv", {"sex": ["f", "m"] * 4, "y": [0.5] * 8}))
    assert read_site(settings(small, target="y"), small, 0, ["a"]).schema.columns == {"sex": ("words",)}


def test_other_things_that_are_no_data_of_a_site(tmp_path: Path) -> None:
    np.savez(tmp_path / "two", x=np.zeros((4, 3)), y=np.zeros(4), client=[0, 0, 1, 1])
    for path, how, said in (
        (f"{tmp_path}/two.npz", {}, "'client' names 2 clients"),
        ("hf:imdb", {}, "the data of a site must be a file"),
        ("mnist", {}, "the data of a site must be a file"),
        (f"{tmp_path}/none.csv", {"target": "y"}, "there is no file"),
        (f"{tmp_path}/two.npz", {"vocabulary": "auto"}, "dataset.vocabulary must be a number on a site"),
    ):
        with pytest.raises(InputError, match=said):
            read_site(FileSettings(**how), path, 0, NAMES)
    with pytest.raises(InputError, match="client must be a number from 0 to 2; got 3"):
        read_site(FileSettings(), f"{tmp_path}/two.npz", 3, NAMES)

"""Tables from CSV, Parquet and memory: types, missing values, categories, targets and clients."""

import gzip
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError
from tests.helpers.tables import part, patients, write_csv

HOW = {"target": "outcome", "client": "hospital"}


def rows_of(data: FederatedData) -> dict[str, np.ndarray]:
    """All samples by set, as arrays."""
    assert data.validation is not None
    return {"train": data.train.x.numpy(), "test": data.test.x.numpy(), "validation": data.validation.x.numpy()}


def column(data: FederatedData, name: str, which: str = "train") -> np.ndarray:
    assert data.feature_names is not None
    return getattr(data, which).x.numpy()[:, data.feature_names.index(name)]


def everything(data: FederatedData, name: str) -> np.ndarray:
    """A column of all rows, sorted."""
    return np.sort(np.concatenate([column(data, name, which) for which in ("train", "test")]))


def test_a_csv_file_becomes_clients_classes_and_features(tmp_path):
    table = patients(missing=0)
    data = FederatedData.from_csv(write_csv(tmp_path / "a.csv", table), **HOW, normalise="none")
    assert data.client_names == ("Bern", "Genf", "Ulm")
    assert data.class_names == ("died", "left", "stayed")
    assert data.feature_names == ("age", "sex=f", "sex=m", "sex=(unknown)", "smoker", "pressure")
    assert data.name == "a"
    assert everything(data, "age") == pytest.approx(np.sort(table["age"]), rel=1e-6)
    assert everything(data, "smoker").sum() == sum(table["smoker"])
    assert data.sizes.tolist() == [
        table["hospital"].count(n) - round(0.2 * table["hospital"].count(n)) for n in data.client_names
    ]


def test_rows_stay_together_and_with_their_client():
    n = 60
    table = {
        "who": [f"c{i % 3}" for i in range(n)],
        "number": list(range(n)),
        "twice": [2 * i for i in range(n)],
        "y": [i % 2 for i in range(n)],
    }
    data = FederatedData.from_table(table, target="y", client="who", normalise="none", validation=0.2)
    assert data.validation_rows is not None
    assert data.test_rows is not None
    assert data.validation is not None
    seen = []
    for examples, rows in (
        (data.train, data.assignment),
        (data.test, data.test_rows),
        (data.validation, data.validation_rows),
    ):
        for client in range(3):
            x, y = examples.x[rows[client]].numpy(), examples.y[rows[client]].numpy()
            assert (x[:, 0] % 3 == client).all()
            assert (x[:, 1] == 2 * x[:, 0]).all()
            assert (x[:, 0] % 2 == y).all()
            seen += x[:, 0].tolist()
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_seen(tmp_path, delimiter):
    data = FederatedData.from_csv(write_csv(tmp_path / "a.csv", patients(missing=0), delimiter), **HOW)
    assert len(data) == 3


def test_a_gzipped_file_with_a_byte_order_mark(tmp_path):
    plain = write_csv(tmp_path / "a.csv", patients(missing=0)).read_bytes()
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain))
    one, other = (FederatedData.from_csv(tmp_path / name, **HOW) for name in ("a.csv", "b.csv.gz"))
    assert (one.train.x == other.train.x).all()
    assert other.name == "b"


def test_parquet_csv_and_memory_agree(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = patients()
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    how = {**HOW, "missing": "median", "indicator": True, "validation": 0.1}
    found = [
        FederatedData.from_csv(write_csv(tmp_path / "a.csv", table), **how),
        FederatedData.from_parquet(tmp_path / "a.parquet", **how),
        FederatedData.from_table(table, **how),
        FederatedData.from_table(pa.table(table), **how),
    ]
    for other in found[1:]:
        assert other.feature_names == found[0].feature_names
        for which, rows in rows_of(other).items():
            assert (rows == rows_of(found[0])[which]).all()


def test_parquet_dictionaries_decimals_and_dates(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "kind": pa.array(["a", "b"] * 10).dictionary_encode(),
            "cost": pa.array([Decimal("1.50"), None] * 10),
            "whole": pa.array([1, None] * 10),
            "y": [0, 1] * 10,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    data = FederatedData.from_parquet(
        tmp_path / "a.parquet", target="y", clients=2, missing="constant", normalise="none"
    )
    assert data.feature_names == ("kind=a", "kind=b", "kind=(unknown)", "cost", "whole")
    assert set(everything(data, "cost")) == {0.0, 1.5}
    dated = table.append_column("day", pa.array(np.array(["2024-01-01"] * 20, "datetime64[D]")))
    pq.write_table(dated, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'day' holds dates or times; name it in dataset.ignore"):
        FederatedData.from_parquet(tmp_path / "a.parquet", target="y", missing="mean")


class TestMissing:
    def test_the_default_says_what_is_missing_where(self):
        table = patients()
        count = table["age"].count(None)
        table["sex"][3] = None
        with pytest.raises(InputError) as caught:
            FederatedData.from_table(table, **HOW)
        assert str(caught.value) == (
            f"dataset.missing: values are missing in 2 columns of 120 rows: age ({count}), sex (1); "
            "set dataset.missing to drop, mean, median or constant"
        )

    def test_drop_leaves_rows_out(self):
        table = patients()
        data = FederatedData.from_table(table, **HOW, missing="drop", normalise="none")
        assert everything(data, "age") == pytest.approx(np.sort([a for a in table["age"] if a is not None]), rel=1e-6)

    @pytest.mark.parametrize(("rule", "oracle"), [("mean", np.nanmean), ("median", np.nanmedian)])
    @pytest.mark.parametrize("statistics", ["federated", "client"])
    def test_what_is_filled_in_is_of_training_rows(self, rule, oracle, statistics):
        """The table's row numbers are a feature, so that rows are known again."""
        table = {**patients(), "row": list(range(120))}
        data = FederatedData.from_table(table, **HOW, missing=rule, normalise="none", statistics=statistics)
        ages = np.array([np.nan if a is None else a for a in table["age"]])
        rows = column(data, "row").astype(int)
        fill = {c: oracle(ages[rows if statistics == "federated" else rows[data.assignment[c]]]) for c in range(3)}
        assert data.test_rows is not None
        for client in range(3):
            own = {"train": data.assignment[client], "test": data.test_rows[client]}
            for which, held in own.items():
                given = ages[column(data, "row", which)[held].astype(int)]
                expected = np.where(np.isnan(given), fill[client], given)
                assert column(data, "age", which)[held] == pytest.approx(expected, rel=1e-6)
        assert (len({round(float(v), 6) for v in fill.values()}) == 1) == (statistics == "federated")

    def test_an_indicator_marks_what_was_filled_in(self):
        table = patients()
        data = FederatedData.from_table(table, **HOW, missing="constant", fill=-1, indicator=True, normalise="none")
        assert data.feature_names is not None
        assert data.feature_names[-1] == "age is missing"
        assert ((column(data, "age is missing") == 1) == (column(data, "age") == -1)).all()
        assert everything(data, "age is missing").sum() == table["age"].count(None)

    def test_a_rule_for_each_column(self):
        table = patients()
        table["outcome"][0] = None
        table["pressure"][1] = None
        how = {**HOW, "missing": {"age": "constant", "outcome": "drop", "*": "mean"}, "fill": 0.5, "normalise": "none"}
        data = FederatedData.from_table(table, **how)
        assert data.sizes.sum() + len(data.test) == 119
        assert (everything(data, "age") == 0.5).sum() == part(table, range(1, 120))["age"].count(None)
        assert not (everything(data, "pressure") == 0.5).any()

    def test_a_missing_category_is_a_category(self):
        table = patients(missing=0)
        table["sex"][:40] = [None] * 40
        data = FederatedData.from_table(table, **HOW, missing="mean")
        assert everything(data, "sex=(missing)").sum() == 40

    def test_a_missing_target_cannot_be_filled_in(self):
        table = patients(missing=0)
        table["outcome"][7] = None
        with pytest.raises(
            InputError, match=r"mean cannot fill in column 'outcome', a target or client, .* 1 of 120 rows"
        ):
            FederatedData.from_table(table, **HOW, missing="mean")

    def test_a_client_without_a_single_value_is_named(self):
        table = patients(missing=0)
        table["age"] = [
            None if who == "Genf" else age for who, age in zip(table["hospital"], table["age"], strict=True)
        ]
        with pytest.raises(InputError, match=r"client 'Genf' has not a single value of it in its training rows"):
            FederatedData.from_table(table, **HOW, missing="mean", statistics="client")
        FederatedData.from_table(table, **HOW, missing="mean")

    def test_a_column_without_any_value_is_refused(self):
        table = {**patients(missing=0), "empty": [None] * 120}
        with pytest.raises(
            InputError, match=r"mean of column 'empty' cannot be computed, as no client has a single value"
        ):
            FederatedData.from_table(table, **HOW, missing="mean")

    def test_other_words_can_mean_missing(self, tmp_path):
        table = patients(missing=0)
        table["age"][5:8] = ["?", "NA", "unk"]
        path = write_csv(tmp_path / "a.csv", table)
        with pytest.raises(InputError, match=r"column 'age' holds numbers, but also '\?', 'unk'; name such words in"):
            FederatedData.from_csv(path, **HOW)
        data = FederatedData.from_csv(path, **HOW, missing_values=["?", "unk"], missing="drop")
        assert data.sizes.sum() + len(data.test) == 117


class TestScales:
    @pytest.mark.parametrize("statistics", ["federated", "client"])
    def test_standard(self, statistics):
        table = {**patients(missing=0), "row": list(range(120))}
        plain, scaled = (
            FederatedData.from_table(table, **HOW, normalise=kind, statistics=statistics)
            for kind in ("none", "standard")
        )
        raw = column(plain, "pressure").astype(np.float64)
        groups = [slice(None)] if statistics == "federated" else [plain.assignment[c] for c in range(3)]
        for rows in groups:
            expected = (raw[rows] - raw[rows].mean()) / raw[rows].std()
            assert column(scaled, "pressure")[rows] == pytest.approx(expected, abs=1e-5)
        assert set(column(scaled, "smoker")) == {0.0, 1.0}

    def test_unit(self):
        plain, scaled = (
            FederatedData.from_table(patients(missing=0), **HOW, normalise=kind) for kind in ("none", "unit")
        )
        raw = column(plain, "age")
        assert column(scaled, "age") == pytest.approx((raw - raw.min()) / (raw.max() - raw.min()), abs=1e-6)
        tested = column(plain, "age", "test")
        assert column(scaled, "age", "test") == pytest.approx((tested - raw.min()) / (raw.max() - raw.min()), abs=1e-6)

    def test_a_constant_column_stays_finite(self):
        data = FederatedData.from_table({**patients(missing=0), "one": [1] * 120}, **HOW)
        assert set(everything(data, "one")) == {0.0}

    @pytest.mark.parametrize("how", [{}, {"normalise": "unit"}, {"normalise": "none", "missing": {"a": "mean"}}])
    def test_numbers_that_are_too_large_to_be_scaled_are_told(self, how):
        table = {"a": [1.7e308, -1.7e308, 1.7e308, None] * 5, "y": [0, 1] * 10}
        with pytest.raises(InputError, match=r"'a' has numbers from -1\.7e\+308 to 1\.7e\+308, which are too large"):
            FederatedData.from_table(table, target="y", clients=2, **{"missing": "constant", **how})

    @pytest.mark.parametrize(
        "how",
        [{"missing": "mean"}, {"missing": "median", "statistics": "client"}, {"normalise": "unit", "missing": "mean"}],
    )
    def test_held_out_rows_do_not_matter(self, how):
        """Whatever test and validation rows hold, training samples are the same."""
        table = {**patients(), "row": list(range(120))}
        how = {**HOW, **how, "validation": 0.2, "ignore": ["row"]}
        known = FederatedData.from_table(table, **{**how, "ignore": [], "normalise": "none"})
        assert known.validation is not None
        kept = {int(row) for row in column(known, "row")}
        changed = {name: [*values] for name, values in table.items()}
        for row in {*range(120)} - kept:
            changed["age"][row] = 1e6 if row % 2 else None
            changed["sex"][row] = "another"
            changed["pressure"][row] = -1e6
        one, other = (FederatedData.from_table(each, **how) for each in (table, changed))
        assert one.feature_names == other.feature_names
        assert (one.train.x == other.train.x).all()
        assert (column(other, "sex=(unknown)", "test") == 1).all()
        assert not (one.test.x == other.test.x).all()


class TestCategories:
    def test_codes(self):
        data = FederatedData.from_table(patients(missing=0), **HOW, encode="codes")
        assert data.feature_names == ("age", "sex", "smoker", "pressure")
        assert set(everything(data, "sex")) == {1.0, 2.0}

    @pytest.mark.parametrize("encode", ["one-hot", "codes"])
    def test_what_training_lacks_is_unknown(self, encode):
        train, test = patients(missing=0), patients(30, seed=1, missing=0)
        test["sex"] = ["x"] * 30
        data = FederatedData.from_table(train, **HOW, test=test, encode=encode)
        found = column(data, "sex" if encode == "codes" else "sex=(unknown)", "test")
        assert set(found) == {0.0 if encode == "codes" else 1.0}

    def test_numbers_can_be_names(self):
        data = FederatedData.from_table(
            {"zone": [1, 2.0, 10] * 20, "y": [0, 1] * 30}, target="y", clients=2, categorical="zone"
        )
        assert data.feature_names == ("zone=1", "zone=10", "zone=2", "zone=(unknown)")

    def test_words_and_numbers_in_one_column_are_words(self):
        data = FederatedData.from_table({"zone": ["x", 1, 2.0] * 20, "y": [0, 1] * 30}, target="y", clients=2)
        assert data.feature_names == ("zone=1", "zone=2", "zone=x", "zone=(unknown)")

    def test_free_text_is_refused(self):
        table = {"note": [f"note {i}" for i in range(1500)], "y": [0, 1] * 750}
        with pytest.raises(InputError, match=r"column 'note' has 1,200 different words"):
            FederatedData.from_table(table, target="y", clients=2)


class TestTargets:
    @pytest.mark.parametrize(
        ("values", "kind", "classes"),
        [
            ([0, 1], "int", ("0", "1")),
            ([True, False], "int", ("false", "true")),
            ([3, 10], "int", ("3", "10")),
            (["10", "9"], "int", ("9", "10")),
            ([0.5, 1.0], "float", None),
            ([1.0, 2.0], "int", ("1", "2")),
        ],
    )
    def test_kinds(self, values, kind, classes):
        data = FederatedData.from_table({"x": list(range(40)), "y": values * 20}, target="y", clients=2)
        assert data.train.y.is_floating_point() == (kind == "float")
        assert data.class_names == classes
        assert data.classes == (1 if classes is None else len(classes))

    def test_whole_numbers_can_be_a_quantity(self):
        data = FederatedData.from_table(
            {"x": [0, 1] * 20, "y": list(range(40))}, target="y", clients=2, target_type="number"
        )
        assert data.train.y.is_floating_point()
        assert sorted([*data.train.y.tolist(), *data.test.y.tolist()]) == list(range(40))

    def test_the_order_of_classes_can_be_given(self):
        table = {"x": list(range(40)), "y": ["low", "high"] * 20}
        data = FederatedData.from_table(
            table, target="y", clients=2, classes=["low", "middle", "high"], normalise="none"
        )
        assert (data.classes, data.class_names) == (3, ("low", "middle", "high"))
        assert (data.train.y.numpy() == 2 * (data.train.x.numpy()[:, 0] % 2)).all()
        with pytest.raises(InputError, match=r"dataset.classes must name every class of 'y'; high is not among them"):
            FederatedData.from_table(table, target="y", classes=["low"])

    def test_several_columns(self):
        table = {"x": list(range(40)), "a": [0, 1] * 20, "b": [True] * 40, "c": [0.5, 2] * 20}
        labels = FederatedData.from_table(table, target=["a", "b"], clients=2, features="x")
        assert labels.train.y.shape == (32, 2)
        assert not labels.train.y.is_floating_point()
        assert labels.class_names == ("a", "b")
        numbers = FederatedData.from_table(table, target=["a", "c"], clients=2, features="x")
        assert (numbers.train.y.is_floating_point(), numbers.classes) == (True, 2)

    def test_too_many_classes_are_a_quantity(self):
        with pytest.raises(InputError, match=r"2,000 different values, which are too many classes; use task=reg"):
            FederatedData.from_table({"x": [1] * 2000, "y": list(range(2000))}, target="y", clients=2)


class TestClients:
    def test_one_file_per_client(self, tmp_path):
        table = patients(missing=0)
        del table["hospital"]
        for number, rows in {"2": range(30), "10": range(30, 80), "1": range(80, 120)}.items():
            write_csv(tmp_path / f"silo{number}.csv", part(table, rows))
        for path in (tmp_path, tmp_path / "*.csv", sorted(tmp_path.glob("*.csv"))):
            data = FederatedData.from_csv(path, target="outcome", test=0.5)
            assert data.client_names == ("silo1", "silo2", "silo10")
            assert data.sizes.tolist() == [20, 15, 25]

    def test_files_whose_types_differ_are_one_table(self, tmp_path):
        write_csv(tmp_path / "a.csv", {"code": [1, 2] * 5, "y": [0, 1] * 5})
        write_csv(tmp_path / "b.csv", {"code": ["x", 2] * 5, "y": [0, 1] * 5})
        data = FederatedData.from_csv(tmp_path, target="y")
        assert data.feature_names == ("code=1", "code=2", "code=x", "code=(unknown)")

    def test_files_with_other_columns_are_refused(self, tmp_path):
        write_csv(tmp_path / "a.csv", {"x": [1, 2], "y": [0, 1]})
        write_csv(tmp_path / "b.csv", {"z": [1, 2], "y": [0, 1]})
        with pytest.raises(InputError, match=r"have different columns \(x, z\); give all files the same columns"):
            FederatedData.from_csv(tmp_path, target="y")

    def test_numbers_count_and_zeros_stay(self, tmp_path):
        table = {"who": ["10", "2", "007"] * 10, "x": list(range(30)), "y": [0, 1] * 15}
        data = FederatedData.from_csv(write_csv(tmp_path / "a.csv", table), target="y", client="who")
        assert data.client_names == ("2", "007", "10")

    def test_a_test_file_with_names_tests_each_client_on_its_own(self, tmp_path):
        train, test = (write_csv(tmp_path / f"{n}.csv", patients(60, s, 0)) for n, s in (("train", 0), ("test", 1)))
        data = FederatedData.from_csv(train, **HOW, test=str(test), normalise="none")
        assert data.clients_have_tests
        assert data.test_rows is not None
        assert data.test_rows.sizes.tolist() == [
            patients(60, 1, 0)["hospital"].count(n) for n in data.client_names or ()
        ]

    def test_test_rows_of_strangers_are_everybodys(self):
        test = patients(30, 1, 0)
        test["hospital"][0] = "Wien"
        data = FederatedData.from_table(patients(missing=0), **HOW, test=test)
        assert not data.clients_have_tests
        assert len(data.test) == 30
        with pytest.raises(InputError, match=r"'client' needs test rows that belong to clients"):
            FederatedData.from_table(patients(missing=0), **HOW, test=test, statistics="client")

    def test_rare_clients_are_dropped_or_merged(self):
        table = {"who": ["a"] * 20 + ["b"] * 3 + ["c"] * 2 + ["d"] * 10, "x": list(range(35)), "y": [0] * 34 + [1]}
        how = {"target": "y", "client": "who", "test": 0.1, "normalise": "none"}
        dropped = FederatedData.from_table(table, **how, partition={"kind": "column", "min_samples": 4})
        assert dropped.client_names == ("a", "d")
        assert dropped.sizes.sum() + len(dropped.test) == 30
        merged = FederatedData.from_table(table, **how, partition={"kind": "column", "min_samples": 4, "rare": "merge"})
        assert merged.client_names == ("a", "d", "others")
        assert merged.sizes.sum() + len(merged.test) == 35
        with pytest.raises(
            InputError, match=r"partition.min_samples must be at most 20, the rows of the largest client; got 21"
        ):
            FederatedData.from_table(table, **how, partition={"kind": "column", "min_samples": 21})

    def test_another_partition_deals_anew(self):
        data = FederatedData.from_table(patients(missing=0), **HOW, partition="iid", clients=5)
        assert (len(data), data.client_names) == (5, None)

    def test_a_table_without_clients_has_no_column(self):
        table = patients(missing=0)
        with pytest.raises(InputError, match=r"partition.kind: 'column' needs data that names a client for each row"):
            FederatedData.from_table(table, target="outcome", partition="column", features=["age"])

    def test_real_targets_have_no_label_mix(self):
        table = {"x": list(range(40)), "y": [0.5, 1.25] * 20}
        with pytest.raises(InputError, match=r"partition.kind=dirichlet needs one class label per sample"):
            FederatedData.from_table(table, target="y", partition="dirichlet", clients=2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; write the names of its columns in the first line"),
        ("a,b\n", "has no rows below its names of columns"),
        ("a,b\n1,2\n1,2,3\n", "line 3: there must be 2 values, one per column; got 3"),
        ("a,a\n1,2\n", "2 columns have the name 'a'; rename one of them"),
        ("a,,b\n1,2,3\n", "column 2 has no name"),
        ("1,2\n3,4\n", "the first line must hold the names of the columns; got the numbers 1, 2"),
        ('a,b\n"1,2\n', "is not a CSV file"),
        ("a;b\n1,5;0\n2,5;1\n", "column 'a' has numbers with a decimal comma; write 1.5 instead of 1,5"),
        ("a,b\ninf,0\n", "column 'a' holds infinite numbers"),
        ("a,b\n2024-01-02,0\n2024-02-03,1\n", "column 'a' holds dates or times"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, text: str, told: str):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        FederatedData.from_csv(tmp_path / "a.csv", target="b")
    assert told in str(caught.value)


def test_missing_values_may_be_numbers_and_cells_may_have_spaces(tmp_path):
    (tmp_path / "a.csv").write_text("who, a,y\n 007 , 1,0\n 007,-99,1\n 007, 3 ,0\n7,4,1\n7,6,0\n")
    how = {"target": "y", "client": "who", "normalise": "none", "test": 0.5}
    data = FederatedData.from_csv(tmp_path / "a.csv", **how, missing="drop", missing_values=[-99])
    assert data.client_names == ("007", "7")
    assert everything(data, "a").tolist() == [1, 3, 4, 6]
    assert -99 in everything(FederatedData.from_csv(tmp_path / "a.csv", **how), "a")


def test_text_that_is_not_utf8_is_told(tmp_path):
    (tmp_path / "a.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"must be UTF-8 text"):
        FederatedData.from_csv(tmp_path / "a.csv", target="y")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"target": "dead"}, "dataset.target: table has no column 'dead'; choose one of hospital, age, sex"),
        ({"target": "outcome", "client": "ward"}, "dataset.client: table has no column 'ward'"),
        ({"target": "outcome", "features": ["agee"]}, "dataset.features: table has no column 'agee'"),
        ({"target": "outcome", "ignore": "x"}, "dataset.ignore: table has no column 'x'"),
        ({"target": "outcome", "missing": {"x": "mean"}}, "dataset.missing: table has no column 'x'"),
        ({"target": "outcome", "features": ["outcome"]}, "column 'outcome' is named as target, client and feature"),
        ({"target": "outcome", "test": 1.5}, "dataset.test must be a share between 0 and 1, or a file; got 1.5"),
        ({**HOW, "clients": 7}, "clients must be 3, as many as the data names; got 7"),
        ({"target": "outcome", "clients": 0}, "clients must be a whole number of at least 1; got 0"),
    ],
)
def test_wrong_settings_are_told(how, told):
    with pytest.raises(InputError) as caught:
        FederatedData.from_table(patients(missing=0), **how)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([1, 2], "table must be a dict of columns, a pandas DataFrame or a pyarrow Table; got"),
        ({"a": [1, 2], "y": [1]}, "table must have columns of one length; got a 2, y 1"),
        ({"a": [], "y": []}, "table has no rows"),
        ({"a": [[1], [2]], "y": [0, 1]}, "column 'a' holds values such as [1]; name it in dataset.ignore"),
        ({"a": [[1, 2], [3, 4]], "y": [0, 1]}, "column 'a' holds values such as [1, 2]"),
        ({"a": [10**400, 1], "y": [0, 1]}, "column 'a' holds infinite numbers"),
        ({"a": [float("inf"), 1.0], "y": [0, 1]}, "column 'a' holds infinite numbers"),
    ],
)
def test_wrong_tables_are_told(table, told):
    with pytest.raises(InputError) as caught:
        FederatedData.from_table(table, target="y", clients=1)
    assert told in str(caught.value)

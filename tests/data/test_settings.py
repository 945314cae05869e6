"""What `dataset` may be."""

import pytest

from fedkeel import Experiment
from fedkeel.data.files import kinds
from fedkeel.errors import InputError


@pytest.mark.parametrize(
    ("name", "kind", "short"),
    [
        ("patients.csv", "table", "patients"),
        ("~/data/Patients.CSV", "table", "Patients"),
        ("a/b.csv.gz", "table", "b"),
        ("a.parquet", "table", "a"),
        ("silos/*.csv", "table", "silos"),
        ("*.csv", "table", "_"),
        ("x.npz", "arrays", "x"),
        ("./images", "folder", "images"),
        ("images/", "folder", "images"),
        ("..//", "folder", "data"),
        ("hf:user/name", "hf", "name"),
        ("hf:./saved", "hf", "saved"),
        ("mnist", None, "mnist"),
        ("mine:load", None, "mine:load"),
        ("custom:arrays", None, "custom:arrays"),
    ],
)
def test_names_are_told_apart_by_their_spelling(name, kind, short):
    assert kinds.kind(name) == kind
    assert kinds.short(name) == short


def test_a_table_on_the_command_line():
    given = ["dataset=patients.csv", "dataset.target=died", "dataset.client=hospital", "dataset.features=[age, sex]"]
    more = ["dataset.missing={age: median, '*': drop}", "dataset.classes=[0, 1]", "dataset.test=0.3"]
    found = Experiment.load(overrides=[*given, *more]).dataset
    assert (found.name, found.target, found.client) == ("patients.csv", ("died",), "hospital")
    assert found.features == ("age", "sex")
    assert found.classes == ("0", "1")
    assert (found.rule("age"), found.rule("sex")) == ("median", "drop")
    assert found.test == 0.3


def test_it_is_written_and_read_back(tmp_path):
    experiment = Experiment(
        dataset={"name": "a.csv", "target": ["x", "y"], "missing": {"a": "mean"}, "test": "b.csv"}, partition="column"
    )
    (tmp_path / "experiment.yaml").write_text(experiment.to_yaml())
    assert Experiment.load(tmp_path / "experiment.yaml") == experiment


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ({"target": "died"}, "dataset.target needs data from a file, which fashion-mnist-mini is not; remove it"),
        ({"name": "mine:load", "missing": "mean"}, "dataset.missing needs data from a file, which mine:load is not"),
        ({"name": "a.csv", "colour": "L"}, "dataset.colour needs another kind of file, which a.csv is not; remove it"),
        ({"name": "a.npz", "encode": "codes"}, "dataset.encode needs another kind of file, which a.npz is not"),
        (
            {"name": "a.csv", "train_limit": 5},
            "dataset.train_limit needs a known data set; remove it, or shorten a.csv",
        ),
        ({"name": "a.csv", "test": 1}, "dataset.test must be a share between 0 and 1, or a file; got 1"),
        ({"name": "a.csv", "validation": 1}, "dataset.validation"),
        ({"name": "a.csv", "missing": "zero"}, "dataset.missing"),
        ({"name": "patients"}, "a file or a glob (.csv, .parquet, .npz, .npy), a folder with a slash such as ./silos"),
    ],
)
def test_what_does_not_fit_is_told(dataset, told):
    with pytest.raises(InputError) as caught:
        Experiment(dataset=dataset)
    assert told in str(caught.value)

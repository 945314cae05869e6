"""Experiments on files: who the clients are, what is written down, and that it can be run again."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import fedkeel
from fedkeel import Experiment
from fedkeel.errors import InputError
from fedkeel.runner.prepare import prepare
from tests.helpers.tables import patients, write_csv


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "patients.csv", patients())
    return {"name": "patients.csv", "target": "outcome", "client": "hospital", "missing": "median"}


def test_clients_are_those_that_the_table_names(table):
    experiment, data, _ = prepare(Experiment(dataset=table, model="linear"))
    assert data.client_names == ("Bern", "Genf", "Ulm")
    assert (experiment.clients, experiment.partition.kind) == (3, "column")


@pytest.mark.slow
def test_the_record_is_read_as_it_was_meant(table, tmp_path):
    made = Experiment(dataset=table, model="linear", rounds=2, per_round=2)
    first = fedkeel.run(made, out=tmp_path / "first")
    again = fedkeel.run(Experiment.load(tmp_path / "first" / "experiment.yaml"), out=tmp_path / "again")
    one, other = (each.model.state_dict() for each in (first, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    labels = json.loads((tmp_path / "first" / "labels.json").read_text())
    assert labels["client_names"] == ["Bern", "Genf", "Ulm"]
    assert labels["class_names"] == ["died", "left", "stayed"]
    assert labels["feature_names"][0] == "age"


def test_a_partition_that_is_asked_for_deals_anew(table):
    experiment, data, _ = prepare(Experiment(dataset=table, model="linear", partition="dirichlet", clients=4))
    assert (len(data), data.client_names) == (4, None)
    assert experiment.partition.kind == "dirichlet"


def test_rare_clients_by_the_partition(table):
    partition = {"kind": "column", "min_samples": 1000}
    with pytest.raises(InputError, match=r"partition.min_samples must be at most \d+, the rows of the largest client"):
        prepare(Experiment(dataset=table, model="linear", partition=partition))


def test_another_number_of_clients_is_refused(table):
    with pytest.raises(InputError, match=r"clients must be 3, as many as patients.csv has; got 7"):
        prepare(Experiment(dataset=table, model="linear", clients=7))


def test_known_data_has_no_column():
    with pytest.raises(InputError, match=r"partition.kind: 'column' needs data that names a client for each row"):
        prepare(Experiment(partition="column"))


def test_given_data_with_names_may_say_column(table):
    data = fedkeel.FederatedData.from_csv(table.pop("name"), **table)
    _, found, _ = prepare(Experiment(model="linear", partition="column"), data)
    assert found.client_names == data.client_names


def test_whole_numbers_are_a_quantity_in_a_regression(table):
    dataset = {**table, "target": "pressure", "ignore": "outcome"}
    _, data, _ = prepare(Experiment(dataset=dataset, model="linear", task="regression"))
    assert data.train.y.is_floating_point()
    _, data, _ = prepare(Experiment(dataset=dataset, model="linear"))
    assert not data.train.y.is_floating_point()


def test_images_are_scaled_once(tmp_path):
    for number in range(12):
        path = tmp_path / "zoo" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (5 + number % 3, 6), 20 * number).save(path)
    dataset = {"name": f"{tmp_path}/zoo", "resize": 8}
    experiment, data, _ = prepare(Experiment(dataset=dataset, model="linear", clients=2))
    assert (data.shape, data.resize) == ((1, 8, 8), None)
    assert experiment.dataset.resize == 8


@pytest.mark.slow
def test_a_run_on_numbers_of_an_archive_learns(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    np.savez(tmp_path / "a.npz", x=50 + 9 * x, y=(x[:, 0] > 0).astype(int), client=np.arange(300) % 5)
    made = Experiment(dataset=f"{tmp_path}/a.npz", model="linear", rounds=10, local={"lr": 0.5})
    result = fedkeel.run(made)
    assert [*result.evaluate_clients()] == pytest.approx([1.0] * 5, abs=0.15)
    assert made.dataset.label == "a"

"""Hugging Face data sets and partitions of flwr-datasets; all of them lie on this machine."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedkeel import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.data.files import hf
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError
from fedkeel.runner.prepare import prepare
from tests.helpers.tables import patients

HOW = {"target": "outcome", "client": "hospital", "missing": "median"}


def test_the_package_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError) as caught:
        FederatedData.from_settings(DatasetSettings(name="hf:user/name", target="y"))
    assert str(caught.value) == (
        "dataset.name: 'hf:user/name' needs the package datasets; install it with pip install 'fedkeel[hf]'"
    )


@pytest.mark.parametrize("given", [None, [], 3, "name"])
def test_partitions_that_are_none_are_told(given):
    with pytest.raises(InputError, match=r"FederatedDataset or a list of data sets|must be a Hugging Face Dataset"):
        FederatedData.from_partitions(given, target="y")


def test_a_stream_is_refused():
    with pytest.raises(
        InputError, match=r"must be a Hugging Face Dataset with a length; got .*; load it without streaming"
    ):
        FederatedData.from_huggingface(iter([]), target="y")


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


@pytest.mark.extras
class TestTables:
    def test_it_is_the_table(self, datasets):
        table = patients()
        found = FederatedData.from_huggingface(datasets.Dataset.from_dict(table), **HOW)
        expected = FederatedData.from_table(table, **HOW)
        assert found.feature_names == expected.feature_names
        assert found.client_names == expected.client_names
        assert (found.train.x == expected.train.x).all()
        assert (found.test.y == expected.test.y).all()

    def test_pandas_agrees(self):
        pandas = pytest.importorskip("pandas")
        table = patients()
        frame = pandas.DataFrame(table)
        frame["sex"] = frame["sex"].astype("category")
        frame["pressure"] = frame["pressure"].astype("Int64")
        found, expected = (FederatedData.from_table(each, **HOW) for each in (frame, table))
        assert found.feature_names == expected.feature_names
        assert (found.train.x == expected.train.x).all()

    def test_saved_to_disk_and_named_by_an_experiment(self, datasets, tmp_path):
        datasets.Dataset.from_dict(patients()).save_to_disk(str(tmp_path / "saved"))
        experiment = Experiment(dataset={"name": f"hf:{tmp_path}/saved", **HOW}, model="linear")
        experiment, data, _ = prepare(experiment)
        assert data.client_names == ("Bern", "Genf", "Ulm")
        assert (experiment.clients, experiment.partition.kind) == (3, "column")

    def test_a_folder_that_holds_none_is_told(self, datasets, tmp_path):
        with pytest.raises(InputError, match=r"was not found as a folder"):
            FederatedData.from_settings(DatasetSettings(name=f"hf:{tmp_path}", target="y"))

    def test_splits_of_a_dict(self, datasets):
        splits = {"train": 60, "test": 30, "validation": 20, "unsupervised": 10}
        made = {name: datasets.Dataset.from_dict(patients(rows, rows, 0)) for name, rows in splits.items()}
        data = FederatedData.from_huggingface(datasets.DatasetDict(made), **HOW)
        assert (len(data.train), len(data.test), len(data.validation or ())) == (60, 30, 20)
        assert data.clients_have_tests
        del made["train"]
        with pytest.raises(InputError, match=r"dataset must have a split 'train'; it has one of test"):
            FederatedData.from_huggingface(datasets.DatasetDict(made), **HOW)

    def test_columns_are_checked(self, datasets):
        table = datasets.Dataset.from_dict(patients(missing=0))
        with pytest.raises(InputError, match=r"dataset.target: outcomes has no column|has no column 'outcomes'"):
            FederatedData.from_huggingface(table, target="outcomes")
        with pytest.raises(InputError, match=r"dataset.features: the data set has no column 'agee'"):
            FederatedData.from_huggingface(table, target="outcome", features="agee")


@pytest.mark.extras
class TestArrays:
    def images(self, datasets, sizes=((8, 6),) * 30):
        rng = np.random.default_rng(0)
        pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
        count = len(pictures)
        features = {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["zebra", "ape", "cat"]),
            "who": datasets.Value("int64"),
        }
        held = {"image": pictures, "label": [i % 2 for i in range(count)], "who": [i % 4 for i in range(count)]}
        return datasets.Dataset.from_dict(held, features=datasets.Features(features))

    def test_images_with_class_labels(self, datasets):
        data = FederatedData.from_huggingface(self.images(datasets), target="label", client="who")
        assert data.shape == (3, 6, 8)
        assert data.class_names == ("zebra", "ape", "cat")
        assert data.classes == 3
        assert data.client_names == ("0", "1", "2", "3")
        assert data.train.x.mean((0, 2, 3)).abs().max() < 1e-4
        grey = FederatedData.from_huggingface(self.images(datasets), target="label", client="who", colour="L", resize=5)
        assert grey.shape == (1, 5, 5)
        with pytest.raises(InputError, match=r"dataset.resize must be set"):
            FederatedData.from_huggingface(self.images(datasets, [(8, 6), (6, 8)] * 10), target="label", client="who")

    def test_token_ids(self, datasets):
        rows = datasets.Dataset.from_dict({"ids": [[1, 2, 9]] * 20, "label": [0, 1] * 10})
        data = FederatedData.from_huggingface(rows, target="label", vocabulary="auto", clients=2)
        assert (data.train.x.is_floating_point(), data.vocabulary) == (False, 10)
        numbers = FederatedData.from_huggingface(rows, target="label", clients=2)
        assert numbers.train.x.is_floating_point()

    def test_lists_of_different_lengths_are_told(self, datasets):
        rows = datasets.Dataset.from_dict({"ids": [[1, 2], [1]] * 10, "label": [0, 1] * 10})
        with pytest.raises(InputError, match=r"the lists of column 'ids' must all have one length"):
            FederatedData.from_huggingface(rows, target="label", vocabulary="auto", clients=2)

    def test_arrays_beside_other_columns_are_told(self, datasets):
        rows = datasets.Dataset.from_dict({"ids": [[1, 2]] * 20, "age": [3] * 20, "label": [0, 1] * 10})
        with pytest.raises(
            InputError, match=r"dataset.features must be a single column where one holds arrays or images"
        ):
            FederatedData.from_huggingface(rows, target="label")


@pytest.mark.extras
class TestPartitions:
    @pytest.fixture
    def flwr(self):
        return pytest.importorskip("flwr_datasets")

    @pytest.fixture
    def stored(self, datasets, tmp_path, monkeypatch):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        (tmp_path / "stored").mkdir()
        for split, rows in {"train": 90, "test": 30}.items():
            datasets.Dataset.from_dict(patients(rows, rows, 0)).to_parquet(
                str(tmp_path / "stored" / f"{split}.parquet")
            )
        return str(tmp_path / "stored")

    def test_a_federated_dataset(self, flwr, stored):
        from flwr_datasets.partitioner import NaturalIdPartitioner

        fds = flwr.FederatedDataset(
            dataset=stored, partitioners={"train": NaturalIdPartitioner(partition_by="hospital")}
        )
        test = fds.load_split("test")
        data = FederatedData.from_partitions(fds, target="outcome", ignore="hospital", test=test)
        assert data.client_names is not None
        assert sorted(data.client_names) == ["Bern", "Genf", "Ulm"]
        assert data.sizes.tolist() == [patients(90, 90, 0)["hospital"].count(name) for name in data.client_names]
        assert len(data.test) == 30
        with pytest.raises(InputError, match=r"split must be one that is partitioned, train; got 'test'"):
            FederatedData.from_partitions(fds, target="outcome", split="test")

    def test_a_partitioner_and_a_list(self, datasets, flwr):
        from flwr_datasets.partitioner import IidPartitioner

        partitioner = IidPartitioner(num_partitions=4)
        partitioner.dataset = datasets.Dataset.from_dict(patients(80, missing=0))
        parts = [partitioner.load_partition(number) for number in range(4)]
        how = {"target": "outcome", "ignore": "hospital"}
        one, other = (FederatedData.from_partitions(given, **how) for given in (partitioner, parts))
        assert (one.client_names, one.sizes.tolist()) == (("0", "1", "2", "3"), [16] * 4)
        assert (one.train.x == other.train.x).all()


def test_only_names_of_folders_are_looked_for_on_disk(tmp_path: Path, monkeypatch):
    """A folder is loaded from disk, another name from the hub; neither is asked for here."""
    asked = []

    class Stub:
        load_from_disk = staticmethod(lambda name: asked.append(("disk", name)))
        load_dataset = staticmethod(lambda name: asked.append(("hub", name)))

    monkeypatch.setitem(sys.modules, "datasets", Stub)
    hf.load(str(tmp_path))
    hf.load("user/name")
    assert asked == [("disk", str(tmp_path)), ("hub", "user/name")]

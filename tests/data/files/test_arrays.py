"""NumPy files."""

import numpy as np
import pytest

from fedkeel.data.federated import FederatedData
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError


@pytest.fixture
def archive(tmp_path):
    rng = np.random.default_rng(0)
    held = {"x": rng.normal(5, 3, (40, 4)), "y": rng.integers(0, 3, 40)}

    def save(**more):
        path = tmp_path / "a.npz"
        np.savez(path, **{**held, **more})
        return str(path)

    save.held = held
    return save


def load(name: str, **how) -> FederatedData:
    rest = {key: how.pop(key) for key in ("partition", "clients", "seed") if key in how}
    return FederatedData.from_settings(DatasetSettings(name=name, **how), **rest)


def test_an_archive_is_dealt_out_and_scaled(archive):
    data = load(archive(), clients=4)
    assert (len(data), data.name, data.feature_names) == (4, "a", ("x0", "x1", "x2", "x3"))
    assert data.train.x.mean(0).abs().max() < 1e-6
    assert data.train.x.std(0, correction=0).numpy() == pytest.approx(np.ones(4), rel=1e-5)
    assert data.clients_have_tests


def test_clients_and_test_sets_of_its_own(archive):
    held = archive.held
    who = np.array(["b", "a"] * 20)
    path = archive(
        client=who, x_test=held["x"][:6] + 1, y_test=held["y"][:6], client_test=np.array(["a", "b", "b"] * 2)
    )
    data = load(path, normalise="none")
    assert data.client_names == ("a", "b")
    assert data.sizes.tolist() == [20, 20]
    assert data.test_rows is not None
    assert data.test_rows.sizes.tolist() == [2, 4]
    assert data.test.x.numpy()[data.test_rows[0]] == pytest.approx(held["x"][[0, 3]] + 1, rel=1e-6)
    common = load(archive(client=who, x_test=held["x"][:6], y_test=held["y"][:6]))
    assert not common.clients_have_tests
    with pytest.raises(InputError, match=r"dataset.test=0.3 is given, but the data has such rows of its own"):
        load(path, test=0.3)


def test_integers_are_features_unless_a_vocabulary_is_given(archive):
    ids = np.arange(160).reshape(40, 4) % 7
    plain = load(archive(x=ids), clients=2, normalise="none")
    assert plain.train.x.is_floating_point()
    assert plain.vocabulary is None
    tokens = load(archive(x=ids), clients=2, vocabulary="auto")
    assert (tokens.train.x.is_floating_point(), tokens.vocabulary) == (False, 7)
    assert load(archive(x=ids), clients=2, vocabulary=100).vocabulary == 100


def test_images_are_scaled_per_channel(archive):
    x = np.random.default_rng(1).integers(0, 256, (40, 2, 5, 5), dtype=np.uint8)
    x[:, 1] //= 4
    data = load(archive(x=x), clients=3)
    assert data.train.x.mean((0, 2, 3)).abs().max() < 1e-5
    assert data.train.x.std((0, 2, 3), correction=0).numpy() == pytest.approx([1, 1], rel=1e-4)
    unit = load(archive(x=x), clients=3, normalise="unit")
    assert unit.train.x.min() >= 0
    assert 0.9 < unit.train.x.max() <= 1


def test_series_are_scaled_by_one_number(archive):
    data = load(archive(x=np.random.default_rng(1).normal(7, 2, (40, 6, 3))), clients=3)
    assert data.train.x.shape[1:] == (6, 3)
    assert abs(float(data.train.x.mean())) < 1e-5
    assert float(data.train.x.std(correction=0)) == pytest.approx(1, rel=1e-4)


def test_scales_can_be_each_clients_own(archive):
    x = np.random.default_rng(1).normal(0, 1, (40, 1, 4, 4))
    who = np.arange(40) % 2
    x[who == 1] = 100 + 9 * x[who == 1]
    data = load(archive(x=x, client=who), statistics="client")
    for client in range(2):
        own = data.train.x[data.assignment[client]]
        assert abs(float(own.mean())) < 1e-4
        assert float(own.std(correction=0)) == pytest.approx(1, rel=1e-3)


def test_missing_numbers_have_a_rule_too(archive):
    x = archive.held["x"].copy()
    x[3, 1] = np.nan
    with pytest.raises(InputError, match=r"values are missing in 1 column of 40 rows: x1 \(1\)"):
        load(archive(x=x), clients=2)
    assert sum(map(len, (lambda d: (d.train, d.test))(load(archive(x=x), clients=2, missing="drop")))) == 39
    assert np.isfinite(load(archive(x=x), clients=2, missing="median").train.x.numpy()).all()


def test_names_of_classes_and_real_targets(archive):
    named = load(archive(y=np.array(["cat", "ape"] * 20)), clients=2)
    assert named.class_names == ("ape", "cat")
    assert load(archive(y=np.linspace(0, 1, 40)), clients=2).train.y.is_floating_point()


def test_pairs_of_npy_files(tmp_path, archive):
    for name, array in {**archive.held, "who": np.arange(40) % 3}.items():
        np.save(tmp_path / f"{name}.npy", array)
    how = {"target": str(tmp_path / "y.npy"), "normalise": "none"}
    assert len(load(str(tmp_path / "x.npy"), **how, clients=4)) == 4
    data = load(str(tmp_path / "x.npy"), **how, client=str(tmp_path / "who.npy"))
    assert data.client_names == ("0", "1", "2")
    with pytest.raises(InputError, match=r"dataset.target must name the .npy file of the targets"):
        load(str(tmp_path / "x.npy"))
    with pytest.raises(InputError, match=r"dataset.target: there is no file"):
        load(str(tmp_path / "x.npy"), target=str(tmp_path / "z.npy"))


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"x": np.zeros(3)}, "has no array 'y'; it has x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "x has 3 samples, but y has 4"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 2))}, "has no array 'y_test'"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3), "x_test": np.zeros((1, 3)), "y_test": np.zeros(1)},
            "training and test arrays have different shapes",
        ),
        ({"x": np.array(["a"] * 3), "y": np.zeros(3)}, "samples must be numbers"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, complex)}, "y must hold numbers or names of classes"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "client": np.zeros(2)}, "client must hold one name per sample"),
    ],
)
def test_wrong_archives_are_told(tmp_path, arrays, told):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError) as caught:
        load(str(tmp_path / "a.npz"), clients=1)
    assert told in str(caught.value)


def test_what_is_no_archive_is_told(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"is not an .npz archive of numbers"):
        load(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", x=np.array([object()]), y=np.zeros(1))
    with pytest.raises(InputError, match=r"is not an .npz archive of numbers"):
        load(str(tmp_path / "b.npz"))

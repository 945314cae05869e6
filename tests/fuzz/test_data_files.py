"""Damaged files of data sets: a checksum tells most of them, and readers refuse the rest."""

import gzip
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedkeel import InputError
from fedkeel.data import datasets
from fedkeel.data.cache import cache_folder
from fedkeel.data.readers import cifar, idx, imdb, tiny_imagenet
from tests.helpers.damage import damaged

often = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def _idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (80, 10, 200)).save(buffer, "JPEG")
    return buffer.getvalue()


PIXELS = np.zeros((2, 3072), np.uint8)
REVIEWS = [{"t": "a film", "s": s} for s in (0, 0, 1, 1)]
WHOLE: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "images": (_idx(np.zeros((2, 3, 3), np.uint8)), idx.read_images),
    "labels": (_idx(np.arange(4, dtype=np.uint8)), lambda path: idx.read_labels(path, 10)),
    "labels.gz": (gzip.compress(_idx(np.arange(4, dtype=np.uint8))), lambda path: idx.read_labels(path, 10)),
    "records": (bytes(3073), lambda path: cifar.read_binary(path, 10, 1)),
    "batch": (
        pickle.dumps({"data": PIXELS, "labels": [0, 1]}, protocol=4),
        lambda path: cifar.read_pickle(path, 10, "labels"),
    ),
    "reviews": (json.dumps(REVIEWS).encode(), imdb.read_json),
    "image": (_jpeg(), tiny_imagenet._read_image),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def told(path: Path, read: Callable[[Path], object]) -> str:
    try:
        read(path)
    except InputError as error:
        said = str(error)
    else:
        return ""
    assert path.name in said
    assert len(said) < 2000
    return said


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_whole_files_are_read(tmp_path: Path, name: str) -> None:
    content, read = WHOLE[name]
    (tmp_path / name).write_bytes(content)
    assert told(tmp_path / name, read) == ""


@often
@given(st.data())
def test_damaged_files(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(WHOLE)))
    content, read = WHOLE[name]
    (folder / name).write_bytes(data.draw(damaged(content)))
    told(folder / name, read)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("images", b"", "must begin with the IDX magic"),
        ("images", b"\0\0\x08\3" + b"\xff" * 12, "bytes for shape [4294967295, 4294967295, 4294967295]"),
        ("labels.gz", b"\x1f\x8b", "damaged"),
        ("batch", pickle.dumps({"data": PIXELS, "labels": [0, [1]]}), "must hold a list of labels"),
        ("batch", pickle.dumps({"data": PIXELS, "labels": ["a", "b"]}), "must hold 2 integers as labels"),
        ("batch", pickle.dumps({"data": PIXELS}), "must hold an entry 'labels'"),
        ("batch", pickle.dumps({b"\xff" * 500: 1}), "must hold an entry 'data'"),
        ("batch", pickle.dumps(os.system), "which is not allowed"),
        ("batch", b"\x80\x02]q\x00h\x00a.", "must hold a pickled dict"),
        ("reviews", b"[" * 100_000, "must hold a JSON list"),
        ("reviews", b"[3]", "must hold a JSON list"),
        ("reviews", b'{"t": 1}', "must hold a JSON list"),
        ("reviews", b'[{"t": 1, "s": 1}]', "must hold a text as every t"),
        ("reviews", b"\xff", "must hold UTF-8"),
        ("image", b"", "must be a JPEG image"),
        ("image", b"\x89PNG\r\n\x1a\n", "must be a JPEG image"),
    ],
)
def test_odd_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in told(tmp_path / name, WHOLE[name][1])


def test_annotations_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "train" / "n01").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    for content, said in (
        (b"\xff\n", "must hold UTF-8 text"),
        (b"x" * 10_000, "in line 1"),
        (b"a\0b\tn01\n", "JPEG"),
    ):
        (tmp_path / "val" / "val_annotations.txt").write_bytes(content)
        with pytest.raises(InputError, match=said) as caught:
            tiny_imagenet.read_validation(tmp_path, 1)
        assert len(str(caught.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:0], lambda c: c[:50] + bytes([c[50] ^ 1]) + c[51:]])
@pytest.mark.parametrize("number", range(4))
def test_a_damaged_cache_is_told_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], number: int
) -> None:
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    mini = sorted((Path(datasets.__file__).parents[1] / "embedded").glob("*ubyte.gz"))
    for path in mini:
        (folder / path.name).write_bytes(path.read_bytes())
    damaged_file = folder / mini[number].name
    damaged_file.write_bytes(damage(damaged_file.read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for use in (datasets.get, datasets.load):
        with pytest.raises(InputError, match=r"ubyte\.gz.*; delete this file, then get the data set again"):
            use("fashion-mnist")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_places_that_cannot_be_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setattr("fedkeel.data.cache._fetch_from_first", lambda *_: pytest.fail("it was fetched"))
    for place in ("file", "file/below", "loop", "x" * 300, "x/" * 3000):
        monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / place))
        with pytest.raises(InputError, match=r"cannot hold data sets .*set FEDKEEL_DATA"):
            datasets.load("mnist")
    monkeypatch.setenv("FEDKEEL_DATA", "~nobody-of-this-name/x")
    with pytest.raises(InputError, match="FEDKEEL_DATA must be a folder; got '~nobody-of-this-name/x'"):
        cache_folder()

"""Fake clients on PATH stand in for the real ones: no test reaches the network."""

import io
import json
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from fedkeel.data.sources.cifar10_png import encode_batches
from fedkeel.data.sources.commands import run
from fedkeel.data.sources.packages import AptDownload, Installed, NpmPack, copy_from
from fedkeel.data.sources.source import Place, SourceError

COPY = copy_from("data", "a", "b")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Makes an executable of that name with that shell script, the only one on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.fixture
def place(tmp_path):
    work, into = tmp_path / "work", tmp_path / "into"
    work.mkdir()
    into.mkdir()
    return Place(tmp_path / "toy", work, into)


def write_tarball(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_npm_pack_fetches_the_exact_version_and_collects(tmp_path, client, place):
    tarball = write_tarball(tmp_path / "t", {"package/data/a": b"A", "package/data/b": b"B", "package/x": b"X"})
    client("npm", f'[ "$1 $2" = "pack toy@1.2.3" ] && cp {tarball} toy-1.2.3.tgz')
    source = NpmPack("toy@1.2.3", COPY)
    source.fetch(place)
    assert contents(place.into) == {"a": b"A", "b": b"B"}
    assert str(source) == "npm pack toy@1.2.3"


def test_apt_download_unpacks_without_installing(tmp_path, client, place):
    package = write_tarball(tmp_path / "t", {"data/a": b"A", "data/b": b"B"})
    client("apt-get", f'[ "$1 $2" = "download toy" ] && cp {package} toy_1_all.deb')
    client("dpkg-deb", '[ "$1" = -x ] && mkdir "$3" && tar -xzf "$2" -C "$3"')
    AptDownload("toy", COPY).fetch(place)
    assert contents(place.into) == {"a": b"A", "b": b"B"}


def test_installed_files_are_copied(tmp_path, place):
    (tmp_path / "root" / "data").mkdir(parents=True)
    for name in "ab":
        (tmp_path / "root" / "data" / name).write_text(name)
    Installed("toy", COPY, root=tmp_path / "root").fetch(place)
    assert contents(place.into) == {"a": b"a", "b": b"b"}


def test_a_package_that_is_not_installed(tmp_path, place):
    with pytest.raises(SourceError, match="it has no file data/a"):
        Installed("toy", COPY, root=tmp_path / "root").fetch(place)


@pytest.mark.parametrize(("source", "name"), [(NpmPack("toy@1", COPY), "npm"), (AptDownload("toy", COPY), "apt-get")])
@pytest.mark.usefixtures("client")
def test_a_missing_client_is_named(place, source, name):
    with pytest.raises(SourceError, match=f"{name} is not installed"):
        source.fetch(place)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("warning: slow\\nE: Unable to locate package toy", "E: Unable to locate package toy"),
        ("npm error code E404\\nnpm error A log is elsewhere", "npm error code E404"),
        ("first\\nlast", "last"),
        ("", "no message"),
    ],
)
def test_a_failing_client_is_quoted(client, place, output, reason):
    client("npm", f"printf '{output}' >&2; exit 7")
    with pytest.raises(SourceError, match=f"npm failed with exit code 7: {reason}$"):
        NpmPack("toy@1", COPY).fetch(place)


def test_a_client_that_delivers_nothing(client, place):
    client("npm", "true")
    with pytest.raises(SourceError, match=r"the download must contain one \*\.tgz; got 0"):
        NpmPack("toy@1", COPY).fetch(place)


@pytest.mark.slow
def test_a_client_that_hangs_is_ended_with_its_children(tmp_path, client):
    client("npm", f"(sleep 1.5; touch {tmp_path}/late) & wait")
    start = time.monotonic()
    with pytest.raises(SourceError, match=r"npm did not finish within 0\.2 seconds"):
        run(["npm"], tmp_path, timeout=0.2)
    assert time.monotonic() - start < 1.4
    time.sleep(1.6)
    assert not (tmp_path / "late").exists()


def test_a_truncated_tarball_is_refused(tmp_path, client, place):
    noise = np.random.default_rng(0).bytes(5000)
    tarball = write_tarball(tmp_path / "t", {"package/data/a": noise, "package/data/b": b"B"})
    tarball.write_bytes(tarball.read_bytes()[:2000])
    client("npm", f"cp {tarball} toy.tgz")
    with pytest.raises(SourceError, match=r"toy\.tgz is damaged"):
        NpmPack("toy@1", COPY).fetch(place)


def test_a_tarball_cannot_write_outside(tmp_path, client, place):
    tarball = write_tarball(tmp_path / "t", {"../../escaped": b"!"})
    client("npm", f"cp {tarball} toy.tgz")
    with pytest.raises(SourceError, match=r"toy\.tgz is refused: it would write to '\.\./\.\./escaped'"):
        NpmPack("toy@1", COPY).fetch(place)
    assert not (tmp_path / "escaped").exists()


@pytest.fixture
def png_package(tmp_path):
    """Six batches of two images each, and their pixels as [batch, image, row, column, channel]."""
    folder = tmp_path / "package"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 2, 32, 32, 3), np.uint8)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, batch in zip(names, pixels, strict=True):
        Image.fromarray(batch.reshape(2, 1024, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(list(range(10))))
    (folder / "test_lables.json").write_text("[7, 3]")
    return folder, pixels


def test_png_batches_become_records_of_label_and_colour_planes(png_package, place):
    folder, pixels = png_package
    encode_batches(folder, place.into)
    assert len(contents(place.into)) == 6
    second = np.frombuffer(contents(place.into)["data_batch_2.bin"], np.uint8).reshape(2, 3073)
    assert second[:, 0].tolist() == [2, 3]
    assert second[1, 1 + 2 * 1024 + 5 * 32 + 9] == pixels[1, 1, 5, 9, 2]
    assert contents(place.into)["test_batch.bin"][0] == 7


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "test_lables.json",
            b"[7]",
            r"test_batch\.png must have 1 rows of 1024 RGB pixels; got an array \[2, 1024, 3\]",
        ),
        (
            "train_lables.json",
            b"[1, 2, 3]",
            r"train_lables\.json must have the labels of 5 equal batches; got an array \[3\]",
        ),
        ("train_lables.json", b"[1, 2", r"train_lables\.json must be a JSON list of labels; got"),
        ("data_batch_4.png", b"text", r"data_batch_4\.png must be a PNG image; got"),
    ],
)
def test_a_changed_png_package_is_refused(png_package, place, name, content, message):
    (png_package[0] / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        encode_batches(png_package[0], place.into)

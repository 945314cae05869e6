import gzip
import hashlib
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedkeel.data import cache
from fedkeel.data.sources.layout import File, Found, Layout, find
from fedkeel.data.sources.source import Source, SourceError
from fedkeel.errors import InputError

CONTENT = {"a": b"alpha", "b": b"beta"}
ALPHA = hashlib.sha256(b"alpha").hexdigest()
LAYOUT = Layout(
    tuple(File(name, f"sha256:{hashlib.sha256(data).hexdigest()}") for name, data in CONTENT.items()),
    read=lambda folder: pytest.fail(f"nothing here reads {folder}"),
    unpacked="toy-archive",
)
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    """The sources of this module are no network's."""
    monkeypatch.delenv("FEDKEEL_OFFLINE")


@dataclass(frozen=True)
class Delivery(Source):
    """A source that writes `content`, and notes every call in a file."""

    content: dict[str, bytes]
    calls: Path
    seconds: float = 0.0

    def __str__(self):
        return "toy delivery"

    def fetch(self, place):
        with self.calls.open("a") as file:
            file.write("x")
        for name, data in self.content.items():
            (place.into / name).write_bytes(data)
            time.sleep(self.seconds)


class Broken(Source):
    def __str__(self):
        return "broken source"

    def fetch(self, place):
        (place.into / "a").write_bytes(b"al")
        raise SourceError("the line is cut")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache" / "toy"


@pytest.fixture
def delivery(tmp_path):
    return Delivery(CONTENT, tmp_path / "calls")


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def put(folder, **content):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return find(folder, [LAYOUT])


def test_the_folder_is_the_users_choice(monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", "~/elsewhere")
    assert cache.cache_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("FEDKEEL_DATA")
    assert cache.cache_folder() == Path.home() / ".cache" / "fedkeel"


def test_a_fetched_set_is_whole_and_nothing_else_remains(root, delivery):
    found = cache.fetch(root, [LAYOUT], [delivery])
    assert found == Found(LAYOUT, root)
    assert (root / "a").read_bytes() == b"alpha"
    assert visible(root) == [".verified.json", "a", "b"]
    assert visible(root.parent) == ["toy"]


def test_what_is_there_is_not_fetched(root, delivery):
    put(root, **CONTENT)
    cache.fetch(root, [LAYOUT], [delivery])
    assert not delivery.calls.exists()


def test_the_next_source_is_tried(root, delivery):
    assert cache.fetch(root, [LAYOUT], [Broken(), delivery]).folder == root


def test_a_failed_source_leaves_nothing_and_the_error_says_what_to_put_where(root):
    with pytest.raises(InputError) as caught:
        cache.fetch(root, [LAYOUT], [Broken()])
    message = str(caught.value)
    assert "broken source (the line is cut)" in message
    assert f"or put its files into {root}, or set FEDKEEL_DATA to a folder that has them in toy/" in message
    assert "a, b (there or in toy-archive/)" in message
    assert visible(root.parent) == []


def test_without_a_source_the_error_says_so(root):
    with pytest.raises(InputError, match="toy is not in the cache, and no source provides it; set FEDKEEL_MIRROR"):
        cache.fetch(root, [LAYOUT], [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"a": b"alphA", "b": b"beta"},
            rf"a: it has the sha256 checksum .* instead of {ALPHA}",
        ),
        ({"a": b"alpha"}, "it delivered an incomplete data set"),
    ],
)
def test_a_wrong_delivery_never_appears(root, tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        cache.fetch(root, [LAYOUT], [Delivery(content, tmp_path / "calls")])
    assert visible(root.parent) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path, delivery):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: this folder cannot hold data sets.*; set FEDKEEL_DATA"):
        cache.fetch(tmp_path / "file" / "toy", [LAYOUT], [delivery])


def test_an_incomplete_folder_is_completed(root, delivery):
    put(root, a=b"alpha", notes=b"mine")
    cache.fetch(root, [LAYOUT], [delivery])
    assert visible(root) == [".verified.json", "a", "b", "notes"]
    assert visible(root.parent) == ["toy"]


def test_a_killed_fetch_leaves_no_data_set_and_the_next_one_tidies_up(root, delivery):
    slow = Delivery(CONTENT, delivery.calls, seconds=60)
    process = FORK.Process(target=cache.fetch, args=(root, [LAYOUT], [slow]))
    process.start()
    while not list(root.parent.glob(".toy.*.part/into/a")):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not root.exists()
    assert len(visible(root.parent)) == 1
    cache.fetch(root, [LAYOUT], [delivery])
    assert visible(root.parent) == ["toy"]


@pytest.mark.slow
def test_two_processes_fetch_once_and_both_succeed(root, delivery):
    slow = Delivery(CONTENT, delivery.calls, seconds=0.2)
    processes = [FORK.Process(target=cache.fetch, args=(root, [LAYOUT], [slow])) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert delivery.calls.read_text() == "x"
    cache.verify(find(root, [LAYOUT]))


def test_a_corrupt_file_is_named_with_both_checksums_and_the_remedy(root):
    found = put(root, a=b"alpha", b=b"bita")
    with pytest.raises(InputError) as caught:
        cache.verify(found)
    expected, got = (hashlib.sha256(data).hexdigest() for data in (b"beta", b"bita"))
    told = (
        f"{root / 'b'}: it has the sha256 checksum {got} instead of {expected}; delete this file, then get the data set"
    )
    assert told in str(caught.value)


def test_files_of_the_user_are_verified_at_first_use(root):
    with pytest.raises(InputError, match="it has the sha256 checksum"):
        cache.verify_if_changed(put(root, a=b"alpha", b=b"bita"))


def test_verified_files_are_not_read_again_until_they_change(root):
    found = put(root, **CONTENT)
    cache.verify_if_changed(found)
    times = (root / "b").stat().st_atime_ns, (root / "b").stat().st_mtime_ns
    (root / "b").write_bytes(b"bita")
    os.utime(root / "b", ns=times)
    cache.verify_if_changed(found)
    with pytest.raises(InputError, match="it has the sha256 checksum"):
        cache.verify(found)
    os.utime(root / "b", ns=(times[0], times[1] + 1))
    with pytest.raises(InputError, match="it has the sha256 checksum"):
        cache.verify_if_changed(found)


def test_a_read_only_cache_is_verified_and_not_written(root, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    found = put(root, **CONTENT)
    monkeypatch.setattr(cache, "write_atomically", refuse)
    cache.verify(found)
    assert visible(root) == ["a", "b"]


def test_a_gzipped_file_counts_as_its_content(root):
    put(root, **{"a": b"alpha", "b.gz": gzip.compress(b"beta")})
    cache.verify(find(root, [LAYOUT]))


def test_an_unpacked_archive_is_found_inside_the_folder(root):
    put(root / "toy-archive", **CONTENT)
    found = find(root, [LAYOUT])
    assert found is not None
    assert found.folder == root / "toy-archive"


def test_write_atomically_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    cache.write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        cache.write_atomically(path, b"new")
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"old"}

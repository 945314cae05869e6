"""Downloads from servers on loopback: no test reaches the network."""

import errno
import hashlib
import io
import os
import shutil
import socket
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedkeel.data import cache
from fedkeel.data.sources import download, progress
from fedkeel.data.sources.download import Published
from fedkeel.data.sources.layout import File, Layout
from fedkeel.data.sources.mirrors import Mirrored
from fedkeel.data.sources.packages import Installed, copy_from
from fedkeel.errors import InputError, MishapError
from tests.helpers.disk import largest_file
from tests.helpers.loopback import closed_port, cut_after, error, moved, other, serving, whole, without_ranges

CONTENT = {"a.gz": b"alpha" * 200, "b.gz": b"beta"}
NAMES = tuple(File(name) for name in CONTENT)
LAYOUT = Layout(NAMES, read=lambda folder: pytest.fail(f"nothing here reads {folder}"), unpacked="toy-archive")


def published(name, content):
    return Published(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


FILES = tuple(published(name, content) for name, content in CONTENT.items())


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    """Downloads are allowed, without a proxy and without a pause; a name is never looked up."""
    monkeypatch.delenv("FEDKEEL_OFFLINE")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0)
    real = socket.getaddrinfo

    def numbers_only(host, *rest, **more):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", numbers_only)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache" / "toy"


@pytest.fixture
def server():
    with serving() as one:
        one.files = {f"/pub/{name}": content for name, content in CONTENT.items()}
        yield one


@pytest.fixture
def second():
    with serving() as one:
        one.files = {f"/other/{name}": content for name, content in CONTENT.items()}
        yield one


def fetch(root, *addresses, files=FILES, layout=LAYOUT):
    return cache.fetch(root, [layout], [Mirrored(layout, files, addresses)])


def refusal(root, *addresses, **more):
    with pytest.raises(InputError) as caught:
        fetch(root, *addresses, **more)
    assert not root.exists()
    return str(caught.value)


def held(root):
    return {path.name: path.read_bytes() for path in root.iterdir() if not path.name.startswith(".")}


def left(root):
    return sorted(path.name for path in root.parent.rglob("*") if path.name != ".toy.lock")


def test_files_are_downloaded_once_each_and_nothing_else_remains(root, server):
    found = fetch(root, f"{server.url}pub/")
    assert found.folder == root
    assert held(root) == CONTENT
    assert server.requests == [("/pub/a.gz", None), ("/pub/b.gz", None)]
    assert left(root) == [".verified.json", "a.gz", "b.gz", "toy"]


def test_progress_is_reported_in_bytes(root, server):
    heard = []
    with progress.reported_to(lambda *each: heard.append(each)):
        fetch(root, f"{server.url}pub/")
    assert heard[0] == ("downloading a.gz", 0, 1000)
    assert heard[-1] == ("downloading b.gz", 4, 4)
    assert [done for what, done, _ in heard if what == "downloading a.gz"][-1] == 1000
    progress.tell("nobody listens any more", 1, None)
    assert len(heard) == len({*heard})


def test_a_dead_mirror_is_passed_over_and_not_asked_for_the_second_file(root, second, monkeypatch):
    dead, tried = closed_port(), []
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, *a, **k: (tried.append(to[1]), real(to, *a, **k))[1])
    fetch(root, f"http://127.0.0.1:{dead}/", f"{second.url}other/")
    assert held(root) == CONTENT
    assert tried.count(dead) == 1


def test_a_mirror_with_another_file_is_passed_over(root, server, second):
    server.files["/pub/a.gz"] = b"alphA" * 200
    fetch(root, f"{server.url}pub/", f"{second.url}other/")
    assert held(root) == CONTENT
    assert server.paths == ["/pub/a.gz", "/pub/b.gz"]
    assert second.paths == ["/other/a.gz"]


def test_a_wrong_checksum_everywhere_is_told_and_leaves_nothing(root, server):
    wrong = b"alphA" * 200
    server.files["/pub/a.gz"] = wrong
    said = refusal(root, f"{server.url}pub/")
    host = server.url.removeprefix("http://").rstrip("/")
    expected, found = (hashlib.sha256(data).hexdigest() for data in (CONTENT["a.gz"], wrong))
    assert f"{host} delivered a file that has the sha256 checksum {found} instead of {expected}" in said
    assert server.paths == ["/pub/a.gz"], "the same bytes are not downloaded again"
    assert left(root) == []


def test_a_transfer_that_breaks_off_is_resumed(root, server):
    server.answers["/pub/a.gz"] = [cut_after(300), whole]
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT
    assert server.requests[:2] == [("/pub/a.gz", None), ("/pub/a.gz", "bytes=300-")]


def test_another_mirror_resumes_what_the_first_began(root, server, second):
    server.answers["/pub/a.gz"] = [cut_after(300), error(404)]
    fetch(root, f"{server.url}pub/", f"{second.url}other/")
    assert held(root) == CONTENT
    assert second.requests == [("/other/a.gz", "bytes=300-")]


def test_a_server_that_cannot_resume_starts_again(root, server):
    server.answers["/pub/a.gz"] = [cut_after(300), without_ranges]
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT


def test_a_server_that_resumes_elsewhere_is_asked_for_everything(root, server):
    server.answers["/pub/a.gz"] = [
        cut_after(300),
        lambda handler, _: handler.begin(206, 999, Content_Range="bytes 1-999/1000"),
    ]
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT
    assert [asked for path, asked in server.requests if path == "/pub/a.gz"] == [None, "bytes=300-", None]


@pytest.mark.parametrize("part", [b"wrong beginning", b"x" * 1000, b"x" * 2000])
def test_a_part_of_something_else_is_thrown_away(root, server, part):
    (root.parent / ".toy.download").mkdir(parents=True)
    (root.parent / ".toy.download" / "a.gz.part").write_bytes(part)
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT


def test_attempts_are_bounded(root, server):
    server.answers["/pub/a.gz"] = [cut_after(0)] * 100
    said = refusal(root, f"{server.url}pub/")
    assert "broke off after 0 of 1,000 bytes" in said
    assert len(server.requests) == download.ATTEMPTS


@pytest.mark.parametrize("status", [429, 503])
def test_a_passing_error_is_tried_again(root, server, status):
    server.answers["/pub/b.gz"] = [error(status), whole]
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT


def test_an_error_that_stays_is_told_for_all_mirrors_at_once(root, server, second):
    said = refusal(root, f"{server.url}gone/", f"{second.url}gone/")
    one, two = (each.url.removeprefix("http://").rstrip("/") for each in (server, second))
    assert f"download of a.gz and 1 more ({one} and {two} answered 404 Not Found)" in said
    assert server.paths == ["/gone/a.gz"]


def test_an_offline_machine_gets_one_sentence_with_the_ways_out(root):
    port = closed_port()
    said = refusal(root, "http://data.example/toy/", "http://www.example/", f"http://127.0.0.1:{port}/")
    assert said == (
        "toy is not in the cache, and no source delivered it: download of a.gz and 1 more "
        "(data.example and www.example could not be reached (Name or service not known); "
        f"127.0.0.1:{port} could not be reached (Connection refused)); "
        f"set FEDKEEL_MIRROR to the address of a mirror that you can reach, or put its files into {root}, "
        "or set FEDKEEL_DATA to a folder that has them in toy/ "
        "(the files, gzipped or not: a.gz, b.gz (there or in toy-archive/))"
    )
    assert left(root) == []


def test_a_silent_mirror_is_given_up(root, server, second, monkeypatch):
    monkeypatch.setattr("fedkeel.data.sources.opener.READ_SECONDS", 0.05)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    done = []

    def silent(handler, _):
        handler.connection.settimeout(5)
        done.append(handler.connection.recv(1))  # until the client hangs up

    server.answers["/pub/a.gz"] = [silent]
    fetch(root, f"{server.url}pub/", f"{second.url}other/")
    assert held(root) == CONTENT


def test_offline_by_the_variable_nothing_is_asked(root, server, monkeypatch):
    monkeypatch.setenv("FEDKEEL_OFFLINE", "1")
    said = refusal(root, f"{server.url}pub/")
    assert said.startswith(
        "toy is not in the cache, and nothing is downloaded while FEDKEEL_OFFLINE is set; "
        f"unset FEDKEEL_OFFLINE, or put its files into {root}, or set FEDKEEL_DATA"
    )
    assert server.requests == []


@pytest.mark.parametrize("value", ["", "0", "no", "False"])
def test_the_variable_can_be_off(root, server, monkeypatch, value):
    monkeypatch.setenv("FEDKEEL_OFFLINE", value)
    fetch(root, f"{server.url}pub/")


def test_offline_an_installed_package_still_delivers(root, server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_OFFLINE", "1")
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    installed = Installed("toy", copy_from(".", *CONTENT), root=tmp_path)
    cache.fetch(root, [LAYOUT], [Mirrored(LAYOUT, FILES, (server.url,)), installed])
    assert held(root) == CONTENT
    assert server.requests == []


def test_the_users_mirror_comes_first(root, server, second, monkeypatch):
    second.files = {"/my/toy/a.gz": CONTENT["a.gz"]}
    monkeypatch.setenv("FEDKEEL_MIRROR", f"{second.url}my")
    fetch(root, f"{server.url}pub/")
    assert second.paths == ["/my/toy/a.gz", "/my/toy/b.gz"]
    assert server.paths == ["/pub/b.gz"], "what it does not have comes from the others"


@pytest.mark.parametrize(
    "given", ["127.0.0.1:8000", "ftp://x/", "http://", "http://h:x/", "http://a b/", "http://h/?q"]
)
def test_an_impossible_mirror_is_refused_before_anything_is_tried(root, server, monkeypatch, given):
    monkeypatch.setenv("FEDKEEL_MIRROR", given)
    said = refusal(root, f"{server.url}pub/")
    assert said == f"FEDKEEL_MIRROR must be an address such as http://127.0.0.1:8000/; got {given!r}"
    assert server.requests == []


def test_a_mirror_with_a_password_is_refused_without_repeating_it(root, monkeypatch):
    monkeypatch.setenv("FEDKEEL_MIRROR", "http://me:secret@127.0.0.1/")
    said = refusal(root)
    assert said.startswith("FEDKEEL_MIRROR must not contain a user name or a password;")
    assert "secret" not in said


def test_redirects_are_followed(root, server, second):
    for name in CONTENT:
        server.answers[f"/pub/{name}"] = [moved(f"{second.url}other/{name}")]
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT


def test_a_redirect_to_a_local_file_is_not_followed(root, server, tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT["a.gz"])
    server.answers["/pub/a.gz"] = [moved(f"file://{tmp_path}/secret")]
    assert "answered 302" in refusal(root, f"{server.url}pub/")


def test_proxies_are_those_of_the_environment(root, server, monkeypatch):
    server.files = {f"http://data.example/{name}": content for name, content in CONTENT.items()}
    monkeypatch.setenv("http_proxy", server.url)
    fetch(root, "http://data.example/")
    assert held(root) == CONTENT


def test_a_dead_proxy_is_named(root, monkeypatch):
    port = closed_port()
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{port}")
    said = refusal(root, "http://data.example/")
    assert f"data.example could not be reached through the proxy 127.0.0.1:{port} (Connection refused)" in said
    assert "secret" not in said


def test_a_login_page_is_recognised_before_it_is_read(root, server):
    server.answers["/pub/a.gz"] = [other(b"<html>please log in</html>", "text/html; charset=utf-8")]
    said = refusal(root, f"{server.url}pub/")
    assert "had 26 bytes instead of 1,000 (it is a web page, perhaps the login page of a network)" in said


def test_a_file_without_length_may_not_be_longer(root, server):
    server.answers["/pub/a.gz"] = [other(b"x" * 1001, length=False)]
    assert "sent more than the 1,000 bytes of the file" in refusal(root, f"{server.url}pub/")


def test_an_interrupted_download_leaves_no_data_set_and_goes_on_next_time(root, server):
    def stop(what, done, _):
        if what == "downloading b.gz" and done:
            raise KeyboardInterrupt

    server.answers["/pub/b.gz"] = [cut_after(2)]
    with progress.reported_to(stop), pytest.raises(KeyboardInterrupt):
        fetch(root, f"{server.url}pub/")
    assert not root.exists()
    assert left(root) == [".toy.download", "a.gz", "b.gz.part"]
    server.requests.clear()
    fetch(root, f"{server.url}pub/")
    assert held(root) == CONTENT
    assert server.requests == [("/pub/b.gz", "bytes=2-")], "the first file is complete, the second begun"
    assert left(root) == [".verified.json", "a.gz", "b.gz", "toy"]


def test_a_full_disk_is_told_before_anything_is_asked(root, server, monkeypatch):
    usage = shutil._ntuple_diskusage(10, 10, 999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(MishapError) as caught:
        fetch(root, f"{server.url}pub/")
    assert str(caught.value) == (
        f"{root.parent}: the disk is full (a.gz needs 0.0 MB, and 0.0 MB are free); "
        "free some space, or set FEDKEEL_DATA to a folder on another disk"
    )
    assert server.requests == []


def test_a_disk_that_fills_up_is_no_mirrors_fault(root, server, second):
    with largest_file(500), pytest.raises(MishapError, match=r"the disk is full \(File too large\); free some space"):
        fetch(root, f"{server.url}pub/", f"{second.url}other/")
    assert second.requests == []
    assert not root.exists()


def packed(name, members):
    """An archive in memory; a member that is no bytes is a link to that path."""
    out = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(out, "w") as archive:
            for path, content in members.items():
                archive.writestr(path, content)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, content in members.items():
            info = tarfile.TarInfo(path)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def fetch_archive(root, server, name, content):
    server.files[f"/{name}"] = content
    return fetch(root, server.url, files=(published(name, content),))


INSIDE = {f"toy-archive/{name}": content for name, content in CONTENT.items()}


@pytest.mark.parametrize("name", ["toy.zip", "toy.tar.gz"])
def test_archives_give_what_the_data_set_needs_and_no_more(root, server, name):
    members = INSIDE | {"toy-archive/readme": b"R", "elsewhere/a.gz": b"E"}
    fetch_archive(root, server, name, packed(name, members))
    assert held(root) == CONTENT


def test_folders_are_unpacked_whole_and_join_what_is_there(root, server):
    layout = Layout((File("train"), File("val/list.txt")), LAYOUT.read, "toy")
    members = {"toy/train/x/1": b"1", "toy/train/x/2": b"2", "toy/val/list.txt": b"L", "toy/test/9": b"9"}
    content = packed("toy.zip", members)
    server.files["/toy.zip"] = content
    (root / "train" / "x").mkdir(parents=True)
    (root / "train" / "x" / "0").write_bytes(b"mine")
    fetch(root, server.url, files=(published("toy.zip", content),), layout=layout)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {".verified.json", "train/x/0", "train/x/1", "train/x/2", "val/list.txt"}


@pytest.mark.parametrize("name", ["toy.zip", "toy.tar.gz"])
@pytest.mark.parametrize("path", ["../../escaped", "/tmp/escaped", "toy-archive/a.gz/../../../../escaped"])
def test_an_archive_cannot_write_outside(root, server, tmp_path, name, path):
    with pytest.raises(InputError, match=rf"{name} is refused: it would write to '.*escaped', outside of its folder"):
        fetch_archive(root, server, name, packed(name, {path: b"!"} | INSIDE))
    assert not root.exists()
    assert not [*tmp_path.rglob("escaped")]
    assert not Path("/tmp/escaped").exists()


def test_an_archive_cannot_write_through_a_link(root, server, tmp_path):
    content = packed("toy.tar.gz", {"toy-archive": str(tmp_path)} | INSIDE)
    fetch_archive(root, server, "toy.tar.gz", content)
    assert held(root) == CONTENT
    assert not (tmp_path / "a.gz").exists()


@pytest.mark.parametrize("name", ["toy.zip", "toy.tar.gz"])
def test_a_damaged_archive_is_told(root, server, name):
    noise = {path: np.random.default_rng(0).bytes(3000) for path in INSIDE}
    with pytest.raises(InputError, match=rf"download of {name} \({name} is damaged"):
        fetch_archive(root, server, name, packed(name, noise)[:2000])


def test_an_archive_without_the_files_is_incomplete(root, server):
    with pytest.raises(InputError, match="it delivered an incomplete data set"):
        fetch_archive(root, server, "toy.zip", packed("toy.zip", {"toy-archive/a.gz": b"A"}))


def test_an_archive_put_there_by_hand_is_unpacked_even_offline(root, server, monkeypatch):
    monkeypatch.setenv("FEDKEEL_OFFLINE", "1")
    content = packed("toy.zip", INSIDE)
    root.mkdir(parents=True)
    (root / "toy.zip").write_bytes(content)
    fetch(root, server.url, files=(published("toy.zip", content),))
    assert held(root) == CONTENT | {"toy.zip": content}


def test_a_wrong_archive_put_there_by_hand_is_named(root, server, monkeypatch):
    monkeypatch.setenv("FEDKEEL_OFFLINE", "1")
    content = packed("toy.zip", INSIDE)
    root.mkdir(parents=True)
    (root / "toy.zip").write_bytes(content[:-1])
    with pytest.raises(InputError) as caught:
        fetch(root, server.url, files=(published("toy.zip", content),))
    assert f"download of toy.zip ({root / 'toy.zip'} has the sha256 checksum" in str(caught.value)
    assert "put its files into" in str(caught.value)
    assert "toy.zip; or a.gz, b.gz" in str(caught.value)
    assert (root / "toy.zip").read_bytes() == content[:-1], "a user's file is not touched"


def test_a_folder_that_cannot_be_written_is_told_with_the_reason(root, server, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    assert "Read-only file system" in refusal(root, f"{server.url}pub/")


def test_the_guard_catches_a_connection_to_another_machine():
    with socket.socket() as one, pytest.raises(AssertionError, match="a test tried to reach"):
        one.connect(("192.0.2.1", 80))

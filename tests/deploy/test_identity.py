"""Certificates and keys: who may read them, what they are for, and that none is lost."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedkeel.deploy import identity
from fedkeel.deploy.keys import Keys
from fedkeel.errors import InputError


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    found = Keys(tmp_path / "app" / "keys")
    found.make(["fl.example.org", "10.1.2.3"])
    return found


def test_files_are_private_and_nothing_else_is_left(keys: Keys) -> None:
    names = {path.name for path in keys.folder.iterdir()}
    assert names == {"ca.crt", "ca.key", "server.crt", "server.key", "nodes"}
    assert keys.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys.folder.glob("*.*")} == {0o600}


def test_the_certificate_is_for_its_names_and_this_machine(keys: Keys) -> None:
    assert identity.names_of(keys.server) == ["fl.example.org", "localhost", "10.1.2.3", "127.0.0.1", "::1"]
    keys.check(["fl.example.org", "FL.example.org", "0:0:0:0:0:0:0:1"])
    anew = f"run fedkeel deploy keys {keys.folder.parent} --host fl.example.org --host 10.1.2.3 --host other.org"
    with pytest.raises(InputError, match=rf"is for fl\.example\.org.* not for other\.org; move server\.crt .*{anew}$"):
        keys.check(["other.org"])


def test_a_client_that_knows_the_authority_accepts_the_server(keys: Keys) -> None:
    assert handshake(keys, keys.ca, "fl.example.org") == "TLSv1.3"
    for name in identity.LOCAL:
        assert handshake(keys, keys.ca, name) == "TLSv1.3"


def test_a_client_of_another_authority_or_name_does_not(keys: Keys, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    other.make([])
    for ca, name in ((other.ca, "fl.example.org"), (keys.ca, "other.org")):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(keys, ca, name)


def handshake(keys: Keys, ca: Path, name: str) -> str | None:
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(keys.server, keys.server_key)
    ours = ssl.create_default_context(cafile=ca)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with theirs.wrap_socket(left, server_side=True):
                pass
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours.wrap_socket(right, server_hostname=name) as secure:
            return secure.version()
    finally:
        right.close()
        thread.join()


def test_what_is_there_stays(keys: Keys) -> None:
    before = {path: path.read_bytes() for path in keys.folder.glob("*.*")}
    keys.make(["fl.example.org"])
    assert {path: path.read_bytes() for path in keys.folder.glob("*.*")} == before
    with pytest.raises(InputError, match="not overwritten"):
        identity.make_authority(keys.ca, keys.ca_key)
    with pytest.raises(InputError, match="not overwritten"):
        identity.make_node(keys.ca, keys.folder / "x.pub")
    assert {path: path.read_bytes() for path in keys.folder.glob("*.*")} == before


@pytest.mark.parametrize(
    ("days", "expired", "files", "sites_too"),
    [(826, "server.crt", "server.crt and server.key", False),
     (3651, "ca.crt", "ca.crt, ca.key, server.crt and server.key", True)],
)  # fmt: skip
def test_an_expired_certificate_is_renewed_as_the_message_says(
    days: int, expired: str, files: str, sites_too: bool, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=days)

    with monkeypatch.context() as patch:
        patch.setattr(identity, "datetime", Later)
        with pytest.raises(InputError) as told:
            keys.make([])
    command = f"fedkeel deploy keys {keys.folder.parent} --host fl.example.org --host 10.1.2.3"
    assert re.match(
        rf"\S+/{expired} has expired on \d+-\d+-\d+; move {files} away(,| and) run {command}", str(told.value)
    )
    assert ("send the new ca.crt to every site" in str(told.value)) == sites_too
    before = keys.ca.read_bytes()
    for name in re.findall(r"\S+\.(?:crt|key)", files):
        (keys.folder / name).unlink()
    keys.make(["fl.example.org", "10.1.2.3"])
    assert handshake(keys, keys.ca, "fl.example.org") == "TLSv1.3"
    assert (keys.ca.read_bytes() != before) == sites_too


def test_an_expired_authority_is_told_at_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "AUTHORITY_DAYS", -0.01)
    identity.make_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    with pytest.raises(InputError, match=r"has expired on .*; get the new ca\.crt from the administrator"):
        identity.check_valid(tmp_path / "ca.crt")


def test_validity(keys: Keys) -> None:
    for path, days in ((keys.ca, 3650), (keys.server, 825)):
        found = identity.check_valid(path)
        lasts = found.not_valid_after_utc - found.not_valid_before_utc
        assert abs(lasts - timedelta(days=days, hours=1)) <= timedelta(seconds=1)


def test_the_servers_certificate_is_valid_no_longer_than_the_authoritys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "AUTHORITY_DAYS", 100)
    keys = Keys(tmp_path)
    keys.make([])
    ends = {identity.check_valid(path).not_valid_after_utc for path in (keys.ca, keys.server)}
    assert len(ends) == 1


def test_files_that_do_not_belong_together_are_refused(keys: Keys, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    other.make([])
    command = f"fedkeel deploy keys {keys.folder.parent} --host fl.example.org --host 10.1.2.3"
    server = f"move server.crt and server.key away and run {command}"
    whole = f"move ca.crt, ca.key, server.crt and server.key away, run {command}, and send the new ca.crt to every site"
    for path, foreign, told in (
        (keys.server_key, None, f"{keys.server_key} is missing; bring it back, or {server}"),
        (keys.server_key, other.server_key, f"{keys.server_key} is not the key of server.crt beside it; {server}"),
        (keys.ca, None, f"{keys.ca} is missing; bring it back, or {whole}"),
        (keys.ca, other.ca, f"{keys.server} was not issued by ca.crt beside it; {server}"),
    ):
        before = path.read_bytes()
        path.unlink()
        if foreign is not None:
            path.write_bytes(foreign.read_bytes())
        with pytest.raises(InputError) as error:
            keys.make([])
        assert str(error.value) == told
        path.write_bytes(before)
    keys.check()
    keys.server.unlink()
    for content in (None, other.ca_key.read_bytes()):
        keys.ca_key.unlink()
        if content is not None:
            keys.ca_key.write_bytes(content)
        with pytest.raises(InputError, match=r"ca\.key is missing, or is not the key of ca\.crt beside it; bring it"):
            keys.make([])
        keys.ca_key.touch()
    assert not keys.server.exists()


def test_a_site_enrolls_and_its_public_key_alone_is_taken(keys: Keys, tmp_path: Path) -> None:
    private, public = tmp_path / "site-1", tmp_path / "site-1.pub"
    identity.make_node(private, public)
    identity.check_private(private)
    assert private.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert private.stat().st_mode & 0o777 == 0o600
    assert keys.add(public, ["site-1"]) == keys.add(public, ["site-1"]) == "site-1"
    assert keys.enrolled(["site-1"]) == {"site-1": keys.nodes / "site-1.pub"}
    with pytest.raises(InputError, match="is a private key, which must not leave its site"):
        keys.add(private, ["site-1"])
    with pytest.raises(InputError, match=r"not a site of deploy\.yaml"):
        keys.add(public, ["other"])
    with pytest.raises(InputError, match="is the key of no site; remove it"):
        keys.enrolled(["other"])


def test_another_key_of_a_site_is_refused(keys: Keys, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        identity.make_node(tmp_path / folder / "s", tmp_path / folder / "s.pub")
    keys.add(tmp_path / "a" / "s.pub", ["s"])
    with pytest.raises(InputError, match="is another key of s; remove that file first"):
        keys.add(tmp_path / "b" / "s.pub", ["s"])


def test_files_that_are_no_keys_are_refused(keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "s.pub").write_text("ssh-ed25519 AAAA nobody")
    with pytest.raises(InputError, match="is no public key of a site; make one"):
        keys.add(tmp_path / "s.pub", ["s"])
    with pytest.raises(InputError, match="cannot be read"):
        keys.add(tmp_path / "t.pub", ["t"])
    with pytest.raises(InputError, match="is no private key of a site"):
        identity.check_private(tmp_path / "s.pub")
    with pytest.raises(InputError, match="is no certificate"):
        identity.check_valid(tmp_path / "s.pub")


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    identity.make_node(tmp_path / "s", tmp_path / "s.pub")
    (tmp_path / "s").chmod(0o644)
    with pytest.raises(InputError, match=f"can be read by others; run chmod 600 {tmp_path}/s$"):
        identity.check_private(tmp_path / "s")


@pytest.mark.parametrize(
    "name",
    ["", " ", "bücher.org", "https://fl.example.org", "fl.example.org:8000", "fl.example.org/x", "a b", "*", "*.a.org",
     "a..b", ".a", "a.", "-a.org", "10.1.2", "10.1.2.300", "[::1]", "fe80::1%eth0", "0.0.0.0", "::", "a" * 64,
     "a\n", ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_names_that_are_none_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^host: .* is no name of a machine; give the DNS name or the address"):
        Keys(tmp_path / "keys").make(["fl.example.org", name])
    assert [*tmp_path.iterdir()] == []


def test_names_are_taken_as_they_are_written_and_addresses_in_their_short_form(tmp_path: Path) -> None:
    names = ["2001:0db8::0001", "FL-1.Example.org", "fl_x", "10.0.0.7", "7.example"]
    keys = Keys(tmp_path / "keys")
    keys.make(names)
    keys.check(names)
    assert {*identity.names_of(keys.server)} == {
        "2001:db8::1", "fl-1.example.org", "fl_x", "10.0.0.7", "7.example", *identity.LOCAL,
    }  # fmt: skip
    assert handshake(keys, keys.ca, "2001:0db8::1") == "TLSv1.3"

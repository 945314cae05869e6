"""Addresses, keys and certificates of a node."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedkeel.errors import InputError
from fedkeel.world.flower.link import Link

pytestmark = pytest.mark.extras


def written(folder: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> Path:
    path = folder / "key"
    form = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


def test_the_key_is_that_of_the_file(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    found = Link("a:1", key=written(tmp_path, key)).private_key()
    assert found.private_numbers() == key.private_numbers()


def test_without_a_file_each_key_is_new() -> None:
    link = Link("a:1", insecure=True)
    assert link.private_key().private_numbers() != link.private_key().private_numbers()


def test_other_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ECDSA key; make one with ssh-keygen"):
        Link("a:1", key=written(tmp_path, ed25519.Ed25519PrivateKey.generate())).private_key()
    (tmp_path / "nonsense").write_text("nonsense")
    with pytest.raises(InputError, match="no private key that can be read"):
        Link("a:1", key=tmp_path / "nonsense").private_key()


@pytest.mark.parametrize("address", ["", "a", "http://a:1", "a:b", "a:1/x", ":1", "a b:1"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match="must be HOST:PORT"):
        Link(address)


def test_trust() -> None:
    assert Link("a:1", insecure=True).trust() is False
    assert Link("a:1", insecure=True).url == "http://a:1"
    context = Link("[::1]:1").trust()
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert Link("[::1]:1").url == "https://[::1]:1"

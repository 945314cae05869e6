"""Certificates of the server and keys of the sites.

A deployment has a certificate authority of its own. It signs the server's certificate, so sites know whom they talk
to. A site has a pair of keys: the private one stays there, the public one goes to the server.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.config.files import reason
from fedkeel.errors import InputError, shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, Name

DAYS = 825
"""How long a server's certificate is valid."""
AUTHORITY_DAYS = 3650
"""How long that of an authority is: sites need a new one then, but not when the server gets a new certificate."""
LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names that every server's certificate has."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*(?!\d+$){_LABEL}")
_CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Curves of keys that Flower takes."""


def make_authority(certificate: Path, key: Path) -> None:
    """A new certificate authority; files that are there are never overwritten."""
    _needed()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    own = _kept(key, certificate)
    builder = (
        _builder("fedkeel deployment", own, _days(AUTHORITY_DAYS))
        .issuer_name(_common("fedkeel deployment"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
    )
    _write(certificate, _pem(builder.sign(own, hashes.SHA256())))


def make_server(certificate: Path, key: Path, ca: Path, ca_key: Path, names: Sequence[str]) -> None:
    """A new certificate of the server for these DNS names and addresses, and for this machine itself.

    It is valid no longer than that of the authority.
    """
    _needed()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, signer = check_valid(ca), _private(ca_key)
    known = [*dict.fromkeys((*map(machine, names), *LOCAL))]
    general = [_general(name) for name in known]
    own = _kept(key, certificate)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(known[0][:64], own, min(_days(DAYS), authority.not_valid_after_utc))
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(general), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
    )
    _write(certificate, _pem(builder.sign(signer, hashes.SHA256())))


def make_node(private: Path, public: Path) -> None:
    """A new pair of keys for a site, as OpenSSH writes them."""
    serialization = _needed()
    own = _new_key()
    _write(
        private,
        own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    told = own.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(public, told + b" " + private.name.encode() + b"\n")


def certificate(path: Path) -> Certificate:
    """A certificate from a file; refuses one that is none."""
    _needed()
    from cryptography import x509

    text = _read(path)
    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError:
        raise InputError(f"{path} is no certificate; give the file ca.crt of the server's keys") from None


def check_valid(path: Path, advice: str = "get the new ca.crt from the administrator of the server") -> Certificate:
    """A certificate from a file; refuses one that is none or that has expired, which the advice is for."""
    found = certificate(path)
    end = found.not_valid_after_utc
    if end <= datetime.now(UTC):
        raise InputError(f"{path} has expired on {end:%Y-%m-%d}; {advice}")
    return found


def issued(path: Path, ca: Path) -> bool:
    """Whether the certificate in `path` was issued by the authority in `ca`."""
    authority = certificate(ca)
    from cryptography.exceptions import InvalidSignature

    try:
        certificate(path).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fits(path: Path, key: Path) -> bool:
    """Whether a certificate is for this private key."""
    return certificate(path).public_key() == _private(key).public_key()


def names_of(path: Path) -> list[str]:
    """The DNS names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        found = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def machine(name: str) -> str:
    """The name or address of a machine, written as in a certificate; refuses what is none."""
    with suppress(ValueError):
        address = ip_address(name)
        if not address.is_unspecified and "%" not in name:
            return str(address)
    if not _DNS.fullmatch(name.lower()):
        raise InputError(
            f"host: {shown(name)} is no name of a machine; give the DNS name or the address by which sites reach the "
            "server, without a port"
        )
    return name.lower()


def check_public(path: Path) -> bytes:
    """The public key of a site; refuses what is none."""
    serialization = _needed()
    text = _read(path)
    if b"PRIVATE KEY" in text:
        raise InputError(f"{path} is a private key, which must not leave its site; give the file {path.name}.pub")
    try:
        key: Any = serialization.load_ssh_public_key(text)
        curve = key.curve.name
    except Exception:  # other kinds of keys have no curve
        curve = ""
    if curve not in _CURVES:
        raise InputError(f"{path} is no public key of a site; make one with fedkeel node enroll")
    return text


def check_private(path: Path) -> None:
    """Refuse what is not the private key of a site, or what others may read."""
    serialization = _needed()
    text = _read(path)
    try:
        key: Any = serialization.load_ssh_private_key(text, None)
        curve = key.curve.name
    except Exception:
        curve = ""
    if curve not in _CURVES:
        raise InputError(f"{path} is no private key of a site; make one with fedkeel node enroll")
    if path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read by others; run {shlex.join(['chmod', '600', str(path)])}")


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can read."""
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be a folder ({reason(error)}); name another one") from None


def check_installed() -> None:
    """Refuse to begin without the package that makes keys."""
    _needed()


def _needed() -> Any:
    """The serialization module of `cryptography`."""
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise InputError("fedkeel deploy needs Flower; run pip install 'fedkeel[flower]'") from None
    return serialization


def _new_key() -> EllipticCurvePrivateKey:
    _needed()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _kept(path: Path, certificate: Path) -> EllipticCurvePrivateKey:
    """The private key of a new certificate: written now, or left by somebody who was interrupted."""
    if certificate.exists():
        raise _there(certificate)
    if not path.exists():
        kinds = _needed()
        pem = _new_key().private_bytes(kinds.Encoding.PEM, kinds.PrivateFormat.PKCS8, kinds.NoEncryption())
        _write(path, pem)
    return _private(path)


def _common(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _days(days: float) -> datetime:
    """So many days from now."""
    return datetime.now(UTC) + timedelta(days=days)


def _builder(subject: str, key: EllipticCurvePrivateKey, until: datetime) -> CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_common(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_days(-1 / 24))  # clocks differ
        .not_valid_after(until)
    )


def _usage(signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general(name: str) -> GeneralName:
    from cryptography import x509

    with suppress(ValueError):
        return x509.IPAddress(ip_address(name))
    return x509.DNSName(name)


def _private(path: Path) -> EllipticCurvePrivateKey:
    serialization = _needed()
    try:
        found: EllipticCurvePrivateKey = serialization.load_pem_private_key(_read(path), None)
    except (ValueError, TypeError):
        raise InputError(f"{path} is no private key; use the one that fedkeel deploy keys has made") from None
    return found


def _pem(certificate: Certificate) -> bytes:
    return certificate.public_bytes(_needed().Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1_000_000)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); give the path of a file") from None


def _write(path: Path, content: bytes) -> None:
    """A new private file, complete when it gets its name; one that is there stays."""
    try:
        descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)  # with mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)
        finally:
            os.unlink(partial)
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({reason(error)}); name another folder") from None


def _there(path: Path) -> InputError:
    return InputError(f"{path} is there already and is not overwritten; move it away first")


def place(path: Path, content: bytes) -> None:
    """Put a file beside the keys, unless it is there with the same content."""
    if path.exists() and path.read_bytes() == content:
        return
    _write(path, content)

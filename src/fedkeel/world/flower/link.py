"""How a node reaches the SuperLink, and how both know each other."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedkeel.errors import InputError, shown, words

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Link:
    """An address, and what is needed to trust and to be trusted there."""

    address: str
    """Host and port."""
    root_certificates: Path | None = None
    """Those of this machine, if there are none."""
    key: Path | None = None
    """The node's private key, an SSH key. Without one the node is new each time that it starts."""
    insecure: bool = False
    """Whether everything travels as plain text."""

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.address):
            raise InputError(f"the SuperLink's address must be HOST:PORT; got {shown(self.address)}")
        if self.insecure and (self.key or self.root_certificates):
            raise InputError("an insecure connection has neither a key nor root certificates; leave one of them out")

    @property
    def url(self) -> str:
        """As HTTP wants it."""
        return f"{'http' if self.insecure else 'https'}://{self.address}"

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """The node's key, or a new one."""
        if self.key is None:
            return ec.generate_private_key(ec.SECP384R1())
        try:
            key = load_ssh_private_key(self.key.read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(f"{self.key} is no private key that can be read: {words(error)}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"{self.key} is no ECDSA key; make one with ssh-keygen -t ecdsa -b 384")
        return key

    def trust(self) -> ssl.SSLContext | bool:
        """Which SuperLink is believed."""
        if self.insecure:
            return False
        try:
            return ssl.create_default_context(cafile=self.root_certificates)
        except OSError as error:
            raise InputError(f"{self.root_certificates} holds no certificates: {words(error)}") from None

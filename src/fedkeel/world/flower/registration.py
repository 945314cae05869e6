"""Lets nodes take part by their public keys, and tells which node each is.

Flower's own command takes one key at a time, and tells its node only then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedkeel.errors import FedkeelError
from fedkeel.world.flower import fleetapi
from fedkeel.world.flower.link import Link


def register(link: Link, publics: Iterable[Path]) -> dict[str, int]:
    """The numbers of the nodes with these keys, by path; those that are new are registered."""
    return fleetapi.register(link, {str(path): _key(path) for path in publics})


def _key(public: Path) -> bytes:
    """As Flower keeps it."""
    return load_ssh_public_key(public.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the numbers; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedkeel.world.flower.registration", description=__doc__)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--root-certificates", type=Path, metavar="CA")
    parser.add_argument("publics", type=Path, nargs="+", metavar="NAME.pub")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(register(Link(given.superlink, given.root_certificates), given.publics)))
    except (FedkeelError, ConnectionError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

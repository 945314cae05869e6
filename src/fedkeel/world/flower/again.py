"""A node that was killed comes back: what the SuperLink still takes for connected is disconnected first.

A killed node says no goodbye. For about 60 seconds, Flower refuses a new process with its key, and does not tell the
server that the messages which the killed process had taken are lost. So the new process says goodbye for the old one,
and stays away for a moment, in which the server learns of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedkeel.world.flower.link import Link
from fedkeel.world.remote.lines import CONNECTED

AWAY = 2.0
"""Seconds in which the server looks for answers a few times."""
_BLOCK, _LINE = 1 << 20, 200
"""Bytes that are looked at together, and those of a line that says the number, at most."""


def last_number(log: Path) -> int | None:
    """The node's number in its last life, by its log: that of Flower's node, or of ours."""
    try:
        with log.open("rb") as file:
            begin = file.seek(0, os.SEEK_END)
            while begin > 0:
                begin = max(0, begin - _BLOCK)
                file.seek(begin)
                if found := CONNECTED.findall(file.read(_BLOCK + _LINE).decode(errors="replace")):
                    return int(found[-1])
    except OSError:
        return None
    return None


def goodbye(link: Link, log: Path, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Disconnect the node's last life; whether it was still connected. Without a key, each life has another number."""
    number = None if link.key is None else last_number(log)
    if number is None:
        return False
    from fedkeel.world.flower.fleetapi import Fleet  # takes a second, and is not needed at the first start

    gone = Fleet(link).disconnect(number)
    if gone:
        sleep(AWAY)
    return gone


def main(arguments: Sequence[str] | None = None) -> None:
    """Say goodbye, then become another program."""
    parser = argparse.ArgumentParser(prog="python -m fedkeel.world.flower.again", description=__doc__)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--root-certificates", type=Path, metavar="CA")
    parser.add_argument("--key", type=Path, required=True, help="the node's private key")
    parser.add_argument("--log", type=Path, required=True, help="what the node has written so far")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what to start then, after --")
    given = parser.parse_args(arguments)
    goodbye(Link(given.superlink, given.root_certificates, given.key), given.log)
    sys.stdout.flush()
    words = given.program[1:] if given.program[:1] == ["--"] else given.program
    os.execv(words[0], words)


if __name__ == "__main__":
    main()

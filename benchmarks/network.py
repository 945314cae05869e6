"""A network of namespaces on this machine, with latency and limited bandwidth: needs Linux, root and iproute2.

Every host is a network namespace with one TUN device. A thread of this process carries packets from one to the other,
late and slowly. So TCP is that of Linux, with packets of 1,500 bytes, and nothing outside of these namespaces changes.
The links are full duplex. Hosts share files and memory, but each has a folder /tmp of its own, except the first one.
"""

from __future__ import annotations

import fcntl
import heapq
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import monotonic, sleep

import numpy as np

_SET, _OFFLOAD = 0x400454CA, 0x400454D0
_TUN = 0x0001 | 0x1000 | 0x4000
"""IFF_TUN, IFF_NO_PI, IFF_VNET_HDR: packets come in pieces of up to 64 KiB, which the other end cuts (TSO)."""
_HEADER = 10
_SECOND = 0.05


class Line:
    """How the network is at the moment, in a file that several processes see."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(64)
            self._numbers = np.frombuffer(mmap.mmap(file.fileno(), 64), dtype=np.float64)

    def set(self, delay: float, rate: float) -> None:
        """Seconds one way, and bytes a second of each host's link; 0 is no limit."""
        self._numbers[:2] = delay, rate

    @property
    def now(self) -> tuple[float, float]:
        """(Delay, rate)."""
        return float(self._numbers[0]), float(self._numbers[1])

    def counted(self, sender: int, receiver: int, size: int) -> None:
        """So many bytes have been carried."""
        if sender == 0:
            self._numbers[2] += size
        if receiver == 0:
            self._numbers[3] += size

    @property
    def bytes(self) -> tuple[float, float]:
        """(From the first host, to the first host), headers of packets included."""
        return float(self._numbers[2]), float(self._numbers[3])


class Network:
    """So many hosts, which end with the block, and all that runs on them."""

    def __init__(self, hosts: int) -> None:
        self._names = [f"fk{os.getpid()}-{host}" for host in range(hosts)]
        self.folder = Path(tempfile.mkdtemp(prefix="fknet-", dir="/tmp"))
        self.control = self.folder / "line"
        self.line = Line(self.control)
        self._files: list[int] = []
        self._over = threading.Event()
        self._relay = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Network:
        try:
            for host, name in enumerate(self._names):
                self._ip("netns", "add", name)
                file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                self._files.append(file)
                fcntl.ioctl(file, _SET, struct.pack("16sH22x", name[:15].encode(), _TUN))
                fcntl.ioctl(file, _OFFLOAD, 0x01 | 0x02)
                self._ip("link", "set", name[:15], "netns", name)
                inside = "-n", name
                self._ip(*inside, "addr", "add", f"{self.address(host)}/24", "dev", name[:15])
                for device in ("lo", name[:15]):
                    self._ip(*inside, "link", "set", device, "up")
                self._ip(
                    *inside, "route", "add", "default", "dev", name[:15]
                )  # Ray asks how to get out, to know its address
        except BaseException:
            self.__exit__()
            raise
        self._relay.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            for _ in range(50):
                told = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
                for process in told.split():
                    with suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
                if not told:
                    break
                sleep(0.1)
        self._over.set()
        if self._relay.is_alive():
            self._relay.join()
        for file in self._files:
            os.close(file)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def address(host: int) -> str:
        """Of a host, from 0."""
        return f"10.213.0.{host + 1}"

    def start(self, host: int, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """A program on a host; all but the first have a folder /tmp of their own."""
        words = [*command]
        if host:
            own = self.folder / f"tmp-{host}"
            own.mkdir(exist_ok=True)
            words = ["sh", "-c", f'mount --bind {own} /tmp && exec "$@"', "sh", *words]
        with log.open("ab") as file:
            return subprocess.Popen(["ip", "netns", "exec", self._names[host], *words], stdout=file, stderr=file)

    def run(self, host: int, command: Sequence[str]) -> str:
        """What a program on a host prints."""
        words = ["ip", "netns", "exec", self._names[host], *command]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def _carry(self) -> None:
        files, numbers, line = self._files, count(), self.line
        late: list[tuple[float, int, int, bytes]] = []
        leaves, arrives = [0.0] * len(files), [0.0] * len(files)
        hosts = {file: host for host, file in enumerate(files)}
        while not self._over.is_set():
            patience = min(_SECOND, max(0.0, late[0][0] - monotonic())) if late else _SECOND
            for file in select.select(files, [], [], patience)[0]:
                sender = hosts[file]
                for _ in range(64):
                    try:
                        packet = os.read(file, 1 << 17)
                    except BlockingIOError:
                        break
                    if len(packet) < _HEADER + 20 or packet[_HEADER] >> 4 != 4:
                        continue
                    to, size = packet[_HEADER + 16 : _HEADER + 20], len(packet) - _HEADER
                    receiver = to[3] - 1
                    if to[:3] != b"\x0a\xd5\x00" or not 0 <= receiver < len(files):
                        continue
                    line.counted(sender, receiver, size)
                    (delay, rate), time = line.now, monotonic()
                    if rate:
                        leaves[sender] = max(time, leaves[sender]) + size / rate
                        time = arrives[receiver] = max(leaves[sender], arrives[receiver] + size / rate)
                    heapq.heappush(late, (time + delay, next(numbers), receiver, packet))
            now = monotonic()
            while late and late[0][0] <= now:
                _, _, receiver, packet = heapq.heappop(late)
                with suppress(OSError):  # a full queue loses packets, as real ones do
                    os.write(files[receiver], packet)

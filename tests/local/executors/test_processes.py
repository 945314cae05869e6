"""Worker processes: the same results, and no way to get rid of the parent and keep a worker."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import DivergenceError, FedkeelError
from fedkeel.errors import MishapError
from fedkeel.local.executors.processes import Processes
from fedkeel.methods import ClientRule, Job, Message, Oracle
from fedkeel.params import FlatModel, Layout
from tests.helpers.declared import Anything
from tests.helpers.processes import forked
from tests.helpers.workers import Chatty, Fickle, Trap, orders, settings, workshop

PATIENCE = 120.0


@pytest.mark.parametrize("stack", [0, 3])
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)]
)
def test_the_same_bits_as_in_this_process(stack: int, workers: int) -> None:
    shop = workshop(rule=Chatty())
    made = orders(shop)
    here = shop.executor(settings("vectorised" if stack else "serial", stack))
    there = shop.executor(settings("processes", stack, workers))
    first = None
    for _ in range(3):  # the second time there is room for messages beforehand
        want, got = here.train(made), there.train(made)
        assert got.columns.keys() == want.columns.keys()
        for name, column in want.columns.items():
            assert torch.equal(got.columns[name], column), name
        for row, order in enumerate(made):
            order.kept = {name: tensor[row].clone() for name, tensor in want.kept.items()}
        first = first or (got, {name: column.clone() for name, column in got.columns.items()})
    assert all(torch.equal(first[0].columns[name], column) for name, column in first[1].items()), "never overwritten"
    flat = FlatModel(shop.module)
    assert there.evaluate(flat.w, flat.buffers) == here.evaluate(flat.w, flat.buffers)
    some = torch.arange(0, 1200, 2)
    assert there.evaluate(flat.w, flat.buffers, some) == here.evaluate(flat.w, flat.buffers, some)
    there.close()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("killed", ["SIGKILL", "out of memory?", "client 3 in round 1", "executor.workers"]),
        pytest.param("exits", ["code 7", "client 3 in round 1"], marks=pytest.mark.slow),
        pytest.param("crashes", ["SIGSEGV", "client 3 in round 1"], marks=pytest.mark.slow),
        pytest.param("memory", ["out of memory", "client 3 in round 1", "executor.workers"], marks=pytest.mark.slow),
        ("fails", ["client 3 in round 1", "ValueError: cannot see this"]),
        pytest.param("ours", ["it went away"], marks=pytest.mark.slow),
    ],
)
def test_a_workers_end_is_reported_with_its_client(what: str, words: list[str]) -> None:
    shop = workshop(Trap(what))
    executor = shop.executor(settings("processes", workers=2))
    assert isinstance(executor, Processes)
    made = orders(shop)
    for _ in range(2):  # what failed once starts anew, and fails again
        with pytest.raises(FedkeelError) as caught:
            executor.train(made)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        kinds = {"ours": DivergenceError, "memory": FedkeelError, "fails": FedkeelError}
        assert type(caught.value) is kinds.get(what, MishapError)
        assert not executor._workers
    assert executor.train([order for order in made if order.client != 3]).w.shape[0] == 6
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("stack", [0, 3])
def test_what_a_rule_sends_may_change_from_call_to_call(stack: int) -> None:
    shop = workshop(rule=Fickle())
    executor = shop.executor(settings("processes", stack, workers=2))
    seen = []
    for round_ in (1, 2, 3, 1):
        made = orders(shop)
        for order in made:
            order.round = round_
        seen.append(executor.train(made).messages.get("x"))
    executor.close()
    assert seen[0].tolist() == seen[3].tolist() == [[1, 1, 1]] * 7
    assert seen[1].tolist() == [[0.5]] * 7
    assert seen[2] is None


class Selective(ClientRule):
    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return ({"x": job.samples} if int(job.samples.flatten()[0]) > 5 else {}), {}

    def sends(self, layout: Layout, received: Message) -> Anything:
        return Anything()


@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_what_only_some_clients_send_is_refused(kind: str) -> None:
    shop = workshop(rule=Selective())
    executor = shop.executor(settings(kind))
    with pytest.raises(FedkeelError, match="for some clients"):
        executor.train(orders(shop))
    executor.close()


class TwoWordsError(DivergenceError):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Picky(ClientRule):
    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        raise TwoWordsError("went", "away")


def test_an_error_of_a_users_class_arrives_as_the_nearest_of_ours() -> None:
    shop = workshop(rule=Picky())
    executor = shop.executor(settings("processes", workers=1))
    with pytest.raises(DivergenceError, match="went away"):
        executor.train(orders(shop))


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = workshop()
    executor = shop.executor(settings("processes", workers=2))
    assert isinstance(executor, Processes)
    real, calls = os.fork, []

    def fork() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real()

    files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork)
        with pytest.raises(FedkeelError, match=r"worker 2 of 2 could not be started.*executor.workers"):
            executor.train(orders(shop))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 4  # multiprocessing itself leaves two pipes behind a failed fork
    want = shop.executor(settings("serial")).train(orders(shop)).w
    for _ in range(2):
        assert torch.equal(executor.train(orders(shop)).w, want)
    executor.close()


def test_more_tickets_than_the_pipe_holds_survive_signals() -> None:
    """A write that a signal cuts short must go on where it stopped."""
    executor = workshop().executor(settings("processes", workers=1))
    assert isinstance(executor, Processes)
    read, executor._tickets = os.pipe()
    tickets = list(range(40_000))
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    got = bytearray()
    reader = threading.Thread(target=lambda: [time.sleep(0.2), _drain(read, got, 4 * len(tickets))])
    try:
        reader.start()
        executor._hand_out(tickets)
        reader.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    os.close(read)
    executor.close()
    assert np.frombuffer(got, dtype="<i4").tolist() == tickets


def _drain(file: int, into: bytearray, count: int) -> None:
    while len(into) < count:
        into += os.read(file, 4096)


@pytest.mark.slow
def test_workers_start_late_end_with_close_and_start_again() -> None:
    shop = workshop()
    executor = shop.executor(settings("processes", workers=2))
    assert isinstance(executor, Processes)
    assert not executor._workers
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        executor.train(orders(shop))
        pids = [each.process.pid for each in executor._workers]
        executor.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.slow
def test_more_threads_in_this_process_do_not_hang_the_workers() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(500, 500) @ torch.randn(500, 500)
        shop = workshop(nn.Sequential(nn.Linear(6, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 3)))
        executor = shop.executor(settings("processes", workers=2))
        assert executor.train(orders(shop)).finite.all()
        executor.close()
    finally:
        torch.set_num_threads(before)


class Slow(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.5)
        return super().forward(x)


def parent(when: str, tell: int) -> None:
    """Starts two workers, tells their numbers, and does not end by itself."""
    shop = workshop(Slow(6, 3))
    executor = shop.executor(settings("processes", workers=2))
    assert isinstance(executor, Processes)
    made = orders(shop)
    executor.train(made[:2], 1)
    os.write(tell, " ".join(str(each.process.pid) for each in executor._workers).encode() + b"\n")
    if when == "busy":
        executor.train(made)
    time.sleep(600)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("when", ["busy", "idle"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(how: signal.Signals, when: str, tmp_path: Path) -> None:
    reading, tell = os.pipe()
    process = forked(lambda: parent(when, tell), tmp_path / "log")
    os.close(tell)
    with os.fdopen(reading) as told:
        workers = [int(pid) for pid in told.readline().split()]
    assert len(workers) == 2, (tmp_path / "log").read_text()
    assert all(alive(pid) for pid in workers)
    time.sleep(0.3)
    os.kill(process, how)
    os.waitpid(process, 0)
    until = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]

"""Processes that are watched, started again and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedkeel.deploy import guard
from fedkeel.deploy.process import Command, Process, Restarts
from fedkeel.deploy.supervisor import EndedError, Supervisor
from fedkeel.errors import FedkeelError, StoppedError

SLEEPER = "import sys, time; print('ready', *sys.argv[1:], flush=True); time.sleep(600)"
FAMILY = (  # a child, and a grandchild in a session of its own
    "import subprocess, sys, time\n"
    f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}, 'grandchild'], start_new_session=True)\n"
    "print('ready', flush=True)\ntime.sleep(600)"
)
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
SOON = Restarts(first=0.01, most=3)


def command(code: str, folder: Path, name: str = "child") -> Command:
    return Command(name, (sys.executable, "-c", code), folder / f"{name}.log", dict(os.environ))


def wait(so: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_killed_child_is_started_again_and_told_of(tmp_path: Path) -> None:
    told: list[str] = []
    with Supervisor(told.append) as supervisor:
        process = supervisor.start(command(SLEEPER, tmp_path), SOON)
        first = process.pid
        supervisor.until(lambda: "ready" in process.said(), 20, "not ready")
        os.kill(first, signal.SIGKILL)
        supervisor.until(lambda: process.starts == 2 and "ready" in process.said(), 20, "not started again")
        assert process.pid != first
        assert process.running
    assert [each for each in told if "SIGKILL" in each]
    assert not process.running


@pytest.mark.parametrize("noise", ["x", "50%|#####     |\r"])
def test_lines_are_heard_after_much_that_is_no_line(noise: str, tmp_path: Path) -> None:
    code = f"print({noise!r} * {200_000 // len(noise)}, '\\nready\\nhal', end='', flush=True)"
    with Supervisor() as supervisor:
        process = supervisor.start(command(code, tmp_path), SOON)
        process._open.wait()  # type: ignore[union-attr]
        heard = [line for _ in range(5) for line in process.news()]
    assert heard[-1] == "ready"  # the last one is not complete


def test_one_that_always_ends_is_given_up(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        process = supervisor.start(command("raise SystemExit(7)", tmp_path), SOON)
        with pytest.raises(EndedError, match=r"ended after 4 starts \(its exit code was 7\); see .*child.log"):
            supervisor.until(lambda: False, 20, "never")
        assert process.starts == 4


def test_a_final_exit_code_is_given_up_at_once(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        process = supervisor.start(command("raise SystemExit(2)", tmp_path), Restarts(final=(2,)))
        with pytest.raises(EndedError):
            supervisor.until(lambda: False, 20, "never")
        assert process.starts == 1


def test_pauses_double_up_to_the_longest() -> None:
    rules = Restarts(first=1, longest=5)
    assert [rules.pause(ends) for ends in (1, 2, 3, 4, 2000)] == [1, 2, 4, 5, 5]


def test_what_does_not_come_true_is_told() -> None:
    with Supervisor() as supervisor, pytest.raises(FedkeelError, match=r"the port is not open after 0\.2 s"):
        supervisor.until(lambda: False, 0.2, "the port is not open")


def test_grandchildren_of_a_dead_child_end_before_it_is_started_again(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        process = supervisor.start(command(FAMILY, tmp_path), SOON)
        supervisor.until(lambda: len(process.children("grandchild")) == 1, 20, "no grandchild")
        (old,) = process.children("grandchild")
        os.kill(process.pid, signal.SIGKILL)
        supervisor.until(
            lambda: process.starts == 2 and len(process.children("grandchild")) == 1, 20, "no new grandchild"
        )
        assert process.children("grandchild") != [old]


def test_stop_is_complete_and_patient_with_nobody(tmp_path: Path) -> None:
    with Supervisor(grace=0.3) as supervisor:
        processes = [supervisor.start(command(code, tmp_path, f"c{i}")) for i, code in enumerate([FAMILY, STUBBORN])]
        supervisor.until(lambda: all("ready" in each.said() for each in processes), 20, "not ready")
        marks = [each.mark for each in processes]
        assert all(guard.marked(mark) for mark in marks)
    assert not any(guard.marked(mark) for mark in marks)


def test_an_exception_stops_all(tmp_path: Path) -> None:
    def failing() -> None:
        with Supervisor() as supervisor:
            processes.append(supervisor.start(command(SLEEPER, tmp_path)))
            raise ZeroDivisionError

    processes: list[Process] = []
    with pytest.raises(ZeroDivisionError):
        failing()
    assert not processes[0].running


def test_waves_end_one_after_the_other(tmp_path: Path) -> None:
    note = (
        "import signal, sys, time\nfrom pathlib import Path\n"
        "def end(*_):\n    open({0!r}, 'a').write({1!r})\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    order = str(tmp_path / "order")
    with Supervisor() as supervisor:
        first = supervisor.start(command(note.format(order, "link "), tmp_path, "link"), wave=0)
        second = supervisor.start(command(note.format(order, "node "), tmp_path, "node"), wave=1)
        supervisor.until(lambda: "ready" in first.said() and "ready" in second.said(), 20, "not ready")
    assert Path(order).read_text() == "node link "


def test_programs_that_are_called_give_codes_and_output() -> None:
    with Supervisor() as supervisor:
        words = [[sys.executable, "-c", f"print('n{i}'); raise SystemExit({i})"] for i in range(2)]
        called = supervisor.call(words, dict(os.environ))
    assert [(each.code, each.output.strip()) for each in called] == [(0, "n0"), (1, "n1")]


def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with Supervisor() as supervisor, pytest.raises(FedkeelError, match="has not ended after"):
        supervisor.call([[sys.executable, "-c", SLEEPER, str(tmp_path)]], dict(os.environ), seconds=0.5)
    assert not guard.marked("", str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    processes: list[Process] = []

    def signalled() -> None:
        with Supervisor(advice="try again") as supervisor:
            processes.append(supervisor.start(command(SLEEPER, tmp_path)))
            os.kill(os.getpid(), number)
            time.sleep(5)

    with pytest.raises(StoppedError, match="stopped; try again") as caught:
        signalled()
    assert caught.value.exit_code == 128 + number
    assert not processes[0].running
    assert signal.getsignal(number) is before


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from fedkeel.deploy.process import Command\nfrom fedkeel.deploy.supervisor import Supervisor\n"
        f"with Supervisor() as s:\n"
        f"    p = s.start(Command('family', (sys.executable, '-c', {FAMILY!r}), Path({str(tmp_path / 'log')!r}), "
        "dict(os.environ)))\n"
        "    s.until(lambda: p.children('grandchild'), 20, 'no grandchild')\n"
        "    print(p.mark, flush=True)\n"
        "    s.until(lambda: False, 600, 'never')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        mark = running.stdout.readline().strip()
        assert len(guard.marked(mark)) == 2
        running.kill()
    wait(lambda: not guard.marked(mark))


def test_a_guard_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        process = supervisor.start(command(SLEEPER, tmp_path))
        first = supervisor._guard
        supervisor.tend()
        assert supervisor._guard is first
        first.kill()
        first.wait()
        supervisor.tend()
        second = supervisor._guard
        assert second.poll() is None
        assert second.args == first.args
        assert second.stdin is not None
        second.stdin.close()  # as if the supervisor had ended
        process._open.wait(20)  # type: ignore[union-attr]

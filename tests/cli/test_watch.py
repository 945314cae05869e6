"""`fedkeel watch` as a user starts and ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
import typer

from fedkeel.cli import watch
from fedkeel.cli.exits import guarded
from tests.helpers.processes import ended, forked
from tests.helpers.report_folders import EXPERIMENT


def started(log: Path, *arguments: str) -> int:
    """A process with the command."""
    return forked(lambda: guarded(typer.main.get_command(watch.app), arguments, debug=False), log)


def said(log: Path, pattern: str) -> re.Match[str]:
    """What stands in the log as soon as it is there."""
    for _ in range(600):
        if log.exists() and (found := re.search(pattern, log.read_text())):
            return found
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    (folder / "history.jsonl").touch()
    return folder


def test_a_page_is_served_until_it_is_interrupted(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = started(log, str(run), "--port", "0")
    try:
        url = said(log, r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C stops the page; the runs continue\)\n")[1]
        with urlopen(f"{url}digest.json") as answer:
            assert json.load(answer)["runs"] == {"all": 1, "stopped": 1}
        with urlopen(url) as page:
            assert b"<!doctype html>" in page.read(100)
    finally:
        os.kill(process, signal.SIGINT)
    assert ended(process) == 0
    assert "Traceback" not in log.read_text()


def test_a_taken_port_and_a_run_to_come_are_told(run: Path, tmp_path: Path) -> None:
    logs = tmp_path / "first", tmp_path / "second"
    later = tmp_path / "later"
    first = started(logs[0], str(run), "--port", "0")
    second = 0
    try:
        taken = said(logs[0], r":(\d+)/")[1]
        second = started(logs[1], str(later), "--port", taken)
        port = said(logs[1], r"http://127.0.0.1:(\d+)/")[1]
        assert int(port) > int(taken)
        assert f"port {taken} is taken; the page is on port {port}" in logs[1].read_text()
        assert f"no run has started in {later} yet; the page waits for it" in logs[1].read_text()
    finally:
        for process in filter(None, (first, second)):
            os.kill(process, signal.SIGINT)
    assert (ended(first), ended(second)) == (0, 0)


def test_the_browser_is_opened_when_asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.launch", opened.append)
    monkeypatch.setattr("fedkeel.report.live.server.LiveServer.serve_forever", interrupt)
    guarded(typer.main.get_command(watch.app), [str(run), "--port", "0"], debug=False)
    assert opened == []
    guarded(typer.main.get_command(watch.app), [str(run), "--port", "0", "--open"], debug=False)
    assert len(opened) == 1
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", opened[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}/history.jsonl"], "fedkeel: watch: .*history.jsonl is a file; name the folder of a run"),
        (["{run}", "--port", "70000"], "fedkeel: port must be 1 to 65535, or 0 for any free port; got 70000"),
        ([], "fedkeel: Missing argument 'RUN-OR-COMPARISON...'"),
    ],
)
def test_bad_input_is_refused(run: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        guarded(typer.main.get_command(watch.app), [each.format(run=run) for each in arguments], debug=False)
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert re.match(words, errors)
    assert errors.count("\n") == 1

"""What a person sees of a download."""

from __future__ import annotations

import io
import sys

import pytest

from fedkeel.cli.downloads import shown_downloads
from fedkeel.data.sources import progress


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def seen(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *steps: int, bars: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with shown_downloads(bars):
        for done in steps:
            progress.tell("downloading a.zip", done, 2_000_000)
    return stream.getvalue()


def test_a_terminal_shows_a_bar_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = seen(monkeypatch, Screen(), 0, 1_000_000, 2_000_000)
    assert "downloading a.zip" in shown
    assert "2.0/2.0 MB" in shown


@pytest.mark.parametrize(("stream", "bars"), [(io.StringIO(), True), (Screen(), False)])
def test_elsewhere_there_is_one_line_per_file(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, bars: bool) -> None:
    shown = seen(monkeypatch, stream, 0, 1_000_000, 2_000_000, bars=bars)
    assert shown == "fedkeel: downloading a.zip, 2.0 MB\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Screen()])
def test_nothing_is_shown_where_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    assert seen(monkeypatch, stream) == ""


def test_the_display_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    seen(monkeypatch, stream, 0)
    progress.tell("downloading b.zip", 0, 1)
    assert "b.zip" not in stream.getvalue()

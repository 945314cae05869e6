"""Why the server function ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkeel.deploy.verdict import last_words, trouble, verdict
from fedkeel.errors import AbsentError, DivergenceError, FedkeelError, InputError, TimeLimitError
from fedkeel.record import divergence

LOG = """\x1b[91mERROR \x1b[0m:     ServerApp raised an exception
Traceback (most recent call last):
  File "x.py", line 3, in main
    raise Something
{}
\x1b[91mERROR \x1b[0m:     Exit Code: 201

An unhandled exception occurred in the ServerApp.
"""


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        ("fedkeel.errors.InputError: x must be y; got z", InputError, "x must be y; got z"),
        ("fedkeel.errors.TimeLimitError: time is over", TimeLimitError, "time is over"),
        ("fedkeel.errors.DivergenceError: loss nan", DivergenceError, "loss nan"),
        ("fedkeel.errors.AbsentError: only 1 came", AbsentError, "only 1 came"),
    ],
)
def test_errors_that_come_again_are_final(line: str, kind: type[FedkeelError], told: str, tmp_path: Path) -> None:
    found = verdict(LOG.format(line), tmp_path, tmp_path / "log")
    assert found.final
    assert type(found.error) is kind
    assert str(found.error) == told


@pytest.mark.parametrize("line", ["RuntimeError: boom", "ConnectionError", "fedkeel.errors.MishapError: disk full"])
def test_other_errors_may_pass(line: str, tmp_path: Path) -> None:
    found = verdict(LOG.format(line), tmp_path, tmp_path / "log")
    assert not found.final
    assert line.rpartition(".")[2] in str(found.error)
    assert found.error.exit_code == 1


def test_one_that_was_killed_says_nothing(tmp_path: Path) -> None:
    found = verdict("INFO :  Start `flwr-serverapp` process\n", tmp_path / "none", tmp_path / "log")
    assert not found.final
    assert "ended without a word; see" in str(found.error)


def test_the_note_of_a_divergence_counts(tmp_path: Path) -> None:
    divergence.note(tmp_path, DivergenceError("loss is nan"))
    found = verdict("", tmp_path, tmp_path / "log")
    assert (found.final, found.error.exit_code, str(found.error)) == (True, 3, "loss is nan")


def test_last_words() -> None:
    assert last_words("a\nfedkeel: \x1b[91mdata.py is wrong\x1b[0m\n\n") == "data.py is wrong"
    assert last_words("") == ""


def test_what_a_silo_could_not_do_is_found_in_its_log() -> None:
    lines = "fedkeel: a takes part", "fedkeel: a cannot do what the server asks for: no file", "Traceback", "ready"
    assert trouble("\n".join(lines)) == "a cannot do what the server asks for: no file"
    assert trouble("\n".join(lines[:1])) == ""

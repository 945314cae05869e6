"""The script that wraps the docs: other line breaks, the same page."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.repository import ROOT

_SPEC = importlib.util.spec_from_file_location("wrap_docs", ROOT / "scripts" / "wrap_docs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)

WORDS = ["a", "word", "- ", "1.", "+", "# ", "`code`", "longer-than-the-others", "|", "*"]


def test_what_is_wrapped_and_what_is_not() -> None:
    long = "word " * 40
    page = f"# {long}\n\n{long}\n\n- {long}\n  more\n- short\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n"
    lines = script.wrapped(page).splitlines()
    kept = [line for line in lines if len(line) > 120]
    assert kept == [f"# {long}", f"| {long} |", long, f"    {long}"]
    start = lines.index("- " + ("word " * 23).strip())
    assert lines[start + 1] == "  " + "word " * 17 + "more"
    assert lines[start + 2] == "- short"


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=120))
def test_no_line_begins_with_a_mark_and_no_word_is_lost(words: list[str]) -> None:
    text = "The page " + " ".join(" ".join(words).split())
    made = script.wrapped(text + "\n")
    assert " ".join(made.split()) == text
    assert script.wrapped(made) == made
    for line in made.splitlines()[1:]:
        assert line.split()[0] not in ("-", "1.", "+", "#", "|", "*")


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_pages_are_wrapped(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert script.wrapped(text) == text

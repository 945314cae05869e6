"""The document: one file that asks nobody for anything, and in which names stay names."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from importlib import resources

import pytest

from fedkeel.report.page.digest import digest
from fedkeel.report.page.html import page
from fedkeel.study.results import Results

Make = Callable[..., Results]
ODD = "</script><script>alert('&lt;')</script><!--"


class Document(HTMLParser):
    """The elements of a page, and what is inside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.reading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append((tag, ""))
            self.reading = True

    def handle_endtag(self, tag: str) -> None:
        self.reading = False

    def handle_data(self, data: str) -> None:
        if self.reading:
            tag, before = self.inside[-1]
            self.inside[-1] = tag, before + data


def test_the_digest_is_inside(compared: Results) -> None:
    document = Document(page(compared))
    (told,) = [text for tag, text in document.inside if tag == "script" and text.startswith("{")]
    assert json.loads(told) == digest(compared)


def test_nothing_is_loaded(compared: Results) -> None:
    document = Document(page(compared))
    links = [value for _, attributes in document.tags for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,"]
    styles = " ".join(text for tag, text in document.inside if tag == "style")
    assert "@import" not in styles
    assert set(re.findall(r"url\(([^)]*)\)", styles)) == {"#hatch-lost", "#hatch-refused", "#hatch-flight"}


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_the_page_itself_and_nothing_else(compared: Results, live: bool) -> None:
    document = Document(page(compared, live))
    (policy,) = [a["content"] for tag, a in document.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert ("connect-src 'self'" in policy) == live
    assert "unsafe" not in policy
    allowed = {b64decode(each) for each in re.findall(r"'sha256-([^']+)'", policy)}
    programs = [text for _, text in document.inside if not text.startswith("{")]
    assert {sha256(text.encode()).digest() for text in programs} == allowed
    assert len(programs) == 3


def test_names_cannot_end_the_script(written: Make) -> None:
    found = written([ODD, "b"], seeds=[0], title=ODD)
    text = page(found)
    document = Document(text)
    assert [tag for tag, _ in document.tags].count("script") == 3
    assert json.loads(document.inside[1][1])["variants"][0]["name"] == ODD
    assert not set("<>&") & set(document.inside[1][1])
    assert ODD not in text


def test_only_a_live_page_follows(compared: Results) -> None:
    assert "data-live" in Document(page(compared, live=True)).tags[0][1]
    assert "data-live" not in Document(page(compared)).tags[0][1]


def test_ten_methods_with_five_seeds_are_below_three_megabytes(written: Make) -> None:
    found = written([f"method {n}" for n in range(10)], rounds=250, jobs=100)
    assert len(found.outcomes) == 50
    assert len(page(found).encode()) < 2_000_000


def test_uplot_comes_with_its_licence() -> None:
    assets = resources.files("fedkeel.report.page") / "assets"
    licence = (assets / "uPlot.LICENSE").read_text(encoding="utf-8")
    (version,) = re.findall(r"uPlot \(v([\d.]+)\)|\(v([\d.]+)\)", (assets / "uPlot.iife.min.js").read_text()[:80])
    assert "The MIT License" in licence
    assert f"uPlot {''.join(version)}" in licence

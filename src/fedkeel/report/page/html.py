"""The page: style, program and data in one document that asks nobody for anything."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

from fedkeel.report.page.digest import digest
from fedkeel.study.results import Results

STYLES = ("uPlot.min.css", "page.css", "figures.css", "screens.css")
CHARTS = "uPlot.iife.min.js"
PROGRAM = (
    "format.js",
    "charts.js",
    "drawings.js",
    "tables.js",
    "sections.js",
    "sites.js",
    "details.js",
    "prediction.js",
    "page.js",
)
"""Parts of one program, in this order."""

_PAGE = """<!doctype html>
<html lang="en" data-theme="auto"{live}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fedkeel">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="bar">
<div><span id="name"></span><div id="legend" role="toolbar" aria-label="Methods"></div>\
<span id="live" role="status" hidden></span><button type="button" id="theme" title="Light or dark">\
<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><circle cx="9" cy="9" r="7"/>\
<path d="M9 2a7 7 0 0 1 0 14z"/></svg></button></div>
</div>
<main><noscript>This report needs JavaScript, which is part of this file.</noscript></main>
<script type="application/json" id="digest">{data}</script>
<script>{charts}</script>
<script>{program}</script>
</body>
</html>
"""


def page(results: Results, live: bool = False) -> str:
    """The whole document; `live` follows runs that are going on, through the address `events` beside its own."""
    return document(digest(results), live)


def document(told: dict[str, Any], live: bool = False) -> str:
    """The same of a digest."""
    style, charts, program = _assets()
    return _PAGE.format(
        live=" data-live" if live else "",
        policy=policy(live),
        title=escape(str(told["title"])),
        style=style,
        data=_inside_script(json.dumps(told, allow_nan=False, separators=(",", ":"))),
        charts=charts,
        program=program,
    )


def policy(live: bool = False) -> str:
    """What the browser lets the page do: run its own two scripts and nothing else."""
    style, charts, program = _assets()
    scripts = " ".join(_hash(text) for text in (charts, program))
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def _inside_script(text: str) -> str:
    """JSON that no name inside can end before its time."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _assets() -> tuple[str, str, str]:
    """Style, uPlot, and the program, whose names stay its own."""
    style = "\n".join(_asset(name) for name in STYLES)
    program = "\n".join(_asset(name) for name in PROGRAM)
    return style, _asset(CHARTS), f'"use strict";\n(() => {{\n{program}\n}})();'


def _asset(name: str) -> str:
    return (resources.files("fedkeel.report.page") / "assets" / name).read_text(encoding="utf-8").strip()

"""The page in a real browser. Needs chromium, node, and playwright-core from npm.

`FEDKEEL_PLAYWRIGHT` names the folder of playwright-core, by default that of `make test-extras`;
`FEDKEEL_BROWSER=require` makes it an error if something is missing. `FEDKEEL_SHOTS` names a folder for screenshots.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from fedkeel import run
from fedkeel.report.page.digest import digest
from fedkeel.report.page.html import page
from fedkeel.study.plan import Comparison, Measure, cross
from fedkeel.study.results import Listed, Results, collect, results
from fedkeel.study.store import Store
from tests.helpers.repository import ROOT

pytestmark = pytest.mark.extras

PLAYWRIGHT = Path(os.environ.get("FEDKEEL_PLAYWRIGHT", ROOT / ".venv/browser/node_modules/playwright-core"))
SCRIPTS = ROOT / "tests" / "browser"
Make = Callable[..., Results]


@pytest.fixture(scope="module")
def tools() -> tuple[str, str]:
    """Node and the browser."""
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if node and chromium and PLAYWRIGHT.is_dir():
        return node, chromium
    said = f"no node, chromium or {PLAYWRIGHT}"
    if os.environ.get("FEDKEEL_BROWSER") == "require":
        pytest.fail(said)
    pytest.skip(said)


@pytest.fixture(scope="module")
def visit(tools: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Results, str], dict[str, Any]]:
    """Opens a report and tells what is there."""

    def look(found: Results, name: str) -> dict[str, Any]:
        file = tmp_path_factory.mktemp("page") / "report.html"
        file.write_text(page(found), encoding="utf-8")
        shots = Path(os.environ["FEDKEEL_SHOTS"], name) if "FEDKEEL_SHOTS" in os.environ else None
        if shots:
            shots.mkdir(parents=True, exist_ok=True)
        told = drive(tools, "drive.mjs", file.as_uri(), *([str(shots)] if shots else []))
        return {**told, "address": file.as_uri()}

    return look


def drive(tools: tuple[str, str], script: str, *words: str) -> dict[str, Any]:
    """What a script found."""
    node, chromium = tools
    command = [node, str(SCRIPTS / script), str(PLAYWRIGHT), chromium, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def seen(visit: Callable[[Results, str], dict[str, Any]], compared: Results) -> dict[str, Any]:
    return visit(compared, "compared")


def test_it_opens_without_errors_and_without_requests(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []
    assert set(seen["requests"]) <= {seen["address"], "data:,"}


def test_every_section_is_there_and_every_chart_is_drawn(seen: dict[str, Any]) -> None:
    assert seen["look"]["title"] == "Three methods"
    assert seen["look"]["variants"] == ["fedavg", "fedagg", "fedasmu"]
    assert seen["look"]["heads"] == [
        "Result",
        "Cost of reaching 20\u00a0%",
        "Learning curves",
        "Accuracy by client",
        "Accuracy by class",
        "Learning rates, staleness and weights",
        "Labels",
        "Devices",
        "Faults and refusals",
        "Settings",
    ]
    assert seen["look"]["canvases"] >= 5
    assert all(seen["drawn"])
    assert seen["look"]["rects"] > 10
    assert seen["look"]["heat"] > 1


def test_nothing_is_called_best_without_a_clear_difference(seen: dict[str, Any]) -> None:
    assert len(seen["look"]["sentences"]) == 3
    assert "best" not in seen["look"]["badges"]
    assert seen["look"]["strays"] == []


def test_a_method_can_be_hidden_everywhere(seen: dict[str, Any]) -> None:
    (before, drawn), (hidden, without), (again, restored) = seen["before"], seen["hidden"], seen["again"]
    assert (before["pressed"], hidden["pressed"], again["pressed"]) == ("true", "false", "true")
    assert (before["faint"], again["faint"]) == (0, 0)
    assert hidden["faint"] >= 2
    assert before["histograms"] > hidden["histograms"] == 0
    assert without != drawn
    assert restored == drawn


def test_a_new_digest_keeps_what_is_hidden(seen: dict[str, Any]) -> None:
    assert seen["updated"] == seen["hidden"][0]


def test_the_axis_can_be_chosen(seen: dict[str, Any]) -> None:
    names, pictures = zip(*seen["axes"], strict=True)
    assert names == ("Virtual time", "Uploads", "Data sent", "Rounds")
    assert len(set(pictures)) == 4


def test_zoom_and_hover(seen: dict[str, Any]) -> None:
    told = seen["zoom"]
    assert told["offered"]
    assert told["changed"]
    assert told["kept"]
    assert told["over"]
    assert told["byKey"]
    assert told["overByKey"]
    assert told["tip"].startswith("round ")
    assert "fedasmu" in told["tip"]


def test_seeds_can_be_shown_and_a_run_chosen(seen: dict[str, Any]) -> None:
    assert seen["seeds"]
    assert seen["run"]
    assert seen["scene"] is None


def test_nothing_stands_out_on_a_phone(seen: dict[str, Any]) -> None:
    assert seen["narrow"] == seen["opened"] == {"page": 0, "inside": []}


def test_dark_and_light(seen: dict[str, Any]) -> None:
    assert seen["grounds"] == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]


def test_it_can_be_printed(seen: dict[str, Any]) -> None:
    assert seen["printed"] > 10_000
    wide, *others = seen["chartsOnPaper"]  # also from a narrow window
    assert wide > 0.8
    assert others
    assert max(others) < 0.5


def test_names_are_text(visit: Callable[[Results, str], dict[str, Any]], written: Make) -> None:
    names = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "\"'&amp; " + "long" * 40]
    told = visit(written(names, scenes=["<b>s</b>", "t"], seeds=[0, 1], rounds=3, title="<i>odd</i>"), "odd")
    assert told["errors"] == []
    assert told["look"]["title"] == "<i>odd</i>"
    assert told["look"]["variants"] == names
    assert told["scene"]
    assert (told["look"]["scripts"], told["look"]["images"]) == (3, 0)
    assert told["narrow"] == told["opened"] == {"page": 0, "inside": []}


def test_ten_methods_with_five_seeds(visit: Callable[[Results, str], dict[str, Any]], written: Make) -> None:
    told = visit(written([f"method {n}" for n in range(10)], rounds=250, jobs=200), "ten")
    assert told["errors"] == []
    assert told["look"]["badges"].count("best") <= 1
    assert len(told["look"]["badges"]) < 10  # some are neither best nor level
    assert told["look"]["strays"] == []
    assert all(told["drawn"])
    assert told["narrow"] == told["opened"] == {"page": 0, "inside": []}


def test_a_run_alone_has_no_parts_of_a_comparison(
    visit: Callable[[Results, str], dict[str, Any]], compared: Results
) -> None:
    run = compared.outcomes[-1]
    alone = results("Alone", [Listed(run.name, run.scene, run.variant, run.seed, run.folder)], compared.measure)
    told = visit(alone, "alone")
    assert told["errors"] == []
    assert told["look"]["variants"] == told["look"]["sentences"] == []
    assert told["seeds"] is told["scene"] is told["run"] is None
    assert "Cost of reaching 20\u00a0%" not in told["look"]["heads"]
    assert all(told["drawn"])
    assert told["narrow"]["page"] == 0


def test_a_regression(visit: Callable[[Results, str], dict[str, Any]], tmp_path: Path) -> None:
    """Its metric has a name of capitals, no percent, and the same decimals for every client."""
    rng = np.random.default_rng(0)
    rows = [f"{x},{2 * x + 30 * rng.normal()},site{n % 6}" for n, x in enumerate(rng.normal(size=240))]
    (tmp_path / "sites.csv").write_text("\n".join(["x,y,site", *rows]))
    data = {"name": str(tmp_path / "sites.csv"), "target": "y", "client": "site"}
    base = {"dataset": data, "task": "regression", "metrics": ["mae", "r2"], "model": "linear", "rounds": 3}
    methods = {name: [f"algorithm={name}", "per_round=3"] for name in ("fedavg", "fedprox")}
    measure = Measure(target=100.0, reference="fedavg", metric="mae")
    plan = Comparison(
        "Sites", cross(base, {"": ["evaluate_clients=true"]}, methods, [0, 1]), measure, "fedkeel compare"
    )
    for case in plan.cases:
        run(case.experiment, Store(tmp_path).folder(case.name))
    told = visit(collect(plan, tmp_path), "regression")
    assert told["errors"] == []
    assert {"Cost of reaching MAE 100", "MAE by client", "Samples"} < set(told["look"]["heads"])
    assert told["look"]["figures"][0] == "Test MAE \u2193"
    assert len(told["look"]["clients"]) == 6 * 3
    assert {len(each.partition(".")[2]) for each in told["look"]["clients"][1::3] + told["look"]["clients"][2::3]} == {
        2
    }
    assert told["narrow"] == told["opened"] == {"page": 0, "inside": []}


class Live(BaseHTTPRequestHandler):
    """A server whose first stream breaks off, and whose second one tells the end."""

    pages: Iterator[str]
    streams: Iterator[str]

    def do_GET(self) -> None:
        stream = self.path == "/events"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if stream else "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(next(self.streams if stream else self.pages).encode())

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def event(found: Results) -> str:
    return f"event: digest\ndata: {json.dumps(digest(found))}\n\n"


def test_a_live_page_follows_until_the_end(tools: tuple[str, str], written: Make, tmp_path: Path) -> None:
    end = written(["fedavg", "fedagg"], seeds=[0, 1], rounds=5)
    plan = Store(end.outcomes[0].folder.parents[1]).plan()
    empty = collect(plan, tmp_path)
    Live.pages = iter([page(empty, live=True)])
    Live.streams = iter([f"retry: 50\n{event(empty)}", event(end)])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Live)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        told = drive(tools, "live.mjs", f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "4 not started" in told["first"]
    assert "all finished" in told["last"]
    assert told["canvases"] >= 3
    assert told["said"][-1] == "complete"
    assert told["said"].index("waiting") < told["said"].index("connection lost, reconnecting")
    assert {request.rpartition("/")[2] for request in told["requests"]} <= {"", "events", "data:,"}
    assert told["errors"] == []

"""How the page writes numbers, in node: its functions that need no browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedkeel.report.page import html

pytestmark = pytest.mark.extras

ASSETS = Path(html.__file__).parent / "assets"


def value_of(expression: str) -> Any:
    """Of an expression of the page's program."""
    node = shutil.which("node")
    if node is None:
        if os.environ.get("FEDKEEL_BROWSER") == "require":
            pytest.fail("no node")
        pytest.skip("no node")
    program = "".join((ASSETS / name).read_text(encoding="utf-8") for name in ("format.js", "charts.js"))
    program += f"\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 0.5, 1], ["0", "0.5", "1"]),
        ([0, 200_000, 400_000], ["0", "200,000", "400,000"]),
        ([0, 500_000, 1_000_000, 1_500_000], ["0", "5e5", "1e6", "1.5e6"]),
        ([2e9, 2.5e9, 3e9], ["2e9", "2.5e9", "3e9"]),
        ([2.69801e9, 2.69802e9], ["2.69801e9", "2.69802e9"]),  # four digits would be twice the same
        ([-2e9, 0], ["\N{MINUS SIGN}2e9", "0"]),
    ],
)
def test_the_numbers_of_an_axis_are_short_and_differ(ticks: list[float], labels: list[str]) -> None:
    assert value_of(f"tickLabels({json.dumps(ticks)})") == labels


def test_large_values_have_four_digits() -> None:
    values = [2.10449, 51941.4, 9_999_999, 2698067627.0, None]
    expected = ["2.104", "51,941", "9,999,999", "2.698e9", "\N{EN DASH}"]
    assert value_of(f"{json.dumps(values)}.map((value) => compact(value))") == expected
    assert value_of("[2698067627, 12].map(alike([2698067627, 12]))") == ["2.698e9", "12"]


@pytest.mark.parametrize(
    ("mean", "low", "seeds", "steep"),
    [
        ([101, 1], None, [], True),
        ([100, 1], None, [], False),
        ([101, 0], None, [], False),
        ([101, 1], [50, -1], [], False),
        ([90, 1], [50, 0.5], [], True),
        ([90, 1], None, [500, None], True),
        ([None], None, [], False),
    ],
)
def test_values_that_differ_a_hundredfold_are_steep(
    mean: list[float], low: list[float] | None, seeds: list[float], steep: bool
) -> None:
    line = {"mean": mean, "low": low, "high": None}
    assert value_of(f"isSteep({json.dumps([line])}, {json.dumps([{'y': seeds}])})") is steep


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.5, 250, [2, 5, 10, 20, 50, 100, 200]),
        (8e8, 3e12, [1e9, 1e10, 1e11, 1e12]),
        (0.9, 1.1e20, [1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18]),
        (1.2, 1.4, [1.2, 1.4]),
    ],
)
def test_a_logarithmic_axis_has_few_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    found = value_of(f"logTicks({low}, {high})")
    assert found == pytest.approx(ticks)


def test_a_logarithmic_scale_has_room_also_for_a_target() -> None:
    low, high = value_of("roomyLog(10, 1000, false, undefined)")
    assert 5 < low < 10 < 1000 < high < 2000
    assert value_of("roomyLog(10, 1000, false, 1)")[0] < 1
    assert value_of("roomyLog(10, 1000, false, -1)") == [low, high]

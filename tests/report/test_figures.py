"""Figures of a comparison: what is drawn in them is what the runs came to."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from scipy import stats

from fedkeel.errors import InputError
from fedkeel.record.measured import LOSS
from fedkeel.record.runs import RunRecord
from fedkeel.report import figures as module
from fedkeel.report.figures import figures
from fedkeel.report.grid import MOST_PANELS
from fedkeel.report.palette import DARK, DASHES, LIGHT, style
from fedkeel.report.scales import axis
from fedkeel.study.plan import At, Measure
from fedkeel.study.results import Outcome, Results, State

SPEED = {"slow": 4000.0, "fast": 1000.0}
"""Virtual seconds of a round."""
TOP = {"slow": 0.8, "fast": 0.6}


def accuracy(variant: str, seed: int, round: int) -> float:
    return TOP[variant] * (round / 5 + 1e-4 * seed) + 0.01 * seed


def outcome(scene: str, variant: str, seed: int, measure: Measure, state: State = "finished") -> Outcome:
    rounds = range(1, 6)
    history = [
        {
            "round": r, "virtual_seconds": r * SPEED[variant], "updates": 1000 * r, "bytes_up": 2_000_000 * r,
            "bytes_down": 1_000_000 * r, "accuracy": accuracy(variant, seed, r), "loss": 1.0,
        }
        for r in rounds
    ]  # fmt: skip
    record = RunRecord(Path(variant), {}, history)
    return Outcome(
        f"{scene}{variant}{seed}", scene, variant, seed, Path("x"), state=state, record=record, kept=5, measure=measure
    )


PLAIN = Measure()


def results(scenes: list[str], measure: Measure = PLAIN, seeds: int = 3, limit: float = 5) -> Results:
    runs = [outcome(scene, variant, seed, measure) for scene in scenes for variant in SPEED for seed in range(seeds)]
    return Results("a title", measure, tuple(runs), dict.fromkeys(scenes, limit))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures by the names of their files, which are not written."""
    found: dict[str, Figure] = {}
    monkeypatch.setattr(module, "save", lambda figure, path, **_: found.setdefault(path.stem, figure))
    return found


def lines(panel: Any) -> list[Any]:
    """Curves, without ends and lines across."""
    return [line for line in panel.get_lines() if len(line.get_xdata()) > 2]


def caption(figure: Figure) -> str:
    return " ".join(figure.get_supxlabel().split())


@pytest.mark.parametrize(
    ("at", "name", "last"),
    [
        ("rounds", "rounds", {"slow": 5, "fast": 5}),
        ("time", "virtual time (h)", {"slow": 20_000 / 3600, "fast": 5_000 / 3600}),
        ("uploads", "uploads received", {"slow": 5000, "fast": 5000}),
        ("bytes", "data sent up and down (MB)", {"slow": 15, "fast": 15}),
    ],
)
def test_curves_are_means_over_seeds_with_their_range(
    at: str, name: str, last: dict[str, float], drawn: dict[str, Figure], tmp_path: Path
) -> None:
    figures(results(["a", "b"]), tmp_path)
    panels = drawn[f"accuracy-over-{at}"].axes
    assert [panel.get_title("left") for panel in panels] == ["a", "b"]
    for panel in panels:
        assert panel.get_xlabel() == name
        for place, (variant, line, band) in enumerate(zip(SPEED, lines(panel), panel.collections, strict=True)):
            assert line.get_xdata()[-1] == pytest.approx(last[variant])
            means = [100 * accuracy(variant, 1, r) for r in range(1, 6)]
            assert line.get_ydata() == pytest.approx(means)
            assert to_hex(line.get_color()).upper() == LIGHT[place]
            edge = band.get_paths()[0].vertices[:, 1]
            assert (edge.min(), edge.max()) == pytest.approx(
                (100 * accuracy(variant, 0, 1), 100 * accuracy(variant, 2, 5))
            )
    assert panels[0].get_ylabel() == "test accuracy (%)"
    assert caption(drawn["accuracy-over-rounds"]).startswith(
        "Each line is the mean of 3 seeds; the band goes from the lowest to the highest of them."
    )
    legend = drawn["accuracy-over-rounds"].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [*SPEED]


@pytest.mark.parametrize(
    ("first", "scale", "label"), [(500.0, "log", "test loss, log scale"), (9.0, "linear", "test loss")]
)
def test_errors_that_differ_a_hundredfold_have_a_logarithmic_axis(
    drawn: dict[str, Figure], tmp_path: Path, first: float, scale: str, label: str
) -> None:
    found = results([""])
    for run in found.outcomes:
        run.history[0]["loss"] = first
    figures(replace(found, metric=LOSS), tmp_path)
    (panel,) = drawn["loss-over-rounds"].axes
    assert (panel.get_yscale(), panel.get_ylabel()) == (scale, label)


def test_target_and_place_of_comparison_are_drawn_and_said(drawn: dict[str, Figure], tmp_path: Path) -> None:
    figures(results([""], Measure(target=0.5), limit=4), tmp_path)
    across = {name: [each for each in f.axes[0].get_lines() if len(each.get_xdata()) == 2] for name, f in drawn.items()}
    assert [line.get_ydata()[0] for line in across["accuracy-over-time"]] == [50]
    heights, places = across["accuracy-over-rounds"]
    assert (heights.get_ydata()[0], places.get_xdata()[0]) == (50, 4)
    assert caption(drawn["accuracy-over-time"]).endswith(
        "Dotted: the target, 50\N{NO-BREAK SPACE}%.".replace("\xa0", " ")
    )
    assert caption(drawn["accuracy-over-rounds"]).endswith("and where runs are compared.")


def test_final_accuracies_have_the_intervals_of_students_t(drawn: dict[str, Figure], tmp_path: Path) -> None:
    figures(results([""]), tmp_path)
    panel = drawn["final-accuracy"].axes[0]
    for place, variant in enumerate(SPEED):
        values = [100 * accuracy(variant, seed, 5) for seed in range(3)]
        half = stats.sem(values) * stats.t.ppf(0.975, 2)
        mean = panel.containers[place]
        assert mean[0].get_xdata() == pytest.approx([np.mean(values)])
        (low, _), (high, _) = mean[2][0].get_segments()[0]
        assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    assert [text.get_text() for text in panel.texts] == ["81.0 ± 2.5", "61.0 ± 2.5"]
    assert [text.get_weight() for text in panel.texts] == ["bold", "normal"]
    assert "Bold: clearly better" in caption(drawn["final-accuracy"])


def test_time_to_target_counts_those_that_reached_it(drawn: dict[str, Figure], tmp_path: Path) -> None:
    figures(results([""], Measure(target=0.615)), tmp_path)
    panel = drawn["time-to-target"].axes[0]
    slow, fast = (text.get_text() for text in panel.texts)
    assert slow == "4.4 ± 0.0"  # round 4
    assert fast == "1.4, 1 of 3 reached it"
    assert panel.get_xlabel() == "virtual time (h) to 61.5 % accuracy"
    assert drawn["rounds-to-target"].axes[0].texts[0].get_text() == "4.0 ± 0.0"


def test_without_a_target_or_a_finished_run_there_are_fewer_figures(drawn: dict[str, Figure], tmp_path: Path) -> None:
    curves = {f"accuracy-over-{at}" for at in ("time", "rounds", "uploads", "bytes")}
    figures(results([""]), tmp_path)
    assert drawn.keys() == curves | {"final-accuracy"}
    drawn.clear()
    figures(results([""], Measure(target=0.99)), tmp_path)
    assert drawn.keys() == curves | {"final-accuracy"}
    drawn.clear()
    measure = Measure()
    figures(Results("t", measure, (outcome("", "slow", 0, measure, "going on"),), {}), tmp_path)
    assert drawn.keys() == curves
    assert caption(drawn["accuracy-over-time"]) == "One seed. Of the runs: slow 1 not finished."


def test_runs_that_failed_or_are_to_come_are_told(drawn: dict[str, Figure], tmp_path: Path) -> None:
    measure = Measure()
    runs = (
        outcome("", "slow", 0, measure),
        outcome("", "slow", 1, measure, "failed"),
        Outcome("n", "", "fast", 0, Path("x")),
    )
    figures(Results("t", measure, runs, {}), tmp_path)
    assert [text.get_text() for text in drawn["final-accuracy"].axes[0].texts] == ["80.0, 1 failed", "1 not finished"]
    assert caption(drawn["accuracy-over-rounds"]).endswith("Of the runs: slow 1 failed; fast 1 not finished.")


def test_many_scenes_get_several_figures(drawn: dict[str, Figure], tmp_path: Path) -> None:
    scenes = [f"scene {number}" for number in range(MOST_PANELS + 1)]
    figures(results(scenes, seeds=1), tmp_path)
    assert len(drawn["accuracy-over-rounds"].axes) == MOST_PANELS
    assert [panel.get_title("left") for panel in drawn["accuracy-over-rounds-2"].axes] == scenes[-1:]
    assert len(drawn["final-accuracy-2"].axes) == 1


def test_files_are_written_in_each_format_with_names_as_they_are(tmp_path: Path) -> None:
    measure = Measure()
    odd = outcome("", "slow", 0, measure)
    named = Outcome(**{**{k: getattr(odd, k) for k in Outcome.__dataclass_fields__}, "variant": r"$\frac{a}$ <b>"})
    paths = figures(Results("t", measure, (named, odd), {}), tmp_path / "new")
    assert sorted(path.name for path in paths) == sorted(path.name for path in (tmp_path / "new").iterdir())
    assert {path.suffix for path in paths} == {".png", ".svg"}
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_without_an_evaluation_there_are_no_figures(tmp_path: Path) -> None:
    assert figures(Results("t", Measure(), (Outcome("n", "", "v", 0, Path("x")),), {}), tmp_path) == []


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="formats: 'gif' is not known; choose one of pdf, png or svg"):
        figures(results([""]), tmp_path, ["gif"])


@pytest.mark.parametrize(
    ("at", "largest", "label", "unit"),
    [
        ("time", 10_000, "virtual time (s)", 1), ("time", 20_000, "virtual time (h)", 3600),
        ("time", 300_000, "virtual time (d)", 86_400), ("bytes", 999, "data sent up and down (B)", 1),
        ("bytes", 2e9, "data sent up and down (GB)", 1e9), ("rounds", 1e6, "rounds", 1),
    ],
)  # fmt: skip
def test_units_keep_numbers_short(at: At, largest: float, label: str, unit: float) -> None:
    scale = axis(at, largest)
    assert (scale.label, scale.unit) == (label, unit)


def test_no_colour_is_used_twice() -> None:
    styles = [style(place) for place in range(100)]
    assert len({each.light for each in styles}) == len({each.dark for each in styles}) == len(styles)
    assert len(LIGHT) == len(DARK) >= 28


def test_colours_and_dashes_of_28_methods_can_be_told_apart() -> None:
    """By their distance in CIELAB, in which 2.3 is the least difference that people notice."""
    for names in (LIGHT, DARK):
        lab = [cielab(to_rgb(each)) for each in names[:28]]
        assert min(np.linalg.norm(a - b) for a, b in combinations(lab, 2)) > 14
    assert {style(place).dash for place in range(5)} == {*DASHES}


def cielab(rgb: tuple[float, float, float]) -> np.ndarray[Any, Any]:
    """For white as sRGB has it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(matrix) @ linear / [0.9505, 1.0, 1.089]
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

"""Colours and dashes of methods: the same in figures and on pages, and distinct for readers who see few colours.

The first colours are those of Okabe and Ito, without yellow, which is too pale on white. The others were chosen one by
one, each as far as possible from all before it. A method keeps its place in all pictures of a comparison. No colour is
used for two methods. Dashes and markers change together with the colours.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from dataclasses import dataclass

LIGHT = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#74003A",
    "#1700B9", "#005100", "#9700DC", "#745D46", "#9774FF", "#C50080", "#2E3A68", "#4646FF",
    "#E83ADC", "#AE1700", "#742E8B", "#FF2E68", "#23B900", "#748BA2", "#975DAE", "#8B8000",
    "#006868", "#0C8BFF", "#3A46AE", "#008000", "#513A23", "#A2A274", "#FF745D", "#AE515D",
)  # fmt: skip
"""On a white background."""
DARK = (
    "#3D9FE0", "#F0743A", "#1FBF92", "#DE9AC2", "#F2B233", "#9CD8F7", "#F2F2F2", "#B95D68",
    "#465DFF", "#009700", "#A22EDC", "#A29700", "#FFC5FF", "#E8238B", "#008B8B", "#A280FF",
    "#FF68FF", "#DC0C00", "#D12EC5", "#F35168", "#8BFF2E", "#AEB997", "#C568B9", "#97D168",
    "#00FFD1", "#3AC5DC", "#8068AE", "#46D100", "#807451", "#D1E88B", "#FFB9A2", "#9797A2",
)  # fmt: skip
"""Similar hues on a dark background."""
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 1, 1, 1, 1, 1))
"""Lengths of strokes and gaps in turn, in widths of the line; empty is solid."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""As Matplotlib calls them."""
TURN = 7
"""After this many places, the dashes and markers are shifted by one."""
_GOLDEN = 0.6180339887498949
"""Steps of this size around the circle of hues never meet again."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    light: str
    dark: str
    dash: tuple[float, ...]
    marker: str


def style(place: int) -> Style:
    """The style of the method at a place, counted from 0."""
    shift = place % TURN + place // TURN
    colours = (LIGHT[place], DARK[place]) if place < len(LIGHT) else (_further(place, 0.4), _further(place, 0.65))
    return Style(*colours, DASHES[shift % len(DASHES)], MARKERS[shift % len(MARKERS)])


def _further(place: int, lightness: float) -> str:
    """A colour beyond the table: another hue at every place, and a little more or less light."""
    shade = lightness + 0.05 * (place % 3 - 1)
    return "#" + "".join(f"{round(255 * part):02X}" for part in hls_to_rgb(place * _GOLDEN % 1, shade, 0.6))

"""Colours and dashes of variants: the same in figures and on pages, and apart for readers who see few colours.

The colours are those of Okabe and Ito, without yellow, which is too pale on white. A variant keeps its place in all
pictures of a comparison. Where there are more variants than colours, the colours come again with other dashes and
markers.
"""

from __future__ import annotations

from dataclasses import dataclass

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""On a white ground."""
DARK = ("#3D9FE0", "#F0743A", "#1FBF92", "#DE9AC2", "#F2B233", "#9CD8F7", "#F2F2F2")
"""The same hues, brighter, on a dark ground."""
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 1, 1, 1, 1, 1))
"""Lengths of strokes and gaps in turn, in widths of the line; empty is solid."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""As Matplotlib calls them."""


@dataclass(frozen=True)
class Style:
    """How a variant is drawn."""

    light: str
    dark: str
    dash: tuple[float, ...]
    marker: str


def style(place: int) -> Style:
    """Of the variant at a place, counted from 0: colours, dashes and markers change together."""
    colour = place % len(LIGHT)
    turn = place // len(LIGHT)
    return Style(
        LIGHT[colour], DARK[colour], DASHES[(colour + turn) % len(DASHES)], MARKERS[(colour + turn) % len(MARKERS)]
    )

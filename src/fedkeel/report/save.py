"""Writing a figure where the user wants it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedkeel.config.files import reason
from fedkeel.errors import InputError, label


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a file name whose format cannot be written."""
    if path.suffix not in suffixes:
        raise InputError(f"out must be a file name that ends in {' or '.join(suffixes)}; got {label(str(path))}")


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write the figure in the format of the path's suffix, making its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _lay_out(figure, dpi)
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise InputError(f"out: {label(str(path))} cannot be written ({reason(error)}); choose another place") from None
    except (ValueError, ArithmeticError, MemoryError) as error:  # of numbers that no axis can hold
        raise InputError(f"out: {label(str(path))} cannot be drawn ({reason(error)})") from None


def _lay_out(figure: Figure, dpi: int) -> None:
    """Find the places of all parts once: left to itself, `savefig` draws twice for that, and so for every file."""
    engine = figure.get_layout_engine()
    if engine is not None:
        figure.set_dpi(dpi)
        engine.execute(figure)
        figure.set_layout_engine(None)

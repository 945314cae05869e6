"""The errors a user is meant to see: one clear sentence each, no traceback on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedkeelError(Exception):
    """Base of all errors that fedkeel raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(FedkeelError, ValueError):
    """Something given by the user is not acceptable: names the field, the value and what would be."""

    exit_code = 2


class DivergenceError(FedkeelError):
    """Training produced a loss or weights that are not finite."""

    exit_code = 3


def unknown(field: str, value: object, accepted: Iterable[str], what: str = "") -> InputError:
    """The error for a name that is none of `accepted`, with the nearest ones suggested; `what` it should name."""
    names = sorted(accepted)
    near = get_close_matches(str(value), names, n=2, cutoff=0.6)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    problem = f"not a {what}" if what else "unknown"
    return InputError(f"{field}: {value!r} is {problem}{hint}; accepted: {', '.join(names)}")

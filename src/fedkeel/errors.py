"""The errors a user is meant to see: one clear sentence each, no traceback on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from reprlib import Repr

LONGEST = 200
"""Characters of a value that a message shows."""
LONGEST_WORDS = 500
"""Characters of another error that a message repeats."""


class FedkeelError(Exception):
    """Base of all errors that fedkeel raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1
    advice = ""
    """How to go on with a single run, where the message ends with that."""


class InputError(FedkeelError, ValueError):
    """Something that the user gave is wrong: says which setting, what is wrong with it, and what to do."""

    exit_code = 2


class UnknownSettingError(InputError):
    """A key that is no setting; made by `no_such_setting`."""

    section = ""
    """The dotted name of what it was given in; empty for the experiment itself."""
    key = ""
    owner = ""
    """The method, model or kind that does not have it, where the section has several."""
    names: tuple[str, ...] = ()
    """The settings that there are."""


class DivergenceError(FedkeelError):
    """Training produced a loss or weights that are not finite."""

    exit_code = 3


class MishapError(FedkeelError):
    """Not the experiment's fault, such as a full disk or a killed process: the same may go well another time."""


class _Short(Repr):
    """Short, whatever a user comes up with, and dates as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = 80

    def repr_int(self, value: int, level: int) -> str:
        """Python refuses to write the longest ones down."""
        bits = value.bit_length()
        return super().repr_int(value, level) if bits < 10_000 else f"an integer of {bits} bits"

    def repr_date(self, value: date, level: int) -> str:
        return str(value)

    repr_datetime = repr_date


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as a message shows it: like `repr`, but on one line, and of something long the beginning and the end."""
    text = _SHORT.repr(value)
    text = text if text.isprintable() else " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def label(name: object) -> str:
    """A name that a user gave, as it is; but like `shown` where that would spoil a message."""
    text = name if isinstance(name, str) else shown(name)
    return text if text.isprintable() and len(text) <= LONGEST else shown(text)


class AbsentError(FedkeelError):
    """Sites of a deployment did not come in time, or none could do its job; that may be otherwise another time."""


class StoppedError(FedkeelError):
    """A run was asked to stop, and did so in good order."""

    exit_code = 130


class TimeLimitError(StoppedError):
    """A run has used up its real time (`limit_wall_seconds`) and is to be resumed."""

    exit_code = 75


def words(error: BaseException) -> str:
    """What an error says, on one line, whatever that is."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own text may fail
        return ""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]} ..."


def unknown(field: str, value: object, accepted: Iterable[str], what: str = "", also: str = "") -> InputError:
    """The error for a name that is none of `accepted`, with the nearest ones suggested; `what` it should name.

    What else is possible, but is no name, is told by `also`.
    """
    names = sorted(accepted)
    problem = f"not a {what}" if what else "not known"
    choice = [*names, *([also] if also else [])]
    advice = did_you_mean(nearest(value, names, 0.7)) or f"choose {'one of ' * (len(choice) > 1)}{one_of(choice)}"
    return InputError(f"{field}: {shown(value)} is {problem}; {advice}")


def no_such_setting(
    section: str, key: object, owner: str, accepted: Iterable[str], advice: str = ""
) -> UnknownSettingError:
    """The error for a setting of `section` that `owner` does not have.

    `advice` says what to do; without it, the nearest settings are suggested.
    """
    names = sorted(accepted)
    above = f"{section}." if section else ""
    near = did_you_mean([above + name for name in nearest(key, names, 0.7)])
    whose = owner or section
    known = f"{whose} has {_settings(names)}" if whose else f"the settings are {', '.join(names)}"
    named = f"{above}{label(key)}" if key != "" else f"{above}''"
    told = f"{named} is not a setting{f' of {owner}' if owner else ''}; {advice or near or known}"
    error = UnknownSettingError(told)
    error.section, error.key, error.owner, error.names = section, label(key), owner, tuple(names)
    return error


def _settings(names: Sequence[str]) -> str:
    if len(names) < 2:
        return f"only the setting {names[0]}" if names else "no settings"
    return f"the settings {', '.join(names)}"


def nearest(value: object, names: Sequence[str], cutoff: float) -> list[str]:
    """Settings' names are long, and words in them recur: they must be more alike than names of methods."""
    return get_close_matches(label(value), names, n=2, cutoff=cutoff)


def did_you_mean(names: Sequence[str]) -> str:
    """The question, or nothing where there are no names."""
    return f"did you mean {' or '.join(names)}?" if names else ""


def one_of(names: Sequence[object], last: str = "or") -> str:
    """`a`, `a or b`, `a, b or c`."""
    *rest, end = map(str, names)
    return f"{', '.join(rest)} {last} {end}" if rest else end


def counted(count: int, word: str) -> str:
    """`1 round`, `2 rounds`, `1,000 classes`."""
    return f"{count:,} {word}{'' if count == 1 else 'es' if word.endswith('s') else 's'}"


def by_reason(problems: Mapping[str, str]) -> str:
    """What is wrong with whom; what is wrong with several is said once."""
    reasons: dict[str, list[str]] = {}
    for who, why in problems.items():
        reasons.setdefault(why, []).append(who)
    return "; ".join(f"{', '.join(sorted(those))}: {why}" for why, those in reasons.items())


def described(found: object) -> str:
    """Of a tensor its shape and type, of a pair or the like what is in it, of anything else what it is."""
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        what = "an array" if type(found).__module__ == "numpy" else "a tensor"
        return f"{what} {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}"
    if isinstance(found, dict) and 0 < len(found) <= 4:
        return f"a dict with {', '.join(f'{label(name)}: {described(each)}' for name, each in found.items())}"
    if isinstance(found, tuple | list) and len(found) <= 4:
        return f"({', '.join(described(each) for each in found)})"
    if found is None or isinstance(found, int | float | str):
        return shown(found)
    return f"a {type(found).__name__}"

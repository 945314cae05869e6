"""What the loader promises, whatever it is given."""

import re
from pathlib import Path

from fedkeel import Experiment, InputError

LONGEST = 3000
"""Characters of a message, which may list every setting and every method."""


def load(path: Path | None, overrides: list[str]) -> Experiment | None:
    """Either an experiment that reads back as it is, or a message for people, and then None."""
    try:
        experiment = Experiment.load(path, overrides)
    except InputError as error:
        check_message(str(error), [path.name] if path else [], [o.partition("=")[0] for o in overrides])
        check_remedy(str(error))
        return None
    written = experiment.to_yaml()
    target = (path or Path()).with_name("again.yaml") if path else None
    if target is not None:
        target.write_text(written, encoding="utf-8")
        again = Experiment.load(target)
        assert again.to_yaml() == written
        assert again == experiment or ".nan" in written
    return experiment


def check_message(message: str, files: list[str], keys: list[str]) -> None:
    """A few printable lines that name something of the input, or a setting."""
    assert 0 < len(message) < LONGEST
    assert all(line and line.isprintable() for line in message.split("\n")), message
    beginnings = [repr(key)[1:-1][:20] for key in keys if key]
    assert any(word in message for word in [*files, *beginnings, *Experiment.model_fields, "override"]), message
    assert "pydantic" not in message


def check_remedy(message: str) -> None:
    """Each line says what to do after a semicolon ("local.lr must be greater than 0; got -1").

    The cause, or the place in a file, may stand for it in parentheses. Where more is wrong than is told, the last line
    only says so.
    """
    for line in message.split("\n"):
        problem, _, remedy = line.partition("; ")
        cause = re.search(r"\(.+\)", line) is not None
        assert line == "and more" or cause or (problem.strip() and remedy.strip(" .")), line

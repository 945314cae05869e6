"""What must be the same at the server and at a site, name by name, so that a refusal can say what differs."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from fedkeel.config.experiment import Experiment
from fedkeel.errors import shown
from fedkeel.params import Layout

MOST = 500
"""Settings and tensors that are told one by one."""
LONGEST = 80
"""Letters of a name or a value; of a longer one, a digest is told."""
WEIGHTS = "the number of weights"
SECTIONS = ("task", "algorithm", "local", "loss", "wire", "dtype", "seed")
"""Of the experiment."""


def told(experiment: Experiment, layout: Layout) -> dict[str, str]:
    """Values by name: settings of training, then the model's tensors."""
    given = experiment.model_dump(mode="json", include={*SECTIONS})
    found = {name: value for section in SECTIONS for name, value in _flat(section, given[section])}
    found[WEIGHTS] = f"{layout.size:,}"
    for each in (*layout.parameters, *layout.buffers):
        found[f"the shape of {each.name}"] = str([*each.shape])
    return {_cut(name): _cut(value) for name, value in [*found.items()][:MOST]}


def difference(server: dict[str, str], site: object) -> str:
    """The first thing that differs, in words; a site may have told anything."""
    here = site if isinstance(site, dict) else {}
    for name in [*server, *(each for each in here if each not in server)]:
        ours, theirs = server.get(name), here.get(name)
        if ours != theirs:
            name = name if name.isprintable() and len(name) <= LONGEST + 20 else shown(name)
            return f"{name} is {_said(theirs)} at the site and {_said(ours)} at the server"
    return "its method or its model is not the server's"


def _said(value: object) -> str:
    short = isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST
    return "not there" if value is None else str(value) if short else shown(value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Settings by their dotted names."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _flat(f"{name}.{number}", each)
    else:
        yield name, "none" if value is None else str(value)


def _cut(text: str) -> str:
    whole = len(text) <= LONGEST + 20
    return text if whole else f"{text[:LONGEST]} ({sha256(text.encode()).hexdigest()[:8]})"

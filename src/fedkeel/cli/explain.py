"""`fedkeel show --explain`: settings in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from fedkeel.cli.console import console
from fedkeel.config.catalogue import Group, Setting, groups
from fedkeel.config.elsewhere import Elsewhere
from fedkeel.config.experiment import Experiment
from fedkeel.config.spelling import SHORTHAND, dotted, flow
from fedkeel.errors import no_such_setting

_TOPIC = re.compile(r"[a-z]\w*(\.\w+)*")
_FILE = (".yaml", ".yml", ".json")


def is_topic(word: str) -> bool:
    """Whether a word names a setting or a section rather than a file."""
    return bool(_TOPIC.fullmatch(word)) and not word.endswith(_FILE)


def explain(experiment: Experiment, topics: Sequence[str]) -> None:
    """Print settings with their values and what they mean: those that are asked for, or all."""
    known = groups(experiment)
    for topic in topics:
        _check(topic, known, experiment)
    values = dotted(experiment.model_dump(mode="json"))
    shown = [_part(group, topics) for group in known]
    for number, group in enumerate(group for group in shown if group.settings):
        if number:
            console.print()
        _print(group, values)


def _part(group: Group, topics: Sequence[str]) -> Group:
    """What is asked for of a group."""
    settings = tuple(each for each in group.settings if not topics or any(_matches(each, group, t) for t in topics))
    return Group(group.section, group.owner, group.about, settings)


def _matches(setting: Setting, group: Group, topic: str) -> bool:
    """A section's name stands for its settings; a setting in a list of sections needs no number."""
    if topic == group.section:
        return True
    return topic in (setting.name, re.sub(r"\.\d+\.", ".", setting.name)) and not setting.is_section


def _check(topic: str, known: Sequence[Group], experiment: Experiment) -> None:
    """Refuse what is no setting, and say where it is."""
    if any(_matches(setting, group, topic) for group in known for setting in group.settings):
        return
    section, _, key = topic.rpartition(".")
    inside = [group for group in known if group.section == section and group.settings]
    names = {each.name.removeprefix(f"{section}.") for group in inside for each in group.settings}
    owner = next((group.owner for group in reversed(inside) if group.owner), "")
    error = no_such_setting(section, key, owner, names)
    values = {name: getattr(experiment, name) for name in Experiment.model_fields}
    advice = Elsewhere(Experiment, values).advice(error)
    raise no_such_setting(section, key, owner, names, advice) if advice else error


def _print(group: Group, values: dict[str, Any]) -> None:
    title = f"{group.section}: {group.owner}" if group.owner else group.section or "experiment"
    _indented(Text.assemble((title, "bold underline"), f"  {group.about}" if group.about else ""), 0)
    for setting in group.settings:
        _indented(_heading(setting, values), 2)
        _indented(Text(setting.meaning), 6)


def _indented(text: Text, indent: int) -> None:
    """Print a paragraph; its further lines are indented by at least four."""
    for number, line in enumerate(text.wrap(console, max(20, console.width - max(indent, 4))) if text else ()):
        line.rstrip()
        console.print(Text(" " * (indent if not number else max(indent, 4))) + line)


def _heading(setting: Setting, values: dict[str, Any]) -> Text:
    """`local.lr = 0.1  (default 0.05; a number above 0)`"""
    name = f"{setting.name}.{SHORTHAND[setting.name]}" if setting.name in SHORTHAND else setting.name
    value = flow(values[name]) if name in values else setting.default
    notes = [f"default {setting.default}"] if setting.default not in ("", "null", value) else []
    notes += [setting.values] if setting.values else []
    return Text.assemble(
        (setting.name, "bold cyan"),
        (f" = {value}" if value else "", "green"),
        (f"  ({'; '.join(notes)})" if notes else "", "dim"),
    )

"""YAML as experiments are written in it, and errors that say what is wrong with a file and where."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fedkeel.config.files import open_file, reason
from fedkeel.errors import InputError, label, shown, words

LONGEST = 100_000
"""Bytes of an experiment file. One with every setting has some 2,000; far longer ones take PyYAML seconds."""
MOST_VALUES = 10_000
"""Counted as often as aliases repeat them: a few lines can mean more than fits into memory."""
DEEPEST = 50
LONGEST_INTEGER = 1000

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of version 1.2, where 1e-3 is one and 1:30 is none, and without keys that are given twice.

    What would need much time or memory is refused.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases make more than {MOST_VALUES:,} values")
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._count += 1
        if self._depth > DEEPEST or self._count > MOST_VALUES:
            deep = f"more than {DEEPEST} sections or lists inside each other"
            raise yaml.MarkedYAMLError(
                problem=deep if self._depth > DEEPEST else f"more than {MOST_VALUES:,} values",
                problem_mark=self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception:  # PyYAML tells nothing of numbers and dates that are none
            kind = node.tag.removeprefix(_TAG)
            raise yaml.MarkedYAMLError(
                problem=f"{shown(node.value)} is not a valid {kind}", problem_mark=node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):  # it only says that it is one, by its tag
            raise yaml.MarkedYAMLError(problem="a section was expected here", problem_mark=node.start_mark)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != f"{_TAG}merge"]
        counts = Counter(key for key in keys if isinstance(key, Hashable))
        for key, times in counts.items():
            if times > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"{label(key)} is given twice; keep one of the two", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)

    def construct_undefined(self, node: yaml.Node) -> NoReturn:
        tag = shown(node.tag.replace(_TAG, "!!"))
        raise yaml.MarkedYAMLError(problem=f"the tag {tag} is not supported", problem_mark=node.start_mark)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > LONGEST_INTEGER:
            raise yaml.MarkedYAMLError(
                problem=f"an integer of more than {LONGEST_INTEGER} digits", problem_mark=node.start_mark
            )
        return super().construct_yaml_int(node)

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise yaml.MarkedYAMLError(problem=f"{shown(text)} has half of a character", problem_mark=node.start_mark)
        return text


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many values a node stands for; refuses one that stands inside itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if node not in known:
        known[node] = 0
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[node] = 1 + sum(_size(part, known) for part in parts)
    elif not known[node]:
        raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
    return known[node]


class _Dumper(yaml.SafeDumper):
    """Quotes what any loader would take for a number, and keeps line breaks that are not plain ones."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if any(letter in data for letter in "\x85\u2028\u2029") else None
        return self.represent_scalar(f"{_TAG}str", data, style=style)


_NUMBERS = {
    "int": re.compile(r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    "float": re.compile(
        r"([-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)|[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) not in (*_NUMBERS, "value")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, list("-+.0123456789"))
    _Dumper.add_implicit_resolver(_TAG + _kind, _pattern, list("-+.0123456789"))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
_Loader.add_constructor(f"{_TAG}str", _Loader.construct_yaml_str)
for _tag in (None, f"{_TAG}omap", f"{_TAG}pairs"):  # the last two are not written as they are read
    _Loader.add_constructor(_tag, _Loader.construct_undefined)
_Dumper.add_representer(str, _Dumper.represent_str)


def read(path: Path, kind: str = "experiment file") -> dict[str, Any]:
    """The mapping in a file of this kind; nothing for an empty one."""
    what = f"{kind} {label(str(path))}"
    try:
        with open_file(path) as file:
            content = file.read(LONGEST + 1)
    except OSError as error:
        raise InputError(f"{what} cannot be read ({reason(error)}); give the path of a YAML file") from None
    if len(content) > LONGEST:
        raise InputError(f"{what} must have at most {LONGEST:,} bytes; give a YAML file of settings")
    try:
        values = _load(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        found = f"byte 0x{content[error.start]:02x} at {error.start}"
        raise InputError(f"{what} is not valid YAML (not UTF-8: {found}); save it in UTF-8") from None
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not valid YAML; {_told(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{what} must be a mapping such as 'clients: 100'; got {_sort(values)}")
    return values


def _sort(values: Any) -> str:
    return "text" if isinstance(values, str) else f"a {type(values).__name__}"


def parse(key: str, text: str) -> Any:
    """The value that is given for a key on the command line."""
    try:
        return _load(text) if text else None
    except yaml.YAMLError as error:
        raise InputError(f"{label(key)} must be a YAML value; got {shown(text)} ({_told(error)})") from None


def write(values: dict[str, Any]) -> str:
    """As `read` reads it back."""
    try:
        text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise InputError(
            f"{shown(error.args[-1])} cannot be written into an experiment file; use numbers, strings, and lists and "
            "mappings of these"
        ) from None
    if len(text.encode()) > LONGEST:
        raise InputError(f"the experiment has more than {LONGEST:,} bytes as YAML; use shorter options")
    return text


def _load(text: str) -> Any:
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"more than {LONGEST:,} characters")
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML fails in many ways on odd tags
        raise yaml.YAMLError(words(error)) from None
    finally:
        loader.dispose()


_PLAINLY = {
    "found character '\\t' that cannot start any token": "a tab; indent with spaces",
    "mapping values are not allowed here": "a colon at the wrong place; put a space after the colon of each setting, "
    "and indent the settings of a section alike",
    "could not find expected ':'": "a setting without a value; write it as 'key: value'",
}
"""What PyYAML says, in words that tell what to do."""


def _told(error: yaml.YAMLError) -> str:
    """Where and what, without PyYAML's picture of the place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        mark = error.problem_mark
        problem = " ".join(error.problem.removeprefix("but ").split())
        return f"line {mark.line + 1}, column {mark.column + 1}: {_PLAINLY.get(problem, problem)}"
    return " ".join(str(error).replace('in "<unicode string>", ', "at ").split())

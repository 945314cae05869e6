"""YAML as experiments are written in it, and errors that say what would be accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from fedkeel.errors import InputError


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of version 1.2, where 1e-3 is one, and without keys that stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
        twice = [key for number, key in enumerate(keys) if key in keys[:number]]
        if twice:
            raise yaml.YAMLError(f"{twice[0]} stands twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would take for a number."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file; nothing for an empty one."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InputError(f"experiment file {path}: cannot be read ({error.strerror}); accepted: a YAML file") from None
    except Exception as error:  # odd tags and dates fail in many ways
        reason = " ".join(str(error).split())
        raise InputError(f"experiment file {path}: not valid YAML ({reason})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(
            f"experiment file {path}: holds a {type(values).__name__}; accepted: a mapping such as 'clients: 100'"
        )
    return values


def parse(key: str, text: str) -> Any:
    """The value that is given for a key on the command line."""
    try:
        return yaml.load(text, _Loader) if text else None
    except Exception:
        raise InputError(f"{key}: {text!r} is not accepted; accepted: a YAML value") from None


def write(values: dict[str, Any]) -> str:
    """As `read` reads it back."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text

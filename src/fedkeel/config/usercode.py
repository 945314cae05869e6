"""Code of the user's that an experiment names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedkeel.errors import FedkeelError, InputError, shown, words

GIVEN = "custom:"
"""Begins the recorded name of data or a model that was handed over in Python."""


def call(name: str, field: str, options: dict[str, Any]) -> Any:
    """Call `module:function`; whatever goes wrong in the user's code is told as theirs."""
    module, _, function = name.partition(":")
    try:
        target = getattr(import_module(module), function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(
            f"{field}: {shown(name)} cannot be imported ({said(error)}); accepted: module:function"
        ) from error
    try:
        return target(**options)
    except (FedkeelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{field}: {name} failed ({said(error)})") from error


def said(error: BaseException) -> str:
    """An error's kind and words, on one line."""
    text = words(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

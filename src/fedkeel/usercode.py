"""Code of the user's that an experiment names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedkeel.errors import FedkeelError, InputError


def call(name: str, field: str, options: dict[str, Any]) -> Any:
    """Call `module:function`; whatever goes wrong in the user's code is told as theirs."""
    module, _, function = name.partition(":")
    try:
        target = getattr(import_module(module), function)
    except (Exception, SystemExit) as error:
        raise InputError(f"{field}: {name!r} cannot be imported ({said(error)}); accepted: module:function") from error
    try:
        return target(**options)
    except FedkeelError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{field}: {name} failed ({said(error)})") from error


def said(error: BaseException) -> str:
    """An error's kind and words."""
    return f"{type(error).__name__}: {error}"

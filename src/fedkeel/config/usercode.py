"""The user's own code, which an experiment names as `module:name`."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, PydanticUserError, create_model

from fedkeel.config.section import Section, make
from fedkeel.errors import FedkeelError, InputError, label, no_such_setting, one_of, shown, words

GIVEN = "custom:"
"""Begins the recorded name of data or a model that was handed over in Python."""
TRACEBACK = "add --debug to the command to see the traceback"
DOING = "in round "
"""Begins a note that says when an error arose; others say what to do about it."""
FOUND: set[str] = set()
"""Names of the user's code that this process has used."""
_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple({path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")})

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of packages, also of those that a user or a distribution has installed."""


def is_own(name: object) -> bool:
    """Whether this names code of the user's."""
    return isinstance(name, str) and ":" in name


def short(name: str) -> str:
    """`mine` for `my_module:mine`, as figures show it."""
    return name.rpartition(":")[2]


def name_of(function: Any, field: str) -> str:
    """`module:name` of a function that was handed over in Python, under which it can be found again."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    found = Path(main).stem if module == "__main__" and main else module
    spelled = f"{found}:{name}"
    with suppress(InputError):
        if name.isidentifier() and find(spelled, field) is function:
            return spelled
    own = name.rpartition(".")[2] or type(function).__name__
    raise InputError(
        f"{field}: {label(own)} cannot be found again by its name; define it with def at the top level of a "
        "module, so that runs can be repeated and resumed"
    )


def find(name: str, field: str, accepted: str = "module:function") -> Any:
    """What `module:name` names; the module is imported."""
    module, _, inside = name.partition(":")
    if module.endswith(".py"):
        such = label(f"{Path(module).stem}:{inside}")
        raise InputError(f"{field}: the name of a module has no .py; write {such} instead of {shown(name)}")
    try:
        target = getattr(_running(module) or import_module(module), inside)
    except KeyboardInterrupt:
        raise
    except FedkeelError as error:
        raise InputError(f"{field}: {label(name)}: {error}") from error
    except BaseException as error:
        missing = f"{error.name}." if isinstance(error, ModuleNotFoundError) else "?"
        hint = _where(module) if f"{module}.".startswith(missing) else _instead(module, error)
        raise InputError(f"{field}: {shown(name)} cannot be imported ({said(error)}{hint}); give {accepted}") from error
    FOUND.add(name)
    return target


def _running(module: str) -> ModuleType | None:
    """The script that this process runs, if that is the module: to import it would run it a second time."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if not file or Path(file).stem != module or module in sys.modules:
        return None
    with suppress(OSError):  # the working folder may be gone
        if Path(file).resolve().parent in {Path(folder).resolve() for folder in ("", *sys.path[:1])}:
            return main
    return None


def _where(module: str) -> str:
    """Where a module was looked for that is not there."""
    with suppress(OSError):
        file = label(module.replace(".", "/") + ".py")
        return f", looked for from {label(str(Path.cwd()))}: run the command where {file} is"
    return ""


def _instead(module: str, error: BaseException) -> str:
    """Which file was imported, where it lacks the name: it may be another one of that name."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return f", in {label(file)}" if file and isinstance(error, AttributeError) else ""


def misspelt(own: type, base: type) -> str | None:
    """A method of a user's class whose name is nearly that of one that the base class has, if there is one."""
    names = {name for each in own.__mro__[: own.__mro__.index(base)] for name in vars(each) if not name.startswith("_")}
    known = [name for name in vars(base) if callable(getattr(base, name)) and name not in names]  # not defined either
    for name in sorted(name for name in names if not hasattr(base, name) and callable(getattr(own, name, None))):
        near = get_close_matches(name, known, 1, 0.8)
        if near:
            return f"a method {name}, which fedkeel never calls; did you mean {near[0]}? Begin names of helpers with _"
    return None


def call(name: str, field: str, options: dict[str, Any]) -> Any:
    """Call `module:function`; whatever goes wrong in the user's code is told as theirs."""
    found = find(name, field)
    if not callable(found):
        raise InputError(f"{field}: {name} must be a function or a class; got {shown(found)}")
    return guarded(found, name, field, **options)


def guarded(function: Callable[..., Any], name: str, field: str, /, *given: Any, **options: Any) -> Any:
    """Call a function that was found by name; its errors are told as the user's."""
    try:
        return function(*given, **options)
    except (FedkeelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{field}: {name} failed ({said(error)})") from error


def said(error: BaseException) -> str:
    """Where in the user's code an error arose, if it did there, and its kind and words, on one line."""
    text, where = words(error), place(error)
    if isinstance(error, PydanticUserError) and error.code == "model-field-missing-annotation":
        given = text.partition("`")[2].partition("`")[0]
        told = f"{given} needs a type if it is a setting, such as {given.replace(' =', ': float =', 1)}"
        told += "; what a rule says of itself is written as a property"
    else:
        told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{where}: {told}" if where else told


def place(error: BaseException) -> str | None:
    """Where in the user's code an error arose, or what they called there: 'mine.py, line 12, in step'.

    Nothing if fedkeel did not call their code.
    """
    frames = extract_tb(error.__traceback__)
    ours = [Path(frame.filename).is_relative_to(_PACKAGE) for frame in frames]
    for frame in reversed(frames[ours.index(True) if any(ours) else 0 :]):
        if not _is_library(Path(frame.filename)):
            return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
    return None


def _is_library(path: Path) -> bool:
    """Whether a file is fedkeel's, Python's or a package's; code without a file counts as such."""
    known = str(path).startswith(("<", *_LIBRARIES)) or path.is_relative_to(_PACKAGE)
    return known or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def hint(error: BaseException) -> str:
    """How to see more of an error in the user's code, where the command line tells of it in one sentence."""
    return f"; {TRACEBACK}" if error.__cause__ is not None and place(error.__cause__) else ""


def unforeseen(error: BaseException) -> str:
    """What to say of an error that nobody expected: the user's own, or one of fedkeel."""
    doing = "".join(f"{note}: " for note in getattr(error, "__notes__", ()) if note.startswith(DOING))
    if place(error):
        return f"{doing}{said(error)}; {TRACEBACK}"
    whose = f"fedkeel, while it used your {one_of(sorted(FOUND), 'and')}" if FOUND else "fedkeel"
    return f"{doing}{said(error)} (an error in {whose}); {TRACEBACK}"


def check_signature(function: Any, name: str, field: str, given: tuple[str, ...]) -> inspect.Signature:
    """That it can be called with so many values; their names are for the message."""
    call = f"{short(name)}({', '.join(given)})"
    if not callable(function):
        raise InputError(f"{field}: {name} must be a function {call}; got {shown(function)}")
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # an annotation that means nothing here says nothing about the call
        try:
            signature = inspect.signature(function)
        except Exception as error:
            raise InputError(f"{field}: {name} has no signature ({said(error)}); give a function {call}") from error
    try:
        signature.bind_partial(*given)
    except TypeError as error:
        raise _uncallable(name, field, given, signature, error) from None
    return signature


def _uncallable(
    name: str, field: str, given: tuple[str, ...], signature: inspect.Signature, error: TypeError
) -> InputError:
    return InputError(
        f"{field}: {name} must be a function {short(name)}({', '.join(given)}); got {short(name)}{_plain(signature)} "
        f"({words(error)})"
    )


def check_call(function: Any, name: str, field: str, given: tuple[str, ...]) -> None:
    """That it can be called with these values and no others."""
    signature = check_signature(function, name, field, given)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise _uncallable(name, field, given, signature, error) from None


def completed(
    function: Any, name: str, field: str, given: tuple[str, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """All options of a function that is called as `function(*given, **options)`: checked, with defaults filled in.

    `field` is that of the function's name, `section.kind`; options stand beside it.
    """
    section, _, own = field.rpartition(".")
    signature = check_signature(function, name, field, given)
    parameters = [*signature.parameters.values()]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [p for p in parameters if p not in positional[: len(given)]]
    named = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind == p.POSITIONAL_ONLY for p in rest) or own in (p.name for p in rest):
        raise InputError(
            f"{field}: {name} must take its options by name, and none may be called {own}; "
            f"got {short(name)}{_plain(signature)}"
        )
    anything = any(p.kind == p.VAR_KEYWORD for p in rest)
    known = {p.name for p in named}
    for key in options:
        if key not in known and not anything:
            raise no_such_setting(section, key, name, known)
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise InputError(f"{section}.{parameter.name} is missing; {name} needs it")
    fields = {p.name: (_type(p), ... if p.default is p.empty else p.default) for p in named}
    try:
        model: type[Section] = create_model("Options", __base__=_Options, **fields)  # type: ignore[call-overload]
    except Exception as error:
        raise InputError(f"{field}: the options of {name}{_plain(signature)} cannot be used ({said(error)})") from error
    return guarded(make, name, field, model, options, section).model_dump()  # type: ignore[no-any-return]


class _Options(Section):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True, protected_namespaces=())


def _type(parameter: inspect.Parameter) -> Any:
    """What the parameter says it is; anything where that is nothing, or a word that could not be looked up."""
    return (
        Any
        if parameter.annotation is parameter.empty or isinstance(parameter.annotation, str)
        else parameter.annotation
    )


def _plain(signature: inspect.Signature) -> str:
    """The parameters without their types."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return label(str(signature.replace(parameters=bare, return_annotation=signature.empty)))


def own_modules() -> list[ModuleType]:
    """The modules of this process that belong neither to Python, nor to an installed package, nor to fedkeel."""
    found = []
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not file or module.__name__ != name or name == "__main__":  # another name of a module that is there, too
            continue
        path = Path(file)
        installed = file.startswith(_LIBRARIES) or not _INSTALLED.isdisjoint(path.parts)
        if not installed and _PACKAGE not in path.parents:
            found.append(module)
    return found

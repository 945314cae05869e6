"""A new deployment: a folder with an experiment, a model, a reader of data and a Flower app, to be edited."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.config import usercode, yamltext
from fedkeel.config.experiment import Experiment
from fedkeel.config.files import reason
from fedkeel.config.section import make
from fedkeel.deploy.settings import EXPERIMENT, FILE, MODEL, DeploySettings
from fedkeel.errors import InputError, counted, label
from fedkeel.world.faults import FaultSettings
from fedkeel.world.fleet.settings import FleetSettings

ROUNDS = 5
TRIGGER = 1.0
"""Seconds between two dispatches of a method that has no rounds: the default suits devices that take minutes."""
_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {
    "data.py": "data.py",
    "pyproject.toml": "pyproject.toml",
    "LICENSE": "LICENSE",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "flower_app/__init__.py": "init.py",
    "flower_app/server_app.py": "server_app.py",
    "flower_app/client_app.py": "client_app.py",
    FILE: FILE,
}
"""Where the templates go."""
_HEAD = "# What is trained, and how. `fedkeel show --explain` explains every setting; those not given have defaults.\n"
_TRIGGER = r"(?m)^( +trigger_seconds: .*)$", r"\1  # real seconds between two dispatches; at most those of a job"
_OWN = ("data", "flower_app")


@dataclass(frozen=True)
class Made:
    """What was written."""

    files: tuple[str, ...]
    modules: tuple[str, ...]
    """The user's own modules, which have to be copied into the folder."""


def new(
    app: Path,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    sites: Sequence[str] | None = None,
    nodes: int | None = None,
) -> Made:
    """Write the folder `app`; nothing is left if something is wrong."""
    _check_free(app)
    if sites is not None and nodes is not None:
        raise InputError("--sites cannot be combined with --nodes; remove one of them")
    given = Experiment.load(file, overrides)
    names = _named(given, sites, nodes)
    experiment = _fitted(given, names)
    modules = _modules(experiment)
    texts = _texts(app.absolute().name, experiment, names)
    try:
        app.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fedkeel-", dir=app.parent) as scratch:
            for name, text in texts.items():
                path = Path(scratch) / "app" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            if app.is_dir():
                app.rmdir()
            shutil.move(Path(scratch) / "app", app)
    except OSError as error:
        raise InputError(f"{app} cannot be written ({reason(error)}); name another folder") from None
    return Made(tuple(texts), tuple(modules))


def _check_free(app: Path) -> None:
    if app.is_symlink() or (app.exists() and not app.is_dir()):
        raise InputError(f"{app} is no folder; name a new one")
    if app.is_dir() and any(app.iterdir()):
        raise InputError(f"{app} is not empty; name a new folder")


def _named(given: Experiment, sites: Sequence[str] | None, nodes: int | None) -> tuple[str, ...]:
    """The sites: those that were named, or as many as there are to be."""
    told = "clients" in given.model_fields_set
    if sites is None:
        count = nodes if nodes is not None else given.clients if told else 4
        if not 1 <= count <= 1000:
            raise InputError(f"nodes must be from 1 to 1000; got {count}")
        sites = [f"site-{number}" for number in range(1, count + 1)]
    names = make(DeploySettings, {"sites": [*sites]}).sites
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise InputError(f"sites: {name} differs from another site only in capitals; choose another name")
    if told and given.clients != len(names):
        raise InputError(f"clients={given.clients} must be the number of sites, {len(names)}; leave it out")
    return names


def _fitted(given: Experiment, names: Sequence[str]) -> Experiment:
    """The experiment with one client per site, and with defaults that suit a first try."""
    for section, usual in (("fleet", FleetSettings()), ("faults", FaultSettings())):
        for name, value in getattr(given, section):
            if value != getattr(usual, name):
                raise InputError(f"{section}.{name} is for simulated devices; remove it, as real machines have none")
    said = given.model_fields_set
    changes: dict[str, Any] = {"clients": len(names)}
    if not said & {"per_round", "participation"}:
        changes["per_round"] = len(names)
    if not said & {"model", "dataset"}:
        changes["model"] = MODEL
    usual_values = {
        "dataset": given.dataset.name,
        "algorithm": given.algorithm.name,
        "rounds": ROUNDS,
        "partition": "dirichlet",
        "executor": {"kind": "serial", "stack": 0, "channels_last": False},
    }
    changes |= {name: value for name, value in usual_values.items() if name not in said}
    if given.pace == "periodic" and "trigger_seconds" not in given.schedule.model_fields_set:
        changes["schedule"] = {**given.schedule.model_dump(exclude_unset=True), "trigger_seconds": TRIGGER}
    return given.replace(**changes)


def _modules(experiment: Experiment) -> list[str]:
    """The user's own modules that the experiment names, beside that of this project."""
    found = []
    for name in dict.fromkeys(_names(experiment.model_dump())):
        module = name.partition(":")[0]
        if name == MODEL:
            continue
        if name.startswith(usercode.GIVEN):
            raise InputError(f"{label(name)} was handed over in Python; name it as module:function in the experiment")
        if module.partition(".")[0] in _OWN or (module == "model" and experiment.model.name == MODEL):
            raise InputError(f"{label(name)}: {module}.py is a file of the new project; rename your module")
        found.append(module)
    return [*dict.fromkeys(found)]


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _names(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _names(each)
    elif usercode.is_own(value) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        yield value


def _texts(name: str, experiment: Experiment, names: Sequence[str]) -> dict[str, str]:
    """The content of every file."""
    own = experiment.model.name == MODEL
    words = {
        "NAME": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "deployment",
        "TITLE": name,
        "COUNT": counted(len(names), "site").partition(" ")[0],
        "FIRST": names[0],
        "SITES": "\n".join(f"  - {_quoted(each)}" for each in names),
        "MODEL": "| `model.py` | the model |\n" if own else "",
    }
    files = {**({"model.py": "model.py"} if own else {}), **_FILES}
    texts = {EXPERIMENT: _HEAD + re.sub(*_TRIGGER, yamltext.write(_plain(experiment)))}
    for target, source in files.items():
        text = (_TEMPLATES / f"{source}.template").read_text(encoding="utf-8")
        texts[target] = re.sub("@([A-Z]+)@", lambda found: words[found[1]], text)
    return texts


def _plain(experiment: Experiment) -> dict[str, Any]:
    """The settings that were given; a section that only names something is that name."""
    told = experiment.model_dump(exclude_unset=True, mode="json")
    told["algorithm"] = {key: value for key, value in told["algorithm"].items() if value is not None}
    first = ("dataset", "partition", "model", "algorithm", "local", "clients", "per_round", "rounds")
    ordered = {key: told[key] for key in (*(key for key in first if key in told), *told)}
    return {key: _short(value) for key, value in ordered.items()}


def _short(section: Any) -> Any:
    bare = isinstance(section, dict) and len(section) == 1 and next(iter(section)) in ("name", "kind")
    return next(iter(section.values())) if bare else section


def _quoted(name: str) -> str:
    """A name as a list in YAML has it: `2024` is a number without quotes."""
    return yamltext.write({"": name}).partition(": ")[2].strip()

"""docs/deploy.md: its commands exist, its settings are explained, its code runs and its units can be read."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fedkeel import Experiment
from fedkeel.config import catalogue
from fedkeel.config.section import make
from fedkeel.deploy import project, site
from fedkeel.deploy.prepared import Project, checked
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.site import Site
from fedkeel.errors import InputError
from tests.helpers import pages
from tests.helpers.deployed import own_modules
from tests.helpers.pages import parsed
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS = pages.blocks(PAGE)
UNITS = dict(re.findall(r"^```ini\n# /etc/systemd/system/(\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def commands() -> Iterator[str]:
    """The commands of fedkeel: in blocks, in the text, and in units."""
    for kind, text in BLOCKS:
        yield from (line for line in text.splitlines() if kind in ("bash", "console") and line.startswith("fedkeel "))
    yield from (f"fedkeel {words}" for words in re.findall(r"^ExecStart=\S+/fedkeel (.*)$", PAGE, re.MULTILINE))


def test_every_command_of_the_page_exists() -> None:
    called = {parsed(shlex.split(line, comments=True)[1:]) for line in commands()}
    assert called >= {
        "deploy new", "deploy local", "deploy keys", "deploy server", "deploy replay", "node enroll", "node run",
        "fleet from", "fleet replay", "run",
    }  # fmt: skip
    named = {words.removeprefix("fedkeel ") for words in re.findall(r"`(fedkeel (?:deploy|node|fleet) [a-z]+)", PAGE)}
    assert named <= called


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parsed(["deploy", "local", "app", "--nonsense"])
    with pytest.raises(click.UsageError):
        parsed(["deploy", "nonsense"])


@pytest.mark.parametrize("setting", catalogue.of_section(DeploySettings), ids=lambda each: each.name)
def test_every_setting_is_explained_in_its_own_words(setting: catalogue.Setting) -> None:
    row = f"| `{setting.name}` | `{setting.default}` | {setting.values} | {setting.meaning} |"
    assert setting.meaning
    assert row in PAGE.splitlines()


def test_every_setting_that_the_table_has_exists() -> None:
    table = PAGE.partition("| setting | default | values | meaning |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*DeploySettings.model_fields}


def test_the_yaml_is_read() -> None:
    experiment, deploy = (yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml")
    made = checked(make(Experiment, experiment), 3)
    assert made.dataset.classes == ("false", "true")
    settings = make(DeploySettings, deploy)
    assert (settings.needed, settings.record_uploads) == (2, True)


class Refusing:
    """A pool of statistics that nobody needs."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_the_code_of_data_py_runs(tmp_path: Path) -> None:
    given, arrays, test = (text for kind, text in BLOCKS if kind == "python")
    app = tmp_path / "app"
    project.new(app, None, ["model=linear", "dataset.train_limit=200"], ["north", "south"])
    (app / "data.py").write_text(given)
    with own_modules(app):
        north = Site.of(Project.load(app), "north", None)
        found = site.load(north, Refusing())
        assert (found.own, found.data.shape) == (False, (1, 28, 28))
    (app / "data.py").write_text(arrays + test)
    with own_modules(app):
        found = site.load(Site.of(Project.load(app), "south", None), Refusing())
        assert (found.own, found.data.shape, found.data.sizes.tolist()) == (True, (8,), [0, 80])
        import data  # type: ignore[import-not-found]

        assert [len(each) for each in data.test()] == [20, 20]


def test_what_the_page_says_of_the_template_is_so(tmp_path: Path) -> None:
    app = tmp_path / "app"
    made = project.new(app)
    for name in made.files:
        assert f"`{name.partition('/')[0]}" in PAGE or name == ".gitignore", name
    given = next(text for kind, text in BLOCKS if kind == "python")
    code = [line.partition("  #")[0] for line in (app / "data.py").read_text().splitlines()]
    assert all(line in code for line in given.splitlines())
    names = re.search(r"It prints:\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert names is not None
    assert {*re.findall(r"(site-\d) is here", names[1])} == {*DeploySettings.load(app).sites}


@pytest.mark.parametrize(
    "setting", ["fleet.speed_ratio=5", "faults.twice=0.1", "finetune.epochs=1", "device=cuda", "clients=7",
                "algorithm={name: fedasmu, reward: proxy}", "algorithm={name: fedlga, diagnose: true}"],
)  # fmt: skip
def test_what_the_page_says_is_refused_is_refused(setting: str) -> None:
    experiment = Experiment.load(None, [setting])
    with pytest.raises(InputError):
        checked(experiment, 3)
    section = PAGE.partition("## What is refused in a deployment")[2].partition("## Limits")[0]
    assert re.split(r"[.=]", setting)[0] in section


def test_the_units_have_what_they_need() -> None:
    assert set(UNITS) == {"fedkeel-server.service", "fedkeel-node.service"}
    for text in UNITS.values():
        unit = ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(text)
        service = unit["Service"]
        assert service["KillMode"] == "mixed"  # fedkeel stops its own programs
        assert service["Restart"] == "on-failure"
        assert "2" in service["RestartPreventExitStatus"].split()
        assert service["User"] != "root"
        assert service["StateDirectory"] in service["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_are_those_of_systemd(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        (tmp_path / name).write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/sh", text, flags=re.MULTILINE))
    paths = [str(tmp_path / name) for name in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, timeout=60, check=False
    )
    told = [line for line in done.stderr.splitlines() if any(name in line for name in UNITS)]
    assert told == []


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            path = (ROOT / "docs" / file) if file else ROOT / "docs" / "deploy.md"
            assert path.is_file(), target
            assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target


def _anchors(page: str) -> set[str]:
    """Of all headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

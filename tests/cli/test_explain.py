"""`fedkeel show --explain` and `--schema`, the page of settings, and `-h`."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import fedkeel
from tests.helpers.repository import ROOT

COMMANDS = [
    "", "run", "compare", "sweep", "report", "export", "watch", "reproduce", "show", "list", "plot", "doctor",
    "data", "data get", "data show", "fleet", "fleet show", "fleet from", "fleet replay", "new", "new method",
]  # fmt: skip


def explained(*arguments: str, cwd: Path, width: int = 80) -> str:
    done = fedkeel("show", "--explain", *arguments, cwd=cwd, env={"COLUMNS": str(width)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_setting(tmp_path: Path) -> None:
    assert explained("local.lr", cwd=tmp_path) == (
        "local  How a client trains the model that it receives.\n"
        "  local.lr = 0.05  (a number above 0)\n"
        "      The learning rate of the clients, before `lr_decay` and `schedule`.\n"
    )
    assert "local.lr = 0.2  (default 0.05; a number above 0)" in explained("local.lr", "local.lr=0.2", cwd=tmp_path)


def test_sections_and_settings_of_what_is_chosen(tmp_path: Path) -> None:
    told = explained("algorithm", "rounds", "--set", "algorithm=fedagg", cwd=tmp_path)
    assert "algorithm: fedagg" in told
    assert "algorithm.cap = 10.0" in told
    assert "rounds = 30" in told
    assert "local.lr" not in told
    assert "algorithm.cap" not in explained("algorithm", cwd=tmp_path)
    assert "wire.0.norm" in explained("wire.norm", cwd=tmp_path)
    assert explained("dataset", cwd=tmp_path).count("dataset.name") == 1


def test_a_file_beside_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("partition: {kind: dirichlet, alpha: 0.25}\n")
    assert "partition.alpha = 0.25  (default 0.5; " in explained("my.yaml", "partition.alpha", cwd=tmp_path)


def test_the_users_own_method(tmp_path: Path) -> None:
    (tmp_path / "own_explained.py").write_text(
        "from fedkeel import Average, ClientRule, method\n"
        "class Rule(ClientRule):\n    strength: float = 2.0\n    '''How strong it is.'''\n"
        "mine = method('mine-explained', client=Rule, server=Average)\n"
    )
    told = explained("algorithm", "algorithm=own_explained:mine", cwd=tmp_path)
    assert "algorithm.strength = 2.0  (a number)\n      How strong it is." in told


@pytest.mark.parametrize("width", [40, 80, 200])
def test_all_settings_fit_the_terminal(width: int, tmp_path: Path) -> None:
    lines = explained(cwd=tmp_path, width=width).splitlines()
    assert len(lines) > 200
    assert width / 2 < max(map(len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        ("lr", "lr is not a setting; did you mean local.lr or finetune.lr?"),
        ("local.rounds", "local.rounds is not a setting; did you mean rounds or checkpoint.rounds?"),
        (
            "algorithm.mu",
            "algorithm.mu is not a setting of fedavg; choose algorithm.name fedasync, fedprox or moon to use",
        ),
        ("nowhere.yaml", "experiment file nowhere.yaml cannot be read"),
    ],
)
def test_what_is_no_setting(topic: str, sentence: str, tmp_path: Path) -> None:
    done = fedkeel("show", "--explain", topic, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedkeel: {sentence}")


def test_the_schema_is_printed_alone(tmp_path: Path) -> None:
    done = fedkeel("show", "--schema", cwd=tmp_path)
    assert "Experiment" in json.loads(done.stdout)["$defs"]
    assert fedkeel("show", "--schema", "rounds=3", cwd=tmp_path).returncode == 2


def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "scripts" / "settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert script(monkeypatch).page() == page, "make docs"
    for setting in ("`rounds`", "`local.lr`", "`algorithm.cap`", "`partition.alpha`", "`model.norm`", "`wire.0.norm`"):
        assert f"| {setting} |" in page


@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_short(command: str, tmp_path: Path) -> None:
    short, long = (fedkeel(*command.split(), word, cwd=tmp_path) for word in ("-h", "--help"))
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert "Usage: fedkeel" in short.stdout

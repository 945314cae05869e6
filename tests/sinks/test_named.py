"""The words of the command line, and packages that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedkeel import InputError
from fedkeel.sinks import named


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("tensorbord", r"^sinks: 'tensorbord' is not known; did you mean tensorboard\?$"),
        ("", r"^sinks: '' is not known; choose one of mlflow, tensorboard, wandb or tensorboard:DIR, mlflow:URI, "
         r"wandb:PROJECT$"),
        ("csv:x", r"^sinks: 'csv:x' is not known; choose one of mlflow"),
        ("tensorboard:", r"^sinks must be tensorboard or tensorboard:DIR; got 'tensorboard:'$"),
        ("mlflow:runs/mlflow.db", r"^sinks: the MLflow store must be sqlite:///FILE or .*; got 'runs/mlflow.db'$"),
        ("wandb:a/b", r"^sinks: the wandb project must be a name without / .*; got 'a/b'$"),
    ],
)  # fmt: skip
def test_words_that_name_no_sink(word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        named(word)


def test_an_unknown_mode_of_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(InputError, match=r"^sinks: 'onlin' is not a mode of wandb; did you mean online"):
        named("wandb")


@pytest.mark.parametrize(
    ("word", "missing"),
    [("tensorboard", "tensorboard"), ("mlflow:http://localhost:1", "mlflow"), ("wandb:mine", "wandb")],
)
def test_a_package_that_is_not_there(word: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError) as error:
        named(word)
    assert str(error.value).startswith(f"sinks: {missing} needs the package {missing}, which cannot be imported (")
    assert str(error.value).endswith(f"; install it with pip install 'fedkeel[{missing}]'")


@pytest.mark.extras
@pytest.mark.parametrize(("uri", "asks"), [("sqlite:///m.db", True), (None, True), ("http://localhost:1", False)])
def test_only_databases_need_sqlalchemy(uri: str | None, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setitem(sys.modules, "alembic", None)
    word = "mlflow" if uri is None else f"mlflow:{uri}"
    if not asks:
        named(word)
        return
    with pytest.raises(InputError, match=r"^sinks: mlflow needs the package alembic, .*install 'fedkeel\[mlflow\]'$"):
        named(word)


def test_nothing_is_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    program = (
        "import sys, fedkeel.api, fedkeel.sinks.tensorboard, fedkeel.sinks.mlflow, fedkeel.sinks.wandb\n"
        "print(sorted({'tensorboard', 'mlflow', 'wandb', 'sqlalchemy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "[]\n"

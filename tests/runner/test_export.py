"""Models as files for serving: what is written computes what the model computes, and says what it needs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkeel import Experiment, FedkeelError, InputError, Result, run
from fedkeel.runner import export as exporting
from fedkeel.runner.export import export_run
from fedkeel.runner.prepare import prepare
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.repository import ROOT

SERIAL = {"kind": "serial", "stack": 0, "channels_last": False}
SMALL: dict[str, Any] = {
    "model": "lenet5", "rounds": 1, "clients": 4, "per_round": 2, "executor": SERIAL,
    "dataset": {"train_limit": 40, "test_limit": 20},
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(Experiment(**SMALL), tmp_path_factory.mktemp("runs") / "a")


def outputs(done: Result, count: int = 7) -> tuple[Tensor, Tensor]:
    x, _ = done.data.test_batch(slice(0, count))
    with torch.inference_mode():
        return x, done.model.eval()(x)


def folder(done: Result) -> Path:
    assert done.out is not None
    return done.out


def test_the_best_model(tmp_path: Path) -> None:
    told = {**SMALL, "model": "linear", "rounds": 4, "per_round": 1, "local": {"lr": 0.5}, "seed": 3}
    result = run(Experiment(**told), tmp_path / "a")
    assert result.best_model is not None
    assert result.summary["best_round"] < 4  # else this shows nothing
    path = export_run(tmp_path / "a", "safetensors", tmp_path / "best.safetensors", best=True)
    for name, tensor in load_file(path).items():
        torch.testing.assert_close(tensor, result.best_model.state_dict()[name], rtol=0, atol=0)
    answer = fedkeel("export", str(tmp_path / "a"), "--best", cwd=tmp_path)
    assert (answer.returncode, "--best needs --to" in answer.stderr) == (2, True)


@pytest.mark.slow
def test_torchscript(done: Result, tmp_path: Path) -> None:
    path = export_run(folder(done), "torchscript")
    assert path == folder(done) / "exported.pt"
    told = {"fedkeel.json": ""}
    loaded: Any = torch.jit.load(path, _extra_files=told)  # type: ignore[no-untyped-call]
    x, wanted = outputs(done)
    assert torch.allclose(loaded(x), wanted, atol=1e-5)
    assert json.loads(told["fedkeel.json"]) == about(done)
    done.export(tmp_path / "same.pt")
    assert torch.allclose(torch.jit.load(tmp_path / "same.pt")(x), wanted, atol=1e-5)  # type: ignore[no-untyped-call]


def about(done: Result) -> dict[str, str]:
    told = exporting.describe(done.data, done.experiment)
    assert told["classes"] == "10"
    assert told["input_shape"] == "[1, 28, 28]"
    assert told["task"] == "classification"
    assert json.loads(told["mean"])[0] > 0
    return told


def test_safetensors(done: Result, tmp_path: Path) -> None:
    path = export_run(folder(done), "safetensors", tmp_path / "new" / "weights.safetensors")
    original = load_file(folder(done) / "model.safetensors")
    weights = load_file(path)
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], original[name]) for name in weights)
    with safe_open(path, "pt") as file:
        assert file.metadata() == about(done)


@pytest.mark.slow
@pytest.mark.extras
def test_onnx(done: Result, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = export_run(folder(done), "onnx", tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    x, wanted = outputs(done)
    (found,) = session.run(None, {"input": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), wanted, atol=1e-4)
    assert session.get_modelmeta().custom_metadata_map.items() >= about(done).items()


def test_onnx_without_its_packages(done: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        InputError, match=r"^to: onnx needs the packages onnx, onnxscript, onnxruntime; install .*\[onnx\]"
    ):
        done.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


class Fickle(nn.Module):
    """Decides by its input what it does, which a recording cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.net = federation.net(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) * (2 if len(x) == exporting.TRACED else 1)
        return out


@pytest.mark.slow
def test_a_file_that_computes_something_else_is_not_left(tmp_path: Path) -> None:
    described = Experiment(rounds=1, per_round=2, executor=SERIAL)
    fickle = run(described, data=federation.data(), model=Fickle())
    with pytest.raises(FedkeelError, match=r"^to: the torchscript file computes something else than the model"):
        fickle.export(tmp_path / "model.pt")
    assert [*tmp_path.iterdir()] == []


def test_what_was_handed_over_in_python(tmp_path: Path) -> None:
    described = Experiment(rounds=1, per_round=2, executor=SERIAL)
    given = run(described, tmp_path / "a", data=federation.data(), model=federation.net(4))
    with pytest.raises(InputError, match=r"custom:\w+ was handed over in Python, so .*; use Result\.export\(path\)"):
        export_run(tmp_path / "a", "torchscript")
    assert given.export(tmp_path / "weights.safetensors").exists()


def test_what_cannot_be_exported(done: Result, tmp_path: Path) -> None:
    own = folder(done) / "model.safetensors"
    before = own.read_bytes()
    for words, said in {
        (tmp_path, "onnx", None): "^export: .* holds no run; name a folder",
        (folder(done), "tflite", None): "^to: 'tflite' is not a format",
        (folder(done), "safetensors", own): "is the run's own model; name another file",
    }.items():
        with pytest.raises(InputError, match=said):
            export_run(*words)
    with pytest.raises(InputError, match=r"^out: model\.h5 must end with one of \.pt, \.onnx, \.safetensors"):
        done.export(tmp_path / "model.h5")
    assert own.read_bytes() == before


def test_on_the_command_line(done: Result, tmp_path: Path) -> None:
    words = ["export", str(folder(done)), "--to", "safetensors"]
    exported = fedkeel(*words, "--out", "w.safetensors", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == "w.safetensors\n"
    refused = fedkeel(*words, "--format", "csv", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--format is for tables and cannot be combined with --to" in refused.stderr
    refused = fedkeel(*words, str(folder(done)), cwd=tmp_path)
    assert "--to writes the model of one run; got 2 folders" in refused.stderr


def test_the_model_is_the_runs_own(done: Result) -> None:
    """Not one that was built anew."""
    _, _, fresh = prepare(Experiment(**SMALL))
    weights = load_file(folder(done) / "model.safetensors")
    assert not torch.equal(fresh.state_dict()["head.weight"], weights["head.weight"])


def snippets(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("with_onnx", [False, pytest.param(True, marks=pytest.mark.extras)])
def test_the_page_on_serving(with_onnx: bool, tmp_path: Path) -> None:
    """Every command and every snippet of it, in its order."""
    if with_onnx:
        pytest.importorskip("onnxruntime")
    for line in "".join(snippets("bash")).splitlines():
        if "onnx" not in line or with_onnx:
            done = fedkeel(*shlex.split(line, comments=True)[1:], cwd=tmp_path)
            assert done.returncode == 0, (line, done.stderr)
    python = [each for each in snippets("python") if "onnx" not in each or with_onnx]
    assert len(python) == (4 if with_onnx else 3)
    for each in python:
        run_ = subprocess.run([sys.executable, "-c", each], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run_.returncode == 0, run_.stderr

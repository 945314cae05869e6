"""A trained model as a file for serving: TorchScript, ONNX or safetensors, with what is needed to use it."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save as packed
from torch import Tensor, nn

import fedkeel
from fedkeel.config.experiment import Experiment
from fedkeel.config.usercode import GIVEN, said
from fedkeel.data.datasets.prepare import Normalise
from fedkeel.data.datasets.registry import ENTRIES
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError, MishapError, label, unknown
from fedkeel.record.durable import whole
from fedkeel.record.folder import begun, complete
from fedkeel.record.schema import EXPERIMENT, check
from fedkeel.runner import initial
from fedkeel.runner.earlier import MODEL
from fedkeel.runner.prepare import prepare

Kind = Literal["torchscript", "onnx", "safetensors"]
SUFFIXES: dict[str, Kind] = {".pt": "torchscript", ".onnx": "onnx", ".safetensors": "safetensors"}
NEEDED = ("onnx", "onnxscript", "onnxruntime")
EXTRA_FILE = "fedkeel.json"
"""Where a TorchScript file holds what `describe` says."""
TOLERANCE = 1e-4
"""By which outputs may differ, relative to the largest."""
TRACED, TRIED = 2, 5
"""Samples by which a model is recorded, and others by which the file is tried."""


def export_run(folder: Path, to: str, out: Path | None = None, best: bool = False) -> Path:
    """Write the model of a finished run to a file, by default `exported.*` in its folder; or its best model."""
    kind, stored = _kind(to), f"best_{MODEL}" if best else MODEL
    named = f"run folder {label(str(folder))}"
    if not begun(folder):
        raise InputError(f"export: {label(str(folder))} holds no run; name a folder that fedkeel run has made")
    check(folder)
    experiment = Experiment.load(folder / EXPERIMENT)
    if given := [each for each in (experiment.dataset.name, experiment.model.name) if each.startswith(GIVEN)]:
        raise InputError(
            f"{named}: {given[0]} was handed over in Python, so the model cannot be built here; use "
            "Result.export(path) on what fedkeel.run or fedkeel.resume returns"
        )
    if not complete(folder):
        raise InputError(f"{named}: the run is not finished; resume it first: fedkeel run --resume {folder}")
    if not (folder / stored).is_file():
        raise InputError(
            f"{named}: there is no {stored}, as the method trains no global model; nothing can be exported"
        )
    suffix = next(suffix for suffix, each in SUFFIXES.items() if each == kind)
    path = out or folder / f"exported{suffix}"
    if path.resolve() == (folder / stored).resolve():
        raise InputError(f"out: {path} is the run's own model; name another file")
    _check_packages(kind)
    experiment, data, module = prepare(experiment.replace(init=None))
    initial.load(module, str(folder / stored))
    return export(module, data, experiment, path, kind)


def export(
    module: nn.Module, data: FederatedData, experiment: Experiment, path: str | Path, to: str | None = None
) -> Path:
    """Write a model to a file; what it is follows from `to`, or from how the path ends."""
    path = Path(path)
    if to is None and path.suffix not in SUFFIXES:
        raise InputError(
            f"out: {label(path.name)} must end with one of {', '.join(SUFFIXES)}, or `to` must say the format"
        )
    kind = _kind(to or SUFFIXES[path.suffix])
    _check_packages(kind)
    module, told = copy.deepcopy(module).cpu().eval(), describe(data, experiment)
    write = {"torchscript": _torchscript, "onnx": _onnx, "safetensors": _safetensors}[kind]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as partial, torch.no_grad():
            answer = write(module, data.test_batch(slice(0, TRACED))[0].cpu(), told, partial)
            if answer is not None:
                _check_outputs(kind, module, answer, data.test_batch(slice(0, TRIED))[0].cpu())
    except OSError as error:
        raise InputError(f"out: {path} cannot be written ({error.strerror or error}); name another file") from None
    return path


def describe(data: FederatedData, experiment: Experiment) -> dict[str, str]:
    """What is needed to use a model, as words."""
    name, scaling = experiment.dataset.name, experiment.dataset.normalise
    told = {
        "fedkeel": fedkeel.__version__,
        "model": experiment.model.name,
        "dataset": name,
        "task": str(getattr(experiment, "task", "classification")),
        "classes": str(data.classes),
        "input_shape": json.dumps([*data.test_batch(slice(0, 1))[0].shape[1:]]),
        "input_dtype": str(data.test_batch(slice(0, 1))[0].dtype).removeprefix("torch."),
        "normalise": scaling,
    }
    for key, names in (("feature_names", data.feature_names), ("class_names", data.class_names)):
        told |= {} if names is None else {key: json.dumps([*names])}
    entry = ENTRIES.get(name)
    if entry is not None and scaling == "standard" and isinstance(entry.prepare, Normalise):
        told |= {"mean": json.dumps([*entry.prepare.mean]), "std": json.dumps([*entry.prepare.std])}
    return told


def _kind(word: str) -> Kind:
    for kind in get_args(Kind):
        if word == kind:
            return kind  # type: ignore[no-any-return]
    raise unknown("to", word, get_args(Kind), "format")


def _check_packages(kind: Kind) -> None:
    if kind != "onnx":
        return
    try:
        for name in NEEDED:
            __import__(name)
    except ImportError:
        raise InputError(
            f"to: onnx needs the packages {', '.join(NEEDED)}; install them with pip install 'fedkeel[onnx]', or "
            "choose torchscript or safetensors"
        ) from None


Answer = Callable[[Tensor], Tensor]


def _torchscript(module: nn.Module, x: Tensor, told: dict[str, str], path: Path) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls its own format deprecated; what was traced is tried below
        try:
            traced: Any = torch.jit.trace(module, x, check_trace=False)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InputError(f"to: the model cannot be recorded as TorchScript ({said(error)})") from error
        torch.jit.save(traced, str(path), _extra_files={EXTRA_FILE: json.dumps(told).encode()})
        loaded: Answer = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    return loaded


def _onnx(module: nn.Module, x: Tensor, told: dict[str, str], path: Path) -> Answer:
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program: Any = torch.onnx.export(
                module,
                (x,),
                dynamo=True,
                verbose=False,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        except Exception as error:
            raise InputError(f"to: the model cannot be written as ONNX ({said(error)})") from error
    program.model.metadata_props.update(told)
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"input": x.numpy()})[0])


def _safetensors(module: nn.Module, _: Tensor, told: dict[str, str], path: Path) -> None:
    owned = {name: tensor.clone().contiguous() for name, tensor in module.state_dict().items()}  # tied weights too
    path.write_bytes(packed(owned, metadata=told))


def _check_outputs(kind: Kind, module: nn.Module, answer: Answer, x: Tensor) -> None:
    """Whether what was written does what the model does, for more samples than it was recorded with."""
    wanted = module(x)
    try:
        found = answer(x)
    except Exception as error:
        raise MishapError(f"to: the {kind} file fails on {len(x)} samples ({said(error)}); use safetensors") from error
    bound = TOLERANCE * (1 + float(wanted.abs().max()))
    if found.shape != wanted.shape or not float((found - wanted).abs().max()) <= bound:
        raise MishapError(
            f"to: the {kind} file computes something else than the model, which may decide by its input what it does; "
            "use safetensors"
        )

"""A model and a loss of the user's, tried on a few samples before a run starts."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedkeel.config import usercode
from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.errors import InputError, described
from fedkeel.local import generators
from fedkeel.local.work import batch_sizes
from fedkeel.task.task import Task, reduction_of

LARGE = {"x": 100.0, "y": 10.0}
"""Samples and real targets with larger numbers than these are worth scaling."""


def check(experiment: Experiment, module: nn.Module, data: FederatedData) -> Experiment:
    """A training step with the smallest batch that will occur, and a test of two samples, on a copy.

    Returns the experiment with what was left open about the user's own loss.
    """
    smallest = batch_sizes(data, experiment.local)[0]
    trial = copied(module)
    parameters = [p for p in trial.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("model: it has no parameters to train; give it layers, and do not freeze all of them")
    with generators.restored():
        x, y = data.train_batch(torch.arange(smallest))
        outputs = _try(trial.train(), x, y, "training", experiment.objective, data.classes)
        experiment = _with_reduction(experiment, trial, data)
        task = experiment.objective
        _check_gradients(outputs, y, parameters, task)
        if len(data.test):  # a site may have none
            x, y = data.test_batch(slice(0, 2))
        outputs = _try(trial.eval(), x, y, "test", task, data.classes).detach()
    _check_last_layer(trial, outputs, task)
    task.try_metrics(outputs, y)
    return experiment


def copied(module: nn.Module) -> nn.Module:
    """The user's model itself is never changed."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InputError(f"model: it cannot be copied ({usercode.said(error)})") from error


def _with_reduction(experiment: Experiment, trial: nn.Module, data: FederatedData) -> Experiment:
    """What the user's own loss returns, tried on a few samples."""
    if not usercode.is_own(experiment.loss.name) or experiment.loss.reduction != "auto":
        return experiment
    x, y = data.train_batch(torch.arange(min(4, len(data.train))))
    with torch.no_grad():
        found = reduction_of(experiment.objective, copy.deepcopy(trial).eval()(x), y)
    return experiment.replace(loss=experiment.loss.model_copy(update={"reduction": found}))


def _check_gradients(outputs: Tensor, y: Tensor, parameters: list[nn.Parameter], task: Task) -> None:
    if not outputs.requires_grad:
        raise InputError(
            "model: its output has no gradient; remove torch.no_grad() and detach() from forward, and use operations "
            "that PyTorch can differentiate"
        )
    loss = task.loss.mean(outputs, y)
    if not loss.requires_grad:
        raise InputError(
            f"loss.name: {task.loss_name} returned a loss without gradient; remove detach(), item() and torch.tensor() "
            "from it, and compute it from the outputs"
        )
    try:
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except RuntimeError as error:
        raise InputError(
            f"model: its output, or the loss of it, has no gradient ({usercode.said(error)}); use operations that "
            "PyTorch can differentiate"
        ) from error
    if any(each is not None and each.is_sparse for each in gradients):
        raise InputError("model: it has sparse gradients; make them dense (sparse=False)")


def _try(module: nn.Module, x: Tensor, y: Tensor, which: str, task: Task, classes: int) -> Tensor:
    try:
        outputs = module(x)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"model: it fails on a {which} batch of shape {list(x.shape)} ({usercode.said(error)}); {_remedy(error, x)}"
        ) from error
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        raise InputError(
            f"model: its output on a {which} batch must be one floating-point tensor; got {described(outputs)}; return "
            "the logits alone from forward"
        )
    task.check_outputs(outputs, y, classes, which)
    if which == "training" and not bool(torch.isfinite(outputs).all()):
        cause = scale(x) or "look for a division or a logarithm in it"
        raise InputError(f"model: its output on a {which} batch holds NaN or infinity before any training; {cause}")
    return outputs


def scale(values: Tensor, name: str = "x") -> str | None:
    """Advice for samples, or targets, whose numbers are so large that training diverges."""
    if not values.is_floating_point() or (large := float(values.abs().max())) <= LARGE[name]:
        return None
    return f"scale {name}, which holds numbers up to {large:.3g}, to a mean of 0 and a deviation of 1"


def _remedy(error: BaseException, x: Tensor) -> str:
    """What to do about an error of a model's forward."""
    said = str(error)
    if "more than 1 value per channel" in said:
        return "use a larger local.batch_size, or local.drop_last=true, as batch norm needs two samples"
    if "'indices'" in said and x.is_floating_point():
        return "give the data vocabulary=, so that x stays token ids"
    if "index out of range" in said and not x.is_floating_point():
        return f"make its Embedding larger, as token ids go up to {int(x.max())} or more (vocabulary=)"
    if "same dtype" in said or "scalar type" in said:
        return (
            f"remove .double(), .float() and .half() from it, or set dtype; x is {str(x.dtype).removeprefix('torch.')}"
        )
    if isinstance(error, RuntimeError | ValueError | IndexError):
        return f"build it for samples of shape {list(x.shape[1:])}"
    return "correct it there"


def _check_last_layer(module: nn.Module, outputs: Tensor, task: Task) -> None:
    """Refuse probabilities where the loss takes logits: such models hardly learn, and nothing else would tell."""
    if usercode.is_own(task.loss_name):
        return
    sums = outputs.sum(-1)
    if task.kind in ("classification", "sequence") and outputs.shape[-1] > 1:
        probable = bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
        name = "softmax"
    else:
        last = [*module.modules()][-1]
        probable = task.kind in ("binary", "multilabel") and isinstance(last, nn.Sigmoid)
        name = "sigmoid"
    if probable:
        raise InputError(
            f"model: its outputs are probabilities, but the loss {task.loss_name} takes logits; remove the {name} at "
            "its end"
        )

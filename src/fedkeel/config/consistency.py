"""Settings of an experiment that do not go together, each refused with a sentence."""

from __future__ import annotations

from typing import Any, get_args

from fedkeel.config import usercode
from fedkeel.errors import InputError, shown
from fedkeel.methods.server import only_mean
from fedkeel.methods.types import Weighting
from fedkeel.task.aim import check_share
from fedkeel.task.metrics import KNOWN
from fedkeel.task.task import LOSS, check_task, metric_names

Described = Any
"""An `Experiment`; its module imports this one."""


def check(experiment: Described) -> None:
    """Refuse settings that contradict each other, or that the method has no use for."""
    _check_clients(experiment)
    _check_work(experiment)
    _check_pace(experiment)
    _check_uploads(experiment)
    _check_reduce(experiment)
    _check_local(experiment)
    _check_executor(experiment)
    _check_task(experiment)


def _check_clients(experiment: Described) -> None:
    """How many clients take part, and how they are fine-tuned."""
    if experiment.per_round is not None and experiment.participation is not None:
        raise InputError(
            f"per_round={experiment.per_round} and participation={experiment.participation} both say how many clients "
            "take part in a round; keep one of them"
        )
    # Data that is handed over in Python says later how many clients there are.
    if "clients" in experiment.model_fields_set and (experiment.per_round or 0) > experiment.clients:
        raise InputError(f"per_round must be at most clients={experiment.clients}; got {experiment.per_round}")
    for field, value in (
        ("part", experiment.finetune.part != "all" and experiment.finetune.part),
        ("lr", experiment.finetune.lr),
    ):
        if value and not experiment.finetune_epochs:
            raise InputError(f"finetune.{field}={value} needs fine-tuning; set finetune.epochs, or remove it")


def _check_work(experiment: Described) -> None:
    """How much of a job devices may miss."""
    count = experiment.local.units
    unit, word = ("steps", "mini-batch") if experiment.local.by_step else ("epochs", "epoch")
    missing = experiment.fleet.tau_max if experiment.fleet.tau_max is not None else count - 1
    if missing >= count:
        raise InputError(
            f"fleet.tau_max must be at most {count - 1} with local.{unit}={count}, as every device does at least "
            f"one {word}; got {missing}"
        )
    if experiment.fleet.rho and count == 1:
        raise InputError(
            f"fleet.rho={experiment.fleet.rho:g} needs jobs of at least 2 {unit}, so that a device can miss one; "
            f"set local.{unit} to 2 or more"
        )


def _check_executor(experiment: Described) -> None:
    """Workers of a cluster must have reserved what they use."""
    executor, threads = experiment.executor, experiment.threads
    if executor.kind == "ray" and not executor.gpus and threads > (executor.cpus or 1):
        raise InputError(
            f"threads={threads} needs as many CPUs for each worker with executor.kind=ray; set executor.cpus={threads}"
        )


def _check_pace(experiment: Described) -> None:
    """Whether the method can work at this pace."""
    own, asked, schedule = experiment.algorithm.rules()[1].pace, experiment.schedule.pace, experiment.schedule
    if (own == "barrier") != (experiment.pace == "barrier"):
        possible = "auto or barrier" if own == "barrier" else "auto, stream, periodic or concurrency"
        raise InputError(f"schedule.pace must be {possible} with {experiment.algorithm.label}; got {asked}")
    schedule.check(experiment.pace)
    if schedule.over_select and experiment.sampling == "scheme1":
        raise InputError(
            f"schedule.over_select={schedule.over_select:g} needs sampling=uniform, as {experiment.sampling} may draw "
            "a client twice; change one of them"
        )
    if experiment.pace != "barrier" and experiment.sampling == "scheme1":
        raise InputError(
            f"sampling must be uniform with {experiment.algorithm.label}, which receives updates one by one; "
            f"got {experiment.sampling}"
        )


def _check_uploads(experiment: Described) -> None:
    """What is done to uploads, and what goes wrong with them."""
    needs_weights = {
        "gate.max_norm": experiment.gate.max_norm,
        "gate.min_norm": experiment.gate.min_norm,
        "wire": next((each.kind for each in experiment.wire if each.needs_weights), None),
    }
    for field, given in needs_weights.items():
        if given is not None and experiment.algorithm.rules()[0].uploads == "none":
            raise InputError(
                f"{field}={given} needs clients that send weights, and those of {experiment.algorithm.label} send "
                "none; remove it or choose another method"
            )
    if experiment.faults.corrupt and "huge" in experiment.faults.corruptions and experiment.gate.max_norm is None:
        raise InputError(
            "faults.corruptions: 'huge' needs gate.max_norm, as nothing else refuses such an upload; set gate.max_norm"
        )


def _check_reduce(experiment: Described) -> None:
    """Whether anybody needs the weights of single clients."""
    if not experiment.reduce:
        return
    gate, server = experiment.gate, experiment.algorithm.rules()[1]
    weighting = only_mean(server)
    if weighting is None or server.looks_ahead or experiment.pace != "barrier":
        own = not type(server).__module__.startswith("fedkeel.")
        why, remedy = "its server looks at single clients", ""
        if own and weighting is None:
            why = f"{type(server).__name__} does not say needs_only_mean beside its aggregate"
            remedy = "add that if it looks only at the mean, or "
        raise InputError(f"reduce cannot be used with {experiment.algorithm.label}, as {why}; {remedy}remove reduce")
    if weighting not in get_args(Weighting):
        raise InputError(
            f"reduce: needs_only_mean of {experiment.algorithm.label} must be a property that returns 'samples' or "
            f"'uniform'; got {shown(weighting)}"
        )
    for field, bound in (("gate.max_norm", gate.max_norm), ("gate.min_norm", gate.min_norm)):
        if bound is not None:
            raise InputError(
                f"reduce hides the norms of single updates, which {field}={bound:g} needs; remove one of the two"
            )
    if experiment.evaluate_local:
        raise InputError("reduce hides the models of single clients, which evaluate_local tests; remove one of the two")


def _check_local(experiment: Described) -> None:
    """Whether clients can train like this with the method, and in the experiment's dtype."""
    local, method = experiment.local, experiment.algorithm.label
    for rule in experiment.algorithm.rules():
        if local.optimizer != "sgd" and rule.needs_sgd:
            raise InputError(
                f"local.optimizer: {local.optimizer} cannot be used with {method}, as {rule.needs_sgd}; use sgd"
            )
        over = local.schedule.over
        if over and (reason := rule.schedule_objection(over)):
            raise InputError(
                f"local.schedule: {local.schedule.kind} over {over} cannot be used with {method}, as {reason}; "
                "remove it"
            )
    if local.precision is not None and experiment.dtype != "float32":
        raise InputError(f"local.precision needs dtype=float32; got dtype={experiment.dtype}; remove one of the two")


def _check_task(experiment: Described) -> None:
    """Whether loss, metrics and targets fit the task."""
    check_task(experiment.task, experiment.loss, experiment.metrics)
    names = [usercode.short(each) for each in metric_names(experiment.task, experiment.metrics)]
    if experiment.target is not None and experiment.target_accuracy is not None:
        raise InputError("target and target_accuracy both set a target; keep one of the two")
    if experiment.target_accuracy is not None and (experiment.target_metric or "accuracy") != "accuracy":
        raise InputError(
            f"target_accuracy does not go with target_metric={experiment.target_metric}; use target instead of it"
        )
    if experiment.target_accuracy is not None and "accuracy" not in names:
        raise InputError(
            "target_accuracy needs the metric accuracy, which is not measured; use target instead, with "
            f"target_metric={' or '.join(names)}"
        )
    wanted = experiment.target_metric
    if wanted is not None and wanted not in (*names, LOSS):
        raise InputError(
            f"target_metric={shown(wanted)} needs a metric that is measured; add {wanted} to metrics, or use one of "
            f"{', '.join(names)}"
        )
    judged = wanted or names[0]
    if experiment.target is not None and judged in KNOWN and KNOWN[judged].share:
        check_share(judged, experiment.target)
    if experiment.stop_at_target and experiment.target is None and experiment.target_accuracy is None:
        raise InputError("stop_at_target needs a target; set target, or target_accuracy")
    if experiment.early_stopping.patience is None and experiment.early_stopping.min_delta:
        raise InputError(
            "early_stopping.min_delta needs early_stopping.patience, without which no run ends early; set it, or "
            "remove early_stopping.min_delta"
        )
    if experiment.evaluate_local and "accuracy" not in names:
        raise InputError("evaluate_local needs the metric accuracy; add it to metrics, or remove evaluate_local")

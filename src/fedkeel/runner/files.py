"""Data that an experiment reads from a file, a folder or a Hugging Face data set."""

from __future__ import annotations

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData
from fedkeel.data.files.kinds import kind
from fedkeel.data.partition import Column, Iid, Partition
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError, label

__all__ = ["deals_anew", "kind", "load", "recorded"]


def load(experiment: Experiment) -> tuple[FederatedData, DatasetSettings]:
    """The data, and what is left of its settings; its clients are those that it names, unless a partition is given."""
    partition = experiment.partition if "partition" in experiment.model_fields_set else None
    clients, settings = experiment.clients, experiment.dataset
    if experiment.task == "regression" and settings.target_type == "auto":
        settings = settings.model_copy(update={"target_type": "number"})
    data = FederatedData.from_settings(settings, partition, clients, experiment.seed)
    if len(data) != clients and "clients" in experiment.model_fields_set:
        raise InputError(f"clients must be {len(data)}, as many as {label(settings.name)} has; got {clients}")
    if data.train.x.dim() == 4 and data.shape[1:] == (settings.resize, settings.resize):
        settings = settings.model_copy(update={"resize": None})  # images were scaled as they were read
    return data, settings


def recorded(experiment: Experiment, data: FederatedData) -> Experiment:
    """The experiment with the partition that it has used: whoever runs its record gets the same clients."""
    if not kind(experiment.dataset.name) or data.client_names is None or isinstance(experiment.partition, Column):
        return experiment
    return experiment.replace(partition=Column())


def deals_anew(partition: Partition, data: FederatedData) -> bool:
    """Whether this partition asks for other clients than the data comes with."""
    named = isinstance(partition, Column) and data.client_names is not None
    return partition != Iid() and not named

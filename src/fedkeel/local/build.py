"""From settings that leave nothing open to an executor."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executor import Executor
from fedkeel.local.executors.inprocess import InProcess
from fedkeel.local.executors.processes import Processes
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.gradient import Gradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainer import Trainer
from fedkeel.methods.client import ClientRule
from fedkeel.params import Layout
from fedkeel.wire.transform import Chain


@dataclass(frozen=True)
class Workshop:
    """Everything that training needs beside the orders; makes trainers and executors of every kind."""

    module: nn.Module
    data: FederatedData
    rule: ClientRule
    local: LocalSettings
    seed: int
    wire: Chain = field(default_factory=Chain)
    """What uploads go through on their way."""

    def trainer(self, settings: ExecutorSettings) -> Trainer:
        """For these settings, in this process."""
        if settings.stack:
            gradient: Gradient = self.dense or VmappedGradient(self.module, self._layout)
        else:
            gradient = AutogradGradient(copy.deepcopy(self.module), bool(settings.channels_last))
        return Trainer(gradient, self._layout, self.data, self.rule, self.local, self.seed, self.wire)

    @cached_property
    def dense(self) -> DenseGradient | None:
        """Closed forms, where the model has them."""
        return DenseGradient.of(self.module, self._layout)

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.module)

    def executor(self, settings: ExecutorSettings) -> Executor:
        """For these settings; processes start when they are first needed."""
        trainer = self.trainer(settings)
        evaluator = Evaluator(self.module, self.data, bool(settings.channels_last))
        if settings.kind == "processes":
            return Processes(trainer, evaluator, settings.stack or None, settings.workers or cores())
        assert settings.kind in ("serial", "vectorised")
        return InProcess(trainer, evaluator, settings.stack or None)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

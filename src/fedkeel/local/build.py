"""From settings that leave nothing open to an executor."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executors.inprocess import InProcess
from fedkeel.local.executors.processes import Processes
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.gradient import Gradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.orders import Executor
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainer import Trainer
from fedkeel.methods.client import ClientRule
from fedkeel.params import Layout


@dataclass(frozen=True)
class Workshop:
    """Everything that training needs beside the orders; makes trainers and executors of every kind."""

    module: nn.Module
    data: FederatedData
    rule: ClientRule
    local: LocalSettings
    seed: int

    def trainer(self, settings: ExecutorSettings) -> Trainer:
        """For these settings, in this process."""
        if settings.stack:
            gradient: Gradient = self.dense or VmappedGradient(self.module, self._layout)
        else:
            gradient = AutogradGradient(copy.deepcopy(self.module), bool(settings.channels_last))
        return Trainer(gradient, self._layout, self.data, self.rule, self.local, self.seed)

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
        common = trainer, evaluator, self.data, self.local, settings.stack or None
        if settings.kind == "processes":
            return Processes(*common, workers=settings.workers or cores())
        return InProcess(*common)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

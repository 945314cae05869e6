"""From settings that leave nothing open to an executor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executors.inprocess import InProcess
from fedkeel.local.executors.processes import Processes
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.orders import Executor
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainers import OneByOne, Stacked, Trainer
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
            layout = Layout.of(self.module)
            common = layout, self.data, self.rule, self.local, self.seed
            return Stacked(self.dense or self.vmapped, lambda: self.vmapped, *common)
        return OneByOne(self.module, self.data, self.rule, self.local, self.seed, bool(settings.channels_last))

    @cached_property
    def dense(self) -> DenseGradient | None:
        """Closed forms, where the model has them."""
        return DenseGradient.of(self.module, Layout.of(self.module))

    @cached_property
    def vmapped(self) -> VmappedGradient:
        """For every other model, and for losses of a rule's own."""
        return VmappedGradient(self.module, Layout.of(self.module))

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

"""From settings that leave nothing open to an executor."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.errors import FedkeelError
from fedkeel.local.cluster.executor import OnCluster
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executor import Executor
from fedkeel.local.executors.inprocess import InProcess
from fedkeel.local.executors.memory import keep_freed
from fedkeel.local.executors.processes import Processes
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.gradients.chain import Layer, NotAChainError, chain
from fedkeel.local.gradients.dense import DenseGradient
from fedkeel.local.gradients.gradient import Gradient
from fedkeel.local.gradients.vmap import VmappedGradient
from fedkeel.local.loop import keeps_to_course, walks_by_epoch
from fedkeel.local.machine import cores
from fedkeel.local.native.evaluation import NativeEvaluator
from fedkeel.local.native.gradient import NativeGradient
from fedkeel.local.native.library import absence, load
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.local.trainer import Trainer
from fedkeel.methods.client import ClientRule
from fedkeel.params import Layout
from fedkeel.task.task import CLASSIFICATION, Task
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
    task: Task = CLASSIFICATION

    def trainer(self, settings: ExecutorSettings) -> Trainer:
        """For these settings, in this process."""
        return self._trainer(self._gradient(settings))

    def _trainer(self, gradient: Gradient) -> Trainer:
        return Trainer(gradient, self._layout, self.data, self.rule, self.local, self.seed, self.wire)

    def _gradient(self, settings: ExecutorSettings) -> Gradient:
        if settings.native:
            return self.native(self._threads(settings))
        if settings.stack and self.local.only_autograd:
            raise FedkeelError(f"clients cannot be trained in stacks: {self.local.only_autograd}")
        if settings.stack:
            return self.dense or VmappedGradient(self.module, self._layout, self.task.loss)
        half = self.local.precision == "bfloat16"
        return AutogradGradient(copy.deepcopy(self.module), bool(settings.channels_last), half, self.task.loss)

    @cached_property
    def dense(self) -> DenseGradient | None:
        """Closed forms, where the model has them."""
        return DenseGradient.of(self.module, self._layout, self.data.shape, self.task.loss)

    @cached_property
    def not_native(self) -> str | None:
        """Why the compiled kernels cannot train this model, if there is a reason."""
        if self.data.train.x.is_cuda:
            return "the native kernels are for device cpu"
        if self.task.kind != "classification" or not self.task.loss.softmax or self.data.weight is not None:
            return "the native kernels know only the plain cross-entropy of one class per sample"
        return self.local.only_autograd or absence() or (self._chain if isinstance(self._chain, str) else None)

    def native(self, threads: int) -> NativeGradient:
        """By the compiled kernels, in so many threads."""
        library = load()
        if self.not_native or library is None or isinstance(self._chain, str):
            raise FedkeelError(f"the native kernels cannot train this model: {self.not_native}")
        return NativeGradient(library, self._chain, self.module, self._layout, threads)

    @property
    def trains_whole_jobs(self) -> bool:
        """Whether the kernels are given whole jobs of this method, or whole epochs, not every step."""
        by_epoch = walks_by_epoch(self.rule, self.local.momentum) and self.local.alike_in_epochs
        many = keeps_to_course(self.rule) or by_epoch
        return many and self.local.plain and not self.data.augment and not self.data.resize

    @property
    def bytes(self) -> int:
        """Of a vector of weights."""
        return self._layout.size * next(self.module.parameters()).element_size()

    @cached_property
    def _chain(self) -> list[Layer] | str:
        """The model's layers, or why it is no chain of them."""
        try:
            trained, tested = (chain(self.module, self._layout, self.data.shape, mode) for mode in (True, False))
        except NotAChainError as error:
            return str(error)
        return trained if trained == tested else "the model's forward pass is another one when it is tested"

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.module)

    def executor(self, settings: ExecutorSettings) -> Executor:
        """For these settings; processes start when they are first needed."""
        keep_freed()
        trainer, evaluator = self.parts(settings)
        if settings.kind == "ray":
            return OnCluster(replace(self, data=None), self.data, self.local, evaluator, settings)  # type: ignore[arg-type]
        if settings.kind == "processes":
            return Processes(trainer, evaluator, settings.stack or None, settings.workers or cores())
        assert settings.kind in ("serial", "vectorised", "threads")
        return InProcess(trainer, evaluator, settings.stack or None)

    def parts(self, settings: ExecutorSettings) -> tuple[Trainer, Evaluator]:
        """What trains and what tests, in this process."""
        gradient = self._gradient(settings)
        if isinstance(gradient, NativeGradient):
            return self._trainer(gradient), NativeEvaluator(gradient, self.module, self.data, self.task)
        evaluator = Evaluator(self.module, self.data, self.task, bool(settings.channels_last))
        return self._trainer(gradient), evaluator

    def moved(self, data: FederatedData, device: str) -> Workshop:
        """The same with this data, on this device."""
        if device == "cpu":
            return replace(self, data=data)
        dtype = next(self.module.parameters()).dtype
        return replace(self, module=self.module.to(device), data=data.to(dtype, device))

    def _threads(self, settings: ExecutorSettings) -> int:
        if settings.kind == "ray":
            return max(1, int(settings.cpus or 1))
        return (settings.workers or cores()) if settings.kind == "threads" else 1

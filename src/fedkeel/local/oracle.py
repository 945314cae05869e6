"""What the mini-batches of a stack of clients say, whatever computes their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from fedkeel.errors import FedkeelError
from fedkeel.local.batches import Batch, Batches
from fedkeel.local.gradients.gradient import Gradient, Penalised
from fedkeel.local.gradients.jobs import Jobs, Outcomes, joined
from fedkeel.local.loop import Step
from fedkeel.local.settings import LocalSettings
from fedkeel.methods.course import Course, Trail
from fedkeel.methods.job import Job
from fedkeel.methods.oracle import Penalty, Sample

ORDERED = 1 << 23
"""Samples whose order is drawn at once, for jobs that are trained in one go."""


def whole_jobs(gradient: Gradient, batches: Batches, local: LocalSettings) -> bool:
    """Whether the steps of a job may be made in one go: only those of SGD without Nesterov's momentum can be."""
    return gradient.trains_whole_jobs and batches.as_they_lie is not None and local.plain


def whole_epochs(gradient: Gradient, batches: Batches, local: LocalSettings) -> bool:
    """Whether those of an epoch may be; where mini-batches are counted, it has no others than its first."""
    return whole_jobs(gradient, batches, local) and local.alike_in_epochs


class BatchOracle:
    """The current mini-batches, the losses seen so far, and what becomes of a raw gradient."""

    def __init__(
        self, gradient: Gradient, batches: Batches, local: LocalSettings, moving: Tensor | None = None
    ) -> None:
        """`moving` [D] is one where weights are trained and zero elsewhere, if not all are."""
        self._gradient = gradient
        self._batches = batches
        self._local = local
        self._moving = moving
        self._rows = np.arange(len(batches.sizes))
        self._batch: Batch | None = None
        self._losses: list[Tensor] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._scratch: Tensor | None = None
        self._outcomes: list[Outcomes] = []
        """Of steps that were made in one go."""
        self._finite: NDArray[np.bool_] | None = None
        """Of whole jobs, whether the trained weights are."""
        self._rest: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        """Of an epoch that has begun: (samples [k, 1, n] behind its first mini-batch, how many of them count [k])."""

    def steps(self) -> Iterator[Step]:
        """Make one mini-batch after the other current."""
        for batch in self._batches:
            self._batch = batch
            if isinstance(batch.epochs, int):
                yield Step(batch.epochs, len(batch.sizes), batch.places == 0)
            else:
                epochs = torch.from_numpy(batch.epochs).to(batch.device)
                yield Step(epochs, len(batch.sizes), bool(np.equal(batch.places, 0).any()))
        self._batch = None

    def _current(self) -> Batch:
        if self._batch is None:
            raise FedkeelError("a gradient was asked for outside of a step, where there is no mini-batch")
        return self._batch

    def pick(self, rows: Tensor) -> BatchOracle:
        """Of some clients of the stack; what it is asked leaves no trace in training."""
        part = copy.copy(self)
        part._batch = self._current().pick(rows)
        part._rows = self._rows[rows.cpu().numpy()]
        return part

    @property
    def begins(self) -> Tensor:
        """[k, 1], the epoch that begins with each client's current mini-batch, or -1."""
        batch = self._current()
        begins = np.where(np.equal(batch.places, 0), batch.epochs, -1)
        return torch.from_numpy(np.broadcast_to(begins, (len(batch.sizes),)).copy()).to(batch.device)[:, None]

    @property
    def buffers(self) -> Tensor:
        """[k, B], as they are now."""
        return self._gradient.buffers

    def restore(self, buffers: Tensor) -> None:
        """Go on with these."""
        self._gradient.restore(buffers)

    # Gradients.

    def _count(self, batch: Batch, losses: Tensor) -> None:
        """The first gradient of a step is the one whose losses count: [k, b] of the samples."""
        if batch.fresh:
            batch.fresh = False
            self._losses.append(losses)
            self._sizes.append(batch.sizes)

    def _raw(self, w: Tensor, penalty: Penalised = None) -> Tensor:
        batch = self._current()
        losses, g = self._gradient(w, batch, penalty)
        self._count(batch, losses)
        return g

    def loss_grad(self, w: Tensor) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `w` [k, D], as it is."""
        return self._masked(self._raw(w))

    def grad(self, w: Tensor, at: Tensor | None = None) -> Tensor:
        """Gradient of the current mini-batch's mean loss at `at` or `w`, clipped, plus weight decay of `w`."""
        return self._finish(self._raw(w if at is None else at), w)

    def grad_with(self, w: Tensor, penalty: Penalty, *given: Tensor) -> Tensor:
        """As `grad`, with a penalty on the features that the heads see."""
        return self._finish(self._raw(w, (penalty, given)), w)

    def full_grad(self, w: Tensor) -> Tensor:
        """Gradients [k, D] of the mean losses of all the clients' samples, clipped, plus weight decay."""
        g = torch.zeros_like(w, memory_format=torch.contiguous_format)
        for batch in self._batches.whole(self._rows[: len(w)], large=True):
            g += self._gradient(w, batch)[1]
        return self._finish(g, w)

    def peek(self, w: Tensor, on: Sample = "batch", gradient: bool = True) -> tuple[Tensor, Tensor | None]:
        """(Mean losses [k, 1], their gradients [k, D] if wanted), which leave no trace."""
        batch = replace(self._current(), fresh=False)
        if on == "proxy":
            batch = self._batches.proxy(self._rows[: len(w)], batch.masks)
        if not gradient:
            return self._gradient.loss(w, batch), None
        losses, g = self._gradient(w, batch)
        return self._gradient.mean(losses, batch), self._masked(g)

    def _masked(self, g: Tensor) -> Tensor:
        return g if self._moving is None else g * self._moving

    def _finish(self, g: Tensor, w: Tensor) -> Tensor:
        """Of what moves: clipped, then decayed."""
        g = self._masked(g)
        if self._local.clip_norm is not None:
            g = g * (self._local.clip_norm / (g.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
        if self._local.weight_decay and self._local.optimizer != "adamw":  # which decays weights, not gradients
            g = g.add_(self._masked(w), alpha=self._local.weight_decay)
        return g

    @property
    def descend(self) -> Callable[[Tensor, Tensor, Tensor, Course], None] | None:
        """`descend(w, rate, out, course)`: out <- w - rate * direction(grad(w), w), where that is cheaper in one go."""
        local = self._local
        plain = local.clip_norm is None and not local.weight_decay and self._moving is None
        return self._descend if plain and local.optimizer == "sgd" and self._gradient.descends else None

    def _descend(self, w: Tensor, rate: Tensor, out: Tensor, course: Course) -> None:
        batch = self._current()
        before = w if course.plain else course.before(w, rate, self._memory(w))
        self._count(batch, self._gradient.descend(w, batch, rate * course.share, out, before))

    @property
    def _whole(self) -> bool:
        return whole_jobs(self._gradient, self._batches, self._local)

    @property
    def train(self) -> Callable[[Job, int | None, Tensor | None], tuple[Tensor, Job]] | None:
        """`train(job, limit, out)`: the weights after all steps of jobs that keep to their course, in one go.

        Beside them, the job with its trail as the last step left it.
        """
        return self._train if self._whole else None

    def _train(self, job: Job, limit: int | None, out: Tensor | None) -> tuple[Tensor, Job]:
        w = out if out is not None else torch.empty_like(job.start, memory_format=torch.contiguous_format)
        batches, left = self._batches, job.course.trail
        if left is not None:
            left = replace(left, last=w.new_empty(w.shape), past=w.new_empty(w.shape))
        count = batches.steps if limit is None else np.minimum(batches.steps, limit)
        passes, each = -(-count // batches.a_pass), batches.steps // batches.epochs
        timed, each = (job, each) if job.curve is None else (_by_step(job, int(count.max())), np.ones_like(each))
        self._run(timed, w, count, each, batches.used, passes, batches.order, left)
        self._finite = self._outcomes[0].finite
        return w, replace(job, course=replace(job.course, trail=left))

    def _run(
        self,
        job: Job,
        out: Tensor,
        steps: NDArray[np.int64],
        each: NDArray[np.int64],
        samples: NDArray[np.int64],
        passes: NDArray[np.int64],
        order: Callable[[slice, NDArray[np.int64]], NDArray[np.int64]],
        left: Trail | None = None,
    ) -> None:
        """Train the first clients of the stack: so many steps [k], `each` at one rate, in passes through their samples.

        Passes have this order. The course's trail, as the last step leaves it, is put into `left`.
        """
        batches, local, data = self._batches, self._local, self._batches.as_they_lie
        assert data is not None
        batch = batches.batch[: len(out)]
        seen = int((steps * batch).max())
        some = max(1, min(ORDERED // (int(passes.max()) * int(samples.max())), self._gradient.at_once(seen)))
        found = []
        for rows in (slice(first, first + some) for first in range(0, len(out), some)):
            part = job.pick(rows)
            jobs = Jobs(
                start=part.start,
                x=data[0],
                y=data[1],
                order=order(rows, passes),
                samples=samples[rows],
                steps=steps[rows],
                batch=batch[rows],
                rates=part.lr,
                each=each[rows],
                course=part.course,
                mask=self._moving,
                decay=local.weight_decay,
                clip=local.clip_norm or 0.0,
                momentum=local.momentum,
                last=None if left is None else left.last[rows],
                past=None if left is None else left.past[rows],
            )
            found.append(self._gradient.train(jobs, out[rows]))
        self._outcomes.append(joined(found))

    def by_epoch(self, limit: int | None) -> tuple[Iterator[Step], Callable[[Job, Tensor, Tensor], None]] | None:
        """(`steps`, but only those that begin an epoch; `finish(job, rate, w)`, which makes the others), if possible.

        Clients then walk through their epochs together; what they learn is the same. They must come in descending order
        of epochs. Where mini-batches are counted, there are no others.
        """
        whole = whole_epochs(self._gradient, self._batches, self._local)
        return (self._first_steps(limit), self._finish_epoch) if whole else None

    def _first_steps(self, limit: int | None) -> Iterator[Step]:
        batches, epochs = self._batches, self._batches.begun(limit)
        if (np.diff(epochs) > 0).any():
            raise ValueError("clients that walk through epochs together must come in descending order of epochs")
        for epoch in range(int(epochs[0])):
            active = int((epochs > epoch).sum())
            order = batches.order(slice(active), np.ones_like(epochs), epoch)
            size = batches.batch[:active]
            left = batches.used[:active] - size
            if limit is not None:
                left = np.minimum(left, (limit - 1 - epoch * batches.a_pass[:active]) * size)
            self._batch = batches.first(order[:, 0], epoch)
            self._rest = order[..., int(size.max()) :], left
            yield Step(epoch, active, True)
        self._batch = self._rest = None

    def _finish_epoch(self, job: Job, rate: Tensor, w: Tensor) -> None:
        """Train `w` [k, D] in place for the rest of the epoch that has begun, at these rates [k, 1]."""
        assert self._rest is not None
        order, left = self._rest
        if left.any():
            steps = -(-left // self._batches.batch[: len(left)])
            job, once = replace(job, start=w, lr=rate), np.ones_like(left)
            self._run(job, w, steps, steps.clip(1), left, once, lambda rows, _: order[rows])

    def finite(self, w: Tensor) -> Tensor:
        """[C], whether the trained weights are; a sum is finite if all is, and one that overflows is lost as well."""
        return w.sum(-1).isfinite().cpu() if self._finite is None else torch.from_numpy(self._finite)

    def _memory(self, w: Tensor) -> Tensor:
        """For vectors like `w`, the same as last time while the stack stays as it is."""
        if self._scratch is None or len(self._scratch) != len(w):
            self._scratch = w.new_empty(w.shape) if self._scratch is None else self._scratch[: len(w)]
        return self._scratch

    # Features.

    def features(self, w: Tensor, buffers: Tensor) -> Tensor:
        """[k, b, F], what the heads see of the current mini-batches, in evaluation mode."""
        return self._gradient.features(w, buffers, self._current().x)

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(Mean features [k, classes, F] of each class, samples of each [k, classes])."""
        sums, counts = torch.zeros((), dtype=w.dtype), torch.zeros((), dtype=w.dtype)
        for batch in self._batches.whole(self._rows[: len(w)]):
            z, y = self._gradient.features(w, self.buffers, batch.x), batch.y
            real = torch.arange(y.shape[1], device=y.device) < torch.from_numpy(batch.sizes).to(y.device)[:, None]
            belongs = (one_hot(y, self._batches.classes) * real[..., None]).to(z.dtype)
            sums, counts = sums + belongs.mT @ z, counts + belongs.sum(1)
        return sums / counts.clamp(min=1)[..., None], counts

    # Losses.

    @property
    def loss(self) -> NDArray[np.float64]:
        """[C], mean loss over the samples seen in training, each at the time it was seen."""
        total = np.zeros(len(self._batches.steps))
        seen = np.zeros(len(self._batches.steps))
        for each in self._outcomes:
            total[: len(each.loss)] += each.loss
            seen[: len(each.loss)] += each.seen
        for losses, sizes in self._summed():
            total[: len(sizes)] += losses
            seen[: len(sizes)] += sizes
        if not seen.all():
            raise FedkeelError("the client rule asked for no gradient in a whole job, so there is no training loss")
        return total / seen

    def _summed(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        """Sums [k] over the samples of mini-batches, and how many they are; at once where all are whole."""
        pairs = list(zip(self._losses, self._sizes, strict=True))
        everybody = len(self._batches.steps)
        if (
            pairs
            and not self._outcomes
            and all(len(sizes) == everybody and (sizes == each.shape[1]).all() for each, sizes in pairs)
        ):
            summed = torch.cat(self._losses, dim=1).double().sum(1).cpu().numpy()
            yield summed, np.sum(self._sizes, axis=0)
            return
        for losses, sizes in pairs:
            real = torch.arange(losses.shape[1]) < torch.from_numpy(sizes)[:, None]
            yield torch.where(real, losses.double().cpu(), 0.0).sum(1).numpy(), sizes


def _by_step(job: Job, count: int) -> Job:
    """The job with a learning rate for each of its first steps."""
    steps = np.arange(count)
    epochs = torch.from_numpy(steps).to(job.lr.device) // (job.steps // job.epochs)
    rates = job.lr.gather(1, epochs.clamp(max=job.lr.shape[1] - 1))
    return replace(job, lr=rates * job.factor(steps))

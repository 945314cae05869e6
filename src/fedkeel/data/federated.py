"""Data as a federation sees it: shared tensors, and for each client the numbers of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.config.section import Section, make
from fedkeel.data.datasets import Dataset, Examples
from fedkeel.data.partition import AnyPartition, Assignment, Partition
from fedkeel.data.statistics import describe_labels, label_counts
from fedkeel.data.transforms import random_crop_flip, resize
from fedkeel.errors import InputError, shown

Arrays = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class FederatedData:
    """Training data dealt out to clients, and a test set. Samples are indexed, never copied per client."""

    train: Examples
    test: Examples
    assignment: Assignment
    classes: int
    vocabulary: int | None = None
    name: str = "arrays"
    augment: bool = False
    resize: int | None = None

    def __post_init__(self) -> None:
        for field, value in (
            ("classes", self.classes),
            ("vocabulary", 1 if self.vocabulary is None else self.vocabulary),
        ):
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"data: {field} is {shown(value)}; accepted: a whole number of at least 1")
        _check(self.train, "training", self.classes)
        _check(self.test, "test", self.classes)
        _check_assignment(self.assignment, len(self.train.y))
        train, test = ((tuple(e.x.shape[1:]), e.x.dtype) for e in (self.train, self.test))
        if train != test:
            raise InputError(
                f"data: test samples have shape {test[0]} and type {test[1]}; "
                f"accepted: those of the training samples, {train[0]} and {train[1]}"
            )
        if self.augment and self.train.x.dim() != 4:
            raise InputError("dataset.augment: crop-flip is not accepted for this data; accepted: images [n, C, H, W]")
        if self.resize and self.train.x.dim() != 4:
            raise InputError(f"dataset.resize: {self.resize} is not accepted for this data; accepted: images only")

    @classmethod
    def from_dataset(cls, dataset: Dataset, partition: Partition, clients: int, seed: int) -> FederatedData:
        """Deal a data set's training samples out to `clients`."""
        assignment = partition.assign(dataset.train.y.numpy(), clients, seed)
        return cls(dataset.train, dataset.test, assignment, dataset.classes, dataset.vocabulary, dataset.name)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        clients: int = 10,
        partition: Partition | str | dict[str, Any] = "iid",
        test: Arrays | float = 0.2,
        seed: int = 0,
        vocabulary: int | None = None,
        name: str = "arrays",
    ) -> FederatedData:
        """Deal arrays out to clients; `test` is a pair of arrays, or the share of samples to hold out.

        Samples of type int32 or int64 are token ids, of which there are `vocabulary`; all others become float32.
        """
        samples = examples(x, y)
        if not isinstance(clients, int | np.integer) or isinstance(clients, bool):
            raise InputError(f"clients: {shown(clients)} is not accepted; accepted: a whole number")
        if isinstance(test, int | float | np.floating):
            train, held_out = _hold_out(samples, float(test), seed)
        else:
            train, held_out = samples, examples(*test)
        dataset = Dataset(name, train, held_out, _classes(train, held_out), _vocabulary(train, held_out, vocabulary))
        return cls.from_dataset(dataset, make(_Dealt, {"partition": partition}).partition, clients, seed)

    @classmethod
    def from_clients(
        cls, clients: Sequence[Arrays], test: Arrays, *, vocabulary: int | None = None, name: str = "clients"
    ) -> FederatedData:
        """Each client's own (x, y), as it is, and a common test set."""
        if not clients:
            raise InputError("clients: an empty list is not accepted; accepted: at least one pair (x, y)")
        parts = [examples(x, y) for x, y in clients]
        shapes = {tuple(p.x.shape[1:]) for p in parts}
        if len(shapes) > 1:
            raise InputError(f"clients: samples have shapes {sorted(shapes)}; accepted: one shape for all clients")
        train = Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))
        held_out = examples(*test)
        offsets = np.concatenate([[0], np.cumsum([len(p.y) for p in parts])]).astype(np.int64)
        assignment = Assignment(np.arange(len(train.y), dtype=np.int64), offsets)
        return cls(
            train, held_out, assignment, _classes(train, held_out), _vocabulary(train, held_out, vocabulary), name
        )

    @classmethod
    def from_torch(
        cls,
        dataset: torch.utils.data.Dataset[Any],
        *,
        test: torch.utils.data.Dataset[Any] | float = 0.2,
        **how: Any,
    ) -> FederatedData:
        """Read map-style torch data sets of (x, label) pairs once, then as `from_arrays`."""
        held_out = test if isinstance(test, int | float | np.floating) else _read_all(test)
        return cls.from_arrays(*_read_all(dataset), test=held_out, **how)

    def __len__(self) -> int:
        return len(self.assignment)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """[clients], training samples of each."""
        return self.assignment.sizes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, as the model sees it."""
        shape = tuple(self.train.x.shape[1:])
        return (shape[0], self.resize, self.resize) if self.resize else shape

    def to(self, dtype: torch.dtype, device: str = "cpu") -> FederatedData:
        """The same on that device, with samples of that dtype, unless they are token ids."""
        kind = dtype if self.train.x.is_floating_point() else self.train.x.dtype
        return replace(
            self,
            train=Examples(self.train.x.to(device, kind), self.train.y.to(device)),
            test=Examples(self.test.x.to(device, kind), self.test.y.to(device)),
        )

    def client(self, client: int) -> Tensor:
        """The numbers of a client's training samples."""
        return torch.from_numpy(self.assignment[client])

    def train_batch(self, samples: Tensor, augment: Sequence[torch.Generator] | None = None) -> tuple[Tensor, Tensor]:
        """Training samples by number [..., b], resized where the data asks for it.

        With `augment`, there is one generator for each of the mini-batches that the leading axes of `samples` hold.
        """
        flat = samples.flatten().to(self.train.x.device)
        x = self.train.x.index_select(0, flat)
        if augment is not None:
            parts = torch.split(x, samples.shape[-1])
            x = torch.cat([random_crop_flip(part, draw) for part, draw in zip(parts, augment, strict=True)])
        x = resize(x, self.resize) if self.resize else x
        return x.view(*samples.shape, *x.shape[1:]), self.train.y.index_select(0, flat).view(samples.shape)

    def test_batch(self, samples: Tensor | slice) -> tuple[Tensor, Tensor]:
        """These test samples."""
        x = self.test.x[samples]
        return (resize(x, self.resize) if self.resize else x), self.test.y[samples]

    @cached_property
    def _test_by_class(self) -> list[NDArray[np.int64]]:
        labels = self.test.y.cpu().numpy()
        return [np.flatnonzero(labels == c) for c in range(self.classes)]

    def test_share(self, client: int, seed: int) -> Tensor:
        """A client's own test samples: from the test set, in the proportions of its training labels.

        As large, against the whole test set, as the client's data against all training data, but at least one
        sample of every class it holds. Shares of different clients may overlap.
        """
        held = np.bincount(self.train.y[self.client(client)].cpu().numpy(), minlength=self.classes)
        wanted = np.rint(held * (len(self.test.y) / len(self.train.y))).astype(int)
        wanted = np.where(held > 0, np.maximum(wanted, 1), 0)
        rng = streams.generator(seed, "test share", client)
        parts = [
            rng.choice(pool, min(count, len(pool)), replace=False)
            for pool, count in zip(self._test_by_class, wanted, strict=True)
        ]
        return torch.from_numpy(np.sort(np.concatenate(parts)))

    def label_counts(self) -> NDArray[np.int64]:
        """[clients, classes], training samples."""
        return label_counts(self.train.y.cpu().numpy(), self.assignment, self.classes)

    def describe_labels(self) -> dict[str, Any]:
        """Who holds which training labels, in plain values; whatever the number of clients, it is short."""
        return describe_labels(self.train.y.cpu().numpy(), self.assignment, self.classes)


class _Dealt(Section):
    partition: AnyPartition


def examples(x: ArrayLike, y: ArrayLike) -> Examples:
    """Samples and labels as tensors: token ids if int32 or int64, else float32; refuses what cannot be learnt from."""
    samples, labels = _tensor("x", x), _tensor("y", y)
    if labels.is_floating_point() or labels.is_complex() or labels.dim() != 1:
        if labels.numel():
            raise InputError(
                f"y: dtype {labels.dtype} and shape {tuple(labels.shape)} are not accepted; accepted: integers [n]"
            )
        labels = labels.reshape(0)
    if samples.is_complex() or samples.shape[:1] != labels.shape:
        raise InputError(
            f"data: samples of shape {tuple(samples.shape)} and dtype {samples.dtype} with {len(labels)} labels; "
            "accepted: as many real numbers as labels"
        )
    tokens = samples.dtype in (torch.int32, torch.int64)
    samples = samples.to(torch.int64 if tokens else torch.float32).contiguous()
    if not tokens and not bool(torch.isfinite(samples).all()):
        raise InputError("data: samples hold NaN, or values that float32 cannot hold; accepted: finite numbers")
    return Examples(samples, labels.to(torch.int64))


def _tensor(field: str, values: ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.ascontiguousarray(values)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"{field}: not an array of numbers ({error})") from None


def _check(examples: Examples, which: str, classes: int) -> None:
    if not isinstance(examples, Examples) or not _fit(examples.x, examples.y):
        raise InputError(f"data: {which} samples are no Examples; accepted: a tensor [n, ...] and int64 labels [n]")
    if len(examples.y) == 0:
        raise InputError(f"data: no {which} samples; accepted: at least one")
    labels = examples.y.cpu().numpy()  # NumPy's smallest and largest wait for no other thread
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        raise InputError(f"data: {which} labels run from {low} to {high}; accepted: 0 to {classes - 1}")


def _fit(x: Any, y: Any) -> bool:
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() > 0
    return tensors and y.dtype == torch.int64 and y.shape == x.shape[:1]


def _check_assignment(assignment: Assignment, samples: int) -> None:
    indices, offsets = assignment.indices, assignment.offsets
    for array in (indices, offsets):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "i":
            raise InputError("data: its assignment is not made of two arrays of whole numbers")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
        raise InputError("data: the offsets of its assignment do not go from 0 up to the number of its indices")
    if len(indices) and (indices.min() < 0 or indices.max() >= samples):
        raise InputError(
            f"data: its assignment deals out samples {indices.min()} to {indices.max()}; accepted: 0 to {samples - 1}"
        )
    if not len(indices):
        raise InputError("data: no client has any samples; accepted: one with samples at least")


def _classes(*parts: Examples) -> int:
    return max(int(p.y.max()) if len(p.y) else 0 for p in parts) + 1


def _vocabulary(train: Examples, test: Examples, given: int | None) -> int | None:
    if train.x.is_floating_point() or test.x.is_floating_point():
        return None
    low = min(int(train.x.min()), int(test.x.min()))
    high = max(int(train.x.max()), int(test.x.max()))
    if low < 0 or (given is not None and high >= given):
        limit = "up" if given is None else f"to {given - 1}"
        raise InputError(f"data: token ids run from {low} to {high}; accepted: 0 {limit}")
    return given if given is not None else high + 1


def _hold_out(samples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    n = len(samples.y)
    if not 0 < share < 1 or not 0 < (count := round(share * n)) < n:
        raise InputError(
            f"test: {share} of {n} samples is not accepted; accepted: a share that leaves some on both sides"
        )
    order = torch.from_numpy(streams.generator(seed, "hold out").permutation(n))
    test, train = order[:count], order[count:]
    return Examples(samples.x[train], samples.y[train]), Examples(samples.x[test], samples.y[test])


def _read_all(dataset: torch.utils.data.Dataset[Any]) -> tuple[Tensor, Tensor]:
    pairs = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
    labels = [y.item() if isinstance(y, Tensor) else y for _, y in pairs]
    return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.as_tensor(labels)

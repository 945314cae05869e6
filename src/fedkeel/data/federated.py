"""Data as a federation sees it: shared tensors, and for each client the numbers of its samples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedkeel import streams
from fedkeel.data.alone import alone
from fedkeel.data.datasets import Dataset, Examples
from fedkeel.data.dealing import as_partition, deal
from fedkeel.data.files.build import Dealt
from fedkeel.data.files.constructors import FromFiles
from fedkeel.data.given import Arrays, Vocabulary, count_outputs, count_tokens, examples, read_all, same_targets
from fedkeel.data.holdout import DEFAULT_TEST, check_share, hold_out, joined, renumbered
from fedkeel.data.partition import Assignment, Partition
from fedkeel.data.silos import common_test, one, pair, side_by_side, what
from fedkeel.data.statistics import MOST_CLIENTS, describe_labels, describe_sizes, label_counts
from fedkeel.data.transforms import random_crop_flip, resize
from fedkeel.data.validity import check, check_alike, check_assignment, class_labels
from fedkeel.errors import InputError, shown

__all__ = ["FederatedData", "Held", "examples"]

Held = Literal["test", "validation"]
"""Samples that are kept away from training."""
MOST_NAMED = 20
"""Clients that an error lists by their names."""


@dataclass(frozen=True, repr=False)
class FederatedData(FromFiles):
    """Training data dealt out to clients, and samples to test on. Samples are indexed, never copied per client."""

    train: Examples
    test: Examples
    assignment: Assignment
    classes: int
    """Classes of whole-numbered targets; of real ones, how many numbers a sample has."""
    vocabulary: int | None = None
    name: str = "arrays"
    augment: bool = False
    resize: int | None = None
    test_rows: Assignment | None = None
    """Which test samples are each client's own; None for a common test set that belongs to nobody."""
    validation: Examples | None = None
    """Samples on which runs are tuned (targets, early stopping, the best model); None to tune on the test set."""
    validation_rows: Assignment | None = None
    """Which of these are each client's own."""
    client_names: tuple[str, ...] | None = None
    """What clients are called, where they have names."""
    class_names: tuple[str, ...] | None = None
    """What classes are called, by number, where they have names; of several targets per sample, their columns."""
    feature_names: tuple[str, ...] | None = None
    """What the numbers of a sample are called, where they come from columns."""
    weight: Tensor | None = None
    """[training samples], what each counts in the loss; None where all count alike."""
    site: int | None = None
    """The client whose rows are here, on its own site; None where all clients' are."""

    def __post_init__(self) -> None:
        for field, value in (
            ("classes", self.classes),
            ("vocabulary", 1 if self.vocabulary is None else self.vocabulary),
        ):
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"data: {field} must be a whole number of at least 1; got {shown(value)}")
        partly = self.site is not None
        check(self.train, "training", self.classes, partly)
        check_assignment(self.assignment, len(self.train.y), "training", partly)
        for which, rows in (("test", self.test_rows), ("validation", self.validation_rows)):
            held = getattr(self, which)
            if which == "validation" and held is None:
                continue
            check(held, which, self.classes, partly)
            check_alike(held, self.train, which)
            if rows is not None:
                check_assignment(rows, len(held.y), which, partly)
                if len(rows) != len(self):
                    raise InputError(f"data: {which} rows are given for {len(rows)} clients; there are {len(self)}")
        if self.client_names is not None and len(self.client_names) != len(self):
            raise InputError(f"data: {len(self.client_names)} client names are given; there are {len(self)} clients")
        if self.augment and self.train.x.dim() != 4:
            raise InputError("dataset.augment=crop-flip needs images [n, C, H, W]; remove it for this data")
        if self.resize and self.train.x.dim() != 4:
            raise InputError(f"dataset.resize={self.resize} needs images [n, C, H, W]; remove it for this data")

    @classmethod
    def from_dataset(
        cls, dataset: Dataset, partition: Partition, clients: int, seed: int, validation: float = 0.0
    ) -> FederatedData:
        """Deal a data set's training samples out to `clients`; a share of each one's may be kept for validation."""
        assignment = deal(partition, class_labels(dataset.train), len(dataset.train), clients, seed)
        dealt = cls(dataset.train, dataset.test, assignment, dataset.classes, dataset.vocabulary, dataset.name)
        return dealt.with_validation(validation, seed) if validation else dealt

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        clients: int = 10,
        partition: Partition | str | dict[str, Any] = "iid",
        test: Arrays | float = DEFAULT_TEST,
        validation: float | None = None,
        seed: int = 0,
        vocabulary: Vocabulary = None,
        name: str = "arrays",
    ) -> FederatedData:
        """Deal arrays out to clients.

        `test` is the share of its own rows that each client holds out for a test, or a pair of arrays: a common test
        set. `validation` is the share that each holds out for validation. Samples become float32, unless `vocabulary`
        says that they are token ids: how many there are, or "auto" to count them.
        """
        if not isinstance(clients, int | np.integer) or isinstance(clients, bool):
            raise InputError(f"clients must be a whole number; got {shown(clients)}")
        samples, common = examples(x, y, vocabulary), common_test(test, vocabulary)
        if not len(samples):
            raise InputError("x has no samples; give at least one")
        kind = as_partition(partition)
        assignment = deal(kind, class_labels(samples), len(samples), clients, seed)
        return cls._of(samples, assignment, common, test, validation, seed, vocabulary, name)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[Any],
        test: Arrays | float | None = None,
        *,
        validation: float | None = None,
        seed: int = 0,
        vocabulary: Vocabulary = None,
        name: str = "clients",
        client_names: Sequence[str] | None = None,
    ) -> FederatedData:
        """What each client has, as it is: (x, y), or ((x, y), (x_test, y_test)) with test rows of its own.

        `test` is the share of its own rows that each client holds out for a test (by default a fifth, where clients
        bring no test rows), or a pair (x, y): a common test set. `validation` is the share of its training rows that
        each holds out for validation.
        """
        if not isinstance(clients, Sequence) or not len(clients):
            raise InputError(f"clients must be a list of at least one pair (x, y); got {what(clients)}")
        pairs = [pair(number, each) for number, each in enumerate(clients)]
        names = None if client_names is None else tuple(map(str, client_names))
        parts = [one(number, own, vocabulary, names) for number, (own, _) in enumerate(pairs)]
        tests = [None if own is None else one(n, own, vocabulary, names) for n, (_, own) in enumerate(pairs)]
        given = [each for each in tests if each is not None]
        if given and test is not None:
            raise InputError("test is given, but clients bring their own test rows; keep one of the two")
        shapes = {tuple(part.x.shape[1:]) for part in (*parts, *given) if len(part)}
        if len(shapes) > 1:
            told = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise InputError(f"clients must all have samples of one shape; got {told}; give all the same features")
        same_targets([*parts, *given])
        train, assignment = side_by_side(parts)
        if not given:
            test = DEFAULT_TEST if test is None else test
            common = common_test(test, vocabulary)
            data = cls._of(train, assignment, common, test, validation, seed, vocabulary, name)
            return replace(data, client_names=names)
        held, rows = side_by_side([Examples(train.x[:0], train.y[:0]) if each is None else each for each in tests])
        both = [train, held]
        data = cls(train, held, assignment, count_outputs(both), count_tokens(both, vocabulary), name, test_rows=rows)
        data = replace(data, client_names=names)
        return data if validation is None else data.with_validation(check_share("validation", validation), seed)

    @classmethod
    def from_torch(
        cls,
        dataset: torch.utils.data.Dataset[Any],
        *,
        test: torch.utils.data.Dataset[Any] | float = DEFAULT_TEST,
        **how: Any,
    ) -> FederatedData:
        """Read map-style torch data sets of (x, y) pairs once, then as `from_arrays`."""
        held_out = test if isinstance(test, int | float | np.number) else read_all(test)
        return cls.from_arrays(*read_all(dataset), test=held_out, **how)

    @classmethod
    def _of_dealt(cls, dealt: Dealt) -> Self:
        return cls(**vars(dealt))

    @classmethod
    def _of(
        cls,
        samples: Examples,
        assignment: Assignment,
        common: Examples | None,
        test: Any,
        validation: float | None,
        seed: int,
        vocabulary: Vocabulary,
        name: str,
    ) -> FederatedData:
        """From samples that are dealt out, with a common test set or a share of each client's own."""
        parts = [samples] if common is None else [samples, common]
        same_targets(parts)
        outputs, tokens = count_outputs(parts), count_tokens(parts, vocabulary)
        share = 0.0 if validation is None else check_share("validation", validation)
        if common is not None:
            if torch.equal(common.x, samples.x) and torch.equal(common.y, samples.y):
                warnings.warn(
                    "test holds the very samples of training, so results say nothing about new ones; give other "
                    "samples, or a share such as test=0.2",
                    stacklevel=3,
                )
            data = cls(samples, common, assignment, outputs, tokens, name)
            return data.with_validation(share, seed) if share else data
        split = hold_out(assignment, class_labels(samples), check_share("test", test), share, seed)
        train, tested, rows = _some(samples, split.train), _some(samples, split.test), renumbered(split.test)
        data = cls(train, tested, renumbered(split.train), outputs, tokens, name, test_rows=rows)
        if not share:
            return data
        held = _some(samples, split.validation)
        return replace(data, validation=held, validation_rows=renumbered(split.validation))

    def with_validation(self, share: float, seed: int) -> FederatedData:
        """The same, with a share of each client's own training rows held out for validation."""
        if self.validation is not None:
            raise InputError("validation is given, but the data has validation rows already; keep one of the two")
        split = hold_out(self.assignment, class_labels(self.train), 0.0, share, seed, whole=self.site is None)
        return replace(
            self,
            train=_some(self.train, split.train),
            assignment=renumbered(split.train),
            validation=_some(self.train, split.validation),
            validation_rows=renumbered(split.validation),
            weight=None if self.weight is None else self.weight[torch.from_numpy(split.train.indices)],
        )

    def only(self, *clients: int | str) -> FederatedData:
        """The same with these clients alone, by numbers or names, such as one that trains without the others.

        Each keeps its training, test and validation rows. What belongs to no client stays for all.
        """
        chosen = [self._number(client) for client in clients]
        if not chosen:
            raise InputError("clients must name at least one client; got none")
        rows = joined([self.assignment[client] for client in chosen])
        parts: dict[str, Any] = {"train": _some(self.train, rows), "assignment": renumbered(rows)}
        for which in ("test", "validation"):
            whose = getattr(self, f"{which}_rows")
            if whose is not None:
                held = joined([whose[client] for client in chosen])
                parts |= {which: _some(self.held(which), held), f"{which}_rows": renumbered(held)}
        weight = None if self.weight is None else self.weight[torch.from_numpy(rows.indices)]
        names = None if self.client_names is None else tuple(self.client_names[client] for client in chosen)
        return replace(self, **parts, weight=weight, client_names=names, site=None)

    def alone(self, client: int | str, seed: int | None = None) -> FederatedData:
        """What this client has on its own site: as many clients, but only its rows.

        A common test or validation set is left out. With a seed, the client keeps its `test_share` of it.
        """
        return replace(self, **alone(self, self._number(client), seed))

    def _number(self, client: int | str) -> int:
        """Of a client that is given by its number or its name."""
        if isinstance(client, str):
            if client not in (self.client_names or ()):
                known = ", ".join((self.client_names or ())[:MOST_NAMED]) or "none, as clients have only numbers"
                raise InputError(f"clients: {shown(client)} is not the name of a client; the names are {known}")
            return (self.client_names or ()).index(client)
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < len(self):
            raise InputError(f"clients must be names, or numbers from 0 to {len(self) - 1}; got {shown(client)}")
        return int(client)

    def __len__(self) -> int:
        return len(self.assignment)

    def __repr__(self) -> str:
        """In a line, without the samples: they may be patients."""
        held = f"{len(self.test)} test" + ("" if self.validation is None else f" and {len(self.validation)} validation")
        rows = f"{int(self.sizes.sum())} training and {held} samples of shape {list(self.shape)}"
        return f"<FederatedData {self.name}: {len(self)} clients with {rows}>"

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
        """The same on that device, with real numbers of that dtype; token ids and classes stay whole numbers."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        def each(part: Examples) -> Examples:
            return Examples(moved(part.x), moved(part.y))

        return replace(
            self,
            train=each(self.train),
            test=each(self.test),
            validation=None if self.validation is None else each(self.validation),
            weight=None if self.weight is None else moved(self.weight),
        )

    def client(self, client: int) -> Tensor:
        """The numbers of a client's training samples."""
        return torch.from_numpy(self.assignment[client])

    def train_batch(self, samples: Tensor, augment: Sequence[torch.Generator] | None = None) -> tuple[Tensor, Tensor]:
        """Training samples by number [..., b], resized where the data asks for it.

        With `augment`, there is one generator for each of the mini-batches that the leading axes of `samples` hold.
        """
        flat = samples.flatten().to(self.train.x.device)
        x, y = self.train.x.index_select(0, flat), self.train.y.index_select(0, flat)
        if augment is not None:
            parts = torch.split(x, samples.shape[-1])
            x = torch.cat([random_crop_flip(part, draw) for part, draw in zip(parts, augment, strict=True)])
        x = resize(x, self.resize) if self.resize else x
        return x.view(*samples.shape, *x.shape[1:]), y.view(*samples.shape, *y.shape[1:])

    def held(self, which: Held = "test") -> Examples:
        """The samples of the test or of the validation."""
        found = self.test if which == "test" else self.validation
        assert found is not None
        return found

    def test_batch(self, samples: Tensor | slice, which: Held = "test") -> tuple[Tensor, Tensor]:
        """These test or validation samples."""
        held = self.held(which)
        x = held.x[samples]
        return (resize(x, self.resize) if self.resize else x), held.y[samples]

    @property
    def clients_have_tests(self) -> bool:
        """Whether clients are tested on their own rows; otherwise that is estimated from a common test set."""
        return self.test_rows is not None

    @cached_property
    def _by_class(self) -> dict[Held, list[NDArray[np.int64]]]:
        held: dict[Held, Examples | None] = {"test": self.test, "validation": self.validation}
        labels = {which: part.y.cpu().numpy() for which, part in held.items() if part is not None}
        return {which: [np.flatnonzero(y == c) for c in range(self.classes)] for which, y in labels.items()}

    def test_share(self, client: int, seed: int, on: Held = "test") -> Tensor:
        """A client's own test or validation samples; where it has none, an estimate from the common test set.

        The estimate draws from the test set in the proportions of the client's training labels. It is as large,
        against the whole test set, as the client's data against all training data, but has at least one sample of every
        class that the client holds. Shares of different clients may overlap.
        """
        own = self.test_rows if on == "test" else self.validation_rows
        if own is not None:
            return torch.from_numpy(own[client])
        if class_labels(self.train) is None:
            raise InputError(
                "clients cannot be tested one by one: the test set belongs to no client, and without class labels "
                "their shares of it cannot be estimated; give each client test rows, such as test=0.2"
            )
        held = np.bincount(self.train.y[self.client(client)].cpu().numpy(), minlength=self.classes)
        wanted = np.rint(held * (len(self.held(on).y) / len(self.train.y))).astype(int)
        wanted = np.where(held > 0, np.maximum(wanted, 1), 0)
        rng = streams.generator(seed, f"{on} share", client)
        parts = [
            rng.choice(pool, min(count, len(pool)), replace=False)
            for pool, count in zip(self._by_class[on], wanted, strict=True)
        ]
        return torch.from_numpy(np.sort(np.concatenate(parts)))

    def label_counts(self) -> NDArray[np.int64]:
        """[clients, classes], training samples."""
        labels = class_labels(self.train)
        if labels is None:
            raise InputError("the data has no class labels to count; only classification and binary tasks have them")
        return label_counts(labels, self.assignment, self.classes)

    def describe_labels(self) -> dict[str, Any]:
        """Who holds which training labels, in plain values; whatever the number of clients, it is short."""
        labels = class_labels(self.train)
        if labels is None:
            return describe_sizes(self.assignment.sizes) | self._names()
        return describe_labels(labels, self.assignment, self.classes) | self._names()

    def _names(self) -> dict[str, list[str]]:
        """What clients, as many as are described, classes and features are called, where they have names."""
        clients = None if self.client_names is None else self.client_names[:MOST_CLIENTS]
        named = {"client_names": clients, "class_names": self.class_names, "feature_names": self.feature_names}
        return {field: [*names] for field, names in named.items() if names is not None}


def _some(samples: Examples, rows: Assignment) -> Examples:
    which = torch.from_numpy(rows.indices)
    return Examples(samples.x[which], samples.y[which])

"""Label mixes from a Dirichlet distribution, in its two common forms."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedkeel.data.partition.apportion import apportion
from fedkeel.data.partition.base import Slots, check_enough
from fedkeel.data.partition.pool import Pool
from fedkeel.errors import InputError

MOST_CLIENTS = 1_000_000
"""Where they may be empty: a row of shares is drawn for each."""


class Dirichlet(Slots):
    """Label mixes from a Dirichlet distribution, per client (Hsu et al., 2019) or per class (NIID-Bench).

    `per: client`: a client draws its mix q ~ Dir(α p), p being the shares of the classes in all data, and
    then its samples from q without replacement; once a class has run out, q is renormalised over the others.
    The parameters of the Dirichlet sum to α, so that a share has variance p (1 - p) / (α + 1). Sizes are
    proportional to the weights up to rounding, at least `min_size`.

    `per: class`: every class is split over the clients by shares ~ Dir(α, ..., α), multiplied by the weights
    and renormalised (Li et al., 2022, "Federated learning on non-IID data silos"). Sizes are unequal, with
    the ratio ξ on average if α times the clients is large, and less if every class goes to a few clients. The
    smallest are topped up to `min_size` from the largest, where NIID-Bench draws again until all are.

    The same α means more uneven mixes with `per: client`: with `per: class` and many clients, mixes of C
    equal classes are about Dir(α, ..., α), whose parameters sum to α C.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, ge=1e-9, le=1e9)
    """The concentration (σ in FedAgg). A small value makes clients very different, and a large one makes them nearly
    IID."""
    per: Literal["class", "client"] = "class"
    """Whether each class is split over the clients (`class`) or each client draws its own mix of classes (`client`)."""
    min_size: int = Field(default=1, ge=0)
    """The fewest samples of a client. With 0, clients may be empty with `per: class`; with `per: client`, 0 means 1."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_size is not None and self.min_size > self.max_size:
            raise InputError(
                f"partition.max_size must be at least partition.min_size={self.min_size}; got {self.max_size}"
            )
        return self

    def _check_size(self, samples: int, clients: int) -> None:
        if self._fewest > 0:
            super()._check_size(samples, clients)
        elif clients > MOST_CLIENTS:
            raise InputError(
                f"clients must be at most {MOST_CLIENTS} where clients may be empty, as nearly all of them would be; "
                f"got {clients} for {samples} samples"
            )
        check_enough("partition.min_size", self.min_size, samples, clients)

    @property
    def _fewest(self) -> int:
        return self.min_size if self.per == "class" else max(1, self.min_size)

    def _slots(
        self, labels: NDArray[np.int64], weights: NDArray[np.float64], draw: np.random.Generator
    ) -> NDArray[np.int64]:
        pool = Pool.of(labels, draw)
        if self.per == "client":
            sizes = apportion(len(labels), weights, self._fewest)
            return pool.place(_owners(_mix_clients(pool.stock, sizes, self.alpha, draw).T))
        owners = _owners(_split_classes(pool.stock, weights, self.alpha, draw))
        return pool.place(_top_up(owners, len(weights), self._fewest, draw))


def _owners(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[samples], the slot of each sample in the pool's order, from counts [classes, slots]."""
    classes, slots = counts.shape
    return np.repeat(np.tile(np.arange(slots), classes), counts.ravel())


def _mix_clients(
    stock: NDArray[np.int64], sizes: NDArray[np.int64], alpha: float, draw: np.random.Generator
) -> NDArray[np.int64]:
    """[slots, classes], samples: each slot's mix is its own draw, as long as the stock lasts."""
    mixes = draw.dirichlet(alpha * (stock / stock.sum()), size=len(sizes))
    counts = draw.multinomial(sizes, mixes)
    within = (np.cumsum(counts, axis=0) <= stock).all(axis=1)
    served = len(sizes) if within.all() else int(np.argmin(within))
    left = stock - counts[:served].sum(axis=0)
    for slot in range(served, len(sizes)):
        counts[slot] = _take(counts[slot], mixes[slot], left, draw)
        left -= counts[slot]
    return counts


def _take(
    wanted: NDArray[np.int64],
    mix: NDArray[np.float64],
    left: NDArray[np.int64],
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    """What is left of `wanted`, the rest drawn anew from the classes that still have samples.

    Drawing one sample after another and drawing again where the class is empty gives the same distribution.
    """
    taken = np.minimum(wanted, left)
    while missing := int(wanted.sum() - taken.sum()):
        room = left - taken
        taken += np.minimum(draw.multinomial(missing, _open_mix(mix, room)), room)
    return taken


def _open_mix(mix: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mix over classes with room; where it has no mass there, the shares of what is left."""
    odds = np.where(room > 0, mix, 0.0)
    mass = float(odds.sum())
    return odds / mass if mass >= np.finfo(np.float64).tiny else room / room.sum()


def _split_classes(
    stock: NDArray[np.int64], weights: NDArray[np.float64], alpha: float, draw: np.random.Generator
) -> NDArray[np.int64]:
    """[classes, slots], samples: each class is cut where its cumulated shares are.

    The cuts are moved by a random part of one sample, so that on average a slot gets its exact share.
    """
    shares = draw.dirichlet(np.full(len(weights), alpha), size=len(stock)) * weights
    shares = np.cumsum(shares, axis=1)
    cuts = stock[:, None] * (shares / shares[:, -1:]) + draw.random((len(stock), 1))
    return np.diff(np.minimum(cuts.astype(np.int64), stock[:, None]), axis=1, prepend=0)


def _top_up(owners: NDArray[np.int64], slots: int, fewest: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Give slots below `fewest` what they lack, sample by sample from whichever slot is then the largest.

    A slot of n samples numbers them 0 to n - 1 at random; the highest numbers of all are those to give.
    """
    sizes = np.bincount(owners, minlength=slots)
    lacking = np.repeat(np.arange(slots), np.maximum(fewest - sizes, 0))
    shuffled = draw.permutation(len(owners))
    by_slot = shuffled[np.argsort(owners[shuffled], kind="stable")]
    number = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = by_slot[np.argsort(-number, kind="stable")[: len(lacking)]]
    topped = owners.copy()
    topped[draw.permutation(given)] = lacking
    return topped

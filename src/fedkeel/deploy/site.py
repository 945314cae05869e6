"""A site as the project's `data.py` sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedkeel.config import usercode
from fedkeel.config.experiment import Experiment
from fedkeel.data.alone import owned
from fedkeel.data.federated import FederatedData
from fedkeel.data.files.schema import Schema
from fedkeel.data.files.site import read_site
from fedkeel.data.partition import Assignment
from fedkeel.data.pool import Pool
from fedkeel.deploy.prepared import Project
from fedkeel.errors import FedkeelError, InputError, described
from fedkeel.runner.prepare import federate

GIVE = "give --data PATH"
LOADER = "data:load"
"""The function that says what rows a site has."""


@dataclass(frozen=True)
class Site:
    """The site on which the code runs."""

    name: str
    number: int
    """Its place among the sites, from 0."""
    sites: tuple[str, ...]
    data: Path | None
    """Where its rows are, if that was said (`fedkeel node run --data`)."""
    experiment: Experiment

    @classmethod
    def of(cls, project: Project, name: str, data: Path | None) -> Site:
        """The site of this name."""
        sites = project.settings.sites
        if name not in sites:
            raise InputError(f"site: {name} is not one of the sites of deploy.yaml; choose one of {', '.join(sites)}")
        if data is not None and not data.exists():
            raise InputError(f"data: there is no {data}; give the file or folder of the site's rows")
        return cls(name, sites.index(name), sites, data, project.experiment)

    def share(self) -> Rows:
        """The share of the experiment's data set that a simulation would deal out to this site, to try things out."""
        return Rows("share")

    def read(self, path: str | Path | None) -> Rows:
        """The rows of a CSV, Parquet or NumPy file, or of a folder of images, as `dataset` in the experiment says."""
        if path is None:
            raise InputError(f"data.py of {self.name} reads a path, and none was given; {GIVE}")
        return Rows("read", str(path))


@dataclass(frozen=True)
class Rows:
    """Which rows are meant; they are loaded when the other sites are there."""

    how: str
    path: str = ""


class SitePool(Pool, Protocol):
    """All sites together."""

    def agree(self, own: Schema) -> Schema:
        """The schema of all sites: `schema.agree` of what each of them told."""
        ...


class Loaded(NamedTuple):
    """The data of a site."""

    data: FederatedData
    own: bool
    """Whether it is the site's own; otherwise it is a share of the experiment's data set."""
    own_tests: bool
    """Whether its test rows are; otherwise they are drawn from a common test set."""


def load(site: Site, pool: SitePool) -> Loaded:
    """What `data.py` returns for a site, as the rows of its client."""
    loader = usercode.find(LOADER, "data.py")
    try:
        given = loader(site)
    except Exception as error:
        if site.data is not None or isinstance(error, FedkeelError):
            raise
        raise InputError(
            f"data.py: load failed without --data ({usercode.said(error)}); {GIVE}, if it needs one"
        ) from error
    if isinstance(given, Rows):
        return _share(site) if given.how == "share" else Loaded(_read(site, given.path, pool), True, True)
    if isinstance(given, FederatedData):
        raise InputError("data.py: load must return the rows of one site, such as x, y; got data of several clients")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(
            f"data.py: load must return site.share(), site.read(path), (x, y) or ((x, y), (x_test, y_test)); got "
            f"{described(given)}"
        )
    return Loaded(_arrays(site, given), True, True)


def _share(site: Site) -> Loaded:
    try:
        common = federate(site.experiment)
    except InputError as error:
        raise error if site.data is not None else InputError(f"{error}; or {GIVE}") from None
    mine = replace(common.alone(site.number, site.experiment.seed), client_names=site.sites)
    return Loaded(mine, False, common.clients_have_tests)


def _read(site: Site, path: str, pool: SitePool) -> FederatedData:
    experiment = site.experiment
    settings = experiment.dataset
    if experiment.task == "regression" and settings.target_type == "auto":
        settings = settings.model_copy(update={"target_type": "number"})
    rows = read_site(settings, path, site.number, site.sites)
    data = rows.load(experiment.seed, pool, pool.agree(rows.schema))
    augment = settings.augment == "crop-flip"
    scaled = data.train.x.dim() == 4 and data.shape[1:] == (settings.resize, settings.resize)
    return replace(data, augment=augment, resize=None if scaled else settings.resize)


def _arrays(site: Site, given: Sequence[Any]) -> FederatedData:
    """Arrays of the user's own code, with a fifth held out for a test unless test rows come with them."""
    settings, seed = site.experiment.dataset, site.experiment.seed
    test = None if isinstance(given[0], tuple | list) else settings.test if isinstance(settings.test, float) else 0.2
    own = FederatedData.from_clients(
        [given], test=test, validation=settings.validation, seed=seed, vocabulary=settings.vocabulary, name="site"
    )
    classes = own.classes if settings.classes is None else len(settings.classes)
    return replace(placed(own, site.number, len(site.sites)), classes=classes, client_names=site.sites)


def placed(data: FederatedData, client: int, clients: int) -> FederatedData:
    """The data of one client as that of client number `client` of so many, of which the others have nothing here."""

    def own(rows: Assignment | None) -> Assignment | None:
        return None if rows is None else owned(rows.indices, client, clients)

    return replace(
        data,
        assignment=owned(data.assignment.indices, client, clients),
        test_rows=own(data.test_rows),
        validation_rows=own(data.validation_rows),
        site=client,
        client_names=None,
    )

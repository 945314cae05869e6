"""Deployments in this process: a project in a folder, its silos, and a server over the loopback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from fedkeel import Experiment, api
from fedkeel.deploy.prepared import Project
from fedkeel.deploy.serving import serve
from fedkeel.deploy.silo import Silo
from fedkeel.deploy.site import Site
from fedkeel.world.remote.loopback import Loopback

SETTINGS: dict[str, Any] = {
    "dataset": {"name": "fashion-mnist-mini", "train_limit": 240, "test_limit": 60},
    "model": "linear",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 8},
    "per_round": 3,
    "rounds": 3,
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.05},
    "threads": 1,
    "executor": {"kind": "serial", "stack": 0, "channels_last": False},
}
LOAD = "def load(site):\n    return site.share() if site.data is None else site.read(site.data)\n"
QUICK = {
    "poll_seconds": 0.01,
    "join_seconds": 30,
    "first_job_seconds": 30,
    "least_job_seconds": 20,
    "absent_seconds": 6,
}


def project(folder: Path, sites: int = 3, deploy: Mapping[str, Any] | None = None, **settings: Any) -> Path:
    """A project that deals a small data set out to its sites."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {**SETTINGS, "per_round": sites, **settings}
    names = [f"site-{number}" for number in range(sites)]
    (folder / "experiment.yaml").write_text(yaml.safe_dump(described))
    (folder / "deploy.yaml").write_text(yaml.safe_dump({"sites": names, **QUICK, **(deploy or {})}))
    (folder / "data.py").write_text(LOAD)
    return folder


@contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """The project's modules are imported from its folder, and forgotten afterwards."""
    for name in ("data", "model"):
        sys.modules.pop(name, None)
    try:
        yield
    finally:
        for name in ("data", "model"):
            sys.modules.pop(name, None)
        sys.path[:] = [each for each in sys.path if each != str(folder.resolve())]


def silo(app: Path, number: int, data: Path | None = None) -> Silo:
    """The silo of a site, with its state in the project's folder; another one for the same site finds that there."""
    loaded = Project.load(app)
    site = Site.of(loaded, loaded.settings.sites[number], data)
    return Silo(loaded, site, app / "state" / site.name)


def silos(app: Path, data: Mapping[int, Path] | None = None) -> dict[int, Callable[[bytes], bytes]]:
    """Handlers of all sites by the numbers of their nodes, from 1."""
    count = len(Project.load(app).settings.sites)
    return {number + 1: silo(app, number, (data or {}).get(number)).answer for number in range(count)}


def deployed(app: Path, out: Path, transport: Loopback | None = None, **how: Any) -> dict[str, Any]:
    """Run a project over the loopback; returns the summary."""
    with own_modules(app):
        transport = transport or Loopback(silos(app))
        try:
            return serve(transport, app, out, tell=how.pop("tell", lambda _: None), **how)
        finally:
            transport.close()


def simulated(app: Path) -> api.Result:
    """The same experiment, simulated."""
    with own_modules(app):
        return api.run(Experiment.load(app / "experiment.yaml", [f"clients={len(Project.load(app).settings.sites)}"]))


def weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return dict(load_file(folder / f"{name}.safetensors"))


def assert_equal(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name

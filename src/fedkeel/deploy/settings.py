"""How a deployment is run: `deploy.yaml` beside the experiment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedkeel.config import yamltext
from fedkeel.config.section import Count, Section, make
from fedkeel.errors import InputError, shown

FILE = "deploy.yaml"
EXPERIMENT = "experiment.yaml"
MODEL = "model:build"
"""The model of a new deployment, unless the experiment names one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Seconds = Annotated[float, Field(gt=0, le=1e7)]


class DeploySettings(Section):
    """Which sites take part, and how long the server waits for them."""

    sites: tuple[str, ...] = ("site-1", "site-2", "site-3", "site-4")
    """The names of the sites. A site is a client; its number is its place in this list, from 0."""
    wait_for: Count | Literal["all"] = "all"
    """The number of sites that must be there before the run begins. Others may join later."""
    join_seconds: Seconds = 600.0
    """How long the server waits for them before it gives up. Later, how long it goes on without any site that can do
    its job."""
    job_seconds: Seconds | Literal["auto"] = "auto"
    """How long a site may take for a job before the job is lost. `auto` measures: `margin` times the longest job of
    that site so far, but at least `least_job_seconds` and at most `first_job_seconds`. `schedule.deadline_seconds` of
    the experiment holds as well."""
    first_job_seconds: Seconds = 1800.0
    """With `auto`: how long the first job of a site may take. No later job may take longer, unless
    `least_job_seconds` is more."""
    least_job_seconds: Seconds = 60.0
    """With `auto`: the shortest limit."""
    margin: Annotated[float, Field(ge=1, le=1000)] = 3.0
    """With `auto`: how many times as long as the longest one a job may take."""
    retries: Annotated[int, Field(ge=0, le=100)] = 2
    """How often a message that failed is sent again, if there is time."""
    absent_seconds: Seconds = 60.0
    """How long a job that must be sent waits for a site that has left, before the job is lost."""
    poll_seconds: Annotated[float, Field(ge=0.01, le=60)] = 0.1
    """How often the server looks for answers."""
    tell_labels: bool = False
    """Whether sites tell the server how many samples of each class they have."""
    record_uploads: bool = False
    """Whether the server keeps every message, so that the run can be replayed (`fedkeel deploy replay`)."""
    max_upload_mb: Annotated[float, Field(gt=0, le=100_000)] | Literal["auto"] = "auto"
    """The largest answer that is taken from a site. `auto` is what the method and the model need."""

    @field_validator("sites")
    @classmethod
    def _named(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if not sites:
            raise InputError("sites must name at least one site; got none")
        for name in sites:
            if not _NAME.fullmatch(name):
                raise InputError(f"sites: a name must be 1 to 63 letters, digits, '.', '_' or '-'; got {shown(name)}")
            if sites.count(name) > 1:
                raise InputError(f"sites: {name} is given twice; names must differ")
        return sites

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.wait_for != "all" and self.wait_for > len(self.sites):
            raise InputError(f"wait_for must be at most {len(self.sites)}, the number of sites; got {self.wait_for}")
        return self

    @property
    def needed(self) -> int:
        """How many sites must be there before the run begins."""
        return len(self.sites) if self.wait_for == "all" else self.wait_for

    @classmethod
    def load(cls, app: Path) -> Self:
        """Of the project in this folder."""
        path = app / FILE
        if not path.is_file():
            raise InputError(f"{app} is not the folder of a deployment, as it has no {FILE}; see fedkeel deploy new")
        values = yamltext.read(path, "file")
        try:
            return make(cls, values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

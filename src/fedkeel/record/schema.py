"""The names of a run folder's files, and the version of its layout, which is in `run.json`.

Version 1 had no such file. Version 2 added it; names and keys of all other files stayed. A new number is for a change
that this code could not read; keys that are only added need none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedkeel
from fedkeel.config.files import open_file, reason
from fedkeel.errors import InputError, label, shown

EXPERIMENT, RUN, SUMMARY, CLIENT_METRICS = "experiment.yaml", "run.json", "summary.json", "client_metrics.jsonl"
LABELS = "labels.json"
SCHEMA = 2


def text(more: Mapping[str, Any]) -> str:
    """What the file of a new run holds."""
    return json.dumps({"schema": SCHEMA, "fedkeel": fedkeel.__version__, **more}) + "\n"


def check(folder: Path) -> int:
    """The version of a run folder; one that this code cannot read is refused."""
    named = f"run folder {label(str(folder))}"
    try:
        with open_file(folder / RUN) as file:
            told: Any = json.loads(file.read(1_000_000))
        schema = told["schema"]
    except (FileNotFoundError, NotADirectoryError):  # a path that is no folder is refused elsewhere
        return 1
    except OSError as error:
        raise InputError(
            f"{named}: {RUN} cannot be read ({reason(error)}); name a folder that fedkeel run has made"
        ) from None
    except (ValueError, RecursionError, LookupError, TypeError):
        schema = told = None
    if type(schema) is not int or schema < 2:
        raise InputError(f"{named}: {RUN} is damaged; use a copy of the folder, or run the experiment again")
    if schema > SCHEMA:
        raise InputError(
            f"{named}: its schema must be at most {SCHEMA}; got {shown(schema)}, which {later(told.get('fedkeel'))} "
            "wrote; use that version"
        )
    return schema


def later(version: object) -> str:
    """A later version of fedkeel, by its number if it left one that differs from ours."""
    known = isinstance(version, str) and version not in ("", fedkeel.__version__)
    return f"fedkeel {label(version)}" if known else "a later version of fedkeel"

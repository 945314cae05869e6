"""A JSON schema for all files that commands take: experiments and comparisons."""

from __future__ import annotations

from typing import Any

from fedkeel.config.catalogue import properties
from fedkeel.config.schema import DIALECT, experiment_schema
from fedkeel.study.files import MARKS, StudyFile


def file_schema() -> dict[str, Any]:
    """What has variants, scenes or a base is a comparison; anything else is an experiment."""
    experiment = experiment_schema()
    definitions = experiment.pop("$defs", {})
    comparison = properties(StudyFile)
    base = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Experiment"}]}
    comparison["base"] = {"description": comparison["base"].get("description", ""), **base}
    closed = {"type": "object", "additionalProperties": False, "properties": comparison}
    return {
        "$schema": DIALECT,
        "title": "fedkeel",
        "description": "An experiment, or a comparison of experiments.",
        "if": {"anyOf": [{"required": [mark]} for mark in MARKS]},
        "then": {"$ref": "#/$defs/Comparison"},
        "else": {"$ref": "#/$defs/Experiment"},
        "$defs": {**definitions, "Comparison": closed, "Experiment": experiment},
    }

"""Sinks for trackers of experiments: TensorBoard, MLflow, Weights & Biases. Each needs a package of its own."""

from __future__ import annotations

import os

from fedkeel.errors import InputError, shown, unknown
from fedkeel.runner.sinks import Sink

SPELLINGS = {"tensorboard": "DIR", "mlflow": "URI", "wandb": "PROJECT"}
"""The words for `named`, and what may follow after a colon."""


def named(word: str) -> Sink:
    """The sink that a word on the command line asks for: `tensorboard`, `tensorboard:DIR`, `mlflow:URI`, ...

    The mode of `wandb` is what the environment variable WANDB_MODE says, or else offline.
    """
    kind, colon, rest = word.partition(":")
    if kind not in SPELLINGS:
        with_more = ", ".join(f"{name}:{what}" for name, what in SPELLINGS.items())
        raise unknown("sinks", word, SPELLINGS, also=with_more)
    if colon and not rest:
        raise InputError(f"sinks must be {kind} or {kind}:{SPELLINGS[kind]}; got {shown(word)}")
    if kind == "tensorboard":
        from fedkeel.sinks.tensorboard import TensorBoard

        return TensorBoard(rest or None)
    if kind == "mlflow":
        from fedkeel.sinks.mlflow import MLflow

        return MLflow(rest or None)
    from fedkeel.sinks.wandb import WeightsAndBiases

    return WeightsAndBiases(rest or "fedkeel", os.environ.get("WANDB_MODE") or "offline")

"""Mistakes that users make, and the sentence with which each is answered: before any training, and with what to do.

In a sentence, `<n>` stands for a number, `<address>` for one in memory, `<folder>` for the working folder, and
`<words>` for what another library says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedkeel import DivergenceError, Experiment, FederatedData, InputError, resume, run
from fedkeel.runner.simulation import Simulation
from tests.helpers import mistaken
from tests.helpers.commands import fedkeel

LONGEST = 300
"""Characters of an answer."""
FINISHED = Path(__file__).parent / "record" / "data" / "schema-1-complete"
MINE = "tests.helpers.mistaken"
FILES = {
    "tabs.yaml": "local:\n\tlr: 0.1\n",
    "twice.yaml": "rounds: 3\nseed: 1\nrounds: 5\n",
    "no-space.yaml": "rounds:3\nseed: 1\n",
    "list.yaml": "- rounds: 3\n",
    "table.csv": "age,sick,site\n" + "51,0,a\n62,1,b\n" * 10,
    "mine.py": "net = 3\n",
}

draw = np.random.default_rng(0)
X = draw.normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
REAL = draw.normal(size=60)
IDS = np.arange(240).reshape(60, 4)
arrays, clients = FederatedData.from_arrays, FederatedData.from_clients


def lay_out(folder: Path) -> None:
    """A folder as a user has it."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    shutil.copytree(FINISHED, folder / "finished")


def train(data: Any = None, model: Any = None, **settings: Any) -> object:
    """A run of three clients' data with a linear model, unless something else is given."""
    data = arrays(X, Y, clients=3) if data is None else data
    model = nn.Linear(4, 3) if model is None else model
    return run(Experiment(rounds=1, executor="serial", **settings), "out", data=data, model=model)


COMMANDS = {
    "run --set lr=0.1": "lr is not a setting; did you mean local.lr or finetune.lr?",
    "run --set learning_rate=0.1": "learning_rate is not a setting; did you mean local.lr?",
    "run --set algoritm=fedavg": "algoritm is not a setting; did you mean algorithm?",
    "run --set algorithm=fedagv": ("algorithm.name: 'fedagv' is not known; did you mean fedavg or fedagg?"),
    "run --set algorithm.mu=0.1": (
        "algorithm.mu is not a setting of fedavg; choose algorithm.name fedasync, fedprox or moon to use it"
    ),
    "run --set local.mu=0.1": ("local.mu is not a setting; did you mean algorithm.mu of fedasync, fedprox and moon?"),
    "run --set rounds=ten": "rounds must be an integer; got 'ten'",
    "run --set rounds=2.5": "rounds must be an integer; got 2.5",
    "run --set rounds": "a setting must be key=value, such as local.lr=0.05; got 'rounds'",
    "run --set rounds=3 rounds=4": "rounds is given twice; keep one of the two",
    "run --rounds 3": ("there is no option --rounds; settings are given as --set rounds=... (see fedkeel run --help)"),
    "run --set local.lr=0,1": "local.lr must be a number; got '0,1'",
    "run --set local.lr=-1": "local.lr must be greater than 0; got -1",
    "run --set local=0.1": "local must be a section of settings, such as local.epochs; got 0.1",
    "run --set participation=20": "participation must be at most 1; got 20; did you mean 0.2?",
    "run --set participation=20%": "participation must be a number; got '20%'; did you mean 0.2?",
    "run --set target_accuracy=95": "target_accuracy must be at most 1; got 95; did you mean 0.95?",
    "run --set clients=10 per_round=20": "per_round must be at most clients=10; got 20",
    "run --set per_round=5 participation=0.1": (
        "per_round=5 and participation=0.1 both say how many clients take part in a round; keep one of them"
    ),
    "run --set algorithm=fedasync schedule.deadline_seconds=10": (
        "schedule.deadline_seconds=10 needs a method with rounds, not the pace periodic; remove it or choose "
        "another method, such as fedavg"
    ),
    "run --set algorithm=scaffold local.optimizer=adam": (
        "local.optimizer: adam cannot be used with scaffold, as option II computes control variates from how far "
        "clients moved; use sgd"
    ),
    "run --set partition.alpha=0.1": (
        "partition.alpha is not a setting of iid; choose partition.kind dirichlet to use it"
    ),
    "run --set partition=dirchlet": "partition.kind: 'dirchlet' is not known; did you mean dirichlet?",
    "run --set dataset=minst": "dataset.name: 'minst' is not known; did you mean mnist or fmnist?",
    "run --set dataset=data.csv": (
        "dataset.name: there is no file data.csv below <folder>; give the path of one that exists"
    ),
    "run --set dataset=table.csv": ("dataset.target must name the column to predict; choose one of age, sick, site"),
    "run --set dataset=table.csv dataset.target=sikc": (
        "dataset.target: table.csv has no column 'sikc'; choose one of age, sick, site"
    ),
    "run --set model=resnet": "model.name: 'resnet' is not known; did you mean resnet20 or resnet18?",
    "run --set model=nowhere:net": (
        "model.name: 'nowhere:net' cannot be imported (ModuleNotFoundError: No module named 'nowhere', looked for "
        "from <folder>: run the command where nowhere.py is); give module:function"
    ),
    "run --set model=mine.py:net": (
        "model.name: the name of a module has no .py; write mine:net instead of 'mine.py:net'"
    ),
    "run --set model=mine:net": "model.name: mine:net must be a function or a class; got 3",
    "run --set model.hidden=10": ("model.hidden is not a setting of mlp-400; choose model.name alexnet to use it"),
    "run --set device=gpu": "device must be 'cpu' or 'cuda'; got 'gpu'",
    "run --set task=regression": (
        "task=regression needs numbers to predict, but fashion-mnist-mini has classes; use task=classification, or "
        "data of your own"
    ),
    "run --set metrics=acuracy": "metrics: 'acuracy' is not known; did you mean accuracy?",
    "run --set metrics=rmse": (
        "metrics: rmse is not defined for task=classification; choose from accuracy, top5, balanced_accuracy, f1, "
        "auroc, auprc, log_loss, perplexity, calibration_error"
    ),
    "run --set target=0.9 target_metric=auroc": (
        "target_metric='auroc' needs a metric that is measured; add auroc to metrics, or use one of accuracy"
    ),
    "run --set stop_at_target=true": "stop_at_target needs a target; set target, or target_accuracy",
    "run --set early_stopping.min_delta=0.01": (
        "early_stopping.min_delta needs early_stopping.patience, without which no run ends early; set it, or remove "
        "early_stopping.min_delta"
    ),
    "run --set early_stopping=5": (
        "early_stopping must be a section of settings, such as early_stopping.patience; got 5"
    ),
    "run --set loss=focal": (
        "loss.name: 'focal' is not known; choose one of auto, cross_entropy, binary_cross_entropy, mse, mae, huber, "
        "or module:name"
    ),
    "run --set loss=mse": (
        "loss.name: mse does not fit task=classification; use cross_entropy, or set task=regression"
    ),
    "run --set loss.class_weights=[1,2]": ("loss.class_weights must have one number per class, 10 in all; got 2"),
    "run --set init=nowhere": (
        "init: nowhere cannot be read (No such file or directory); name a run folder or a file of weights"
    ),
    "run --set name=a/b": (
        "name must be 1 to 100 printable bytes that name a folder, without / and \\ and not starting with a dot; "
        "got 'a/b'"
    ),
    "run tabs.yaml": ("experiment file tabs.yaml is not valid YAML; line 2, column 1: a tab; indent with spaces"),
    "run twice.yaml": (
        "experiment file twice.yaml is not valid YAML; line 1, column 1: rounds is given twice; keep one of the two"
    ),
    "run no-space.yaml": (
        "experiment file no-space.yaml is not valid YAML; line 2, column 5: a colon at the wrong place; put a space "
        "after the colon of each setting, and indent the settings of a section alike"
    ),
    "run list.yaml": "experiment file list.yaml must be a mapping such as 'clients: 100'; got a list",
    "run table.csv": "experiment file table.csv must be a mapping such as 'clients: 100'; got text",
    "run nowhere.yaml": (
        "experiment file nowhere.yaml cannot be read (No such file or directory); give the path of a YAML file"
    ),
    "run empty": "experiment file empty cannot be read (Is a directory); give the path of a YAML file",
    "run --out finished": "out: finished is not empty; name a new or empty folder",
    "run --resume empty": (
        "--resume: empty holds no run; name a folder that fedkeel run has made, or give an experiment to start there"
    ),
    "run --resume finished --set local.lr=0.5": (
        "--resume: the run in finished was started with local.lr=0.1, not 0.5; give the same settings, or start a "
        "new run in another folder (only these may change: rounds, limit_seconds, target, target_accuracy, "
        "stop_at_target, finetune, limit_wall_seconds, checkpoint, executor)"
    ),
    "run --resume finished --out other": (
        "--out: other cannot be combined with --resume, which names the folder already; remove one of them"
    ),
    "run --sink tensorbord": "sinks: 'tensorbord' is not known; did you mean tensorboard?",
    "rnu": "there is no command rnu; did you mean run? (see fedkeel --help)",
    "compare --set rounds=3": (
        "there is nothing to compare; add --algorithms A,B,... or --vary KEY=V,V,..., or give a file with variants"
    ),
    "compare --algorithms fedavg,fedproxx": ("algorithms: 'fedproxx' is not known; did you mean fedprox?"),
    "plot nowhere": "run folder nowhere does not exist; name a folder that fedkeel run has made",
    "plot empty": "run folder empty holds no run; name a folder that fedkeel run has made",
    "report nowhere": "nowhere: there is no such folder; name a run folder or a comparison",
    "export empty --to onnx": "export: empty holds no run; name a folder that fedkeel run has made",
    "export finished --to onxx": (
        "Invalid value for '--to': 'onxx' is not one of 'torchscript', 'onnx', 'safetensors'. (see fedkeel export "
        "--help)"
    ),
    "data mnist": "there is no command mnist; choose from get, show (see fedkeel data --help)",
    "show nowhere.yaml": (
        "experiment file nowhere.yaml cannot be read (No such file or directory); give the path of a YAML file"
    ),
}
"""What is typed, and what is answered."""

DATA: dict[str, tuple[Callable[[], object], str]] = {
    "real numbers as classes": (
        lambda: train(arrays(X, REAL)),
        "y holds real numbers, but task=classification needs whole numbers from 0 on; set task=regression, or "
        "convert y to integers, such as y.astype(int)",
    ),
    "classes as real numbers": (
        lambda: train(arrays(X, Y.astype(float))),
        "y holds real numbers, but task=classification needs whole numbers from 0 on; set task=regression, or "
        "convert y to integers, such as y.astype(int)",
    ),
    "classes from 1": (
        lambda: train(arrays(X, Y + 1)),
        "y holds classes from 1 to 3, but they are counted from 0; give y - 1, or set task=regression if these are "
        "numbers to predict",
    ),
    "classes from -1": (
        lambda: train(arrays(X, Y - 1)),
        "data: training labels must be whole numbers from 0 to 1; got -1 to 1; np.unique(y, return_inverse=True)[1] "
        "numbers classes from 0",
    ),
    "names as classes": (
        lambda: arrays(X, np.array(["ill", "well"] * 30)),
        "y must hold numbers; got text such as 'ill'; np.unique(y, return_inverse=True)[1] turns names into integers",
    ),
    "one-hot classes": (
        lambda: train(arrays(X, np.eye(3)[Y])),
        "y is one-hot, [50, 3], but task=classification needs one class per sample; give y.argmax(1), or set "
        "task=multilabel",
    ),
    "whole numbers to predict without task=regression": (
        lambda: train(arrays(X, 1000 * Y)),
        "y holds classes up to 2000, more than there are samples (60); set task=regression if these are numbers to "
        "predict, or number the classes with np.unique(y, return_inverse=True)[1]",
    ),
    "missing values": (
        lambda: arrays(np.where(X > 1, np.nan, X), Y),
        "x holds NaN, infinity or numbers that float32 cannot hold; fill in missing values first, or let a table "
        "reader do it (dataset.missing)",
    ),
    "missing targets": (
        lambda: arrays(X, np.where(REAL > 1, np.nan, REAL)),
        "y holds NaN, infinity or numbers that float32 cannot hold; leave out samples without target",
    ),
    "fewer targets than samples": (
        lambda: arrays(X, Y[:50]),
        "x has 60 samples, but y has 50; give one target per sample",
    ),
    "x and y swapped": (
        lambda: train(arrays(Y, X)),
        "y holds real numbers, but task=classification needs whole numbers from 0 on; set task=regression, or "
        "convert y to integers, such as y.astype(int)",
    ),
    "x of strings": (
        lambda: arrays(np.array([["red", "3"]] * 60), Y),
        "x must hold numbers; got text such as 'red'; turn texts into token ids, and categories into numbers",
    ),
    "a column of Python objects": (
        lambda: arrays(np.array([[1, "male"], [2, "female"]] * 30, dtype=object), Y),
        "x must hold numbers; got text such as 'male'; turn texts into token ids, and categories into numbers",
    ),
    "dates": (
        lambda: arrays(np.full((60, 1), np.datetime64("2024-01-01")), Y),
        "x must hold numbers; got dates or times; turn them into numbers, such as days",
    ),
    "rows of different lengths": (
        lambda: arrays([[1.0], [1.0, 2.0]], [0, 1]),
        "x must be an array of numbers; got ((1.0), (1.0, 2.0)), whose rows differ in length or kind; give every "
        "row the same shape",
    ),
    "a single number": (
        lambda: arrays(3.0, 1),
        "x and y must be arrays with one row per sample; got a single number",
    ),
    "no samples": (
        lambda: arrays(X[:0], Y[:0]),
        "x has no samples; give at least one",
    ),
    "a test share of 2": (
        lambda: arrays(X, Y, test=2),
        "test must be a share between 0 and 1, such as 0.2, or data; got 2",
    ),
    "a test share in percent": (
        lambda: arrays(X, Y, test=20),
        "test must be a share between 0 and 1, such as 0.2, or data; got 20",
    ),
    "all rows held out": (
        lambda: arrays(X, Y, test=0.5, validation=0.5),
        "test=0.5 and validation=0.5 leave nothing to train on; lower one of them",
    ),
    "more clients than samples": (
        lambda: arrays(X, Y, clients=100),
        "clients must be at most 60, as there are 60 samples; got 100",
    ),
    "half a client": (
        lambda: arrays(X, Y, clients=2.5),
        "clients must be a whole number; got 2.5",
    ),
    "a Dirichlet split of real targets": (
        lambda: arrays(X, REAL, partition="dirichlet"),
        "partition.kind=dirichlet needs one class label per sample, which these targets are not; use iid, or give "
        "each client its own data",
    ),
    "a partition that is misspelt": (
        lambda: arrays(X, Y, partition="dirchlet"),
        "partition.kind: 'dirchlet' is not known; did you mean dirichlet?",
    ),
    "clients in a dict": (
        lambda: clients({"a": (X, Y)}),
        "clients must be a list of at least one pair (x, y); got a dict; give list(clients.values()), and "
        "client_names=list(clients)",
    ),
    "no clients": (
        lambda: clients([]),
        "clients must be a list of at least one pair (x, y); got an empty one",
    ),
    "clients without targets": (
        lambda: clients([X, X]),
        "clients[0] must be a pair (x, y), or ((x, y), (x_test, y_test)); got an array [60, 4] of float32",
    ),
    "clients with different features": (
        lambda: clients([(X, Y), (X[:, :3], Y)]),
        "clients must all have samples of one shape; got [3] and [4]; give all the same features",
    ),
    "clients with different kinds of targets": (
        lambda: clients([(X, Y), (X, REAL)]),
        "y must be of one kind for all clients and sets; got real numbers of shape [] and whole numbers of shape "
        "[]; convert all alike",
    ),
    "one client with missing values": (
        lambda: clients([(X, Y), (X * np.nan, Y)], client_names=["north", "south"]),
        "clients[1] (south): x holds NaN, infinity or numbers that float32 cannot hold; fill in missing values "
        "first, or let a table reader do it (dataset.missing)",
    ),
    "two sources of test rows": (
        lambda: clients([((X, Y), (X, Y))], test=0.2),
        "test is given, but clients bring their own test rows; keep one of the two",
    ),
    "negative token ids": (
        lambda: arrays(IDS - 5, Y, vocabulary=300),
        "x holds token ids from -5 to 234, but the vocabulary has 300; number them from 0 to 299",
    ),
    "more token ids than the vocabulary has": (
        lambda: arrays(IDS, Y, vocabulary=100),
        "x holds token ids from 0 to 239, but the vocabulary has 100; number them from 0 to 99",
    ),
    "fractions as token ids": (
        lambda: arrays(X, Y, vocabulary="auto"),
        "x must hold token ids, which are whole numbers, as vocabulary= is given; got fractions",
    ),
    "token ids without vocabulary": (
        lambda: train(arrays(IDS, Y), nn.Sequential(nn.Embedding(240, 2), nn.Flatten(), nn.Linear(8, 3))),
        "model: it fails on a training batch of shape [5, 4] (RuntimeError: <words>); give the data vocabulary=, so "
        "that x stays token ids",
    ),
    "three classes of a binary task": (
        lambda: train(task="binary", model=nn.Linear(4, 1)),
        "y must be 0 or 1 for each sample, as task=binary; got values from 0 to 2; convert it, such as y == "
        "y.max(), or set another task",
    ),
    "answers 1 and 2 of a binary task": (
        lambda: train(arrays(X, 1 + Y % 2), nn.Linear(4, 1), task="binary"),
        "y must be 0 or 1 for each sample, as task=binary; got values from 1 to 2; convert it, such as y == "
        "y.max(), or set another task",
    ),
    "one label per sample of a multilabel task": (
        lambda: train(task="multilabel"),
        "y must be 0 or 1 for each sample and label, [samples, labels], as task=multilabel; got shape [48]",
    ),
    "one class per sample of a sequence task": (
        lambda: train(task="sequence"),
        "y must be a class for each token, [samples, length], or -100 for a token that does not count, as "
        "task=sequence; got shape [48] of whole numbers; to predict the next token, give x[:, :-1] as x and x[:, "
        "1:] as y",
    ),
    "weights for two of three classes": (
        lambda: train(loss={"class_weights": [1, 2]}),
        "loss.class_weights must have one number per class, 3 in all; got 2",
    ),
    "other clients than the data has": (
        lambda: train(clients=7),
        "clients must be 3, as many as the data has; got 7; remove it or change it",
    ),
    "a partition of data that has its clients": (
        lambda: train(partition="dirichlet"),
        "partition.kind=dirichlet needs data that is not yet dealt out to clients; remove it",
    ),
    "arrays in place of FederatedData": (
        lambda: train((X, Y)),
        "data must be FederatedData, such as FederatedData.from_clients([(x, y), ...]); got (an array [60, 4] of "
        "float32, an array [60] of int64)",
    ),
    "a metric that was not measured, and no such task": (
        lambda: train(metrics=["rmse"]),
        "metrics: rmse is not defined for task=classification; choose from accuracy, top5, balanced_accuracy, f1, "
        "auroc, auprc, log_loss, perplexity, calibration_error",
    ),
}
"""Data of one's own."""

CODE: dict[str, tuple[Callable[[], object], str]] = {
    "two outputs for three classes": (
        lambda: train(model=nn.Linear(4, 2)),
        "model: for 16 training samples its output has shape [16, 2], but task=classification needs [16, 3], as the "
        "labels run from 0 to 2; change the last layer, or the task",
    ),
    "one output for a classification of two": (
        lambda: train(arrays(X, Y % 2), nn.Linear(4, 1)),
        "model: for 5 training samples its output has shape [5, 1], but task=classification needs [5, 2], as the "
        "labels run from 0 to 1; set task=binary for a model of one logit",
    ),
    "three outputs for one number": (
        lambda: train(arrays(X, REAL), task="regression"),
        "model: for 5 training samples its output has shape [5, 3], but task=regression needs [5], as the targets "
        "have; change the last layer, or the task",
    ),
    "a model for other samples": (
        lambda: train(model=nn.Linear(5, 3)),
        "model: it fails on a training batch of shape [16, 4] (RuntimeError: <words>); build it for samples of "
        "shape [4]",
    ),
    "a model for images": (
        lambda: train(model=nn.Conv2d(1, 3, 3)),
        "model: it fails on a training batch of shape [16, 4] (RuntimeError: <words>); build it for samples of "
        "shape [4]",
    ),
    "a tuple as output": (
        lambda: train(model=mistaken.Pair()),
        "model: its output on a training batch must be one floating-point tensor; got (a tensor [16, 3] of float32, "
        "a tensor [16, 3] of float32); return the logits alone from forward",
    ),
    "a softmax before the loss": (
        lambda: train(model=mistaken.Probabilities()),
        "model: its outputs are probabilities, but the loss cross_entropy takes logits; remove the softmax at its end",
    ),
    "a sigmoid before the loss": (
        lambda: train(arrays(X, Y % 2), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), task="binary"),
        "model: its outputs are probabilities, but the loss binary_cross_entropy takes logits; remove the sigmoid "
        "at its end",
    ),
    "classes as output": (
        lambda: train(model=mistaken.Classes()),
        "model: its output on a training batch must be one floating-point tensor; got a tensor [16] of int64; "
        "return the logits alone from forward",
    ),
    "an error in forward": (
        lambda: train(model=mistaken.Wrong()),
        "model: it fails on a training batch of shape [16, 4] (mistaken.py, line <n>, in forward: AttributeError: "
        "'Wrong' object has no attribute 'lats'); correct it there",
    ),
    "another dtype in forward": (
        lambda: train(model=mistaken.Mixed()),
        "model: it fails on a training batch of shape [16, 4] (mistaken.py, line <n>, in forward: RuntimeError: "
        "<words>); remove .double(), .float() and .half() from it, or set dtype; x is float32",
    ),
    "no gradients": (
        lambda: train(model=mistaken.Fixed()),
        "model: its output has no gradient; remove torch.no_grad() and detach() from forward, and use operations "
        "that PyTorch can differentiate",
    ),
    "frozen layers": (
        lambda: train(model=mistaken.Frozen()),
        "model: it has no parameters to train; give it layers, and do not freeze all of them",
    ),
    "infinite outputs": (
        lambda: train(model=mistaken.Infinite()),
        "model: its output on a training batch holds NaN or infinity before any training; look for a division or a "
        "logarithm in it",
    ),
    "lazy layers": (
        lambda: train(model=nn.LazyLinear(3)),
        "model: it has lazy layers, whose shapes are not known yet; call it once on a batch before, or use layers "
        "with sizes",
    ),
    "batch norm with one sample": (
        lambda: train(model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), local={"batch_size": 1}),
        "model: it fails on a training batch of shape [1, 4] (ValueError: <words>); use a larger local.batch_size, "
        "or local.drop_last=true, as batch norm needs two samples",
    ),
    "the class of a model": (
        lambda: train(model=mistaken.Base),
        "model must be a torch.nn.Module, such as nn.Linear(4, 3); got the class Base",
    ),
    "the name of a model": (
        lambda: train(model="linear"),
        "model must be a torch.nn.Module, such as nn.Linear(4, 3); got 'linear'",
    ),
    "a function that makes no model": (
        lambda: run(Experiment(model=f"{MINE}:nothing"), data=arrays(X, Y)),
        "model.name: tests.helpers.mistaken:nothing must return a torch.nn.Module; got None",
    ),
    "a number in place of a model": (
        lambda: run(Experiment(model=f"{MINE}:NUMBER"), data=arrays(X, Y)),
        "model.name: tests.helpers.mistaken:NUMBER must be a function or a class; got 3",
    ),
    "a model of images for a table": (
        lambda: run(Experiment(model="lenet5"), data=arrays(X, Y)),
        "model.name: lenet5 needs images (channels, height, width) of at least 12 x 12 pixels; got shape (4,)",
    ),
    "settings in place of an experiment": (
        lambda: run({"rounds": 3}),
        "experiment must be an Experiment, such as Experiment(rounds=10); got a dict with rounds: 3",
    ),
    "a setting one level off": (
        lambda: Experiment(lr=0.1),
        "lr is not a setting; did you mean local.lr or finetune.lr?",
    ),
    "a loss that is summed": (
        lambda: train(loss=mistaken.total),
        "loss.name: tests.helpers.mistaken:total returns the sum over a mini-batch; return the mean, or one loss "
        "per sample",
    ),
    "a loss that is a float": (
        lambda: train(loss=mistaken.number),
        "loss.name: tests.helpers.mistaken:number must return one loss per sample, a tensor [4], or their mean, a "
        "tensor []; got 1.1",
    ),
    "a loss without gradient": (
        lambda: train(loss=mistaken.detached),
        "loss.name: tests.helpers.mistaken:detached returned a loss without gradient; remove detach(), item() and "
        "torch.tensor() from it, and compute it from the outputs",
    ),
    "a loss per class": (
        lambda: train(loss=mistaken.by_class),
        "loss.name: tests.helpers.mistaken:by_class must return one loss per sample, a tensor [4], or their mean, a "
        "tensor []; got a tensor [3] of float32",
    ),
    "a loss that is NaN": (
        lambda: train(loss=mistaken.undefined),
        "loss.name: tests.helpers.mistaken:undefined returned NaN or infinity on 4 samples before any training; "
        "look for a division or a logarithm",
    ),
    "a loss without targets": (
        lambda: train(loss=mistaken.alone),
        "loss.name: tests.helpers.mistaken:alone must be a function alone(outputs, targets); got alone(outputs) "
        "(too many positional arguments)",
    ),
    "a loss that raises": (
        lambda: train(loss=mistaken.raising),
        "loss.name: tests.helpers.mistaken:raising failed on a mini-batch of 4 samples (mistaken.py, line <n>, in "
        "raising: KeyError: 'weights'); correct it there: it is called with outputs [4, 3] and targets [4]",
    ),
    "a loss that is not there": (
        lambda: train(loss=f"{MINE}:totl"),
        "loss.name: 'tests.helpers.mistaken:totl' cannot be imported (AttributeError: module "
        "'tests.helpers.mistaken' has no attribute 'totl', in <folder>/tests/helpers/mistaken.py); give "
        "module:function",
    ),
    "a loss that is a lambda": (
        lambda: train(loss=lambda outputs, targets: (outputs - targets).mean()),
        "loss.name: <lambda> cannot be found again by its name; define it with def at the top level of a module, so "
        "that runs can be repeated and resumed",
    ),
    "an object as loss": (
        lambda: train(loss=nn.CrossEntropyLoss()),
        "loss.name: CrossEntropyLoss() is a module of PyTorch; give its name, loss='cross_entropy'",
    ),
    "class weights for a loss of one's own": (
        lambda: train(loss={"name": f"{MINE}:detached", "class_weights": "balanced"}),
        "loss.class_weights needs a built-in loss of a classification or binary task, not a loss of your own",
    ),
    "a metric that raises": (
        lambda: train(metrics=[mistaken.raising]),
        "metrics: raising failed (mistaken.py, line <n>, in raising: KeyError: 'weights'); correct it there: it is "
        "called with outputs [2, 3] and targets [2]",
    ),
    "a metric with several numbers": (
        lambda: train(metrics=[mistaken.by_class]),
        "metrics: by_class is the name of something else in the results; rename your function",
    ),
    "a metric that is a lambda": (
        lambda: train(metrics=[lambda outputs, targets: (outputs - targets).mean()]),
        "metrics: <lambda> cannot be found again by its name; define it with def at the top level of a module, so "
        "that runs can be repeated and resumed",
    ),
    "a metric twice": (
        lambda: train(metrics=["accuracy", "acc"]),
        "metrics: accuracy is given twice; keep one of the two",
    ),
    "patience in words": (
        lambda: Experiment(early_stopping={"patience": "5 rounds"}),
        "early_stopping.patience must be an integer; got '5 rounds'",
    ),
    "a target of a metric that is not measured": (
        lambda: Experiment(target=0.9, target_metric="auroc"),
        "target_metric='auroc' needs a metric that is measured; add auroc to metrics, or use one of accuracy",
    ),
    "two targets": (
        lambda: Experiment(target=0.9, target_accuracy=0.9),
        "target and target_accuracy both set a target; keep one of the two",
    ),
    "progress that is no function": (
        lambda: run(Experiment(), data=arrays(X, Y), model=nn.Linear(4, 3), progress=True),
        "progress must be a function of a RoundEnd; got True",
    ),
    "a folder that is taken": (
        lambda: run(Experiment(), "finished"),
        "out: finished is not empty; name a new or empty folder",
    ),
    "a folder without a run to resume": (
        lambda: resume("empty"),
        "resume: empty holds no run; name a folder that fedkeel run has made",
    ),
}
"""Models, losses, metrics and settings in Python."""


def pattern(sentence: str) -> str:
    """What matches it, with the placeholders filled in."""
    found = re.escape(sentence)
    for placeholder, words in {"n": r"\d+", "address": "0x[0-9a-f]+", "folder": r"\S+", "words": ".+"}.items():
        found = found.replace(f"<{placeholder}>", words)
    return found


def check(answer: str, sentence: str) -> None:
    assert re.fullmatch(pattern(sentence), answer), answer
    assert len(answer) <= LONGEST
    assert answer.count("\n") <= 1
    assert not re.search("Traceback|defect|accepted|pydantic", answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    lay_out(made)
    return made


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(*_: object) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr(Simulation, "rounds", rounds)


def there(folder: Path) -> list[str]:
    """All files, but for what Python makes of modules."""
    return sorted(str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("command", COMMANDS)
def test_on_the_command_line(command: str, folder: Path) -> None:
    before = there(folder)
    done = fedkeel(*command.split(" "), cwd=folder)
    assert done.returncode == 2
    check(done.stderr.removeprefix("fedkeel: ").removesuffix("\n"), COMMANDS[command])
    assert there(folder) == before


@pytest.mark.parametrize("mistake", [*DATA, *CODE])
def test_in_python(mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = there(folder)
    make, sentence = (DATA | CODE)[mistake]
    with pytest.raises(InputError) as caught:
        make()
    check(str(caught.value), sentence)
    assert there(folder) == before


def test_there_are_many() -> None:
    assert min(len(COMMANDS), len(DATA), len(CODE)) >= 20


def test_a_test_set_that_is_the_training_set_is_told() -> None:
    with pytest.warns(UserWarning, match="^test holds the very samples of training, so results say nothing about new"):
        arrays(X, Y, test=(X, Y))


def test_what_looks_like_a_mistake_but_is_none() -> None:
    """Targets in a column, names in other cases, unused classes, a loss of PyTorch: these reach the first round."""
    for data, settings in (
        (arrays(X, Y[:, None]), {}),
        (arrays(X, Y), {"metrics": ["ACCURACY", "F1"]}),
        (arrays(X, np.where(Y == 1, 2, Y)), {}),
        (arrays(X, Y), {"loss": nn.functional.cross_entropy}),
        (arrays(X, Y), {"loss": nn.CrossEntropyLoss}),
        (arrays(X, Y.astype(object)), {}),
    ):
        with pytest.raises(AssertionError, match="training has begun"):
            run(Experiment(rounds=1, executor="serial", **settings), data=data, model=nn.Linear(4, 3))


def test_divergence_with_large_numbers_advises_to_scale_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    data = arrays(1e6 * X, REAL.astype(np.float32))
    with pytest.raises(DivergenceError, match=r"; scale x, which holds numbers up to .*, to a mean of 0 and a dev"):
        run(Experiment(rounds=3, executor="serial", task="regression"), data=data, model=nn.Linear(4, 1))

"""Modules of the user's that do anything but what they should."""

import sys
from pathlib import Path

import pytest

from fedkeel import Experiment, InputError
from fedkeel.config import usercode
from fedkeel.runner.prepare import prepare
from tests.helpers import promise

MODULE = """
import numpy as np, torch, threading
from torch import nn
from fedkeel import FederatedData
from fedkeel.data.datasets import Dataset, Examples
from fedkeel.data.partition import Assignment

class Stop(BaseException): pass
class Mute(Exception):
    def __str__(self): raise RuntimeError("no text either")

def stops(): raise Stop("for good")
def exits(): raise SystemExit(7)
def generator(): raise GeneratorExit
def mute(): raise Mute
def loud(): raise ValueError("line\\n" * 1000 + "\\x1b[31m")
def deep(): return deep()
def starves(): raise MemoryError
def nothing(): print("hello")
def number(): return 3
constant = 3
def wants(a): return a

def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
def meta(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10, device="meta"))
def locked():
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    module.lock = threading.Lock()
    return module
class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(784, 10)
    def forward(self, x): raise SystemExit(3)
def leaves(): return Leaves()
class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.head = nn.Embedding(300, 3, sparse=True), nn.Linear(3, 10)
    def forward(self, x): return self.head(self.look((x.flatten(1)[:, :4] > 0).long()).mean(1))
def sparse(): return Sparse()
def empty(): return nn.Flatten()
class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)
    def forward(self, x): return torch.zeros(len(x), 10)
def gradless(): return Constant()
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)
    def forward(self, x): return "words"
def wordy(): return Words()

X, Y = torch.zeros(20, 4), torch.arange(20) % 2
GOOD = Examples(X, Y)
def part_missing(): return Dataset("d", GOOD, None, 2)
def no_tensor(): return Dataset("d", Examples("x", "y"), GOOD, 2)
def ragged(): return Dataset("d", Examples([[1], [1, 2]], [0, 1]), GOOD, 2)
def nan(): return Dataset("d", Examples(X * float("nan"), Y), GOOD, 2)
def no_classes(): return Dataset("d", GOOD, GOOD, None)
def few_classes(): return Dataset("d", GOOD, GOOD, 1)
def float_labels(): return Dataset("d", Examples(X, Y.float()), GOOD, 2)
def nothing_in_it(): return Dataset("d", Examples(X[:0], Y[:0]), GOOD, 2)
def other_shape(): return Dataset("d", GOOD, Examples(X[:, :2], Y), 2)
def outside(): return FederatedData(GOOD, GOOD, Assignment(np.array([0, 99]), np.array([0, 2])), 2)
def backwards(): return FederatedData(GOOD, GOOD, Assignment(np.arange(4), np.array([0, 3, 2, 4])), 2)
def nobody(): return FederatedData(GOOD, GOOD, Assignment(np.arange(0), np.array([0, 0])), 2)
def no_offsets(): return FederatedData(GOOD, GOOD, Assignment(np.arange(4), np.arange(0)), 2)
def lists(): return FederatedData(GOOD, GOOD, Assignment([0, 1], [0, 2]), 2)
SOME = Assignment(np.arange(4), np.array([0, 4]))
def no_examples(): return FederatedData((X, Y), GOOD, SOME, 2)
def short_labels(): return FederatedData(Examples(X, Y[:3]), GOOD, SOME, 2)
def scalars(): return FederatedData(GOOD, Examples(torch.tensor(1.0), torch.tensor(1)), SOME, 2)
def words_as_vocabulary(): return FederatedData(GOOD, GOOD, Assignment(np.arange(4), np.array([0, 4])), 2, "many")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "leaver.py").write_text("import sys\nsys.exit('bye')\n")
    (tmp_path / "raiser.py").write_text("class Stop(BaseException): pass\nraise Stop('at once')\n")
    (tmp_path / "binary.py").write_bytes(b"\0\xff")
    (tmp_path / "circle.py").write_text("import circle\ncircle.f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("odd", "broken", "leaver", "raiser", "binary", "circle"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def refused(*overrides: str) -> str:
    small = ["dataset.train_limit=60", "dataset.test_limit=20", "clients=5"]
    given = overrides if any(o.startswith("dataset=") for o in overrides) else (*small, *overrides)
    with pytest.raises(InputError) as caught:
        prepare(Experiment.load(overrides=list(given)))
    promise.check_message(str(caught.value), ["data:", "inputs."], [])
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":", "model.name: ':' cannot be imported"),
        ("odd:", "cannot be imported"),
        (":f", "cannot be imported"),
        ("..:f", "cannot be imported"),
        (".odd:nothing", "cannot be imported"),
        ("odd:no", "module 'odd' has no attribute 'no'"),
        ("broken:f", "SyntaxError"),
        ("leaver:f", "cannot be imported (leaver.py, line 2, in <module>: SystemExit: bye)"),
        ("raiser:f", "cannot be imported (raiser.py, line 2, in <module>: Stop: at once)"),
        ("binary:f", "cannot be imported"),
        ("circle:f", "AttributeError"),
        ("a" * 3000 + ":f", "cannot be imported"),
        ("odd:stops", "model.name: odd:stops failed (odd.py, line 12, in stops: Stop: for good)"),
        ("odd:exits", "odd:exits failed (odd.py, line 13, in exits: SystemExit: 7)"),
        ("odd:generator", "odd:generator failed (odd.py, line 14, in generator: GeneratorExit)"),
        ("odd:mute", "odd:mute failed (odd.py, line 15, in mute: Mute)"),
        ("odd:loud", "odd:loud failed (odd.py, line 16, in loud: ValueError: 'line line"),
        ("odd:deep", "RecursionError"),
        ("odd:starves", "MemoryError"),
        ("odd:nothing", "model.name: odd:nothing must return a torch.nn.Module; got None"),
        ("odd:number", "model.name: odd:number must return a torch.nn.Module; got 3"),
        ("odd:constant", "model.name: odd:constant must be a function or a class; got "),
        ("odd:wants", "missing 1 required positional argument"),
        ("odd:lazy", "model: it has lazy layers, whose shapes are not known yet; call it once on a batch before"),
        ("odd:meta", "cannot be moved to cpu"),
        ("odd:locked", "cannot be copied"),
        (
            "odd:leaves",
            "fails on a training batch of shape [12, 1, 28, 28] (odd.py, line 34, in forward: SystemExit: 3)",
        ),
        ("odd:sparse", "sparse gradients"),
        ("odd:empty", "model: it has no parameters to train; give it layers"),
        ("odd:gradless", "its output has no gradient"),
        ("odd:wordy", "model: its output on a training batch must be one floating-point tensor; got "),
    ],
)
def test_models(name: str, said: str) -> None:
    assert said in refused(f"model={name!r}")


def test_options_that_a_model_does_not_take() -> None:
    assert "unexpected keyword argument 'width'" in refused("model={name: 'odd:number', width: 3}")
    assert "unexpected keyword argument '1'" in refused("model={name: 'odd:number', 1: 3}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "dataset.name: odd:number must return a Dataset or FederatedData; got 3"),
        ("exits", "odd:exits failed (odd.py, line 13, in exits: SystemExit: 7)"),
        ("part_missing", "dataset.name: odd:part_missing, test must be Examples; got None"),
        ("no_tensor", "dataset.name: odd:no_tensor, train: x must hold numbers; got text such as 'x'"),
        ("ragged", "train: x must be an array of numbers; got ((1), (1, 2)), whose rows differ in length or kind"),
        ("nan", "dataset.name: odd:nan, train: x holds NaN, infinity or numbers that float32 cannot hold; fill in"),
        ("no_classes", "data: classes must be a whole number of at least 1; got None"),
        ("few_classes", "data: training labels must be whole numbers from 0 to 0; got 0 to 1"),
        (
            "float_labels",
            "y holds real numbers, but task=classification needs whole numbers from 0 on; set task=regression",
        ),
        ("nothing_in_it", "odd:nothing_in_it, train has no samples"),
        ("other_shape", "test samples have shape (2,)"),
        ("outside", "data: the training assignment names samples 0 to 99; they must be from 0 to 19"),
        ("backwards", "offsets"),
        ("nobody", "data: no client has any training samples; give samples to at least one"),
        ("no_offsets", "offsets"),
        ("lists", "data: the assignment of training samples must be made of two arrays of whole numbers"),
        ("no_examples", "data: training samples must be Examples of a tensor x [n, ...] and one y [n, ...]"),
        ("short_labels", "data: training samples must be Examples of a tensor x [n, ...] and one y [n, ...]"),
        ("scalars", "data: test samples must be Examples of a tensor x [n, ...] and one y [n, ...]"),
        ("words_as_vocabulary", "data: vocabulary must be a whole number of at least 1; got 'many'"),
    ],
)
def test_data(name: str, said: str) -> None:
    assert said in refused(f"dataset='odd:{name}'", "model=linear")


def test_an_interrupt_stays_one() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    sys.modules["odd"] = type(sys)("odd")
    sys.modules["odd"].interrupted = interrupted  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        usercode.call("odd:interrupted", "model.name", {})

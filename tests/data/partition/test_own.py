"""Partitions of a user's own: what a function is given, what it may return, and how it is described."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedkeel import Experiment, FederatedData, InputError, run, streams
from fedkeel.data.partition import Own
from fedkeel.runner.prepare import federate
from tests.helpers import commands

MODULE = """
import numpy as np

def deal(labels, clients, rng, first: int = 3, *, tail=None):
    order = rng.permutation(len(labels))
    return [order[:first], *np.array_split(order[first:], clients - 1)]
def sorted_by_label(labels, clients, rng):
    return np.array_split(np.argsort(labels, kind="stable"), clients)
def anything(labels, clients, rng, **options):
    return np.arange(options["a"] * clients).reshape(clients, -1)
def spoils(labels, clients, rng):
    labels[:] = 0
    return np.array_split(np.arange(len(labels)), clients)
def some_are_empty(labels, clients, rng):
    return [[5, 2], *([] for _ in range(clients - 1))]

def short(labels, clients, rng): return [[0]]
def twice(labels, clients, rng): return [[0, 1], [2, 1], *([] for _ in range(clients - 2))]
def twice_to_one(labels, clients, rng): return [[0, 0], *([] for _ in range(clients - 1))]
def outside(labels, clients, rng): return [[0, len(labels)], *([] for _ in range(clients - 1))]
def negative(labels, clients, rng): return [[-1], *([] for _ in range(clients - 1))]
def floats(labels, clients, rng): return [[0.5]] * clients
def masks(labels, clients, rng): return [labels == c for c in range(clients)]
def nobody(labels, clients, rng): return [[]] * clients
def nothing(labels, clients, rng): return None
def fails(labels, clients, rng): raise SystemExit("not today")
def two(labels, clients): ...
def needs(labels, clients, rng, alpha): ...
def hides(labels, clients, rng, kind="x"): ...
def places(labels, clients, rng, alpha, /): ...
number = 3
"""
LABELS = np.arange(40) % 4


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_deals.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_deals", raising=False)


def test_the_function_deals_from_a_named_stream() -> None:
    dealt = Own(kind="own_deals:deal", first=4).assign(LABELS, 5, seed=7)
    order = streams.generator(7, "partition").permutation(40)
    expected = [order[:4], *np.split(order[4:], 4)]
    assert [dealt[client].tolist() for client in range(5)] == [sorted(part.tolist()) for part in expected]
    assert dealt.sizes.tolist() == [4, 9, 9, 9, 9]


def test_labels_are_given_as_they_are_and_stay_so() -> None:
    dealt = Own(kind="own_deals:sorted_by_label").assign(LABELS, 4, seed=0)
    assert all((LABELS[dealt[client]] == client).all() for client in range(4))
    Own(kind="own_deals:spoils").assign(LABELS, 4, seed=0)
    assert LABELS.tolist() == (np.arange(40) % 4).tolist()


def test_clients_may_be_empty_and_samples_nobodys() -> None:
    dealt = Own(kind="own_deals:some_are_empty").assign(LABELS, 3, seed=0)
    assert [dealt[client].tolist() for client in range(3)] == [[2, 5], [], []]


def test_options_are_shown_checked_and_kept(tmp_path: Path) -> None:
    described = Experiment.load(overrides=["partition=own_deals:deal", "partition.first=2"])
    assert described == Experiment(partition={"kind": "own_deals:deal", "first": 2})
    assert described.model_dump()["partition"] == {"kind": "own_deals:deal", "first": 2, "tail": None}
    (tmp_path / "e.yaml").write_text(described.to_yaml())
    assert Experiment.load(tmp_path / "e.yaml") == described
    free = Experiment(partition={"kind": "own_deals:anything", "a": 2})
    assert free.model_dump()["partition"] == {"kind": "own_deals:anything", "a": 2}
    assert Experiment(partition="own_deals:deal").partition.model_dump()["first"] == 3


@pytest.mark.parametrize("given", ["true", "false"])
def test_a_switch_without_a_type_is_a_switch(given: str, tmp_path: Path) -> None:
    described = Experiment.load(overrides=["partition=own_deals:deal", f"partition.tail={given}"])
    (tmp_path / "e.yaml").write_text(described.to_yaml())
    for each in (described, Experiment.load(tmp_path / "e.yaml")):
        assert each.partition.model_dump()["tail"] is (given == "true")


@pytest.mark.slow
def test_a_run_and_its_repetition(tmp_path: Path) -> None:
    settings = [
        *commands.QUICK,
        "partition=own_deals:deal",
        "partition.first=30",
        "executor=serial",
        "sampling=uniform",
    ]
    done = commands.fedkeel("run", *settings, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = federate(Experiment.load(tmp_path / "o" / "experiment.yaml"))
    assert data.sizes.tolist()[0] == 30
    assert commands.fedkeel("run", "o/experiment.yaml", "--out", "again", cwd=tmp_path).returncode == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("o", "again")]
    assert models[0] == models[1]
    shown = commands.fedkeel("data", "show", "fashion-mnist-mini", "o/experiment.yaml", cwd=tmp_path)
    assert "client 0: 30 samples" in shown.stdout


def test_in_python() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    data = FederatedData.from_arrays(x, LABELS, clients=4, partition="own_deals:sorted_by_label", test=(x, LABELS))
    assert data.label_counts().tolist() == (10 * np.eye(4, dtype=int)).tolist()
    assert run(Experiment(rounds=1, executor="serial", model="linear"), data=data).summary["clients"] == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "own_deals:nix"}, "partition.kind: 'own_deals:nix' cannot be imported"),
        ({"kind": "nowhere:x"}, "No module named 'nowhere'"),
        (
            {"kind": "own_deals:number"},
            "partition.kind: own_deals:number must be a function number(labels, clients, rng); got 3",
        ),
        (
            {"kind": "own_deals:two"},
            "partition.kind: own_deals:two must be a function two(labels, clients, rng); got two(labels,",
        ),
        ({"kind": "own_deals:needs"}, "partition.alpha is missing; own_deals:needs needs it"),
        (
            {"kind": "own_deals:hides"},
            "partition.kind: own_deals:hides must take its options by name, and none may be called kind;",
        ),
        (
            {"kind": "own_deals:places"},
            "partition.kind: own_deals:places must take its options by name, and none may be called kind;",
        ),
        (
            {"kind": "own_deals:deal", "frist": 1},
            "partition.frist is not a setting of own_deals:deal; did you mean partition.first?",
        ),
        ({"kind": "own_deals:deal", "first": "x"}, "partition.first must be an integer; got 'x'"),
        ({"kind": "own_deals:deal", "first": True}, "partition.first must be an integer; got 'true'"),
        ({"kind": "own_dael"}, "partition.kind: 'own_dael' is not known"),
    ],
)
def test_bad_descriptions_are_told_before_anything_else(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        Experiment(partition=given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "partition.kind: own_deals:short must return 4 arrays, one per client; got 1"),
        ("twice", "must deal out each sample once; got 1 for clients 0 and 1"),
        ("twice_to_one", "must deal out each sample once; got 0 for clients 0 and 0"),
        ("outside", "must deal out samples 0 to 39; got 40 for client 0"),
        ("negative", "must deal out samples 0 to 39; got -1 for client 0"),
        ("floats", "must return sample numbers; got float64 of shape [1] for client 0"),
        ("masks", "got bool of shape [40] for client 0"),
        ("nobody", "must deal out at least one sample; got none"),
        ("nothing", "must return one array of sample numbers per client; got None"),
        ("fails", "partition.kind: own_deals:fails failed (own_deals.py, line 26, in fails: SystemExit: not today)"),
    ],
)
def test_what_is_no_partition_is_told(name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Own(kind=f"own_deals:{name}").assign(LABELS, 4, seed=0)
    assert said in str(refused.value)

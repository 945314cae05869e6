"""Experiments turned into ones that nobody would write."""

import datetime
from typing import Any

import yaml
from hypothesis import strategies as st

from fedkeel import Experiment, methods, models
from fedkeel.data import datasets, partition
from tests.helpers.repository import ROOT

FILES = sorted((ROOT / "experiments").glob("*.yaml"))
TREES: list[dict[str, Any]] = [
    Experiment().model_dump(),
    *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES),
    *(Experiment(algorithm=name).model_dump() for name in methods.methods()),
]
"""To begin with: every default, every file and every method."""

NAMES = [*models.names(), *datasets.names(), *partition.names(), *methods.methods()]
WORDS = [
    "",
    " ",
    ":",
    "a:b",
    "os:getcwd",
    "full",
    "all",
    "head",
    "x.csv",
    "x.parquet",
    "null",
    "1e5",
    "0",
    "-",
    "=",
    "ü",
]

numbers = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 0.5, 1.0, 1e-9, 1e38, 1e39, 10**6, 10**9, 10**12, 2**64, 10**400, -0.0, 1e-320]),
    st.integers(),
    st.floats(),
)
leaves = st.one_of(
    numbers,
    st.none(),
    st.booleans(),
    st.sampled_from(NAMES),
    st.sampled_from(WORDS),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
)
keys = (
    st.sampled_from(["name", "kind", "lr", "client", "server", "x", "", "a.b", "<<", "self", "cls", "values"]) | leaves
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys.filter(lambda key: key != "<<"), inner, max_size=4),
        st.sets(leaves, max_size=3),
    ),
    max_leaves=8,
)


@st.composite
def trees(draw: st.DrawFn) -> dict[Any, Any]:
    """One of `TREES` with a few settings replaced, removed or added."""
    tree: dict[Any, Any] = _copy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(0, 4))):
        place, key = draw(st.sampled_from(_places(tree)))
        match draw(st.sampled_from(["replace", "number", "remove", "add", "exchange"])):
            case "replace":
                place[key] = draw(values)
            case "number":
                place[key] = draw(numbers)
            case "remove":
                del place[key]
            case "add":
                place[draw(keys)] = draw(values)
            case "exchange":
                other, its = draw(st.sampled_from(_places(tree)))
                place[key] = _copy(other[its])
        if not tree:
            break
    return tree


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _places(tree: dict[Any, Any]) -> list[tuple[dict[Any, Any], Any]]:
    below = [place for value in tree.values() if isinstance(value, dict) for place in _places(value)]
    return [(tree, key) for key in tree] + below


TEXTS = [Experiment().to_yaml().encode(), *(path.read_bytes() for path in FILES)]
PIECES = [b"\0", b"\t", b"\n", b"  ", b": ", b"- ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: ", b"!!", b"!!set ",
          b"? ", b"|", b">", b"%", b"---\n", b"...\n", b"'", b'"', b"#", b"=", b"\xff", b"\xed\xa0\x80",
          b"\xef\xbb\xbf", b"\xc2\x85", b"1e999", b".nan", b"9" * 20, b"0x", b"2001-01-01"]  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """The text of a file with bytes flipped, cut out, cut off, repeated or put in."""
    text = bytearray(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(1, 30)))
        match draw(st.sampled_from(["flip", "cut out", "cut off", "repeat", "put in"])):
            case "flip" if at < len(text):
                text[at] ^= draw(st.integers(1, 255))
            case "cut out":
                del text[at:end]
            case "cut off":
                del text[end:]
            case "repeat":
                text[at:at] = text[at:end]
            case _:
                text[at:at] = draw(st.sampled_from(PIECES) | st.binary(max_size=6))
    return bytes(text)


FIELDS = ["clients", "rounds", "local", "local.lr", "local.lr.x", "model", "model.name", "model.x", "algorithm",
          "client", "algorithm.name", "algorithm.server_lr", "partition.kind", "partition.alpha", "fleet.profile",
          "dataset", "dataset.train_limit", "participation", "per_round", "name", "", ".", "a..b", ".a", "a.", "ü",
          "a" * 300, "x." * 300 + "x"]  # fmt: skip
GIVEN = ["", "[1,", "{", "{}", "[]", "null", "true", "1e999", ".nan", "0x" + "f" * 4000, "&a [*a]", "!!set {a}", "'",
         "=", "a=b", "2001-99-99", "!!int x", "- ", "\t", "\x00", "\udcff", "1:30", "010", "[" * 200, "{a: " * 200,
         "<<", "{<<: 3}"]  # fmt: skip
overrides = st.lists(
    st.one_of(
        st.builds("{}={}".format, st.sampled_from(FIELDS), st.sampled_from([*GIVEN, *NAMES]) | numbers.map(str)),
        st.sampled_from(["", "=", "x", "clients", "==", "=1", "local={}", "a..b=1", "clients=[1,", "x="]),
        st.text(max_size=20),
    ),
    max_size=3,
)


def _setting(key: str, *choices: object) -> st.SearchStrategy[str]:
    return st.sampled_from([f"{key}={choice}" for choice in choices])


CHEAP = ["linear", "mlp-400", "lenet5", "cnn", "mnist-cnn", "resnet20", "textcnn"]
_CHOICES = [
    _setting("dataset.train_limit", 1, 2, 3, 10, 60),
    _setting("dataset.test_limit", 1, 2, 10),
    _setting("dataset.normalise", "standard", "unit", "none"),
    _setting("dataset.augment", "none", "crop-flip"),
    _setting("dataset.resize", 1, 2, 3, 5, 12, 17, 30),
    _setting("model", *CHEAP),
    _setting("model.projection", 1, 3, 10_001),
    _setting("model.hidden", 1, 10_001),
    _setting("model.dropout", 0, 0.5, 0.999999),
    _setting("model.norm", "batch", "group", "none"),
    _setting("algorithm.name", *methods.methods()),
    _setting("client", *methods.methods()),
    _setting("server", *methods.methods()),
    _setting("partition.kind", *partition.names()),
    _setting("partition.size_ratio", 1, 2, 1e6),
    _setting("partition.max_size", 1, 3),
    _setting("partition.min_size", 0, 1, 5, 10**30),
    _setting("partition.alpha", 1e-9, 0.1, 1e9),
    _setting("partition.per", "client", "class"),
    _setting("partition.shards_per_client", 1, 2, 10**30),
    _setting("partition.classes", 1, 2, 10, 11, 10**30),
    _setting("clients", 1, 2, 3, 10, 60, 61, 200, 100_000_000),
    _setting("per_round", 1, 2, 10, 1_000_000_000),
    _setting("participation", 1e-9, 0.5, 1),
    _setting("sampling", "uniform", "scheme1"),
    _setting("local.batch_size", 1, 2, 7, "full", 1_000_000_000),
    _setting("local.epochs", 1, 2, 3),
    _setting("local.lr", 1e-300, 0.1, 1e38),
    _setting("local.momentum", 0, 0.9),
    _setting("local.optimizer", "sgd", "adam", "adamw"),
    _setting("local.betas", "[0, 0]", "[0.9, 0.99]", "[1]"),
    _setting("local.clip_norm", 1e-300, 1, 1e38),
    _setting("finetune.epochs", 0, 1),
    _setting("finetune.part", "all", "body", "head"),
    _setting("fleet.speed_ratio", 1, 5, 1e9),
    _setting("fleet.profile", "uniform", "lognormal", "tiers", "nowhere.csv", "nowhere.parquet", "no:where", ":"),
    _setting("fleet.dropout", 0.5, 0.999999),
    _setting("fleet.availability", 1e-300, 0.5),
    _setting("fleet.availability_period", 1e-3, 1e12),
    _setting("fleet.rho", 0.5, 1),
    _setting("fleet.tau_max", 0, 1, 2),
    _setting("fleet.uplink_mbps", 1e-6, 1e12),
    _setting("schedule.pace", "auto", "barrier", "stream", "periodic", "concurrency"),
    _setting("schedule.concurrency", 1, 1_000_000_000),
    _setting("schedule.deadline_seconds", 1e-300, 1, 1e12),
    _setting("schedule.over_select", 0.5, 1000),
    _setting("schedule.trigger_seconds", 1e-3, 1e12),
    *(_setting(f"faults.{fault}", 0.3, 1) for fault in ("hang", "leave", "lost_upload", "twice", "old_job", "corrupt")),
    _setting("faults.corruptions", "[nan]", "[huge]", "[shape,future]", "[]", "nan"),
    _setting("faults.hang_seconds", 1e-300, 1e12),
    _setting("gate.max_norm", 1e-38, 1, 1e38),
    _setting("gate.min_norm", 0, 1, 1e38),
    _setting("gate.max_loss", 1e-38, 1e38),
    _setting("gate.diverged", "stop", "refuse"),
    _setting("evaluate_every", 1, 1_000_000_000),
    _setting("evaluate_local", True),
    _setting("evaluate_clients", True),
    _setting("limit_seconds", 1e-300, 1, 1e12),
    _setting("dtype", "float64"),
    _setting("seed", 1, 2**64 - 1),
    _setting("executor", "serial", "vectorised"),
    _setting("executor.stack", 0, 1, 1_000_000),
]


@st.composite
def combinations(draw: st.DrawFn) -> list[str]:
    """Settings each of which is fine for itself, on the data that travels with the package."""
    several = st.lists(st.sampled_from(_CHOICES), min_size=1, max_size=6, unique=True)
    given = dict(draw(each).split("=") for each in draw(several))
    small = {"dataset.train_limit": "60", "dataset.test_limit": "20", "model": "linear", "clients": "10"}
    return [f"{key}={value}" for key, value in (small | given).items()]

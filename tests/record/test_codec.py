"""State survives being written down: every value, every type, and who is whom."""

from __future__ import annotations

import gc
import json
import struct
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file
from torch import Tensor

from fedkeel.record.codec import DecodeError, decode, encode
from fedkeel.record.durable import write_tensors


@dataclass
class Plain:
    a: Any
    b: Any = None


@dataclass(slots=True, eq=False)
class Slotted:
    a: Any
    b: Any = field(default_factory=list)
    c: Any = field(init=False, default=3)


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: Any
    b: Any = 2


@dataclass(frozen=True)
class Frozen:
    a: Any

    @cached_property
    def twice(self) -> tuple[Any, Any]:
        return self.a, self.a


@dataclass(frozen=True)
class Empty:
    pass


CLASSES = (Plain, Slotted, FrozenSlotted, Frozen, Empty)
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
)  # fmt: skip


def through(value: Any, classes: tuple[type, ...] = CLASSES) -> Any:
    """Written as text and a file, and read again."""
    plain, rows = encode(value, classes)
    text = json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")
    with TemporaryDirectory() as folder:
        write_tensors(Path(folder, "t"), rows)
        return decode(json.loads(text.decode("utf-8", "surrogatepass")), load_file(Path(folder, "t")), classes)


def bits(value: Any) -> Any:
    """Equal only for the same types with the same contents, bit for bit, in the same order; any nan is a nan."""
    kind = type(value)
    if isinstance(value, Tensor):
        plain = value.resolve_conj().resolve_neg().contiguous()
        return kind, value.dtype, value.shape, plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype, value.shape, value.tobytes()
    if is_dataclass(value):
        return kind, [bits(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, dict):
        return kind, [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return kind, [bits(item) for item in value]
    if isinstance(value, float):
        return kind, "nan" if value != value else struct.pack("d", value)
    return kind, value


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
numpy_types = st.one_of(  # of both byte orders
    hnp.scalar_dtypes(), hnp.byte_string_dtypes(max_len=3), hnp.unicode_string_dtypes(max_len=3)
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    count = int(np.prod(shape))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    data = torch.tensor([byte & 1 for byte in raw] if dtype is torch.bool else list(raw), dtype=torch.uint8)
    tensor = data.view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


hashable: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(0, 20_000).map(lambda exponent: -(3**exponent)),
        st.floats(),
        st.text(st.characters(exclude_categories=())),
        st.sampled_from(["$", "$tuple", "$dict", "\ud800\udc00", "\ud800"]),
        numpy_types.flatmap(lambda dtype: hnp.arrays(dtype, 1)).map(lambda array: array[0]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.builds(Frozen, inner), st.builds(FrozenSlotted, inner, inner)
    ),
    max_leaves=4,
)
states: st.SearchStrategy[Any] = st.recursive(
    st.one_of(hashable, tensors(), hnp.arrays(numpy_types, shapes)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=4),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Plain, inner, inner),
        st.builds(Slotted, inner),
        st.builds(Frozen, inner),
        st.just(Empty()),
    ),
    max_leaves=10,
)


@pytest.mark.slow
@given(states)
@settings(max_examples=50, deadline=None)
def test_every_state_survives(state: Any) -> None:
    assert bits(through(state)) == bits(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_tensor_survives(dtype: torch.dtype) -> None:
    raw = torch.arange(240, dtype=torch.uint8)
    whole = (raw % 2).bool() if dtype is torch.bool else raw.view(dtype)
    state = [
        whole,
        whole[0],
        whole[:0],
        whole.reshape(3, 5, -1),
        whole.reshape(3, 5, -1).mT,
        whole[::3],
        whole[:0].reshape(0, 4),
    ]
    if dtype.is_complex:
        state += [whole.conj(), whole.conj().imag]
    assert bits(through(state)) == bits(state)


def test_a_gradient_is_left_behind() -> None:
    loaded = through(torch.ones(2, requires_grad=True))
    assert loaded.tolist() == [1, 1]
    assert not loaded.requires_grad


@pytest.mark.filterwarnings("error")
def test_arrays_of_any_layout_survive() -> None:
    table = np.arange(12.0).reshape(3, 4)
    fixed = table.copy()
    fixed.flags.writeable = False
    state = [table[::-1], table.T, table[:, ::2], fixed, np.asfortranarray(table), table.astype(">f8"), np.array(1.5)]
    state += [np.zeros(0, dtype=np.int16), np.zeros((2, 0), dtype=np.complex128), np.zeros((0, 3), dtype="U2")]
    loaded = through(state)
    assert bits(loaded) == bits(state)
    assert all(array.flags.writeable for array in loaded)


def test_plain_lists_stay_plain() -> None:
    numbers = [0.5, float("inf"), -0.0, 3, True, None, "x"]
    plain, rows = encode({"history": numbers, "by": {"name": numbers}}, ())
    assert plain["value"] == {"history": numbers, "by": {"name": numbers}}
    assert not rows


def test_tensors_of_a_kind_are_one_entry() -> None:
    state = {client: {"c": torch.full((5,), float(client)), "n": torch.tensor(client)} for client in range(100)}
    _, rows = encode(state, ())
    assert {name: len(group) for name, group in rows.items()} == {"float32[5]": 100, "int64[]": 100}
    assert rows["float32[5]"][7] is state[7]["c"]  # no copies


def test_every_row_owns_its_memory() -> None:
    stack = torch.arange(12.0).reshape(3, 4)
    loaded = through([*stack, torch.ones(3, dtype=torch.complex128)])
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in loaded)


def test_one_tensor_stays_one() -> None:
    w, other = torch.ones(3), torch.ones(3)
    array = np.zeros(2)
    loaded = through(
        {"w": w, "again": [w, (w,)], "other": other, "in": Frozen(w), "arrays": [array, array, array.copy()]}
    )
    assert loaded["w"] is loaded["again"][0] is loaded["again"][1][0] is loaded["in"].a
    assert loaded["w"] is not loaded["other"]
    first, second, third = loaded["arrays"]
    assert first is second is not third


def test_one_mutable_object_stays_one() -> None:
    shared = Slotted(torch.ones(2))
    loaded = through([shared, Plain(shared), {1: shared}, {shared: shared}, Slotted(torch.ones(2))])
    assert loaded[0] is loaded[1].a is loaded[2][1] is loaded[3][loaded[0]]
    assert loaded[4] is not loaded[0]
    ((key, (value,)),) = through({shared: [shared]}).items()
    assert key is value


def test_objects_may_know_each_other() -> None:
    left, right = Plain(1), Plain(2)
    left.b, right.b = [right], (left,)
    loaded = through(left)
    assert loaded.b[0].b[0] is loaded
    assert loaded.b[0].a == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda number: torch.full((2,), number),
        lambda number: np.full(4, number)[::2],
        lambda number: Plain(np.full(2, number)),
    ],
)
def test_temporaries_are_not_taken_for_each_other(make: Callable[[int], Any]) -> None:
    class Fresh:
        """A field that is a new object whenever it is looked at."""

        def __get__(self, instance: Any, owner: type) -> Any:
            return make(next(numbers))

        def __set__(self, instance: Any, value: Any) -> None: ...

    numbers = iter(range(1000))
    kind = make_dataclass("Changing", ["x"], frozen=True)
    kind.x = Fresh()  # type: ignore[attr-defined]
    _, rows = encode([object.__new__(kind) for _ in range(100)], (kind, Plain))
    assert torch.stack(rows["int64[2]"])[:, 0].tolist() == list(range(100))


def test_integers_of_any_size_survive() -> None:
    large = 10**5000
    for state in (large, [1, -large, 2], [1.5, large], (large,), {large: 0}, {"x": large}, Plain(large, 1 << 1024)):
        assert through(state) == state


def test_only_fields_are_kept_and_nothing_is_made_anew() -> None:
    class Strict(Frozen):
        def __post_init__(self) -> None:
            calls.append(self)

    calls: list[Any] = []
    strict = dataclass(frozen=True)(Strict)
    known = strict((1, 2))
    assert known.twice
    loaded = through(known, (strict,))
    assert loaded == known
    assert "twice" not in vars(loaded)
    assert loaded.twice == ((1, 2), (1, 2))
    assert len(calls) == 1


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def within_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_what_is_nested_deeply_can_be_read_where_it_could_be_written() -> None:
    state = nested(100)
    plain, rows = encode(state, ())

    def deep(left: int) -> Any:
        return deep(left - 1) if left else decode(plain, load_rows(rows), ())

    assert deep(sys.getrecursionlimit() // 3) == state


def load_rows(rows: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack(group) for name, group in rows.items()}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"server": Plain(Plain({"x": (i for i in ())}))}, "server.a.a['x']: a generator"),
        (Plain(a=[0, {4: object}]), "a[1][4]: a type"),
        ({"a" * 50: [object]}, "a" * 50 + "[0]: a type"),
        ({(1, 2): [{"b": {1, 2}}]}, "[(1, 2)][0]['b']: a set"),
        ({"not a name": b"x"}, "['not a name']: a bytes"),
        ([1, [{frozenset(): 1}]], "[1][0][frozenset()]: a frozenset"),
        (object(), "state: an object"),
        (Path("/x"), "state: a PosixPath"),
        ([torch.nn.Parameter(torch.ones(1))], "[0]: a Parameter"),
        ([torch.eye(2).to_sparse()], "[0]: a tensor that is not an ordinary one"),
        ([torch.ones(2, device="meta")], "[0]: a tensor that is not an ordinary one"),
        ([np.array([object()])], "[0]: an array of object"),
        ([np.zeros(2, dtype=[("a", "i4")])], "[0]: an array of [('a', '<i4')]"),
        ([np.zeros(2, dtype=[("a", "i4")])[0]], "[0]: a void"),
        (nested(102), "[0][0][0][0][0][0][0][0][0][0]...: nested more than 100 deep, or within itself"),
        (within_itself(), "[0][0][0][0][0][0][0][0][0][0]...: nested more than 100 deep, or within itself"),
    ],
)
def test_what_cannot_be_written_is_named(state: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        encode(state, CLASSES)
    assert str(caught.value) == message


def test_subclasses_are_not_taken_for_what_they_are_not() -> None:
    class Name(str):
        pass

    class More(Frozen):
        pass

    for value in (Name("x"), More(1), torch.Size([1])):
        with pytest.raises(TypeError, match=f"a {type(value).__name__}"):
            encode([value], CLASSES)


def test_a_field_without_a_value_is_named() -> None:
    missing = Slotted(1)
    del missing.b
    with pytest.raises(TypeError, match=r"\[0\]: a Slotted without b"):
        encode([missing], CLASSES)


def test_an_unknown_class_is_refused() -> None:
    plain, rows = encode([Plain(1)], CLASSES)
    with pytest.raises(DecodeError, match=r"it holds a .*test_codec\.Plain, which is unknown here"):
        decode(plain, load_rows(rows), (Frozen,))


def test_other_fields_are_refused_but_another_order_is_not() -> None:
    def kind(*names: str) -> type:
        return make_dataclass("Kind", names, namespace={"__module__": "here"})

    before = kind("a", "b")
    plain, _ = encode(before(1, 2), (before,))
    swapped = decode(plain, {}, (kind("b", "a"),))
    assert (swapped.a, swapped.b) == (1, 2)
    with pytest.raises(DecodeError, match=r"its .*Kind has the fields a, b, but here they are a, c"):
        decode(plain, {}, (kind("a", "c"),))


@pytest.mark.parametrize("classes", [(int,), (make_dataclass("X", ["a"]), make_dataclass("X", ["a"]))])
def test_classes_must_be_dataclasses_with_different_names(classes: tuple[type, ...]) -> None:
    with pytest.raises(ValueError, match="different names"):
        encode(1, classes)


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"\$set stands for nothing known"):
        decode({"classes": [], "value": {"$set": [1]}}, {}, ())


def test_nothing_is_held_on_to() -> None:
    """Not even until the next collection."""
    tensor = torch.ones(3)
    held = weakref.ref(tensor)
    gc.disable()
    try:
        plain, rows = encode({"a": [tensor]}, [])
        loaded = decode(plain, load_rows(rows), [])["a"][0]
        again = weakref.ref(loaded)
        del tensor, rows, loaded
        assert held() is None
        assert again() is None
    finally:
        gc.enable()

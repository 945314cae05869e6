"""State as JSON and tensors, and back: plain values, containers, arrays, tensors and named dataclasses.

Numbers, strings, lists and dicts with strings as keys are themselves in JSON. Everything else is an object with one key
that begins with "$". Tensors of the same type and shape are the rows of one.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tensors = dict[str, list[Tensor]]
"""Rows by the name of what they have in common, such as `float32[3,4]`: the very tensors of the state, no copies."""

_SIMPLE = frozenset({type(None), bool, float, str})
_WITH_INT = _SIMPLE | {int}
_INT_BITS = 1024
"""Python refuses to write or read longer integers in decimal."""
_DEPTH = 100
"""Far below Python's own limit: whatever could be written can be read again."""
_NUMBERS = "biufc"
_KINDS = _NUMBERS + "SUmM"
"""numpy's letters for types without Python objects in them."""


class DecodeError(ValueError):
    """What was written does not fit what is there to read it."""


def encode(value: Any, classes: Sequence[type], copy_arrays: bool = False) -> tuple[Any, Tensors]:
    """What can be written as JSON, and the tensors that it refers to.

    A tensor, an array or a mutable dataclass that occurs several times will be one object again; two tensors that share
    memory will not share it any more, and none will require a gradient. Of dataclasses only the fields are kept. With
    `copy_arrays`, what is returned holds copies of numpy arrays, so it stays as it is when these change.
    """
    encoder = _Encoder(classes, copy_arrays)
    try:
        plain = encoder.one(value)
        return {"classes": encoder.used, "value": plain}, encoder.tensors
    finally:
        encoder.forget()  # it knows itself: what it holds would stay in memory until a collection


def decode(plain: Any, tensors: Mapping[str, Tensor], classes: Sequence[type]) -> Any:
    """The state again; `tensors` holds all rows of one name as one tensor, which is not needed afterwards."""
    decoder = _Decoder(plain["classes"], tensors, classes)
    try:
        return decoder.one(plain["value"])
    finally:
        decoder.forget()  # likewise


class _Encoder:
    def __init__(self, classes: Sequence[type], copy_arrays: bool) -> None:
        self.tensors: Tensors = {}
        self._copy_arrays = copy_arrays
        self.used: list[tuple[str, list[str]]] = []
        self._known = set(_by_name(classes).values())
        self._objects: dict[type, Callable[[Any], Any]] = {}
        self._seen: dict[int, tuple[Any, Any]] = {}
        """By id: the object itself, so that nothing else gets its id, and what refers to it."""
        self._mutable = 0
        self._path: list[tuple[bool, Any]] = []
        """The way to where we are: whether it is a field, and its name; or else the key or index."""
        self._kinds: dict[type, Callable[[Any], Any]] = {
            int: lambda value: value if value.bit_length() <= _INT_BITS else {"$int": hex(value)},
            list: lambda value: self._many(value, range(len(value))),
            tuple: lambda value: {"$tuple": self._many(value, range(len(value)))},
            dict: self._dict,
            Tensor: self._tensor,
            np.ndarray: self._array,
        }

    def one(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if len(self._path) > _DEPTH:
            raise self._refuse(f"nested more than {_DEPTH} deep, or within itself")
        if (write := self._kinds.get(kind) or self._objects.get(kind)) is not None:
            return write(value)
        if kind in self._known:
            return self._learn(kind)(value)
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return {"$scalar": [value.dtype.str, value.tobytes().hex()]}
        raise self._refuse(_a(kind))

    def forget(self) -> None:
        self._kinds, self._objects, self._seen, self.tensors = {}, {}, {}, {}

    def _many(self, values: Sequence[Any], steps: Iterable[Any], are_fields: bool = False) -> list[Any]:
        kinds = set(map(type, values))
        if kinds <= _SIMPLE:
            return list(values)
        if kinds <= _WITH_INT and max(v.bit_length() for v in values if type(v) is int) <= _INT_BITS:
            return list(values)
        many = []
        for step, value in zip(steps, values, strict=True):
            if type(value) in _SIMPLE:
                many.append(value)
            else:
                self._path.append((are_fields, step))
                many.append(self.one(value))
                self._path.pop()
        return many

    def _dict(self, value: dict[Any, Any]) -> Any:
        if set(map(type, value)) <= {str} and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return dict(zip(value, self._many(list(value.values()), value), strict=True))
        return {"$dict": [self._many(list(value), value), self._many(list(value.values()), value)]}

    def _tensor(self, value: Tensor) -> Any:
        if id(value) not in self._seen:
            if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
                raise self._refuse("a tensor that is not an ordinary one")
            self._seen[id(value)] = value, {"$tensor": self._row(value)}
        return self._seen[id(value)][1]

    def _array(self, value: NDArray[Any]) -> Any:
        if id(value) not in self._seen:
            if value.dtype.kind not in _KINDS:
                raise self._refuse(f"an array of {value.dtype}")
            try:
                if not value.dtype.isnative or value.dtype.kind not in _NUMBERS:
                    raise TypeError
                simple = value.flags.c_contiguous and value.flags.writeable and not self._copy_arrays
                refers = {"$array": self._row(torch.from_numpy(value if simple else value.copy()))}
            except TypeError:  # none of torch's types
                raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8))
                refers = {"$raw": [value.dtype.str, list(value.shape), *self._row(raw)]}
            self._seen[id(value)] = value, refers
        return self._seen[id(value)][1]

    def _row(self, tensor: Tensor) -> list[Any]:
        name = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
        name += "" if tensor.device.type == "cpu" else f"@{tensor.device}"
        rows = self.tensors.setdefault(name, [])
        rows.append(tensor)
        return [name, len(rows) - 1]

    def _learn(self, kind: Any) -> Callable[[Any], Any]:
        names = _fields(kind)
        number = len(self.used)
        self.used.append((_name(kind), names))

        def values(value: Any) -> list[Any]:
            try:
                found = [getattr(value, name) for name in names]
            except AttributeError as error:
                raise self._refuse(f"{_a(kind)} without {error.name}") from None
            return self._many(found, names, are_fields=True)

        def mutable(value: Any) -> Any:
            if id(value) in self._seen:
                return self._seen[id(value)][1]
            self._seen[id(value)] = value, {"$same": self._mutable}
            self._mutable += 1
            return {"$object": [number, self._mutable - 1, values(value)]}

        frozen = kind.__dataclass_params__.frozen
        self._objects[kind] = (lambda value: {"$object": [number, None, values(value)]}) if frozen else mutable
        return self._objects[kind]

    def _refuse(self, what: str) -> TypeError:
        steps = [f".{step}" if is_field else f"[{reprlib.repr(step)}]" for is_field, step in self._path]
        if steps and isinstance(first := self._path[0][1], str) and first.isidentifier():
            steps[0] = first
        return TypeError(f"{''.join(steps[:10]) or 'state'}{'...' * (len(steps) > 10)}: {what}")


class _Decoder:
    def __init__(
        self, used: Sequence[tuple[str, list[str]]], tensors: Mapping[str, Tensor], classes: Sequence[type]
    ) -> None:
        known = _by_name(classes)
        self._classes = [(_match(name, names, known), names) for name, names in used]
        self._tensors = tensors
        self._seen: dict[tuple[Any, ...], Any] = {}
        self._mutable: dict[int, Any] = {}
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "$int": lambda text: int(text, 16),
            "$tuple": lambda values: tuple(self._many(values)),
            "$dict": lambda pair: dict(zip(self._many(pair[0]), self._many(pair[1]), strict=True)),
            "$scalar": lambda pair: _array(bytes.fromhex(pair[1]), pair[0], ())[()],
            "$tensor": lambda place: self._once("tensor", place, self._row),
            "$array": lambda place: self._once("array", place, lambda place: self._row(place).numpy()),
            "$raw": lambda place: self._once("array", place[2:], lambda _: self._raw(*place)),
            "$object": lambda triple: self._object(*triple),
            "$same": lambda number: self._mutable[number],
        }

    def one(self, plain: Any) -> Any:
        if type(plain) is list:
            return self._many(plain)
        if type(plain) is not dict:
            return plain
        if len(plain) == 1:
            ((mark, content),) = plain.items()
            if mark.startswith("$"):
                if mark not in self._kinds:
                    raise DecodeError(f"{mark} stands for nothing known")
                return self._kinds[mark](content)
        return dict(zip(plain, self._many(list(plain.values())), strict=True))

    def forget(self) -> None:
        self._kinds, self._tensors, self._seen = {}, {}, {}

    def _many(self, plain: list[Any]) -> list[Any]:
        if set(map(type, plain)) <= _WITH_INT:
            return plain
        return [value if type(value) in _WITH_INT else self.one(value) for value in plain]

    def _once(self, kind: str, place: list[Any], read: Callable[[list[Any]], Any]) -> Any:
        key = (kind, *place)
        if key not in self._seen:
            self._seen[key] = read(place)
        return self._seen[key]

    def _row(self, place: list[Any]) -> Tensor:
        name, number = place
        row = self._tensors[name][number].clone()
        dtype = getattr(torch, name.partition("[")[0])
        if row.dtype != dtype:  # one that the file knows only as bytes
            shape = row.shape[:-1]
            row = row.reshape(-1).view(dtype).reshape(shape) if row.numel() else torch.empty(shape, dtype=dtype)
        return row.to(name.partition("@")[2] or "cpu")

    def _raw(self, dtype: str, shape: list[int], *place: Any) -> NDArray[Any]:
        return _array(self._row(list(place)).numpy().tobytes(), dtype, shape)

    def _object(self, number: int, mutable: int | None, values: list[Any]) -> Any:
        kind, names = self._classes[number]
        made: Any = object.__new__(kind)
        if mutable is not None:
            self._mutable[mutable] = made  # before its fields: they may lead back to it
        for name, value in zip(names, self._many(values), strict=True):
            object.__setattr__(made, name, value)
        return made


def _array(data: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(shape, dtype=dtype)
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, dtype=np.uint8)
    return array


def _by_name(classes: Sequence[type]) -> dict[str, type]:
    named = {_name(kind): kind for kind in classes}
    if len(named) < len(set(classes)) or not all(map(is_dataclass, classes)):
        raise ValueError("classes of a state must be dataclasses with different names")
    return named


def _match(name: str, names: list[str], known: Mapping[str, type]) -> type:
    if name not in known:
        raise DecodeError(f"it holds a {name}, which is unknown here")
    expected = _fields(known[name])
    if set(names) != set(expected):
        raise DecodeError(f"its {name} has the fields {', '.join(names)}, but here they are {', '.join(expected)}")
    return known[name]


def _fields(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"

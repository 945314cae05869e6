"""How data is read from files, tables and data sets of the user's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from fedkeel.config.section import Section
from fedkeel.data.datasets.prepare import Scaling
from fedkeel.errors import InputError, shown

Rule = Literal["error", "drop", "mean", "median", "constant"]
OTHERS = "*"
"""Stands for all columns that `missing` does not name."""


def _as_names(given: Any) -> Any:
    """Names with commas between them, or a list; numbers and switches are names too, as YAML reads `[0, 1]`."""
    if given == {None: None}:  # as YAML reads a question mark
        given = "?"
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(","))
    if isinstance(given, list | tuple):
        return tuple(str(each).lower() if isinstance(each, bool) else _as_name(each) for each in given)
    return given


def _as_name(given: Any) -> Any:
    return str(given) if isinstance(given, int | float) else given


_WORD = {"type": ["string", "number", "boolean"]}
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_as_names),
    PlainSerializer(list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _WORD}]}),
]
Part = Annotated[float, Field(gt=0, lt=1)]


def _as_test(given: Any) -> Any:
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 1):
        return given
    if isinstance(given, str) and given not in ("", "true", "false"):
        try:
            return _as_test(float(given))
        except ValueError:
            return given
    raise InputError(f"dataset.test must be a share between 0 and 1, or a file; got {shown(given)}")


class FileSettings(Section):
    """How a file, a folder or a table becomes samples, targets and clients."""

    name: str = "table"
    """What the data is called."""
    target: Names | None = None
    """The column to predict, or a list of columns. For samples in an `.npy` file, it is the `.npy` file of targets."""
    client: str | None = None
    """The column that names the client of each row. `file` means one file per client, and `folder` means one folder of
    images per client."""
    features: Names | None = None
    """The columns to learn from. By default these are all columns but the target, the client and those in `ignore`."""
    ignore: Names = ()
    """The columns that are left out."""
    categorical: Names = ()
    """The columns of numbers that are names of categories. Columns of words are always categories."""
    encode: Literal["one-hot", "codes"] = "one-hot"
    """How categories become numbers. `one-hot` makes a column of each category, and one of all categories that no
    training row has. `codes` numbers the categories from 1, and 0 stands for the others."""
    target_type: Literal["auto", "class", "number"] = "auto"
    """Whether the target is a class or a number. With `auto`, words, true and false, and whole numbers are classes, and
    other numbers are numbers; with `task: regression`, all numbers are numbers."""
    classes: Names | None = None
    """The names of the classes in their order. By default these are all that occur, sorted."""
    missing: Rule | dict[str, Rule] = "error"
    """What happens to missing values. `error` stops with a list of them, `drop` leaves the row out, `mean`, `median`
    and `constant` fill them in. Columns may have rules of their own, such as `{age: median, "*": error}`."""
    fill: float = 0.0
    """The number that `missing: constant` fills in."""
    indicator: bool = False
    """Whether each column that lacks values in training rows gets another column, which is 1 where a value was filled
    in."""
    missing_values: Names = ()
    """The words in a CSV file that mean a missing value, in addition to the empty cell, NA, NaN, null and none."""
    statistics: Literal["federated", "client"] = "federated"
    """Whose training rows give means, medians and scales. `federated` combines summaries of all clients, and `client`
    uses each client's own rows."""
    test: Annotated[float | str | None, BeforeValidator(_as_test)] = None
    """The share of its own rows that each client holds out for a test, or a file of test rows. By default it is 0.2."""
    validation: Part | None = None
    """The share of its own rows that each client holds out for validation. Targets, early stopping, the best model and
    sweeps then look at these rows, not at the test set."""
    vocabulary: Annotated[int, Field(gt=0)] | Literal["auto"] | None = None
    """The number of token ids, if the samples are token ids. `auto` counts them."""
    colour: Literal["RGB", "L"] | None = None
    """Whether images are read with colours (`RGB`) or as shades of grey (`L`). By default, the first image decides."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width in pixels, batch by batch. Images from your own files are scaled when they
    are read."""
    normalise: Scaling = "standard"
    """How numbers and the values of images are scaled. `standard` scales them to mean 0 and standard deviation 1, per
    column or per channel, `unit` scales them to 0..1, and `none` keeps them. Token ids, categories and data of your own
    code stay as they are."""

    def rule(self, column: str) -> Rule:
        """What becomes of the missing values of a column."""
        if isinstance(self.missing, str):
            return self.missing
        return self.missing.get(column, self.missing.get(OTHERS, "error"))


ANYWHERE = {"name", "resize", "normalise", "validation"}
"""Settings that known data sets have, too."""
SPLIT = {"test", "validation", "statistics"}
_TABLE = {*FileSettings.model_fields} - {"vocabulary", "colour", "resize"}
USED: dict[str, set[str]] = {
    "table": _TABLE,
    "arrays": SPLIT | {"target", "client", "classes", "missing", "fill", "indicator", "vocabulary"},
    "images": SPLIT | {"client", "classes", "colour"},
    "folder": _TABLE | {"colour"},
    "hf": {*FileSettings.model_fields},
}
"""Which settings each kind of file has, beside those that apply anywhere."""


def unused(settings: FileSettings, kind: str | None) -> str | None:
    """A setting that was changed though this kind of data does not have it, if there is one."""
    used = ANYWHERE | USED.get(kind or "", set())
    for name, field in FileSettings.model_fields.items():
        if name not in used and getattr(settings, name) != field.default:
            return name
    return None

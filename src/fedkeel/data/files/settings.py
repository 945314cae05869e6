"""How data is read from files, tables and data sets of the user's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from fedkeel.config.section import Section
from fedkeel.data.datasets.prepare import Scaling
from fedkeel.errors import InputError, shown

Rule = Literal["error", "drop", "mean", "median", "constant"]
OTHERS = "*"
"""Stands for all columns that `missing` does not name."""


def _as_names(given: Any) -> Any:
    """One name, or a list of them; numbers and switches are names, too: YAML reads `classes: [0, 1]` as numbers."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list | tuple):
        return tuple(str(each).lower() if isinstance(each, bool) else _as_name(each) for each in given)
    return given


def _as_name(given: Any) -> Any:
    return str(given) if isinstance(given, int | float) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names), PlainSerializer(list)]
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
    target: Names | None = None
    """The column to predict, or several; the `.npy` file of the targets of an `.npy` file."""
    client: str | None = None
    """The column that says whose a row is; `file` for one file per client, `folder` for one folder of images each."""
    features: Names | None = None
    """The columns to learn from, by default all but targets, clients and those in `ignore`."""
    ignore: Names = ()
    """Columns that are left out."""
    categorical: Names = ()
    """Columns of numbers that are names of categories; columns of words always are."""
    encode: Literal["one-hot", "codes"] = "one-hot"
    """What becomes of a category: a column for each, and one for those that training rows do not have; or a number from
    1 up, and 0 for those."""
    target_type: Literal["auto", "class", "number"] = "auto"
    """What the target is. `auto`: words, true and false, and whole numbers are classes, other numbers are numbers."""
    classes: Names | None = None
    """The names of the classes in their order, by default all that occur, sorted."""
    missing: Rule | dict[str, Rule] = "error"
    """What becomes of missing values. `error`: the data is refused. `drop`: the row is left out. `mean`, `median`,
    `constant`: they are filled in. A rule for each column, such as `{age: median, "*": error}`, is possible, too."""
    fill: float = 0.0
    """What `missing: constant` fills in."""
    indicator: bool = False
    """Adds a column that is 1 where a value was filled in, for each column that lacks values in training rows."""
    missing_values: Names = ()
    """Words in a CSV file that mean a missing value, beside the empty cell, NA, NaN, null and none."""
    statistics: Literal["federated", "client"] = "federated"
    """Whose training rows give the means, medians and scales: all clients' together, or each client's for its own."""
    test: Annotated[float | str | None, BeforeValidator(_as_test)] = None
    """The share of its rows that each client holds out for a test, by default 0.2, or a file of test rows."""
    validation: Part | None = None
    """The share of its own rows that each client holds out for validation. Targets, early stopping, the best model and
    sweeps then look at these rows, not at the test set."""
    vocabulary: Annotated[int, Field(gt=0)] | Literal["auto"] | None = None
    """Says that the samples are token ids, and how many of them there are; `auto` counts them."""
    colour: Literal["RGB", "L"] | None = None
    """Reads images with colours (`RGB`) or as shades of grey (`L`), by default as the first image is."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width in pixels, batch by batch; images of files, as they are read."""
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
    "arrays": SPLIT | {"target", "client", "missing", "fill", "indicator", "vocabulary"},
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

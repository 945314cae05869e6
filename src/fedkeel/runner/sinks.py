"""Sinks receive the results of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedkeel.config.experiment import Experiment
from fedkeel.config.usercode import misspelt
from fedkeel.errors import FedkeelError, InputError, shown, words
from fedkeel.record.rows import Evaluation, RoundEnd

if TYPE_CHECKING:
    from torch import nn

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    experiment: Experiment
    """As it runs: with the executor that was chosen."""
    folder: Path | None
    """The run folder, if there is one."""
    round: int
    """How many rounds were done before: more than none if the run is resumed."""
    history: Sequence[Evaluation]
    """The evaluations of these."""


class Sink(Protocol):
    """Receives the results of a run while it goes on; a class that inherits from this one defines only what it needs.

    `begin` comes first, then `round` after each round. The last call is either `finish` or `abort`. All are made by the
    process that runs the experiment, between two rounds.
    """

    def begin(self, start: Start) -> None:
        """Everything is prepared; training begins."""
        return

    def round(self, end: RoundEnd) -> None:
        """A round is over, and its rows are in the run folder."""
        return

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is complete; `summary` is what `summary.json` holds."""
        return

    def abort(self, error: BaseException) -> None:
        """The run ended early: `StoppedError` or KeyboardInterrupt if somebody asked for it, or another error."""
        return


class SinkError(FedkeelError):
    """A sink raised an error."""


Progress: TypeAlias = "Callable[[RoundEnd], None] | Callable[[RoundEnd, nn.Module], None]"
"""A function that is called after every round; if it takes two arguments, the second is the global model."""


class Caller(Sink):
    """Calls a function with every round."""

    def __init__(self, function: Progress) -> None:
        self._function: Callable[..., None] = function
        self._with_model = _takes_model(function)

    def round(self, end: RoundEnd) -> None:
        """Call the function."""
        if self._with_model:
            self._function(end, end.model())
        else:
            self._function(end)

    def __str__(self) -> str:
        return "progress"


class Sinks(AbstractContextManager["Sinks"]):
    """All sinks of a run; one that raises ends the run, but the others are told all the same.

    `first`, the recorder, is told before the others, and its errors are its own.
    """

    def __init__(
        self, first: Sink | None, others: Sequence[Sink], model: Callable[[], nn.Module] | None = None
    ) -> None:
        """`model` makes a copy of the global model as it is."""
        self._first, self._others, self._model = first, [*others], model
        self._open: list[Sink] = []
        """Those that were told of the beginning and not yet of the end."""

    def begin(self, start: Start) -> None:
        """Tell them of the beginning."""

        def begin(sink: Sink) -> None:
            sink.begin(start)
            self._open.append(sink)

        self._tell(begin, "before the first round" if not start.round else f"before round {start.round + 1}")

    def round(self, end: RoundEnd) -> None:
        """Tell them of a round; meanwhile the model can be asked for."""
        end = replace(end, source=self._model)
        try:
            self._tell(lambda sink: sink.round(end), f"after round {end.round}")
        finally:
            object.__setattr__(end, "source", None)  # later, the model is another one

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell them that the run is complete."""

        def finish(sink: Sink) -> None:
            self._open.remove(sink)
            sink.finish(summary)

        self._tell(finish, "after the end of the run, which is complete")

    def _tell(self, call: Callable[[Sink], None], when: str) -> None:
        if self._first is not None:
            call(self._first)
        failed: SinkError | None = None
        for sink in self._others:
            try:
                call(sink)
            except Exception as error:
                said = f"sink {_name(sink)} failed {when} ({type(error).__name__}: {words(error)})"
                if failed is None:
                    failed = SinkError(said)
                    failed.__cause__ = error
                else:
                    failed.add_note(said)
        if failed is not None:
            raise failed

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for sink in self._open if error is not None else ():
            assert error is not None
            try:
                sink.abort(error)
            except Exception as another:
                error.add_note(f"sink {_name(sink)} failed, too ({type(another).__name__}: {words(another)})")


def checked(sinks: Sequence[Sink], progress: Progress | None) -> list[Sink]:
    """What a user gave; the function is one, too."""
    try:
        sinks = [*sinks]
    except TypeError:
        raise InputError(f"sinks must be a list of sinks; got {shown(sinks)}") from None
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function of a RoundEnd; got {shown(progress)}")
    for sink in sinks:
        lacking = [name for name in ("begin", "round", "finish", "abort") if not callable(getattr(sink, name, None))]
        if lacking or isinstance(sink, type):
            why = f"lacks {', '.join(lacking)}" if lacking else "is a class"
            raise InputError(f"sinks: {shown(sink)} {why}; give objects with the methods of fedkeel.Sink")
        if Sink in type(sink).__mro__ and (typo := misspelt(type(sink), Sink)):
            raise InputError(f"sinks: {type(sink).__name__} has {typo}")
    return [*sinks, *([] if progress is None else [Caller(progress)])]


def _takes_model(function: Callable[..., Any]) -> bool:
    """Whether a function needs a second argument, or calls it `model`."""
    try:
        taken = [each for each in signature(function).parameters.values() if each.kind in _POSITIONAL]
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return False
    return len(taken) > 1 and (taken[1].default is Parameter.empty or taken[1].name == "model")


def _name(sink: Sink) -> str:
    return str(sink) if isinstance(sink, Caller) else type(sink).__name__

"""Checks that a rule's hooks returned what training and the server can use; errors name the rule and the hook.

Only types and shapes are compared, so the checks cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

from torch import Tensor

from fedkeel.config.section import Section
from fedkeel.errors import FedkeelError, described
from fedkeel.methods.client import ClientRule
from fedkeel.methods.job import Job
from fedkeel.methods.server import Brief, Receipt, ServerRule, ServerState


def check_begin(rule: ClientRule, found: object) -> None:
    """It must be a job; a rule that watches epochs cannot follow an ascent or a trail."""
    if not isinstance(found, Job):
        raise _refused(rule, "begin", found, "a Job, such as the one it was given")
    course, trail = found.course, found.course.trail
    parts = {"offset": course.offset, "anchor": course.anchor, "pull": course.pull}
    parts |= {} if trail is None else {"last": trail.last, "past": trail.past, "gain": trail.gain}
    for name, part in parts.items():
        if part is not None and not isinstance(part, Tensor):
            shape = "[k, 1]" if name in ("pull", "gain") else "[k, D]"
            raise _refused(rule, "begin", part, f"a job whose course has a tensor {shape} as its {name}")
    if rule.watches_epochs and not course.straight:
        raise FedkeelError(
            f"{type(rule).__name__}: begin set a course with an ascent or a trail, which a rule that watches epochs "
            "cannot follow; set watches_epochs = False, or a course without them"
        )


def check_advance(rule: ClientRule, found: Any, w: Tensor) -> None:
    """(A direction like `w` [k, D], a job)."""
    if type(rule).advance is not ClientRule.advance:
        if not _is_pair(found, object, Job):
            raise _refused(rule, "advance", found, "a pair (a tensor [k, D] like w, the job)")
        hook = "advance"
    else:
        hook = "step"
    if not _is_like(found[0], w):
        raise _refused(rule, hook, found[0], f"a tensor [k, D] like w, here {described(w)}")


def check_end(rule: ClientRule, found: Any) -> None:
    """(What goes up, what is kept)."""
    if not _is_pair(found, Mapping, Mapping):
        raise _refused(rule, "end", found, "a pair of dictionaries (what goes up, what the client keeps)")
    for each in found:
        check_message(rule, "end", each)


def check_message(rule: Section, hook: str, found: Any) -> None:
    """Named tensors."""
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise _refused(rule, hook, found, "a dictionary of tensors")


def check_state(rule: ServerRule, hook: str, found: Any, w: Tensor) -> None:
    """A server's state with weights as they were before."""
    if not isinstance(found, ServerState):
        raise _refused(rule, hook, found, "a ServerState")
    if not _is_like(found.w, w):
        raise _refused(rule, hook, found.w, f"a ServerState whose w is a tensor [D] as before, here {described(w)}")
    check_message(rule, hook, found.memory)


def check_aggregate(rule: ServerRule, found: Any, w: Tensor, count: int) -> None:
    """(A state, the weight of each of so many updates)."""
    if not _is_pair(found, ServerState, object):
        raise _refused(rule, "aggregate", found, "a pair (ServerState, a tensor [m] with each update's weight)")
    check_state(rule, "aggregate", found[0], w)
    if not isinstance(found[1], Tensor) or found[1].shape != (count,):
        raise _refused(rule, "aggregate", found[1], f"the updates' weights as a tensor [m], here [{count}]")


def check_receive(rule: ServerRule, found: Any, w: Tensor) -> None:
    """(A state, a receipt)."""
    if not _is_pair(found, ServerState, Receipt):
        raise _refused(rule, "receive", found, "a pair (ServerState, Receipt)")
    check_state(rule, "receive", found[0], w)
    if not isinstance(found[1].weight, Real | None):
        raise _refused(rule, "receive", found[1].weight, "a Receipt whose weight is a number or None")


def check_plan(rule: ServerRule, found: Any, w: Tensor) -> None:
    """(A state, what goes down for training)."""
    if not _is_pair(found, ServerState, Brief):
        raise _refused(rule, "plan", found, "a pair (ServerState, Brief), after the Briefs that it yields")
    check_state(rule, "plan", found[0], w)


def check_question(rule: ServerRule, found: object) -> None:
    """What goes down for a survey."""
    if not isinstance(found, Brief):
        raise FedkeelError(f"{type(rule).__name__}: plan must yield a Brief; got {described(found)}")


@contextmanager
def left_alone(rule: Section, hook: str, given: Iterable[Tensor]) -> Iterator[None]:
    """Refuse a hook that changes in place what it was given, because others read that, also in later rounds."""
    tensors = [each for each in given if not each.is_inference()]  # those have no version
    before = [tensor._version for tensor in tensors]
    yield
    if [tensor._version for tensor in tensors] != before:
        raise FedkeelError(
            f"{type(rule).__name__}: {hook} changes tensors in place that it was given; make new ones, with "
            "w = w + x instead of w += x"
        )


def _is_pair(found: Any, first: type, second: type) -> bool:
    pair = isinstance(found, tuple | list) and len(found) == 2
    return pair and isinstance(found[0], first) and isinstance(found[1], second)


def _is_like(found: Any, w: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == w.shape and found.dtype == w.dtype


def _refused(rule: Section, hook: str, found: object, wanted: str) -> FedkeelError:
    return FedkeelError(f"{type(rule).__name__}: {hook} must return {wanted}; got {described(found)}")

"""Who takes part: what nodes say, when they are asked, and what the server makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedkeel.data.summaries import Summary
from fedkeel.data.summary_wire import summary_to_wire
from fedkeel.deploy.joining import pooled
from fedkeel.deploy.standin import check_told
from fedkeel.errors import FedkeelError, InputError
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.pooling import Pooling
from fedkeel.world.remote.roster import AGAIN, LOOK, PATIENCE, Member, Roster
from fedkeel.world.remote.transport import Reply
from tests.helpers.scripted import Clock, Scripted

FACTS: dict[str, Any] = {
    "samples": 10,
    "tests": 2,
    "validation": 0,
    "x": [[3], "torch.float32"],
    "y": [[], "torch.int64"],
    "classes": 2,
    "vocabulary": None,
    "own": True,
    "own_tests": True,
    "validates": False,
    "class_names": None,
    "feature_names": None,
    "augment": False,
    "resize": None,
}


class Scene:
    """A roster of two sites whose nodes a test plays."""

    def __init__(self, *nodes: int, needed: int = 2) -> None:
        self.clock, self.link, self.lines = Clock(), Scripted(nodes), list[str]()
        self.roster = Roster(
            self.link,
            ["a", "b"],
            run="f" * 32,
            session=1,
            pooling=Pooling(lambda wanted: pooled(wanted, [str(each.facts["site"]) for each in wanted]), needed),
            seconds=40.0,
            check=check_told,
            tell=self.lines.append,
            clock=self.clock,
        )

    def look(self, seconds: float = LOOK) -> None:
        """So many seconds later."""
        self.clock.sleep(seconds)
        self.roster.look()
        for reply in self.link.poll():
            self.roster.take(reply)

    def here(self, node: int, site: str, **facts: Any) -> None:
        assert self.roster.take(self.link.reply(node, "here", site=site, **{**FACTS, **facts}))

    def pool(self, node: int, site: str, step: Any = 0, count: Any = None) -> None:
        counts = torch.tensor([1, 2]) if count is None else count
        assert self.roster.take(self.link.reply(node, "pool", {"count": counts}, site=site, op="total", step=step))


def test_nodes_are_asked_once_and_belong_to_their_sites() -> None:
    scene = Scene(7, 8)
    scene.look()
    scene.look()
    assert [scene.link.to(node) for node in (7, 8)] == [["hello"], ["hello"]]
    scene.here(8, "a")
    scene.here(7, "b")
    assert scene.roster.nodes_of == {"a": 8, "b": 7}
    assert scene.roster.node(0) is None  # the model is not known yet
    scene.roster.admit = lambda _: None
    scene.look()
    assert [scene.roster.node(client) for client in (0, 1)] == [8, 7]
    scene.link.connected = [7]
    scene.look()
    assert [scene.roster.node(client) for client in (0, 1)] == [None, 7]
    assert "a is not connected any more" in scene.lines


def test_a_hello_that_is_lost_is_said_again() -> None:
    scene = Scene(7)
    scene.look()
    scene.look(40 / PATIENCE + 1)
    assert scene.roster.problems == {"7": "it did not answer in time"}
    scene.look(AGAIN)
    assert scene.link.to(7) == ["hello", "hello"]
    scene.here(7, "a")
    assert scene.roster.problems == {}


def test_a_late_answer_to_an_earlier_hello_is_not_the_rosters() -> None:
    scene = Scene(7)
    scene.look()
    late = scene.link.reply(7, "here", site="a", **FACTS)
    scene.look(40 / PATIENCE + 1)
    assert not scene.roster.take(late)
    assert scene.roster.members == {}


def test_a_name_belongs_to_the_node_that_came_first() -> None:
    scene = Scene(7, 8)
    scene.look()
    scene.here(7, "a")
    scene.here(8, "a")
    assert "belongs to another node" in scene.roster.problems["8"]
    scene.look(AGAIN)
    scene.here(8, "b")
    assert scene.roster.problems == {}
    assert {client: member.node for client, member in scene.roster.members.items()} == {0: 7, 1: 8}


def test_a_site_whose_facts_are_refused_does_not_take_a_name() -> None:
    scene = Scene(7, 8)
    scene.look()
    scene.here(7, "a", samples=0)
    assert "samples" in scene.roster.problems["7"]
    scene.here(8, "a")
    assert scene.roster.nodes_of == {"a": 8}


def test_first_models_are_sent_until_they_are_there() -> None:
    scene = Scene(7)
    scene.look()
    scene.here(7, "a")
    scene.roster.admit = lambda _: Message("begin", {}, {"w": torch.ones(2)})
    scene.look()
    assert scene.link.to(7) == ["hello", "begin"]
    scene.link.fail(7, "no disk")
    scene.look()
    scene.look()
    assert scene.link.to(7) == ["hello", "begin"]  # not at once again
    scene.look(AGAIN)
    scene.roster.take(scene.link.reply(7, "ready"))
    assert scene.roster.node(0) == 7


def test_a_site_that_has_forgotten_the_run_is_asked_anew() -> None:
    scene = Scene(7)
    scene.roster.admit = lambda _: None
    scene.look()
    scene.here(7, "a")
    scene.look()
    scene.roster.failed(0, Message("failed", {"unknown": True}))
    scene.look()
    assert scene.link.to(7) == ["hello", "hello"]
    scene.here(7, "a")
    assert scene.lines[-1].startswith("a is back")


def test_the_server_ends_if_all_sites_say_that_they_work_for_another_one() -> None:
    scene = Scene(7, 8)
    scene.roster.admit = lambda _: None
    scene.look()
    for node, site in ((7, "a"), (8, "b")):
        scene.here(node, site)
    lost = {"superseded": True, "why": "a later server was here"}
    scene.roster.failed(0, Message("failed", lost))
    scene.look()
    scene.roster.take(scene.link.reply(7, "failed", **lost))
    scene.look()
    assert [scene.roster.node(client) for client in (0, 1)] == [None, 8]  # one alone does not end the run
    assert scene.lines[-1] == "a cannot take part: a later server was here"
    scene.look(AGAIN)
    scene.here(7, "a")
    scene.roster.failed(1, Message("failed", lost))
    scene.look()
    assert [scene.roster.node(client) for client in (0, 1)] == [7, None]
    scene.roster.failed(0, Message("failed", lost))
    with pytest.raises(InputError, match="another server has taken over the sites; end one of the two"):
        scene.look()


def refusing(*reasons: str) -> Scene:
    """A scene whose server refuses for one reason after the other, the last one for ever; the node 7 is here as a."""
    scene, left = Scene(7), [*reasons]

    def refuse(_: Member) -> Message | None:
        raise FedkeelError(left.pop(0) if len(left) > 1 else left[0])

    scene.roster.admit = refuse
    scene.look()
    scene.here(7, "a")
    return scene


def again(scene: Scene) -> None:
    """The node has heard that it is refused, and is asked again later."""
    scene.roster.take(scene.link.reply(7, "ok"))
    scene.look(AGAIN)
    scene.here(7, "a")


def test_a_refusal_is_told_to_both_sides_once_and_the_site_is_asked_again() -> None:
    scene = refusing("it has another model")
    assert scene.roster.problems == {"a": "it has another model"}
    assert scene.roster.refused == {"a"}
    assert scene.link.last(7)[1].facts["why"] == "it has another model"
    for _ in range(3):
        again(scene)
    assert scene.link.to(7) == ["hello", "refused", *["hello"] * 3]
    assert scene.lines == ["a cannot take part: it has another model"]


def test_another_reason_is_told_too() -> None:
    scene = refusing("it has another model", "it has another seed")
    again(scene)
    assert scene.link.to(7) == ["hello", "refused", "hello", "refused"]
    assert scene.lines[1:] == ["a cannot take part: it has another seed"]


def test_a_site_that_was_mended_is_here() -> None:
    scene = refusing("it has another model")
    scene.roster.admit = lambda _: None
    again(scene)
    assert scene.lines[-1] == "a is here, 10 samples"
    assert (scene.roster.problems, scene.roster.refused) == ({}, set())
    assert scene.roster.node(0) == 7


def test_a_node_that_was_started_again_is_told_again() -> None:
    scene = refusing("it has another model")
    scene.link.connected = []
    scene.look()
    scene.link.connected = [7]
    scene.look(AGAIN)
    scene.here(7, "a")
    assert scene.link.to(7) == ["hello", "refused", "hello", "refused"]


def test_a_refusal_that_is_not_answered_is_no_problem_of_its_own() -> None:
    scene = refusing("it has another model")
    scene.look(40 / PATIENCE + 1)
    assert scene.roster.problems == {"a": "it has another model"}


def test_a_site_under_an_unknown_name_is_told_so() -> None:
    scene = Scene(7)
    scene.look()
    scene.here(7, "c")
    assert "calls itself 'c'" in scene.link.last(7)[1].facts["why"]
    assert scene.roster.refused == {"7"}


@pytest.mark.parametrize("wrong", [True, False, None, 1])
def test_what_a_site_fails_for_may_be_mended_by_waiting_or_not(wrong: Any) -> None:
    scene = Scene(7)
    scene.look()
    scene.roster.take(scene.link.reply(7, "failed", why="no rows", wrong=wrong))
    assert scene.roster.problems == {"7": "no rows"}
    assert scene.roster.refused == ({"7"} if wrong is True else set())
    assert scene.link.to(7) == ["hello"]  # it knows


# Statistics.


def test_statistics_wait_for_all_and_latecomers_get_them() -> None:
    scene = Scene(7)
    scene.look()
    scene.pool(7, "a")
    scene.look()
    assert scene.link.to(7) == ["hello"]
    assert scene.lines == ["a is connected; statistics wait for the other sites"]
    scene.link.connected = [7, 8]
    scene.look()
    scene.pool(8, "b", count=torch.tensor([10, 20]))
    for node in (7, 8):
        assert scene.link.last(node)[1].tensors["count"].tolist() == [11, 22]


@pytest.mark.parametrize(
    "count",
    [torch.tensor([-1, 2]), torch.tensor([1.0, 2.0]), torch.tensor([True]), None],
    ids=["negative", "no whole numbers", "no numbers", "nothing"],
)
def test_numbers_that_make_no_sense_are_the_fault_of_their_site(count: torch.Tensor | None) -> None:
    scene = Scene(7, 8)
    scene.look()
    scene.pool(7, "a")
    held = {} if count is None else {"count": count}
    scene.roster.take(scene.link.reply(8, "pool", held, site="b", op="total", step=0))
    assert [*scene.roster.problems] == ["8"]
    scene.look(AGAIN)
    scene.pool(8, "b")
    assert [scene.link.to(node)[-1] for node in (7, 8)] == ["pooled", "pooled"]


@pytest.mark.parametrize("step", [-1, 1, 10**30, "0", None, True])
def test_steps_that_are_not_due_are_refused(step: Any) -> None:
    scene = Scene(7)
    scene.look()
    scene.pool(7, "a", step=step)
    assert "wants statistics for step" in scene.roster.problems["7"]


def test_sites_whose_numbers_do_not_fit_are_all_told_who_differs() -> None:
    scene = Scene(7, 8)
    scene.look()
    scene.pool(7, "a")
    scene.pool(8, "b", count=torch.tensor([1, 2, 3]))
    assert all("counts of another shape" in why for why in scene.roster.problems.values())
    assert len(scene.roster.problems) == 2
    scene.look(AGAIN)
    for node, site in ((7, "a"), (8, "b")):
        scene.pool(node, site)
    assert [scene.link.to(node)[-1] for node in (7, 8)] == ["pooled", "pooled"]


def test_results_that_cannot_be_sent_are_sent_later() -> None:
    scene = Scene(7, needed=1)
    scene.look()
    reply = scene.link.reply(7, "pool", {"count": torch.tensor([1])}, site="a", op="total", step=0)
    scene.link.away = True
    assert scene.roster.take(reply)
    scene.link.away = False
    scene.look()
    assert scene.link.to(7) == ["hello", "pooled"]


# Answers that are none.


@pytest.mark.parametrize("kind", ["ready", "done", "scores", "", "x\n" * 999])
def test_other_answers_are_problems(kind: str) -> None:
    scene = Scene(7)
    scene.look()
    scene.roster.take(scene.link.reply(7, kind, site="a", **FACTS))
    assert scene.roster.members == {}
    assert scene.roster.problems["7"].startswith("it answered with")
    assert all(line.isprintable() for line in scene.lines)


def summary() -> Message:
    told = Summary(3, np.array([3]), *(np.array([1.0]) for _ in range(4)), categories={}, schema="s")
    facts, tensors = summary_to_wire(told)
    return Message("pool", {"run": "f" * 32, "site": "a", "op": "summary", "step": 0, **facts}, tensors)


odd = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
REAL = {"here": Message("here", {"run": "f" * 32, "site": "a", **FACTS}), "pool": summary()}


@given(st.sampled_from(sorted(REAL)), st.dictionaries(st.sampled_from([*FACTS, "site", "step", "op", "rows"]), odd))
@example("pool", {"op": []})
@example("pool", {"rows": 10**4299})
def test_facts_of_any_kind_never_break_the_roster(kind: str, facts: dict[str, Any]) -> None:
    real = REAL[kind]
    scene = Scene(7, needed=1)
    scene.roster.admit = lambda _: None
    scene.look()
    message = Message(real.kind, {**real.facts, **facts}, real.tensors)
    assert scene.roster.take(Reply(scene.link.last(7)[0], 7, message.pack()))
    scene.look()
    for member in scene.roster.members.values():
        assert type(member.facts["samples"]) is int


def test_numbers_that_break_the_statistics_are_a_problem_of_their_sites() -> None:
    scene = Scene(7, 8)

    def reduce(wanted: Sequence[Message]) -> Message:
        return Message("pooled", {"rows": sum(each.facts["big"] for each in wanted)})

    scene.roster.pooling = Pooling(reduce, needed=2)
    scene.look()
    for node, site in ((7, "a"), (8, "b")):
        assert scene.roster.take(scene.link.reply(node, "pool", site=site, step=0, big=9 * 10**4299))
    assert scene.roster.problems.keys() == {"a", "b"}
    assert all("cannot be put together: ValueError" in why for why in scene.roster.problems.values())


def test_a_refusal_that_was_lost_is_told_again() -> None:
    scene = Scene(7)
    scene.look()
    scene.here(7, "unknown")
    assert scene.link.to(7) == ["hello", "refused"]
    assert scene.roster.take(Reply(scene.link.last(7)[0], 7, None, "lost"))
    scene.look(AGAIN)
    scene.here(7, "unknown")
    assert scene.link.to(7) == ["hello", "refused", "hello", "refused"]


@given(st.sampled_from(sorted(REAL)), st.data())
def test_mutated_bytes_never_break_the_roster(kind: str, data: st.DataObject) -> None:
    body = bytearray(REAL[kind].pack())
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[place] = data.draw(st.integers(0, 255))
    scene = Scene(7, needed=1)
    scene.look()
    assert scene.roster.take(Reply(scene.link.last(7)[0], 7, bytes(body)))
    scene.look()


def test_without_keys_a_new_node_may_take_the_name_of_one_that_is_gone() -> None:
    scene = Scene(7)
    scene.look()
    scene.here(7, "a")
    scene.link.connected = [9]
    scene.look()
    scene.here(9, "a")
    assert scene.roster.nodes_of == {"a": 9}
    scene.roster.keyed = frozenset({"a"})
    scene.link.connected = [11]
    scene.look()
    scene.here(11, "a")
    assert "belongs to another node" in scene.roster.problems["11"]

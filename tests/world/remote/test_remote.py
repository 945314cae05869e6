"""The remote world on a clock that the test winds: dispatches, limits, failures, surveys."""

from __future__ import annotations

from functools import partial
from itertools import islice

import pytest
import torch

from fedkeel import FedkeelError
from fedkeel.errors import InputError
from fedkeel.server import events as ev
from fedkeel.world.remote.expected import MOST_HEADER
from fedkeel.world.remote.jobs import Jobs
from fedkeel.world.remote.limits import LONGEST_PAUSE, Limits
from tests.helpers import federation
from tests.helpers.scene import LIMITS, Scene

# When the server is woken.


def test_a_dispatch_that_is_due_now_comes_now() -> None:
    scene = Scene()
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    assert scene.next() == ev.Wake(0.0, None)


def test_a_tick_is_never_now() -> None:
    scene = Scene()
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW, 5.0))
    assert scene.next().time == pytest.approx(5.0, abs=0.2)


def test_a_dispatch_waits_for_a_change_and_then_for_its_tick() -> None:
    scene = Scene()
    scene.dispatch()
    scene.remote.carry_out(ev.WakeMe(ev.When.CHANGE, 5.0))
    scene.clock.wakes.append((107.0, lambda: scene.done(0)))
    arrived, woken = islice(scene.events(), 2)
    assert isinstance(arrived, ev.Arrived)
    assert arrived.time == pytest.approx(7.0, abs=0.2)
    assert isinstance(woken, ev.Wake)
    assert woken.time == pytest.approx(10.0, abs=0.2)


def test_a_dispatch_waits_for_a_node() -> None:
    scene = Scene()
    scene.link.connected = []
    scene.roster.look()
    scene.remote.carry_out(ev.WakeMe(ev.When.DEVICE))
    scene.clock.wakes.append((130.0, lambda: scene.link.connected.append(11)))
    woken = scene.next()
    assert isinstance(woken, ev.Wake)
    assert woken.free is not None
    assert woken.free.tolist() == [False, True]
    assert 30.0 <= woken.time < 31.0


def test_a_world_without_nodes_ends() -> None:
    scene = Scene()
    scene.link.connected = []
    scene.roster.look()
    scene.remote.carry_out(ev.WakeMe(ev.When.DEVICE))
    with pytest.raises(FedkeelError, match="no site has been there for 300 seconds"):
        scene.next()
    assert scene.remote.now == pytest.approx(300, abs=2)


def test_a_link_that_is_away_is_waited_for_and_then_given_up() -> None:
    scene = Scene()
    scene.dispatch()
    scene.link.away = True
    scene.clock.wakes.append((150.0, lambda: setattr(scene.link, "away", False)))
    scene.clock.wakes.append((151.0, lambda: scene.done(0)))
    assert scene.next().time == pytest.approx(51.0, abs=0.2)
    scene = Scene(limits=Limits(job=1000.0, away=300.0))
    scene.dispatch()
    scene.link.away = True
    with pytest.raises(FedkeelError, match="out of reach for 300 seconds"):
        scene.next()


def test_events_end_with_the_limit() -> None:
    scene = Scene()
    assert [*scene.events(3.0)] == []
    assert scene.remote.now == pytest.approx(3.0, abs=0.2)


# How long a job may take.


@pytest.mark.parametrize(
    ("limits", "expected"),
    [(LIMITS, 100.0), (Limits(job=7.0), 7.0)],
    ids=["measured", "given"],
)
def test_a_job_that_is_not_answered_is_lost(limits: Limits, expected: float) -> None:
    scene = Scene(limits=limits)
    scene.dispatch()
    lost = scene.next()
    assert isinstance(lost, ev.Lost)
    assert (lost.time, lost.why) == (pytest.approx(expected, abs=0.2), "no answer")


def test_a_deadline_comes_before_the_limit() -> None:
    scene = Scene(schedule={"deadline_seconds": 4.0})
    scene.dispatch()
    lost = scene.next()
    assert isinstance(lost, ev.Lost)
    assert (lost.time, lost.why) == (pytest.approx(4.0, abs=0.2), ev.TOO_LATE)


def test_limits_follow_the_longest_job() -> None:
    assert LIMITS.of(None) == 100.0
    assert LIMITS.of(1.0) == 5.0
    assert LIMITS.of(10.0) == 30.0
    assert LIMITS.of(90.0) == 100.0
    assert Limits(first=5.0, least=20.0).of(90.0) == 20.0
    pauses = [LIMITS.pause(failures) for failures in (0, 1, 2, 3, 50)]
    assert pauses == [1.0, 1.0, 2.0, 4.0, LONGEST_PAUSE]


def test_limits_do_not_grow_with_every_slow_job() -> None:
    scene = Scene()
    scene.dispatch()
    jobs, job, limits = Jobs(LIMITS), scene.remote._jobs.out[0], list[float]()
    for end in (jobs.done, partial(jobs.lose, slow=True)) * 2:
        jobs.out[0] = job
        end(0, job.dispatched + jobs.limit(0))  # it takes as long as it may
        limits.append(jobs.limit(0))
    assert limits == [100.0] * 4


def test_a_client_that_is_late_is_not_free_until_its_message_is_void() -> None:
    scene = Scene(schedule={"deadline_seconds": 4.0})
    scene.dispatch()
    scene.done(0)
    arrived, lost = islice(scene.events(), 2)
    assert isinstance(arrived, ev.Arrived)
    assert isinstance(lost, ev.Lost)
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    woken = scene.next()
    assert isinstance(woken, ev.Wake)
    assert woken.free is not None
    assert woken.free.tolist() == [True, False]
    scene.done(1)
    late = scene.next()
    assert isinstance(late, ev.Arrived)
    assert late.order is None  # the gate will say that its job is over
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    assert scene.next() == ev.Wake(scene.remote.now, None)


# What fails.


def test_what_failed_is_sent_again_after_a_pause() -> None:
    scene = Scene()
    scene.dispatch()
    scene.link.fail(10, "no room")
    assert [*scene.events(0.5)] == []
    assert scene.link.to(10) == ["train"]
    assert [*scene.events(1.5)] == []
    assert scene.link.to(10) == ["train", "train"]
    scene.link.fail(10, "no room")
    lost = scene.next()
    assert isinstance(lost, ev.Lost)
    assert lost.why == "failed: no room"


def test_a_job_that_cannot_be_sent_waits_for_its_node_for_a_while() -> None:
    scene = Scene()
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    commands = scene.core.on(scene.next())
    scene.link.connected = [11]
    scene.clock.sleep(1.0)
    scene.roster.look()
    for command in commands:
        scene.remote.carry_out(command)
    lost = scene.next()
    assert isinstance(lost, ev.Lost)
    assert (lost.client, lost.why) == (0, "failed: its node has left")
    assert lost.time == pytest.approx(1 + LIMITS.absent, abs=0.3)


def test_a_node_that_fails_often_is_tried_as_often_as_asked_for() -> None:
    scene = Scene(limits=Limits(job=1e6, retries=12))
    scene.dispatch()
    for _ in range(13):
        scene.link.fail(10, "no room")
        events = scene.events(scene.remote.now + LONGEST_PAUSE + 1)
        lost = next(events, None)
    assert scene.link.to(10) == ["train"] * 13
    assert isinstance(lost, ev.Lost)


def test_patience_does_not_depend_on_how_often_answers_are_looked_for() -> None:
    assert Limits(poll=60.0).absent == Limits(poll=0.1).absent == 60
    assert Limits(poll=60.0).pause(1) == Limits(poll=0.1).pause(1) == 1


def test_a_restored_world_is_patient_with_a_transport_that_is_away() -> None:
    scene = Scene()
    scene.clock.sleep(1000)
    later = Scene()
    later.link.away = True
    later.remote.restore(scene.remote.snapshot())
    later.remote.mail.fetch()
    later.clock.sleep(LIMITS.away + 1)
    with pytest.raises(FedkeelError, match="out of reach for 300 seconds"):
        later.remote.mail.fetch()


def test_who_answers_for_another_job_gets_none_for_a_while() -> None:
    scene = Scene()
    scene.dispatch()
    scene.done(0, job=99)
    arrived = scene.next()
    assert isinstance(arrived, ev.Arrived)
    assert arrived.objection == "wrong job"
    scene.done(1)
    scene.next()
    assert scene.remote._able() == {1}


def test_a_job_is_not_over_by_an_answer_to_another_message() -> None:
    """It comes after the message that it answers was said to have failed, or a node answers an interrupt with it."""
    scene = Scene(interrupts=True)
    scene.dispatch()
    scene.remote.carry_out(ev.Interrupt([0]))
    asked = next(message for _, node, message in scene.link.sent if node == 10 and message.kind == "train")
    told = {name: asked.facts[name] for name in ("job", "client", "version", "epochs")}
    scene.link.answer(10, "done", asked.tensors, slot=0, **told)
    assert [*scene.events(1.0)] == []
    assert scene.core.at_work.find(0, told["job"]) is not None


def test_who_failed_is_put_aside_for_a_while() -> None:
    scene = Scene(limits=Limits(retries=0))
    scene.dispatch()
    scene.link.fail(10, "no room")
    assert isinstance(scene.next(), ev.Lost)
    scene.remote.carry_out(ev.WakeMe(ev.When.DEVICE))
    woken = scene.next()
    assert isinstance(woken, ev.Wake)
    assert woken.time == pytest.approx(1.0, abs=0.2)


def test_answers_beyond_their_size_are_refused() -> None:
    scene = Scene()
    scene.link.most = 0
    scene.dispatch()
    size = 4 * federation.FEATURES * federation.CLASSES
    assert MOST_HEADER + size <= scene.link.most < MOST_HEADER + size + 200
    scene.link.answer(10, "done", {"w": torch.zeros(MOST_HEADER)})
    arrived = scene.next()
    assert isinstance(arrived, ev.Arrived)
    assert "are allowed" in arrived.objection


def test_a_limit_that_is_too_small_is_said() -> None:
    with pytest.raises(InputError, match="max_upload_mb must be at least"):
        Scene(limits=Limits(most=10)).dispatch()


@pytest.mark.parametrize("interrupts", [True, False])
def test_cancelled_jobs_free_their_nodes_where_that_is_possible(interrupts: bool) -> None:
    scene = Scene(interrupts=interrupts)
    scene.dispatch()
    (lost,) = scene.remote.carry_out(ev.Cancel([1], ev.NOT_NEEDED))
    assert isinstance(lost, ev.Lost)
    assert scene.link.to(11) == ["train", "cancel"][: 1 + interrupts]
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    woken = scene.next()
    assert isinstance(woken, ev.Wake)
    assert woken.free is not None
    assert woken.free.tolist() == [False, interrupts]


def test_fewer_epochs_are_taken_as_they_were_done() -> None:
    scene = Scene()
    scene.dispatch()
    scene.done(0, epochs=1)
    arrived = scene.next()
    assert isinstance(arrived, ev.Arrived)
    assert arrived.objection == ""
    assert arrived.order is not None
    assert (arrived.order.epochs, len(arrived.order.lr)) == (1, 1)


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.0 + 1e-6, 1e30])
def test_learning_rates_are_those_that_were_sent(factor: float) -> None:
    scene = Scene("fednova")
    scene.dispatch()
    scene.done(0, rates=lambda lr: lr * factor)
    arrived = scene.next()
    assert isinstance(arrived, ev.Arrived)
    assert "it claims other learning rates than it was sent" in arrived.objection


@pytest.mark.parametrize(
    ("factor", "objection"), [(0.0, ""), (10.0, ""), (-1.0, "lr must be from 0"), (1e30, "lr must be from 0 to")]
)
def test_a_rule_that_sets_rates_of_its_own_may_not_tell_absurd_ones(factor: float, objection: str) -> None:
    scene = Scene("fednorm")
    scene.dispatch()
    scene.done(0, rates=lambda lr: lr * factor)
    arrived = scene.next()
    assert isinstance(arrived, ev.Arrived)
    assert arrived.objection.startswith(objection)
    assert bool(arrived.objection) == bool(objection)


def test_more_steps_than_the_server_can_follow_are_refused() -> None:
    scene = Scene()
    scene.remote._reader.most_steps = 7  # the second client has 8
    scene.dispatch()
    scene.done(0)
    scene.done(1)
    first, second = islice(scene.events(), 2)
    assert isinstance(first, ev.Arrived)
    assert isinstance(second, ev.Arrived)
    assert (first.objection, second.objection) == (
        "", "it claims 8 steps; a job may have 7 with local.schedule.over=steps"
    )  # fmt: skip


# Checkpoints.


def test_a_restored_world_loses_what_was_out_and_goes_on_in_time() -> None:
    scene = Scene({"name": "fedbuff", "buffer_size": 2}, schedule={"concurrency": 2})
    scene.dispatch()
    scene.clock.sleep(50)
    scene.remote.packer.after = {0: 7}
    world, core = scene.remote.snapshot(), scene.core.snapshot()
    later = Scene({"name": "fedbuff", "buffer_size": 2}, schedule={"concurrency": 2})
    later.core.restore(core)
    later.remote.restore(world)
    assert later.remote.packer.after == {0: 7}
    assert later.remote.mail.traffic == scene.remote.mail.traffic
    assert later.remote.mail.traffic.messages == 2
    lost = [*islice(later.events(), 2)]
    assert [(each.client, each.why) for each in lost if isinstance(each, ev.Lost)] == [
        (client, "server restarted") for client in later.core.at_work.clients
    ]
    assert lost[0].time == pytest.approx(50)


def test_jobs_that_a_restart_lost_can_be_cancelled() -> None:
    scene = Scene({"name": "fedbuff", "buffer_size": 2}, schedule={"concurrency": 2})
    scene.dispatch()
    world, core = scene.remote.snapshot(), scene.core.snapshot()
    later = Scene({"name": "fedbuff", "buffer_size": 2}, schedule={"concurrency": 2})
    later.core.restore(core)
    later.remote.restore(world)
    events = later.remote.carry_out(ev.Cancel([0, 1], ev.NOT_NEEDED))
    assert sorted(each.client for each in events if isinstance(each, ev.Lost)) == [0, 1]
    assert [*later.events(later.remote.now + 1)] == []


# Surveys.


def test_a_survey_waits_for_all_answers_and_leaves_out_who_is_late() -> None:
    scene = Scene("fedent")
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    (survey,) = scene.core.on(scene.next())
    assert isinstance(survey, ev.Survey)
    held = {"message/q": torch.ones(1, 1), "message/h": torch.ones(1, 1)}
    held |= {"finite": torch.tensor([True]), "loss": torch.ones(1, dtype=torch.float64)}
    scene.clock.wakes.append((110.0, lambda: scene.link.answer(10, "answer", held)))
    (told,) = scene.remote.carry_out(survey)
    assert isinstance(told, ev.Unanswered)
    assert told.clients == [1]
    assert told.time == pytest.approx(100.0, abs=0.3)
    assert len(scene.link.forgotten) == 1


@pytest.mark.parametrize(("back", "expected"), [(30.0, "Answered"), (90.0, "Unanswered")])
def test_a_survey_waits_for_a_node_that_is_away_for_a_while(back: float, expected: str) -> None:
    scene = Scene("fedent")
    scene.remote.carry_out(ev.WakeMe(ev.When.NOW))
    (survey,) = scene.core.on(scene.next())
    held = {"message/q": torch.ones(1, 1), "message/h": torch.ones(1, 1)}
    held |= {"finite": torch.tensor([True]), "loss": torch.ones(1, dtype=torch.float64)}

    def leave() -> None:
        scene.link.answer(10, "answer", held)
        scene.link.fail(11, "it was killed")
        scene.link.connected = [10]

    def come() -> None:
        scene.link.connected = [10, 11]

    answers = (100 + back + 2, lambda: scene.link.answer(11, "answer", held))
    scene.clock.wakes += [(101.0, leave), (100 + back, come), answers]
    (told,) = scene.remote.carry_out(survey)
    assert type(told).__name__ == expected
    assert told.time == pytest.approx({"Answered": back + 2, "Unanswered": 2 + LIMITS.absent}[expected], abs=1.0)

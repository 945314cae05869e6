"""Runs a plan: several runs at a time; finished runs are not repeated, and a failure does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from fedkeel.errors import InputError, StoppedError, TimeLimitError
from fedkeel.local.machine import cores, free_bytes
from fedkeel.record.folder import complete
from fedkeel.runner.stopping import Stop
from fedkeel.study import sharing
from fedkeel.study.crew import DIED, Crew
from fedkeel.study.outposts import Outposts
from fedkeel.study.plan import Case, place_of
from fedkeel.study.settle import has_open_stacks, key
from fedkeel.study.store import Store
from fedkeel.study.tasks import Ended, Estimate, Lost, Moved, Refused, RunTask, Settled, SettleTask

Watcher = Callable[["Begun | Moved | Lost | Ended"], None]


class SettingsError(InputError):
    """Settings with which a run cannot begin."""


@dataclass(frozen=True)
class Begun:
    """What is about to be run."""

    cases: Sequence[Case]
    """The runs that are left, in this order."""
    total: int
    """The number of runs of the whole plan."""
    estimates: Mapping[str, Estimate]
    """By the names of the cases, as far as something was measured."""
    jobs: int
    """Runs at a time."""
    notes: Sequence[str] = ()
    """What a user should know."""
    where: str = ""
    """In words, if that is not this machine alone."""

    @property
    def seconds(self) -> float | None:
        """Real seconds for everything, estimated, if that can be said."""
        known = [self.estimates[case.name].seconds for case in self.cases if case.name in self.estimates]
        if not known or len(known) < len(self.cases):
            return None
        return max(sum(known) / self.jobs, *known)

    @property
    def bytes(self) -> int | None:
        """Memory of all runs that are active at a time, if that can be said."""
        known = [each.bytes for each in self.estimates.values()]
        return max(known) * min(self.jobs, len(self.cases)) if known else None


def execute(
    cases: Sequence[Case],
    store: Path,
    *,
    jobs: int | None = None,
    watch: Watcher | None = None,
    stop: Stop | None = None,
    sinks: Sequence[str] = (),
    ready: Callable[[], None] = lambda: None,
    estimate: bool = True,
    dry: bool = False,
    held: bool = False,
    ray: Outposts | None = None,
) -> Begun:
    """Run what is not finished yet into `store`; with `dry`, only find out what that would take.

    With `ray`, runs are spread over a cluster. A failed run is recorded. When a stop is asked for, runs end within
    seconds, and `StoppedError` says so. `ready` is called before the first run, when nothing is known to be wrong.
    Without `estimate`, runs whose executor is given are not measured beforehand. With `held`, the caller has locked the
    folder already.
    """
    place, stop = Store(store), stop or Stop()
    tell = watch or (lambda _: None)
    left = _in_order([case for case in cases if not complete(place.folder(case.name)) and not place.final(case.name)])
    ray = ray if left else None
    with nullcontext() if dry or held else place.alone(), ExitStack() as open_:
        room = _room(left, ray, jobs)
        size = jobs or max(1, min(room, len(left)))
        crew = open_.enter_context(Crew(size)) if ray is None else ray
        crew.size = size
        stop.heard = True
        try:
            settled = _settle(crew, left, place, stop, estimate)
            shared = None
            if ray is not None:
                settled, shared = _shared(ray, left, settled, stop)
            if not dry:
                settled.keep(place)
            begun = Begun(left, len(cases), settled.by_name, size, where=ray.words if ray is not None else "")
            if shared is None:
                begun = _fitting(begun, jobs is not None, [free_bytes()] if ray is None else ray.free_bytes)
            else:
                begun = replace(begun, notes=[shared.words])
            crew.size = begun.jobs
            if not dry:
                ready()
            tell(begun)
            if not dry:
                address = None
                if ray is not None and shared is not None:
                    ray.release()
                    crew, address = open_.enter_context(Crew(begun.jobs)), ray.address
                _run(crew, begun, settled.failed, place, stop, tell, tuple(sinks), shared, address)
        finally:
            stop.heard = False
    return begun


def _room(cases: Sequence[Case], ray: Outposts | None, jobs: int | None) -> int:
    """How many runs there is room for at a time; a run that has a cluster for itself leaves none for others."""
    whole = any(case.experiment.executor.kind == "ray" for case in cases)
    if ray is None:
        return 1 if whole else cores()
    if whole:
        raise InputError(
            "--ray spreads runs over a cluster, and executor.kind=ray spreads the clients of each run; keep one of them"
        )
    return ray.join(jobs)


def _in_order(cases: Sequence[Case]) -> list[Case]:
    """All variants with the first seed, then with the next, so that early results are a whole comparison."""
    return sorted(cases, key=lambda case: case.seed)


@dataclass(frozen=True)
class _Settled:
    """How runs train, and which cannot be run; by the keys of their settings."""

    keys: Mapping[str, str]
    """By the names of the cases."""
    found: Mapping[str, Estimate]
    fresh: Mapping[str, Case]
    """A case of each that was not settled by an earlier command."""
    refused: Mapping[str, Refused]

    @property
    def by_name(self) -> dict[str, Estimate]:
        """Of each case, as far as something was measured."""
        return {name: self.found[key] for name, key in self.keys.items() if key in self.found}

    @property
    def failed(self) -> dict[str, Refused]:
        """Of each case that cannot be run."""
        return {name: self.refused[key] for name, key in self.keys.items() if key in self.refused}

    def keep(self, store: Store) -> None:
        """Write down how runs train, so that those of later commands do the same."""
        if self.fresh:
            store.keep_estimates(self.found)


def _settle(crew: Crew | Outposts, cases: Sequence[Case], store: Store, stop: Stop, estimate: bool) -> _Settled:
    """How each run trains; runs that differ only in their seed train in the same way, also after a restart.

    Bad input is refused. Another failure, such as one in the user's code, fails only these runs.
    """
    keys = {case.name: key(case.experiment) for case in cases}
    variants = dict[str, Case]()
    for case in cases:
        variants.setdefault(keys[case.name], case)
    asked = {name: c for name, c in variants.items() if estimate or not c.experiment.executor.completed.settled}
    before = store.estimates()
    fresh = {name: case for name, case in asked.items() if name not in before}
    found, failed = _measured(crew, fresh, stop)
    _check_settings({name: failed[name] for name in variants if name in failed}, variants)
    return _Settled(keys, before | found, fresh, failed)


def _measured(
    crew: Crew | Outposts, variants: Mapping[str, Case], stop: Stop, workers: int = 0
) -> tuple[dict[str, Estimate], dict[str, Refused]]:
    """(How these train, why others cannot), with stacks for so many workers of a cluster, by key."""
    found, failed = dict[str, Estimate](), dict[str, Refused]()
    for _, reply in crew.work([SettleTask(name, c.experiment, workers) for name, c in variants.items()], stop):
        if isinstance(reply, Settled):
            found[reply.key] = reply.estimate
            continue
        assert isinstance(reply, Refused)
        failed[reply.key] = reply
    if stop.asked:
        raise StoppedError("stopped before the first run")
    return found, failed


def _shared(
    ray: Outposts, cases: Sequence[Case], settled: _Settled, stop: Stop
) -> tuple[_Settled, sharing.Shared | None]:
    """If runs are few and long, how they share the cluster, and how they train then: in stacks for several workers.

    How runs train that others have begun before does not change.
    """
    each = sharing.workers(cases, ray.size, ray.free)
    known = settled.by_name
    if each < 2 or len(known) < len(cases) or not sharing.worth_it([*known.values()], ray.size, free_bytes()):
        return settled, None
    again = {name: case for name, case in settled.fresh.items() if has_open_stacks(case.experiment)}
    found, failed = _measured(ray, again, stop, each)
    finer = replace(settled, found={**settled.found, **found})
    shared = sharing.shared([(case.experiment, finer.by_name[case.name]) for case in cases], each)
    return (finer, shared) if shared is not None and not failed else (settled, None)


def _check_settings(failed: Mapping[str, Refused], variants: Mapping[str, Case]) -> None:
    """Refuse bad input: name the first variant, or none if the same is wrong with all."""
    wrong = {name: each.error for name, each in failed.items() if each.exit_code == InputError.exit_code}
    if not wrong:
        return
    first, error = next(iter(wrong.items()))
    if len(wrong) == len(variants) > 1 and len({*wrong.values()}) == 1:
        raise SettingsError(error)
    raise SettingsError(f"{place_of(variants[first].scene, variants[first].variant)}: {error}")


def _fitting(begun: Begun, asked: bool, free: Sequence[int]) -> Begun:
    """With fewer runs at a time, if memory is short; each runs on one of the machines that have so much free."""
    needed = begun.bytes
    if needed is None:
        return begun
    at_once = min(begun.jobs, len(begun.cases))
    room = sum(each // max(1, needed // at_once) for each in free)
    if at_once <= room:
        return begun
    most = max(1, room)
    told = f"{at_once} runs at a time take about {needed / 1e9:.2g} GB of memory, and {sum(free) / 1e9:.2g} GB are free"
    told += f" on {len(free)} machines" if len(free) > 1 else ""
    if asked or most >= at_once:
        return replace(begun, notes=[told])
    return replace(begun, jobs=most, notes=[f"{told}; so {most} run{'s go' if most > 1 else ' goes'} on at a time"])


def _run(
    crew: Crew | Outposts,
    begun: Begun,
    failed: Mapping[str, Refused],
    store: Store,
    stop: Stop,
    tell: Watcher,
    sinks: tuple[str, ...],
    shared: sharing.Shared | None,
    address: str | None,
) -> None:
    tasks = []
    for name, why in failed.items():
        store.fail(name, why.kind, why.error)
        tell(Ended(name, "failed", why.kind, why.error))
    for case in begun.cases:
        if case.name in failed:
            continue
        store.forget(case.name)
        estimate = begun.estimates.get(case.name)
        experiment = case.experiment
        if estimate:
            executor = shared.executor(estimate.executor) if shared else estimate.executor
            experiment = experiment.replace(executor=executor)
        tasks.append(RunTask(case.name, experiment, store.folder(case.name), sinks, address))
    halted = 0
    for _, reply in crew.work(tasks, stop):
        assert isinstance(reply, Moved | Lost | Ended)
        halted += isinstance(reply, Ended) and reply.state == "stopped"
        if isinstance(reply, Ended) and reply.state == "failed" and not (stop.asked and reply.kind == DIED):
            store.fail(reply.name, reply.kind, reply.error)
        tell(reply)
    if not (stop.asked or halted):
        return
    left = sum(not complete(store.folder(case.name)) for case in begun.cases)
    if stop.asked and left:
        raise StoppedError(f"stopped; {left} of {begun.total} runs are left, and the same command continues from here")
    if left:
        raise TimeLimitError(
            f"limit_wall_seconds is used up in {halted} of {begun.total} runs; the same command continues from here"
        )

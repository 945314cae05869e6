"""The server of a deployment: it waits for the sites, then drives the run into its folder, or resumes it there."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedkeel.deploy import alike
from fedkeel.deploy.deployment import Deployment
from fedkeel.deploy.identity import private_folder
from fedkeel.deploy.joining import pooled
from fedkeel.deploy.journal import FILE, Journal
from fedkeel.deploy.places import SERVING, Beside, alone
from fedkeel.deploy.prepared import Built, Project
from fedkeel.deploy.settings import DeploySettings
from fedkeel.deploy.standin import check_alike, check_told, no_counts, stand_in, usual, with_test
from fedkeel.errors import AbsentError, FedkeelError, InputError, by_reason, counted, shown
from fedkeel.record.durable import whole
from fedkeel.record.folder import CHECKPOINTS, RunFolder, begun, check_free, check_resumable, complete
from fedkeel.record.places import DEPLOYMENT
from fedkeel.record.rows import Evaluation, RoundEnd
from fedkeel.record.runs import RunRecord
from fedkeel.record.sites import LOST, PRESENCE, SAMPLES, TESTS, WAITS
from fedkeel.record.sites import told as told_of_sites
from fedkeel.runner import earlier, folders, initial
from fedkeel.runner.clients import global_model, save, score_clients, tests_clients
from fedkeel.runner.drive import drive
from fedkeel.runner.recorder import Recorder
from fedkeel.runner.sinks import Sink, Sinks, Start
from fedkeel.runner.stopping import Stop
from fedkeel.runner.summary import summarise
from fedkeel.runner.threads import threads
from fedkeel.runner.watch import Watch
from fedkeel.world.remote.attendance import Attendance
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.pooling import Pooling
from fedkeel.world.remote.roster import MOST, Member, Roster
from fedkeel.world.remote.transport import Transport

COPY = "copy the project's folder to the site again"
POOLED = "pooled-{}.msg"
Tell = Callable[[str], None]


def serve(
    transport: Transport,
    app: Path,
    out: Path,
    started: int | None = None,
    tell: Tell = lambda sentence: print(f"fedkeel: {sentence}", flush=True),
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Run the project's experiment on the nodes behind a transport; returns the summary.

    A run that has begun in `out` goes on from its last checkpoint. `started` is how many sites there are at all, if
    that is known: then nobody waits for sites that cannot take part.
    """
    project, beside = Project.load(app), Beside(out)
    experiment, settings = project.experiment, project.settings
    watch = Watch(stop, experiment.limit_wall_seconds)
    with ExitStack() as open_:
        private_folder(beside.folder)
        open_.enter_context(alone(beside.folder, str(out), SERVING))  # a second server would take the sites over
        project.check_run(out)
        resumes = begun(out)
        if resumes and complete(out):
            raise InputError(f"{out} is complete; choose another folder for another run")
        if resumes:
            check_resumable(out, deployed=True)
        else:
            check_free(out)
        open_.enter_context(watch)
        open_.enter_context(threads(experiment.threads))
        limits = _limits(settings)
        transport.most = MOST if limits.most is None else limits.most
        roster = _roster(transport, settings, out if resumes else None, beside.nodes(), tell)
        some, of = settings.needed, counted(len(settings.sites), "site")
        tell(f"waiting for {of if some == len(settings.sites) else f'{some} of the {of}'}")
        _gather(roster, settings, watch, started)
        told = (_recorded(out) if resumes else None) or _told(roster)
        built = _built(project, roster.sites, told, out / initial.COPY if resumes else None)
        roster.admit = partial(_admit, built, told, settings)
        _gather(roster, settings, watch, started)
        run = Deployment(built, transport, roster, limits)
        folder = _folder(run, out, resumes, experiment.init is not None, built, tell)
        open_.enter_context(folder)
        if run.round > 1 and settings.record_uploads != bool(run.journal_bytes):
            raise InputError(
                "record_uploads cannot change when a run is resumed, as events would be missing; set it back in "
                "deploy.yaml"
            )
        write = partial(_write, folder.path, roster, told, run.world.attendance)
        write()
        roster.joined = run.world.attendance.changed = write
        if settings.record_uploads:
            journal = Journal(out / FILE)
            open_.callback(journal.close)
            run.keep_journal(journal)
        summary = _drive(run, built, folder, watch)
        if started is None:  # otherwise nobody reads what sites say
            with suppress(FedkeelError):  # the run is complete, whoever hears of it
                run.say_complete()
        return summary


def _roster(
    transport: Transport, settings: DeploySettings, resumed: Path | None, known: Mapping[str, int], tell: Tell
) -> Roster:
    """Who takes part; `known` are the nodes of sites whose keys are registered."""
    run, nodes, session = uuid.uuid4().hex, dict[str, int](), 0
    if resumed is not None and (resumed / DEPLOYMENT).exists():  # otherwise, it was killed before its first message
        run, nodes, session = _read(resumed)
    nodes |= known  # by their keys
    roster = Roster(
        transport,
        settings.sites,
        run=run,
        session=max(time.time_ns() // 1_000_000, session + 1),
        pooling=Pooling(
            lambda wanted: pooled(wanted, [str(each.facts.get("site")) for each in wanted]), settings.needed
        ),
        seconds=settings.join_seconds,
        first=settings.first_job_seconds,
        keyed=frozenset(known),
        nodes_of=nodes,
        check=check_told,
        tell=tell,
    )
    if resumed is not None:
        results = roster.pooling.results
        while (path := resumed / POOLED.format(len(results))).exists():
            results.append(Message.unpack(path.read_bytes()))
    return roster


def _gather(roster: Roster, settings: DeploySettings, watch: Watch, started: int | None) -> None:
    """Wait until enough sites are there; when the model is known, until they are ready for their first jobs.

    With `started`, there are no more sites than that, and those that are refused are not mended meanwhile.
    """
    began, reached, advised = time.monotonic(), True, False
    while len(there := _there(roster)) < settings.needed:
        if started is None and roster.refused and not advised:
            roster.tell("mend the site, and start its node again there; the server waits for it")
            advised = True
        if watch.due:
            raise watch.stopped("before the first round")
        if started is not None and started - len(roster.refused) < settings.needed:
            raise InputError(f"too many sites cannot take part ({_problems(roster, roster.refused)})")
        if time.monotonic() - began > settings.join_seconds:
            missing = [site for site in settings.sites if site not in there]
            problems = _problems(roster, roster.problems)
            raise AbsentError(
                f"only {len(there)} of {settings.needed} sites came within {settings.join_seconds:g} seconds; "
                f"missing: {', '.join(missing)}{f' ({problems})' if problems else ''}; start their nodes, or change "
                "wait_for or join_seconds in deploy.yaml"
            )
        try:
            roster.look()
            for reply in roster.transport.poll():
                roster.take(reply)
            reached = True
        except ConnectionError as error:
            if reached:
                roster.tell(f"nodes cannot be reached ({error}); trying again")
            reached = False
        time.sleep(settings.poll_seconds)


def _there(roster: Roster) -> set[str]:
    """The sites that are there; when the model is known, those that are ready for jobs."""
    return {roster.sites[client] for client, each in roster.members.items() if each.ready or roster.admit is None}


def _problems(roster: Roster, those: Iterable[str]) -> str:
    """What is wrong with sites; what is wrong with several is said once."""
    return by_reason({who if who in roster.sites else f"node {who}": roster.problems[who] for who in those})


def _built(project: Project, sites: Sequence[str], told: Mapping[str, Any], init: Path | None) -> Built:
    """The model for the data that the sites told of."""
    experiment, own = project.experiment, bool(told["own"])
    data = with_test(stand_in(experiment, sites, told), experiment, own)
    return Built.of(experiment, data, own, no_counts(experiment, data), init)


def _told(roster: Roster) -> Mapping[str, Any]:
    return usual([member.facts for _, member in sorted(roster.members.items())])


def _admit(built: Built, first: Mapping[str, Any], settings: DeploySettings, member: Member) -> Message | None:
    """Refuse a site that does not fit the others; what it must be sent before its first job."""
    check_alike(first, member.facts)
    if member.facts.get("layout") != built.layout_digest:
        differs = alike.difference(alike.told(built.experiment, built.layout), member.facts.get("alike"))
        raise FedkeelError(f"{differs}; {COPY}")
    if (number := member.facts.get("number")) != member.client:
        raise FedkeelError(
            f"deploy.yaml has it in place {shown(number)} at the site and {member.client} at the server; {COPY}"
        )
    if settings.tell_labels and "labels" not in member.facts and built.experiment.task == "classification":
        raise FedkeelError("it does not tell its label counts, but deploy.yaml here says tell_labels")
    if member.facts.get("first") == built.first_digest:
        return None
    return Message("begin", {}, {"w": built.first[0], "buffers": built.first[1]})


def _limits(settings: DeploySettings) -> Limits:
    return Limits(
        job=None if settings.job_seconds == "auto" else settings.job_seconds,
        first=settings.first_job_seconds,
        least=settings.least_job_seconds,
        margin=settings.margin,
        retries=settings.retries,
        absent=settings.absent_seconds,
        poll=settings.poll_seconds,
        away=settings.join_seconds,
        most=None if settings.max_upload_mb == "auto" else int(settings.max_upload_mb * 1e6),
    )


def _folder(run: Deployment, out: Path, resumes: bool, keeps_start: bool, built: Built, tell: Tell) -> RunFolder:
    if resumes:
        return folders.reopen(run, {}, out, tell)
    earlier.inherit(run, earlier.remembered(built.experiment, built.layout))
    made = folders.create(run, {}, out, None, built.module if keeps_start else None)
    assert made is not None
    return made


def _read(folder: Path) -> tuple[str, dict[str, int], int]:
    """(The run's number, the nodes of its sites, the number of the last start of the server)."""
    try:
        told = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
        nodes = {str(site): int(node) for site, node in told["nodes"].items()}
        return str(told["run"]), nodes, int(told["session"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedkeelError(f"{folder / DEPLOYMENT} cannot be read ({error}); the run cannot be resumed") from None


def _recorded(folder: Path) -> Mapping[str, Any] | None:
    """What the sites told of their data when the run began; the model was built for that."""
    if not (folder / DEPLOYMENT).exists():
        return None
    data: Mapping[str, Any] | None = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8")).get("data")
    return data


def _before(folder: Path, name: str) -> dict[str, Any]:
    """What an earlier start of the server wrote there of each site."""
    path = folder / DEPLOYMENT
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get(name, {}) if path.exists() else {}
    return told


def _write(folder: Path, roster: Roster, data: Mapping[str, Any], attendance: Attendance) -> None:
    """What a resumed server must know before its first message, and what is told of each site."""
    for step, result in enumerate(roster.pooling.results):
        path = folder / POOLED.format(step)
        if not path.exists():
            with whole(path) as partial_:
                partial_.write_bytes(result.pack())
    told = {**roster.whose, "nodes": roster.nodes_of, "sites": [*roster.sites], "data": dict(data)}
    for name in (SAMPLES, TESTS):  # also of sites that were there before the server was started again
        told[name] = _before(folder, name) | {
            roster.sites[client]: member.facts[name] for client, member in sorted(roster.members.items())
        }
    told[WAITS] = _before(folder, WAITS) | roster.waits
    before = _before(folder, LOST)
    told[LOST] = {site: sorted({*before.get(site, []), *roster.lost.get(site, [])}) for site in before | roster.lost}
    told[PRESENCE] = {roster.sites[client]: times for client, times in sorted(attendance.times.items())}
    with whole(folder / DEPLOYMENT) as partial_:
        partial_.write_text(json.dumps(told), encoding="utf-8")


def _drive(run: Deployment, built: Built, folder: RunFolder, watch: Watch) -> dict[str, Any]:
    recorder, past = Recorder(run, folder, watch), folder.history()
    with Sinks(recorder, [_Settling(run, folder)], partial(global_model, run, built.module)) as sinks:
        sinks.begin(Start(run.experiment, folder.path, run.round - 1, tuple(past)))
        run.world.begin_clock()
        history: list[Evaluation] = [*past, *drive(run, sinks, recorder, watch)]
        summary = summarise(run, history, folder.beginning)
        summary["deployment"] = {**told_of_sites(RunRecord.read(folder.path)), **vars(run.world.mail.traffic)}
        built.flat.load(*run.evaluated)
        save(folder, run, built.flat.release())
        if tests_clients(run) or any(run.client_rows()):
            score_clients(run, summary, folder)
        sinks.finish(summary)
    return summary


class _Settling(Sink):
    """Lets sites remove what they kept for a time that the run cannot go back to: before its oldest checkpoint."""

    def __init__(self, run: Deployment, folder: RunFolder) -> None:
        self._packer, self._checkpoints = run.world.packer, folder.path / CHECKPOINTS
        self._after: dict[int, dict[int, int]] = {}
        """By round: the last job of each client that was taken in until then."""

    def round(self, end: RoundEnd) -> None:
        """Look at the checkpoints that are there before that of this round."""
        self._after[end.round] = dict(self._packer.after)
        there = [int(path.name.removeprefix("round-")) for path in self._checkpoints.glob("round-*")]
        if not there:
            return
        oldest = min(there)
        self._packer.settled = self._after.get(oldest, self._packer.settled)
        self._after = {number: after for number, after in self._after.items() if number >= oldest}

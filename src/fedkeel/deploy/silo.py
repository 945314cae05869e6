"""The part of a deployment that runs where the data is: it loads the data, trains, tests, and keeps its state.

It answers one message with another. It is a process of its own that stays warm between jobs; a relay hands messages to
it through a Unix socket (`python -m fedkeel.deploy.service`).
"""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from fedkeel.deploy.joining import Joining, LoadingError, OfflinePool
from fedkeel.deploy.prepared import Built, Project
from fedkeel.deploy.site import Site
from fedkeel.deploy.training import GivenUpError, Training
from fedkeel.deploy.verdict import CANNOT
from fedkeel.deploy.workbench import Workbench, whole_number
from fedkeel.errors import FedkeelError, InputError, words
from fedkeel.record.durable import whole
from fedkeel.world.remote.envelope import FAILED, EnvelopeError, plain
from fedkeel.world.remote.lines import COMPLETE
from fedkeel.world.remote.message import Message, told_why
from fedkeel.world.remote.roster import SMALL

_RUN = re.compile(r"[0-9a-f]{8,64}")
JOINED = "joined.json"
Start = tuple[str, int]
"""The run, and the number of the start of its server (its session)."""


class UnknownRunError(FedkeelError):
    """The silo was never told of this run, or has lost its state."""


class GoneError(FedkeelError):
    """The job of a message is not here any more."""


class SupersededError(FedkeelError):
    """The message is from a start of a server after which another one has been here."""


class Silo:
    """One site. `answer` may be called from several threads at once.

    `_lock` guards which run, start and job are current, and is held only for moments and while data is loaded. The one
    who trains has `_turn`: a job that was given up ends before the next one begins.
    """

    def __init__(self, project: Project, site: Site, state: Path, tell: Callable[[str], None] = lambda _: None) -> None:
        """`tell` hears what the site's own people should know."""
        self._tell, self._told = tell, ""
        self._project, self._site, self._state = project, site, state
        self._lock = threading.RLock()
        self._turn, self._test_lock = threading.Lock(), threading.Lock()
        self._run: str | None = None
        self._start: Start | None = None
        """That of the server that the site works for."""
        self._sessions: dict[str, int] = {}
        """By run: the last start of its server that was here. Those of different runs cannot be compared."""
        self._joining: Joining | None = None
        self._work: Workbench | None = None
        self._training: Training | None = None
        """The last job since the server was started."""
        self._handlers: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "pooled": self._pooled,
            "begin": self._begin,
            "refused": self._refused,
            "complete": self._complete,
            "train": self._train,
            "fresh": self._fresh,
            "survey": self._survey,
            "evaluate": self._evaluate,
            "interrupt": self._interrupt,
            "cancel": self._cancel,
        }

    def answer(self, body: bytes) -> bytes:
        """The answer to a message; what goes wrong is an answer, too."""
        try:
            message = Message.unpack(body)
            handler = self._handlers.get(message.kind)
            if handler is None:
                return plain(FAILED, why=f"{message.kind!r} is no message for a site")
            run = message.facts.get("run")
            if not isinstance(run, str) or not _RUN.fullmatch(run) or type(message.facts.get("session")) is not int:
                return plain(FAILED, why="it does not say which run it belongs to")
            with self._lock:
                self._check_start(_start(message))
            begun = perf_counter()
            made = handler(message)
            took = {"seconds": perf_counter() - begun} if message.kind in SMALL else {}
            return replace(made, facts={"run": run, "site": self._site.name, **took, **made.facts}).pack()
        except EnvelopeError as error:
            return plain(FAILED, why=str(error))
        except UnknownRunError as error:
            return plain(FAILED, why=str(error), unknown=True)
        except GoneError as error:
            return plain(FAILED, why=str(error), gone=True)
        except SupersededError as error:
            return plain(FAILED, why=str(error), superseded=True)
        except LoadingError as error:
            return self._failed("its data or its model cannot be used", error.because)
        except InputError as error:
            return self._failed("it cannot do this", error)
        except (FedkeelError, GivenUpError) as error:
            return plain(FAILED, why=str(error))
        except Exception as error:
            return self._failed("it cannot do this", error)

    def _failed(self, what: str, error: BaseException) -> bytes:
        """The answer that something is wrong at this site. What it is stays here: it may quote data and paths."""
        ours = isinstance(error, FedkeelError)
        if not ours or error.__cause__ is not None:  # the user's own code
            traceback.print_exception(error)
        kind = type(error).__name__
        self._say(f"{self._site.name} {CANNOT}: {words(error) if ours else f'{kind}: {words(error)}'}")
        told = what if ours else f"{what} ({kind})"
        return plain(FAILED, why=f"{told}; its own terminal says why", wrong=isinstance(error, InputError))

    def _say(self, sentence: str) -> None:
        """Tell something once, until something else is to be told."""
        with self._lock:
            told, self._told = self._told, sentence
        if told != sentence:
            self._tell(sentence)

    # Joining.

    def _hello(self, message: Message) -> Message:
        """Load the data and say what is here; on the way, the server may be asked to pool statistics."""
        run = message.facts["run"]
        with self._lock:
            self._see(_start(message))
            if self._run != run:
                self._forget()
                self._run = run
                self._joining = Joining(self._project, self._site, self._folder(run), self._turn)
            joining = self._joining
        if joining is None:
            assert self._work is not None
            return self._here(self._work)
        try:
            return self._joined(run, joining, joining.first())
        except Exception:
            with self._lock:  # the next hello tries again: the data may have been mended
                if self._joining is joining:
                    self._run = self._joining = None
            raise

    def _pooled(self, message: Message) -> Message:
        joining = self._joining if message.facts["run"] == self._run else None
        if joining is None:
            raise UnknownRunError("nothing is being pooled; say hello first")
        return self._joined(message.facts["run"], joining, joining.go_on(message))

    def _joined(self, run: str, joining: Joining, came: Message | Built) -> Message:
        """What the server must pool, or who is here."""
        if isinstance(came, Message):
            return came
        with self._lock:
            if self._joining is joining:
                folder = self._folder(run)
                self._work = self._workbench(came, folder)
                with whole(folder / JOINED) as path:
                    path.write_text(json.dumps({"site": self._site.name, "told": self._work.told_digest}))
                self._joining = None
            if self._run != run or self._work is None:
                raise FedkeelError("another run has come meanwhile")
            return self._here(self._work)

    def _here(self, work: Workbench) -> Message:
        return Message("here", work.facts)

    def _begin(self, message: Message) -> Message:
        """The server's first model, where it is another than ours."""
        self._bench(message).begin(message)
        return Message("ready")

    def _refused(self, message: Message) -> Message:
        """The server does not take this site."""
        self._say(f"the server refuses {self._site.name}: {told_why(message)}")
        return Message("ok")

    def _complete(self, message: Message) -> Message:
        """The run is over."""
        self._say(f"{COMPLETE}; {self._site.name} waits for the next one")
        return Message("ok")

    def _folder(self, run: str) -> Path:
        folder = self._state / run
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _workbench(self, built: Built, folder: Path) -> Workbench:
        site, tells = self._site, self._project.settings.tell_labels
        return Workbench(built, site.number, folder, tells, lambda what: self._tell(f"{site.name} {what}"))

    def _check_start(self, start: Start) -> None:
        """Refuse a server that was here before the one that the site works for."""
        run, session = start
        if start != self._start and session <= self._sessions.get(run, session - 1):
            raise SupersededError("it is from an earlier start of the server than one that has been here")

    def _see(self, start: Start) -> None:
        """Work for this start of a server; what an earlier one asked for is given up."""
        self._check_start(start)
        if start != self._start:
            self._give_up()
        self._start, self._sessions[start[0]] = start, start[1]

    def _give_up(self) -> None:
        if self._training is not None:
            self._training.give_up()
        self._training = None

    def _forget(self) -> None:
        self._give_up()
        if self._joining is not None:
            self._joining.give_up()
        self._run = self._work = self._joining = None

    def _bench(self, message: Message) -> Workbench:
        """What is ready for the run of a message, which the server sends only to sites that take part."""
        found = self._ready(message)
        self._say(f"{self._site.name} takes part")
        return found

    def _ready(self, message: Message) -> Workbench:
        """The same; a process that was restarted finds it on its disk.

        If the server would be told something else now than when the site joined, it must say hello and check it anew.
        """
        run = message.facts["run"]
        with self._lock:
            known = self._run == run and self._work is not None
            self._check_start(_start(message))
            if not (self._state / run / JOINED).exists():
                self._run = None if self._run == run else self._run  # what it kept is gone
                raise UnknownRunError(f"{self._site.name} does not know this run")
            self._see(_start(message))
            if known:
                assert self._work is not None
                return self._work
            self._forget()
            folder = self._folder(run)
            with self._turn:
                built = Joining.load(self._project, self._site, OfflinePool(folder))
            work = self._workbench(built, folder)
            if json.loads((folder / JOINED).read_text()).get("told") != work.told_digest:
                changed = f"{self._site.name} has other settings or data than when it joined"
                self._say(f"{changed}; the server checks them")
                raise UnknownRunError(changed)
            self._run, self._work = run, work
            return work

    # Jobs.

    def _train(self, message: Message) -> Message:
        """Begin a job, unless it is going on or done; one that failed is begun anew."""
        bench, job = self._bench(message), whole_number(message, "job")
        with self._lock:
            training = self._training
            if training is not None and training.order.job > job:
                raise FedkeelError(f"job {job} is over, as job {training.order.job} came after it")
            if training is None or training.order.job != job or training.failed:
                order, slot = bench.order(message)
                after, settled = (whole_number(message, name) for name in ("after", "settled"))
                self._give_up()
                finish = partial(bench.finish, after=after, settled=settled)
                training = Training(order, slot, bench.stoppable, self._turn, bench.train, finish)
                training.start()
                self._training = training
        return training.answer(0)

    def _current(self, message: Message) -> Training | None:
        """The job that a message speaks of, if it is here."""
        with self._lock:
            training = self._training if _start(message) == self._start else None
        return training if training is not None and training.order.job == message.facts.get("job") else None

    def _fresh(self, message: Message) -> Message:
        bench, training = self._bench(message), self._current(message)
        if training is None:
            raise GoneError(f"job {message.facts.get('job')!r} is not here any more")
        if training.waits:
            training.go_on(bench.fresh(message))
        return training.answer(1)

    def _interrupt(self, message: Message) -> Message:
        training = self._current(message)
        if training is not None:
            training.interrupt()
        return Message("ok")

    def _cancel(self, message: Message) -> Message:
        training = self._current(message)
        if training is not None:
            training.give_up()
        return Message("ok")

    def _survey(self, message: Message) -> Message:
        """Answer it; the server asks only sites that it takes for idle, so a job that is going on is not wanted."""
        bench = self._bench(message)
        with self._lock:
            self._give_up()
        with self._turn:
            return bench.survey(message)

    def _evaluate(self, message: Message) -> Message:
        bench = self._bench(message)
        with self._test_lock:
            return bench.evaluate(message)


def _start(message: Message) -> Start:
    return message.facts["run"], message.facts["session"]

"""From the first round to the last."""

from __future__ import annotations

from fedkeel.errors import DivergenceError, FedkeelError
from fedkeel.record.rows import Evaluation
from fedkeel.runner import trial
from fedkeel.runner.recorder import Recorder
from fedkeel.runner.run import Run
from fedkeel.runner.sinks import Sinks
from fedkeel.runner.watch import GivenUpError, Watch


def drive(run: Run, sinks: Sinks, recorder: Recorder | None, watch: Watch) -> list[Evaluation]:
    """Go through the rounds, tell of each, and save the state where that is due; returns the evaluations."""
    history: list[Evaluation] = []
    rounds, last = run.rounds(), run.round - 1
    watch.stop.heard = recorder is not None
    try:
        while True:
            with watch.impatiently():
                end = next(rounds, None)
            if end is None:
                break
            if end.evaluation is not None:
                history.append(end.evaluation)
            last = end.round
            sinks.round(end)
            if recorder is not None:
                recorder.save_if_due(last)
            elif watch.due and not run.over:
                raise watch.stopped(f"after round {last}")
    except GivenUpError:
        watch.close()
        when = f"in round {last + 1}"
        raise (watch.stopped(when) if recorder is None else recorder.give_up(when)) from None
    except DivergenceError as error:
        remedies = dict.fromkeys(rule.if_diverged for rule in run.experiment.algorithm.rules())
        large = (trial.scale(getattr(run.data.train, name), name) for name in ("x", "y"))
        error.args = ("; ".join([str(error), *filter(None, [*remedies, *large])]),)
        raise
    except Exception as error:
        if not isinstance(error, FedkeelError):  # those say all there is to say
            error.add_note(f"in round {run.round}")
        raise
    finally:
        watch.stop.heard = False
    if recorder is None:
        run.rest()
    else:
        recorder.save_last()
        recorder.rest()
    return history

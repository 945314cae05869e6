"""From the first round to the last."""

from __future__ import annotations

from fedkeel.errors import DivergenceError, FedkeelError, StoppedError
from fedkeel.record.rows import Evaluation
from fedkeel.runner.recorder import Recorder
from fedkeel.runner.simulation import Simulation
from fedkeel.runner.sinks import Sinks
from fedkeel.runner.stopping import Stop


def drive(simulation: Simulation, sinks: Sinks, recorder: Recorder | None, stop: Stop) -> list[Evaluation]:
    """Go through the rounds, tell of each, and save the state where that is due; returns the evaluations."""
    history = []
    stop.heard = recorder is not None
    try:
        for end in simulation.rounds():
            if end.evaluation is not None:
                history.append(end.evaluation)
            sinks.round(end)
            if recorder is not None:
                recorder.save_if_due(end.round)
            elif stop.asked and not simulation.over:
                raise StoppedError(f"stopped after round {end.round}; nothing was recorded")
    except DivergenceError as error:
        remedies = dict.fromkeys(rule.if_diverged for rule in simulation.experiment.algorithm.rules())
        error.args = ("; ".join([str(error), *filter(None, remedies)]),)
        raise
    except Exception as error:
        if not isinstance(error, FedkeelError):  # those say all there is to say
            error.add_note(f"in round {simulation.round}")
        raise
    finally:
        stop.heard = False
    if recorder is None:
        simulation.rest()
    else:
        recorder.save()
        recorder.rest()
    return history

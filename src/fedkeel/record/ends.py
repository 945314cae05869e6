"""Settings that may change when a run is resumed, as they change nothing in the rounds that were done."""

from __future__ import annotations

ENDS = ("rounds", "limit_seconds", "target", "target_accuracy", "stop_at_target")
"""They say when a run ends."""
AFTERWARDS = ("finetune",)
"""They say what is done when all rounds are over."""
ANY_TIME = ("limit_wall_seconds", "checkpoint", "name")
"""They make no difference to the result."""
CHANGEABLE = (*ENDS, *AFTERWARDS, "limit_wall_seconds", "checkpoint")
"""All that may change."""
ASIDE = (*CHANGEABLE, "name")
"""What a checkpoint may have otherwise than the experiment."""

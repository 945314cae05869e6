"""What can go wrong between a SuperLink and those that are connected with it, besides ConnectionError."""

from __future__ import annotations

from fedkeel.errors import FedkeelError


class RefusedError(FedkeelError):
    """The SuperLink does not want this call, and waiting does not help."""


class TooLargeError(FedkeelError):
    """A message has more bytes than are allowed."""


class GoneError(FedkeelError):
    """A message cannot be had any more."""


HINTS = {
    401: "; it may not know the node's key, or the clocks differ",
    2001: "; it takes only nodes with a registered key",
    2004: "; the key may not be registered, or an earlier connection ends by itself within about 60 s",
}
"""What else is known about a status of HTTP or an error of Flower, by its code."""

"""Settings by which every method fits a small federation."""

from typing import Any

from fedkeel.methods import methods

SMALL = {"fedbuff": {"buffer_size": 2}, "port": {"minimum": 2}}
"""Settings of methods that wait for more updates than a few rounds here have."""


def small(name: str) -> dict[str, Any]:
    """The method, with settings that fit a small federation."""
    return {"name": name, **SMALL.get(name, {})}


def few(name: str) -> dict[str, Any]:
    """A schedule by which not everybody is always at work."""
    return {"concurrency": 3} if methods()[name].server.pace == "concurrency" else {}

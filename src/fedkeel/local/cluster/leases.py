"""One pool of workers per process, as Ray allows one connection: who needs workers leases it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fedkeel.errors import FedkeelError
from fedkeel.local.cluster.pool import Pool
from fedkeel.local.cluster.wish import Wish
from fedkeel.local.settings import ExecutorSettings

_pool: Pool | None = None
_owner = 0


def lease(settings: ExecutorSettings) -> Pool:
    """The workers for these settings; started if nobody has them yet. Give them back by `release`."""
    global _pool, _owner
    wish = Wish.of(settings)
    if _pool is not None and _owner != os.getpid():
        raise FedkeelError("this process was forked from one that uses Ray, which cannot work; start it anew instead")
    if _pool is None:
        _pool, _owner = Pool(wish), os.getpid()
    elif _pool.wish != wish:
        raise FedkeelError("this process has workers of Ray with other settings; end that run first")
    _pool.holders += 1
    return _pool


def release(pool: Pool) -> None:
    """When nobody has them any more, they end."""
    global _pool
    pool.holders -= 1
    if pool.holders <= 0 and pool is _pool:
        _pool = None
        pool.close()


@contextmanager
def held(settings: ExecutorSettings) -> Iterator[Pool | None]:
    """Keeps the workers from one executor to the next; for other kinds than `ray` there are none."""
    if settings.kind != "ray":
        yield None
        return
    pool = lease(settings)
    try:
        yield pool
    finally:
        release(pool)


def workers(settings: ExecutorSettings) -> int:
    """How many there are for these settings, which somebody has leased."""
    pool = lease(settings)
    try:
        return pool.size
    finally:
        release(pool)

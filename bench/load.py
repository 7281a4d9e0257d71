"""Runs load generators in a process of their own, so that clients never share one with a server, and defines their results.

Invariant: a rate counts what was acknowledged, from the first byte sent to the last acknowledgement, so a run can't look faster by
leaving work in flight.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Load:
    """`connections` that each keep `window` requests unanswered, for `seconds`."""

    connections: int
    window: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    # Acknowledged.
    requests: int
    # When the first byte went out, by the monotonic clock that all processes of the machine share.
    started_s: float
    first_answer_s: float
    last_answer_s: float

    @property
    def requests_per_second(self) -> float:
        return self.requests / (self.last_answer_s - self.started_s)


class Until:
    """Tells a load in another process when to end: by a file, which it looks for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def end(self) -> None:
        self._path.touch()

    @property
    def over(self) -> bool:
        return self._path.exists()


class ClientProcess:
    """Runs functions in one process of its own, one after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return self.start(work, *args, **kwargs).result()

    def start(self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Future[_Result]:
        return self._pool.submit(work, *args, **kwargs)


@contextmanager
def client_process() -> Iterator[ClientProcess]:
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield ClientProcess(pool)
    except BaseException:
        for process in multiprocessing.active_children():  # the result of its work is not needed any more
            process.kill()
        raise
    finally:
        pool.shutdown()

"""A server that a suite starts beside the broker: its output goes to a file, and it is gone when the block is left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")
POLL_S = 0.25


class ServerFailed(Exception):
    """A server ended, or did not get where it should in time; the message is the last of what it said."""


class Server:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def kill(self) -> None:
        """SIGKILL. Twice is no error."""
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def await_value(self, find: Callable[[], _Found | None], what: str, timeout_s: float) -> _Found:
        """Returns the first value of `look` that is not None; an OSError means not yet. Raises ServerFailed in the end."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = find()
            except OSError:
                found = None
            if found is not None:
                return found
            if self.process.poll() is not None:
                raise ServerFailed(f"it ended with exit code {self.process.returncode}: {self.said()[-600:]}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{what}: not within {timeout_s:g} s: {self.said()[-600:]}")
            time.sleep(POLL_S)


@contextmanager
def server(command: Sequence[str], log: Path) -> Iterator[Server]:
    with log.open("ab") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=log.parent)
    running = Server(process, log)
    try:
        yield running
    finally:
        running.kill()

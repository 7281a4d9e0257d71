"""Processes that serve until the end, each with a log of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 600.0
POLL_S = 0.5


class Failed(Exception):
    """What was to be shown is not so; or what was awaited did not come."""


@dataclass
class Processes:
    # Of their logs.
    directory: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        with open(self.directory / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=environment)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Waits for it; raises the error of a process that has ended meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise Failed(f"{name} has ended: {self.log(name)}")
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        for process in reversed(self._running.values()):
            process.kill()
            process.wait()

"""Kills a broker with SIGKILL at the worst moment: a segment is durable, and its producers have no answer yet.

A program of its own that imports next to nothing. The process that produces is busy, and would see the segment when the answers are
out; this one looks for it without a pause, which is a matter of milliseconds.

    python killer.py PID TIMEOUT_S PATH …      of the broker; where its segments will lie, in the order in which it writes them
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable


def kill_at_the_next(paths: Iterable[str], pid: int, timeout_s: float) -> None:
    """Kills `pid` when the first of the paths exists that does not yet, or after the time."""
    ends_s = time.monotonic() + timeout_s
    path = next((path for path in paths if not os.path.exists(path)), "")
    while not os.path.exists(path) and time.monotonic() < ends_s:
        pass
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    kill_at_the_next(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2]))

"""Ends a test that nothing can interrupt: its whole process, a minute after its time limit, with the stacks of all threads.

That limit is a signal, which Python handles between two of its own instructions, and so never while the main thread waits in C
for what does not come. Without an end of the process one such test would hold up the run without end. `pytest -n` starts another
worker, and prints which test it was.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Generator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # stderr as it was before pytest caught what is written there

LATE_S = 60.0


def limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit_s(item) + LATE_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()

"""What the benchmark of TLS counts as the CPU of a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.tls import _cpu_seconds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="benchmarks of CPU run on Linux")]

BURNS_IN_A_THREAD = """
import threading, time

def burn():
    while time.thread_time() < 0.3:
        pass

thread = threading.Thread(target=burn)
thread.start()
thread.join()
print("burnt", flush=True)
input()
"""


def test_the_cpu_of_a_thread_that_has_ended_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", BURNS_IN_A_THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"burnt\n"
        assert 0.3 <= _cpu_seconds(server.pid) < 10
        server.kill()
    with pytest.raises(OSError, match="Invalid argument"):
        _cpu_seconds(server.pid)

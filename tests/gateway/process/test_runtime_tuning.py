"""Freed memory is kept for the next buffers: the kernel is not asked for the same pages again and again."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from gateway.process.runtime_tuning import configure_malloc

pytestmark = pytest.mark.slow

PAGES_ASKED_FOR = """
import resource
{setup}
def fill_and_free():
    buffers = [b"x" * (1 << 20) for _ in range(32)]
fill_and_free(); fill_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    fill_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_for(setup: str) -> int:
    """By a process that fills 32 MiB four more times than it needs to."""
    command = [sys.executable, "-c", PAGES_ASKED_FOR.format(setup=setup)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_buffers_that_come_and_go_cost_pages_once() -> None:
    pages = (32 << 20) // 4096
    assert pages_asked_for("from gateway.process.runtime_tuning import configure_malloc; assert configure_malloc()") < pages
    assert pages_asked_for("") > 2 * pages


def test_a_c_library_without_these_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        pass

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Musl())
    assert not configure_malloc()

"""No test holds up a run without end, however it fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.servers import ROOT

pytestmark = pytest.mark.slow

LEAVES_A_LISTENER = """
import asyncio
import pytest
import uvloop
from tests.kit import stuck_tests

stuck_tests.LATE_S = 0.5

@pytest.mark.timeout(LIMIT_S)
def test_it():
    async def run():
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        raise KeyError("failed on purpose")

    uvloop.run(run())

def test_another():
    pass
"""


def run_of(directory: Path, *flags: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """With what holds for all tests."""
    file = directory / "test_fails.py"
    file.write_text(LEAVES_A_LISTENER.replace("LIMIT_S", f"{limit_s}"))
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    command += ["-p", "no:cacheprovider", "-p", "tests.kit.stuck_tests", *flags, str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_a_failure_with_an_open_listener_is_reported(tmp_path: Path) -> None:
    """uvloop warns of it as it closes. Where that warning is an error, it waits without end for what it could not close."""
    ran = run_of(tmp_path, limit_s=60)
    assert "1 failed, 1 passed" in ran.stdout
    assert "KeyError: 'failed on purpose'" in ran.stdout


def test_a_test_that_can_not_be_interrupted_is_ended_and_named_and_the_others_go_on(tmp_path: Path) -> None:
    ran = run_of(tmp_path, "-W", "error", "-n", "1", limit_s=0.5)
    assert "1 failed, 1 passed" in ran.stdout
    assert re.search("crashed while running '.*::test_it'", ran.stdout)
    assert "Timeout (0:00:01)!" in ran.stderr

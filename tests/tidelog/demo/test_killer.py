"""The demo's killer strikes when the next segment is there, and not before."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.demo.killer import kill_at_the_next

pytestmark = pytest.mark.slow


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_killer_waits_for_the_first_path_to_appear(
    victim: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, coming, later = (tmp_path / name for name in "012")
    written.touch()
    missed = threading.Event()

    def exists(path: str) -> bool:
        if Path(path).exists():
            return True
        missed.set()
        return False

    monkeypatch.setattr("tidelog.demo.killer.os.path.exists", exists)
    killing = threading.Thread(target=kill_at_the_next, args=([str(written), str(coming), str(later)], victim.pid, 30.0))
    killing.start()
    assert missed.wait(60)
    assert victim.poll() is None
    coming.touch()
    killing.join()
    assert victim.wait(60) == -signal.SIGKILL


def test_the_killer_kills_its_victim_at_its_timeout(victim: subprocess.Popen[bytes], tmp_path: Path) -> None:
    kill_at_the_next([str(tmp_path / "never")], victim.pid, 0.01)
    assert victim.wait(60) == -signal.SIGKILL

"""promtool, Prometheus' own tool for rules, for tests of dashboards and alerts: the one on the PATH, or one that is built once.

python -m tests.kit.promtool        builds it into the cache of the user, where there is Go: some minutes
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

VERSION = "v0.316.0"
MODULE = f"github.com/prometheus/prometheus/cmd/promtool@{VERSION}"
BUILD_TIMEOUT_S = 1800.0
RUN_TIMEOUT_S = 120.0


def _cached() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tidelog" / f"promtool-{VERSION}" / "promtool"


def promtool_program() -> str | None:
    """The one on the PATH, or the one that was built before."""
    return shutil.which("promtool") or (str(_cached()) if _cached().exists() else None)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Its exit code and what it says. Skips the test where there is none."""
    program = promtool_program()
    if program is None:
        pytest.skip("no promtool on the PATH, and none was built: python -m tests.kit.promtool")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)


def build() -> int:
    """The exit code of the command."""
    if promtool_program() is not None:
        return 0
    go, program = shutil.which("go"), _cached()
    if go is None:
        print("there is no Go here; rules are only parsed", file=sys.stderr)
        return 0
    print(f"building {MODULE} into {program.parent}: some minutes, once", file=sys.stderr)
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:  # so that one that was broken off is not taken for whole
        environment = {**os.environ, "GOBIN": scratch, "CGO_ENABLED": "0"}
        command = [go, "install", "-tags", "remove_all_sd,netgo", MODULE]
        done = subprocess.run(command, env=environment, timeout=BUILD_TIMEOUT_S, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"it can't be built: {done.stderr[-500:]}", file=sys.stderr)
            return 1
        (Path(scratch) / "promtool").replace(program)
    return 0


if __name__ == "__main__":
    sys.exit(build())

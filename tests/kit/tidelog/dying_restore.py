"""`tidelog cluster restore` in a process that kills itself before or after the n-th thing that it writes, to the bucket or to etcd.

The processes are forked from a server that has imported all of it: a test needs dozens.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import gateway.settings  # noqa: F401  # the command loads this one and the next two late
import tidelog.bucket.restore
import tidelog.cli.commands  # noqa: F401
from metadata.store.etcd.store import EtcdStore
from segments.object_store.s3.store import S3ObjectStore
from tidelog.cli.main import main

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.kit.tidelog.dying_restore"])


def dying(write: Callable[..., Awaitable[Any]], dies: Callable[[str], None]) -> Callable[..., Awaitable[Any]]:
    async def written(*args: Any, **how: Any) -> Any:
        dies("before")
        result = await write(*args, **how)
        dies("after")
        return result

    return written


def death(when: str, number: int) -> Callable[[str], None]:
    passed = {"before": 0, "after": 0}

    def dies(now: str) -> None:
        passed[now] += 1
        if (now, passed[now]) == (when, number):
            os.kill(os.getpid(), signal.SIGKILL)

    return dies


def restore(when: str, number: int, arguments: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
    """The process."""
    os.environ.clear()
    os.environ.update(environment)
    with stderr.open("wb") as reported:
        os.dup2(reported.fileno(), sys.stderr.fileno())
    sys.argv = ["tidelog", "cluster", "restore", *arguments]
    dies = death(when, number)
    with (
        patch.object(S3ObjectStore, "create", dying(S3ObjectStore.create, dies)),
        patch.object(EtcdStore, "transact", dying(EtcdStore.transact, dies)),
    ):
        main()


def restore_that_dies(
    when: Literal["before", "after"],
    number: int,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    *,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """`number`: the first write of a restore is 1. What it prints goes nowhere; its stderr is returned."""
    stderr = directory / "restore.stderr"
    process = PROCESSES.Process(target=restore, args=(when, number, arguments, environment, stderr))
    process.start()
    try:
        process.join(timeout_s)
        assert process.exitcode is not None, f"the restore does not end: {stderr.read_text()}"
        return subprocess.CompletedProcess(arguments, process.exitcode, "", stderr.read_text())
    finally:
        process.kill()
        process.join()
        process.close()

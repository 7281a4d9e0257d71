"""`tidelog cluster restore` in a process that kills itself before or after the n-th thing that it writes, to the bucket or to etcd.

python -m tests.tidelog.dying_restore before|after N --bucket … --etcd …
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from metadata.etcd_store import EtcdStore
from segments.s3_store import S3Store
from tidelog.cli.main import main


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


if __name__ == "__main__":
    _, when, number, *arguments = sys.argv
    sys.argv = ["tidelog", "cluster", "restore", *arguments]
    dies = death(when, int(number))
    with (
        patch.object(S3Store, "create", dying(S3Store.create, dies)),
        patch.object(EtcdStore, "transact", dying(EtcdStore.transact, dies)),
    ):
        main()

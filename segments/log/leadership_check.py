"""Verifies that no other broker leads in place of this session: by the lease, or by a lookup of a seal on the bucket.

A new leader seals the session before it serves. So where the lease is valid, or where the bucket shows no seal, no other broker had
committed records of the session's partitions before the check was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from segments.log.seal_check import Outcome, SealCheck
from segments.wal.segment_writer import SegmentWriter


class LeadershipCheck:
    """Verifies the leadership of one session on behalf of readers and producers."""

    def __init__(
        self,
        writer: SegmentWriter,
        lease_is_valid: Callable[[], bool],
        spawn: Callable[[Coroutine[Any, Any, Outcome]], asyncio.Task[Outcome]],
        *,
        timeout_s: float,
    ) -> None:
        """`lease_is_valid` returns whether no other broker can have been appointed in this session's place yet. `spawn` owns the
        tasks of the checks; `timeout_s` bounds one check."""
        self.lease_is_valid = lease_is_valid
        self._writer = writer
        self._seal_check = SealCheck(writer.check_seal, spawn, timeout_s=timeout_s)

    async def verify(self) -> None:
        """Returns when it is certain that no other broker led in this session's place before this was called.

        Raises SessionFenced where another may lead, and Unavailable where the bucket does not answer.
        """
        if not self.lease_is_valid():
            await self.check_not_sealed()

    async def check_not_sealed(self) -> None:
        """Verifies as `verify` does, but always checks the bucket: the lease still looks valid after an operator removed the
        registration."""
        if not self._writer.ended:
            await self._seal_check.check()
        if self._writer.ended:
            self._writer.check_open()

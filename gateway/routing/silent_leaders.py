"""Limits how long a leader may take to answer, and remembers which leaders did not answer in time.

A leader on a busy machine takes longer than a caller would wait for a leader that is gone. So a leader has time until it has been
silent once. For SILENT_S after that, callers wait less for it.

Invariant: an answer that has arrived is not taken for silence, however long this process stood still meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from gateway.routing.peer_channels import Unreachable
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import Unavailable
from metadata.model import SessionId

# How long a leader that did not answer in time counts as silent: until then, a failover has most often replaced it.
SILENT_S: Final = 10.0
# How much longer a call may take at its time limit. After a stall of this process its timer fires before the answer is received.
STALL_GRACE_S: Final = 0.1

Found = TypeVar("Found")


class SilentLeaders:
    """Knows the leaders that did not answer the last call of one kind in time, or could not be reached."""

    def __init__(self) -> None:
        # By session; the time on the loop's clock at which it gets as much time as others.
        self._until_s: dict[SessionId, float] = {}

    def is_silent(self, session: SessionId) -> bool:
        return self._until_s.get(session, 0.0) > asyncio.get_running_loop().time()

    async def ask(self, leader: BrokerRegistration, answer: Awaitable[Found], *, limit_s: float) -> Found:
        """Returns the answer. Raises Unavailable if it does not come within `limit_s` seconds, and what `answer` raises.

        A leader that is silent now has less time than others, so its silence in this call does not begin another one.
        """
        loop = asyncio.get_running_loop()
        had_time = not self.is_silent(leader.session)
        try:
            async with asyncio.timeout(None) as end:
                timer = loop.call_later(limit_s, lambda: end.reschedule(loop.time() + STALL_GRACE_S))
                try:
                    found = await answer
                finally:
                    timer.cancel()
        except TimeoutError:
            if had_time:
                self.note(leader.session, has_answered=False)
            raise Unavailable(f"broker {leader.broker_id}, which leads the partition, does not answer") from None
        except Unreachable:
            if had_time:
                self.note(leader.session, has_answered=False)
            raise
        self.note(leader.session, has_answered=True)
        return found

    def note(self, session: SessionId, *, has_answered: bool) -> None:
        """Notes whether a leader has answered in time. A silence that goes on does not begin again."""
        if has_answered:
            self._until_s.pop(session, None)
        elif not self.is_silent(session):
            now_s = asyncio.get_running_loop().time()
            self._until_s = {other: until_s for other, until_s in self._until_s.items() if until_s > now_s}
            self._until_s[session] = now_s + SILENT_S

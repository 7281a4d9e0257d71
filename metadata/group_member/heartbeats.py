"""Sends the heartbeats of a group member, independent of its caller and reader; state.py decides what answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from metadata.errors import Throttled, TidelogError, Unavailable
from metadata.group_member.interfaces import RETRY_S_MAX, CoordinatorClient, RebalanceListener
from metadata.group_member.rebalance import MemberRebalance
from metadata.group_member.settings import MemberSettings
from metadata.group_member.state import Heard, MemberPhase, MemberState

# Attempts at a heartbeat per session, where the coordinator is overloaded or has moved: enough to find it in time. The joins of
# members that were lost would only add to its load.
ATTEMPTS: Final = 10


class MemberHeartbeats:
    """Sends heartbeats and acts on their answers. Its owner runs `run()` as a task while the member lives."""

    def __init__(
        self,
        calls: CoordinatorClient,
        reader: RebalanceListener,
        settings: MemberSettings,
        member_state: MemberState,
        rebalance: MemberRebalance,
        *,
        group: str,
        jitter: Callable[[], float],
        end: Callable[[Exception], None],
    ) -> None:
        """`end` ends the present stay in the group."""
        self._calls = calls
        self._reader = reader
        self._settings = settings
        self._member_state = member_state
        self._rebalance = rebalance
        self._group = group
        self._jitter = jitter
        self._end = end

    async def run(self) -> None:
        beat_s = self._settings.beat_ms / 1000
        pause_s = beat_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = beat_s
            if (beat := self._member_state.beat(now_s=asyncio.get_running_loop().time())) is None:
                continue
            error: TidelogError | None = None
            try:
                async with asyncio.timeout(beat_s):
                    await self._calls.heartbeat(self._group, beat.member_id, self._member_state.instance_id, beat.generation)
            except TimeoutError:
                error = Unavailable("no answer to a heartbeat")
            except TidelogError as raised:
                error = raised
            heard = self._member_state.answered(beat, error)
            self._heed(heard, error)
            if heard is Heard.CHECK_AGAIN or (error is not None and error.retryable):
                again_s = self._settings.session_timeout_ms / 1000 / ATTEMPTS
                if not isinstance(error, Throttled):
                    again_s = min(again_s, RETRY_S_MAX)
                pause_s = min(beat_s, again_s) * (0.5 + self._jitter() / 2)
            self._check_subscription()

    def _heed(self, heard: Heard, error: TidelogError | None) -> None:
        match heard:
            case Heard.JOIN_AGAIN:
                self._rebalance.join_again.set()
                self._rebalance.repeat_call()  # a call that waits for the assignment will get none
            case Heard.ASK_AGAIN:
                self._rebalance.repeat_call()
            case Heard.ENDED:
                assert error is not None, "only an error ends it"
                self._end(error)
            case Heard.NOTHING_NEW | Heard.CHECK_AGAIN:
                pass

    def _check_subscription(self) -> None:
        if self._member_state.phase is not MemberPhase.STAYING:
            return
        try:
            subscribed = self._reader.subscribed()
        except Exception as error:  # noqa: BLE001  # as if it had been raised in the member's own call
            self._end(error)
            return
        if subscribed.keys() != self._member_state.topics or self._rebalance.is_unassigned(subscribed):
            self._rebalance.join_again.set()

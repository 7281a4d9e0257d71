"""Fetches from all the leaders of a request's partitions.

    probe: what each leader has now ─▶ enough, or an error that waiting does not mend: answer
      ▲                             └▶ all led: the first leader that has records ends the wait
      │                             └▶ some not led: wait at the leaders of the others, briefly
      └────── metadata changed ──────── none led: wait for a leader, for the duration of a failover

A partition without a leader, or with a silent one, delays no other: its error stands in its place. Invariants: records of another
broker were committed there, and unused answers are not counted. When a client disconnects, the calls that were made for it end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from typing import Final, Protocol

from gateway.cluster.view import ClusterView
from gateway.routing.follower_fetch import FollowerFetch
from gateway.routing.forward_queue import NOT_LED
from gateway.routing.leader_lookup import PAUSE_S_MAX, PAUSE_S_MIN, LeaderLookup
from gateway.routing.peer_channels import Unreachable
from gateway.routing.silent_leaders import SilentLeaders
from gateway.telemetry.request_context import remaining_s
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError, Unavailable
from metadata.model import Offset, SessionId
from segments.log.session_log import FetchTarget
from segments.read.log_reader import FetchResult

# How long a fetch from several leaders waits for a silent one. It exceeds the duration of a read of the bucket.
SLOW_LEADER_S: Final = 3.0
# The same for a leader that did not answer in time before (silent_leaders.py).
SILENT_LEADER_S: Final = 0.1

Answer = FetchResult | TidelogError


class LocalFetch(Protocol):
    """Fetches from the partitions that this broker leads, as LocalLog.fetch."""

    async def __call__(
        self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int = 1, wait_ms_max: float = 0
    ) -> list[Answer]: ...


def may_succeed_elsewhere(error: object) -> bool:
    """Returns whether a read with this error may succeed at another broker, or shortly."""
    return isinstance(error, NOT_LED) or type(error) is Unavailable


class ClusterFetch:
    """Fetches from several leaders at once, and waits until one has records."""

    def __init__(
        self,
        local: LocalFetch,
        view: ClusterView,
        leaders: LeaderLookup,
        remote: FollowerFetch,
        silence: SilentLeaders,
        *,
        leader_wait_s: float,
        is_hopeless: Callable[[], bool],
    ) -> None:
        """`silence` is of fetches alone. `is_hopeless` returns True if no broker will lead: this one stops and is the only one."""
        self._local = local
        self._view = view
        self._leaders = leaders
        self._remote = remote
        self._leader_wait_s = leader_wait_s
        self._is_hopeless = is_hopeless
        self._silence = silence

    async def fetch(self, targets: Sequence[FetchTarget], *, bytes_max: int, bytes_min: int, wait_ms_max: float) -> list[Answer]:
        """Reads each target, as ReadPath.fetch. Returns once a leader has `bytes_min` bytes or a final error."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + (wait_ms_max / 1000 if bytes_min > 0 else 0)
        leader_deadline_s = clock() + min(self._leader_wait_s, remaining_s())
        pause_s = PAUSE_S_MIN
        if all(self._leaders.remote_leader(target.partition) is None for target in targets):
            answers = await self._fetch_from(None, targets, bytes_max, bytes_min, wait_ms_max)
        else:
            answers = await self._probe(targets, bytes_max)
        while True:
            led = [at for at, answer in enumerate(answers) if not may_succeed_elsewhere(answer)]
            bytes_there = _bytes_in(answers)
            is_final = any(isinstance(answers[at], TidelogError) for at in led)
            left_s = (deadline_s if led else leader_deadline_s) - clock()
            if bytes_there >= max(1, bytes_min) or is_final or left_s <= 0 or self._is_hopeless():
                return fit_bytes(targets, answers, bytes_max)
            if bytes_there or not led:
                await self._view.changed(timeout_s=min(pause_s, left_s))
                answers = await self._probe(targets, bytes_max)
            else:
                wait_s = left_s if len(led) == len(targets) else min(pause_s, left_s)
                answers = await self._wait_at_leaders(targets, answers, led, bytes_max, bytes_min, wait_s)
                if len(led) < len(targets) and not _bytes_in(answers):
                    answers = await self._probe(targets, bytes_max)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _probe(self, targets: Sequence[FetchTarget], bytes_max: int) -> list[Answer]:
        """Fetches what every leader has now. Of several leaders, silent ones are cut off after SLOW_LEADER_S."""
        parts = self._parts(targets, range(len(targets)))
        if len(parts) == 1:
            return await self._fetch_from(parts[0][0], targets, bytes_max, 0, 0)
        answers: list[Answer] = [_silent(leader) for _, leader in _by_index(parts)]
        share = max(1, bytes_max // max(1, len(parts)))
        async with asyncio.TaskGroup() as probes:
            heard: set[SessionId] = set()
            running = {
                probes.create_task(self._fetch_from(leader, [targets[at] for at in ats], share, 0, 0, heard)): (leader, ats)
                for leader, ats in parts
            }
            prompt = {
                probe for probe, (leader, _) in running.items() if leader is None or not self._silence.is_silent(leader.session)
            }
            if prompt:
                await asyncio.wait(prompt, timeout=SLOW_LEADER_S)
            await asyncio.wait(running, timeout=SILENT_LEADER_S if prompt else SLOW_LEADER_S)
            for probe, (leader, ats) in running.items():
                if not probe.done():
                    probe.cancel()
                elif not probe.cancelled():
                    for at, answer in zip(ats, probe.result(), strict=True):
                        answers[at] = answer
                # A leader that was given less time does not become silent again, though its silence may have ended meanwhile.
                if leader is not None and ((has_answered := _has_answered(probe, leader, heard)) or probe in prompt or not prompt):
                    self._silence.note(leader.session, has_answered=has_answered)
        return answers

    async def _wait_at_leaders(
        self,
        targets: Sequence[FetchTarget],
        before: Sequence[Answer],
        led: Sequence[int],
        bytes_max: int,
        bytes_min: int,
        wait_s: float,
    ) -> list[Answer]:
        """Long-polls the leaders until the first has records, and cancels the other calls; their answers stay as in `before`."""
        answers = list(before)
        parts = self._parts(targets, led)
        share = max(1, bytes_max // len(parts))
        ends_s = asyncio.get_running_loop().time() + wait_s + SLOW_LEADER_S
        async with asyncio.TaskGroup() as polls:
            running = {
                polls.create_task(
                    self._fetch_from(leader, [targets[at] for at in ats], share, min(bytes_min, share), 1000 * wait_s)
                ): (
                    leader,
                    ats,
                )
                for leader, ats in parts
            }
            is_enough = False
            while running and not is_enough:
                left_s = max(0.0, ends_s - asyncio.get_running_loop().time())
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=left_s)
                if not done:
                    break
                for poll in done:
                    for at, answer in zip(running.pop(poll)[1], poll.result(), strict=True):
                        answers[at] = answer
                        is_enough |= isinstance(answer, TidelogError) or answer.size_bytes > 0
            for poll, (leader, ats) in running.items():
                poll.cancel()
                if not is_enough:  # the leader has exceeded its long poll
                    answers = [_silent(leader) if at in ats else answer for at, answer in enumerate(answers)]
        return answers

    async def _fetch_from(
        self,
        leader: BrokerRegistration | None,
        targets: Sequence[FetchTarget],
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
        heard: set[SessionId] | None = None,
    ) -> list[Answer]:
        """Fetches from one leader, or this broker (None). An error of the whole call stands in the place of each target.

        Adds the leader to `heard` once it has answered, before this broker reads located records from the bucket.
        """

        def on_answer() -> None:
            if leader is not None and heard is not None:
                heard.add(leader.session)

        try:
            if leader is None:
                local = [target._replace(locations_bytes_min=None) for target in targets]
                return await self._local(local, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
            found = await self._leaders.ask_each(
                leader,
                targets,
                lambda target: target.partition,
                lambda named: self._remote.fetch(
                    leader, named, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max, on_answer=on_answer
                ),
            )
            return [
                self._leaders.reject_stale_epoch(target.partition, answered)
                for target, answered in zip(targets, found, strict=True)
            ]
        except TidelogError as error:
            return [error.with_traceback(None)] * len(targets)

    def _parts(self, targets: Sequence[FetchTarget], ats: Sequence[int]) -> list[tuple[BrokerRegistration | None, list[int]]]:
        """Groups the indexes of the targets by leader."""
        return self._leaders.group_by_leader(ats, lambda at: targets[at].partition)


def _has_answered(probe: asyncio.Task[list[Answer]], leader: BrokerRegistration, heard: Set[SessionId]) -> bool:
    """Returns whether the leader has answered. One whose records are still read from the bucket has."""
    if not probe.done() or probe.cancelled():
        return leader.session in heard
    return not any(isinstance(answer, Unreachable) for answer in probe.result())


def fit_bytes(targets: Sequence[FetchTarget], answers: Sequence[Answer], bytes_max: int) -> list[Answer]:
    """Empties answers beyond `bytes_max` bytes in all; the first with records stays whole. The next fetch returns the rest."""
    kept: list[Answer] = []
    bytes_used = 0
    for target, answer in zip(targets, answers, strict=True):
        if isinstance(answer, FetchResult) and answer.size_bytes:
            if bytes_used and bytes_used + answer.size_bytes > bytes_max:
                answer = answer._replace(batches=[], size_bytes=0, next_offset=Offset(target.offset))
            else:
                bytes_used += answer.size_bytes
        kept.append(answer)
    return kept


def _bytes_in(answers: Sequence[Answer]) -> int:
    return sum(answer.size_bytes for answer in answers if isinstance(answer, FetchResult))


def _by_index(parts: Sequence[tuple[BrokerRegistration | None, Sequence[int]]]) -> list[tuple[int, BrokerRegistration | None]]:
    return sorted(((at, leader) for leader, ats in parts for at in ats), key=lambda item: item[0])


def _silent(leader: BrokerRegistration | None) -> Unavailable:
    who = f"broker {leader.broker_id}" if leader is not None else "this broker"
    return Unavailable(f"{who}, which leads the partition, does not answer")

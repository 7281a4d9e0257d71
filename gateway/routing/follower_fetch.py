"""Fetches for clients of this broker's rack: the leader returns where the records lie, and this broker reads the bucket (KIP-392).

    targets with locations_bytes_min ─▶ the leader, in another rack ─▶ locations ─▶ read here, from the bucket ─▶ batches
                                                   └ records (small ones, or an older leader) ─▶ returned as they are
    locations that cannot be read here ────────▶ the leader, once more: its records

Bounds, epochs and errors are those of the leader's answer. Invariant: a client receives exactly what the leader answered; batches
from the bucket are those that the leader has committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError, Unavailable
from metadata.measurements import counter
from metadata.model import TopicPartition
from segments.log.session_log import FetchTarget, SessionLog
from segments.read.follower_reader import LocatedTarget
from segments.read.log_reader import FetchResult
from segments.read.record_locations import LeaderSnapshot

Answer = FetchResult | TidelogError
# A target, after the name of its topic.
Named = tuple[str, FetchTarget]

# Time limit of a read of the bucket; then the leader sends the records, and the read continues into the read cache.
READ_S: Final = 10.0
# The least time between two warnings about locations that cannot be read.
WARNING_S: Final = 60.0

log = logging.getLogger(__name__)


class FetchAtPeer(Protocol):
    """Fetches from another broker, as PeerReader.fetch."""

    async def __call__(
        self, leader: BrokerRegistration, targets: Sequence[Named], *, bytes_max: int, bytes_min: int, wait_ms_max: float
    ) -> list[Answer]: ...


_READS = "tidelog_rack_reads"
_READ_BYTES = "tidelog_rack_read_bytes"


@dataclass(slots=True)
class RackReadCounters:
    """Counts answers with records of other brokers' partitions to clients of this broker's rack, since the process began."""

    bucket_reads: int = counter(_READS, "Partitions led elsewhere, answered to readers of this broker's rack.", source="bucket")
    leader_reads: int = counter(_READS, source="leader")
    bucket_bytes: int = counter(
        _READ_BYTES, "Bytes of the batches of partitions led elsewhere, answered to readers of this broker's rack.", source="bucket"
    )
    leader_bytes: int = counter(_READ_BYTES, source="leader")
    failures: int = counter(
        "tidelog_rack_read_failures", "Partitions that this broker could not read from the bucket, and asked of their leaders."
    )


class FollowerFetch:
    """Fetches from leaders in other racks, and reads the records from the bucket for clients of this broker's rack."""

    def __init__(self, fetch_at_peer: FetchAtPeer, log: Callable[[], SessionLog], *, rack: str, part_bytes_min: int) -> None:
        """`log` returns the log of the present session; it raises NoLeader or Stopping while there is none.

        `part_bytes_min` is the least size of records that this broker reads from the bucket.
        """
        self._fetch_at_peer = fetch_at_peer
        self._log = log
        self._rack = rack
        self._part_bytes_min = part_bytes_min
        self.counters = RackReadCounters()
        self._warns_s = 0.0

    def locations_bytes_min(self, client_rack: str) -> int | None:
        """Returns FetchTarget.locations_bytes_min for a client of this rack; None if leaders send it the records."""
        return self._part_bytes_min if client_rack and client_rack == self._rack else None

    async def fetch(
        self,
        leader: BrokerRegistration,
        targets: Sequence[Named],
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: float,
        on_answer: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """Fetches from one leader, as PeerReader.fetch. Calls `on_answer` after the leader's answer, before it reads the bucket."""
        asked = _requests(targets, is_near=leader.rack == self._rack)
        answers = await self._fetch_at_peer(leader, asked, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        on_answer()
        located = [at for at, answer in enumerate(answers) if isinstance(answer, FetchResult) and answer.located is not None]
        if located:
            for at, read in zip(
                located, await self._read_bucket([(asked[at], answers[at]) for at in located], bytes_max), strict=True
            ):
                answers[at] = read
            await self._fetch_missing(leader, asked, answers, located, bytes_max)
        if bytes_max > 1:  # else it was a probe; the fetch that follows is counted
            self._count(asked, answers, set(located))
        return answers

    async def _read_bucket(self, located: Sequence[tuple[Named, Answer]], bytes_max: int) -> list[Answer]:
        locations = [
            LocatedTarget(
                topic, target, LeaderSnapshot(answer.located, answer.high_watermark, answer.log_start_offset, answer.leader_epoch)
            )
            for (topic, target), answer in located
            if isinstance(answer, FetchResult) and answer.located is not None
        ]
        try:
            async with asyncio.timeout(READ_S):
                return await self._log().reads.located.fetch(locations, bytes_max=bytes_max)
        except TimeoutError:
            return [Unavailable(f"the bucket has not been read within {READ_S:g} s")] * len(locations)
        except TidelogError as error:
            return [error.with_traceback(None)] * len(locations)

    async def _fetch_missing(
        self, leader: BrokerRegistration, asked: Sequence[Named], answers: list[Answer], located: list[int], bytes_max: int
    ) -> None:
        """Fetches the records of unreadable locations from the leader.

        If no record was read at all, it fetches every one: the leader would return the same locations again at once.
        """
        is_nothing = not any(_has_records(answers[at]) for at in located)
        missing = [at for at in located if is_nothing or isinstance(answers[at], TidelogError)]
        if not missing:
            return
        self.counters.failures += len(missing)
        self._warn(leader, answers[missing[0]])
        plain = [(asked[at][0], asked[at][1]._replace(locations_bytes_min=None)) for at in missing]
        records = await self._fetch_at_peer(leader, plain, bytes_max=bytes_max, bytes_min=0, wait_ms_max=0)
        for at, answer in zip(missing, records, strict=True):
            answers[at] = answer
            located.remove(at)

    def _warn(self, leader: BrokerRegistration, met: Answer) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._warns_s:
            return
        self._warns_s = now_s + WARNING_S
        why = met if isinstance(met, TidelogError) else "no records at these locations"
        log.warning(
            "reading located records failed leader=%s rack=%s: %s; fetching them from the leader",
            leader.broker_id,
            self._rack,
            why,
        )

    def _count(self, asked: Sequence[Named], answers: Sequence[Answer], read_here: set[int]) -> None:
        counters = self.counters
        for at, ((_, target), answer) in enumerate(zip(asked, answers, strict=True)):
            if isinstance(answer, TidelogError) or not answer.size_bytes:
                continue
            if at in read_here:
                counters.bucket_reads += 1
                counters.bucket_bytes += answer.size_bytes
            elif target.locations_bytes_min is not None:
                counters.leader_reads += 1
                counters.leader_bytes += answer.size_bytes


def _requests(targets: Sequence[Named], *, is_near: bool) -> list[Named]:
    """Returns the targets with locations requested at most once a partition, and never from a leader of this rack."""
    asked: list[Named] = []
    seen: set[TopicPartition] = set()
    for topic, target in targets:
        if target.locations_bytes_min is not None and (is_near or target.partition in seen):
            target = target._replace(locations_bytes_min=None)
        seen.add(target.partition)
        asked.append((topic, target))
    return asked


def _has_records(answer: Answer) -> bool:
    return isinstance(answer, FetchResult) and answer.size_bytes > 0

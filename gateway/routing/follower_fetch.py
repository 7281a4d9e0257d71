"""Fetches from leaders, for readers of this broker's rack: the leader tells where the records lie, and this broker reads them.

    targets that name a least size of parts ─▶ the leader, of another rack ─▶ places ─▶ read here, from the bucket ─▶ batches
                                                       └ records (they are small, or it knows nothing of places) ─▶ as they are
    what can't be read here ─────────────────────────▶ the leader, once more: its records

Bounds, epochs and errors are the leader's, of this very question. Invariant: a reader is located nothing, and refused nothing, that
the leader does not say; where records come from the bucket, they are those that the leader has committed.
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
from segments.read.follower_reader import ToldTarget
from segments.read.log_reader import FetchResult
from segments.read.record_locations import LeaderSnapshot

Answer = FetchResult | TidelogError
# A target with the name of its topic.
Named = tuple[str, FetchTarget]

# After which the leader is asked for what is still being read here; that goes on into the cold pool.
READ_S: Final = 10.0
# Between two warnings of what can't be read here.
WARNING_S: Final = 60.0

log = logging.getLogger(__name__)


class FetchAtPeer(Protocol):
    """PeerReader.fetch."""

    async def __call__(
        self, leader: BrokerRegistration, targets: Sequence[Named], *, bytes_max: int, bytes_min: int, wait_ms_max: float
    ) -> list[Answer]: ...


_READS = "tidelog_rack_reads"
_READ_BYTES = "tidelog_rack_read_bytes"


@dataclass(slots=True)
class RackReadCounters:
    """Counts answers with records to readers of this broker's rack, of partitions that others lead, since the process began."""

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
    def __init__(self, fetch_at_peer: FetchAtPeer, log: Callable[[], SessionLog], *, rack: str, part_bytes_min: int) -> None:
        """`log`: of the present session; raises NoLeader or Stopping while there is none."""
        self._fetch_at_peer = fetch_at_peer
        self._log = log
        self._rack = rack
        self._part_bytes_min = part_bytes_min
        self.counters = RackReadCounters()
        self._warns_s = 0.0

    def places_bytes_min(self, client_rack: str) -> int | None:
        """Of the targets of a reader of this rack; None: whoever leads sends the records."""
        return self._part_bytes_min if client_rack and client_rack == self._rack else None

    async def fetch(
        self, leader: BrokerRegistration, targets: Sequence[Named], *, bytes_max: int, bytes_min: int, wait_ms_max: float
    ) -> list[Answer]:
        """As PeerReader.fetch."""
        asked = _requests(targets, is_near=leader.rack == self._rack)
        answers = await self._fetch_at_peer(leader, asked, bytes_max=bytes_max, bytes_min=bytes_min, wait_ms_max=wait_ms_max)
        located = [at for at, answer in enumerate(answers) if isinstance(answer, FetchResult) and answer.located is not None]
        if located:
            for at, read in zip(
                located, await self._read_bucket([(asked[at], answers[at]) for at in located], bytes_max), strict=True
            ):
                answers[at] = read
            await self._fetch_missing(leader, asked, answers, located, bytes_max)
        if bytes_max > 1:  # else it was a look, and what it has seen is read later
            self._count(asked, answers, set(located))
        return answers

    async def _read_bucket(self, located: Sequence[tuple[Named, Answer]], bytes_max: int) -> list[Answer]:
        places = [
            ToldTarget(
                topic, target, LeaderSnapshot(answer.located, answer.high_watermark, answer.log_start_offset, answer.leader_epoch)
            )
            for (topic, target), answer in located
            if isinstance(answer, FetchResult) and answer.located is not None
        ]
        try:
            async with asyncio.timeout(READ_S):
                return await self._log().reads.located.fetch(places, bytes_max=bytes_max)
        except TimeoutError:
            return [Unavailable(f"the bucket has not been read within {READ_S:g} s")] * len(places)
        except TidelogError as error:
            return [error.with_traceback(None)] * len(places)

    async def _fetch_missing(
        self, leader: BrokerRegistration, asked: Sequence[Named], answers: list[Answer], located: list[int], bytes_max: int
    ) -> None:
        """Takes the leader's records of what could not be read here. Where nothing at all was read, that is all of it: the leader
        has said that there is something, and would say so again, at once."""
        is_nothing = not any(_has_records(answers[at]) for at in located)
        missing = [at for at in located if is_nothing or isinstance(answers[at], TidelogError)]
        if not missing:
            return
        self.counters.failures += len(missing)
        self._warn(leader, answers[missing[0]])
        plain = [(asked[at][0], asked[at][1]._replace(places_bytes_min=None)) for at in missing]
        records = await self._fetch_at_peer(leader, plain, bytes_max=bytes_max, bytes_min=0, wait_ms_max=0)
        for at, answer in zip(missing, records, strict=True):
            answers[at] = answer
            located.remove(at)

    def _warn(self, leader: BrokerRegistration, met: Answer) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._warns_s:
            return
        self._warns_s = now_s + WARNING_S
        why = met if isinstance(met, TidelogError) else "nothing was found where it should lie"
        log.warning(
            "what broker %s leads can't be read from the bucket for readers of rack %s, and comes from there: %s",
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
            elif target.places_bytes_min is not None:
                counters.leader_reads += 1
                counters.leader_bytes += answer.size_bytes


def _requests(targets: Sequence[Named], *, is_near: bool) -> list[Named]:
    """What the leader is asked: for places no more than once for each partition, and not where its records cost nothing."""
    asked: list[Named] = []
    seen: set[TopicPartition] = set()
    for topic, target in targets:
        if target.places_bytes_min is not None and (is_near or target.partition in seen):
            target = target._replace(places_bytes_min=None)
        seen.add(target.partition)
        asked.append((topic, target))
    return asked


def _has_records(answer: Answer) -> bool:
    return isinstance(answer, FetchResult) and answer.size_bytes > 0

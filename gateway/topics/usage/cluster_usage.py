"""Adds up what all brokers know of bytes, rates and requests.

    this broker ─┐
    the others ──┴▶ at the same time, each for ASK_TIMEOUT_S at most ─▶ sums by topic and by kind of request ─▶ kept for KEPT_S

A broker that does not answer is named; its partitions are missing in the sums. Invariant: however many requests come, each broker
is asked once in KEPT_S by this one.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

from gateway.concurrency.offload import BoundedExecutor
from gateway.proto import admin_pb2
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import TidelogError
from metadata.model import TopicId

METHOD: Final = "/tidelog.v1.Cluster/DescribeUsage"
ASK_TIMEOUT_S: Final = 3.0
KEPT_S: Final = 5.0


class TopicFigures(NamedTuple):
    """Holds what is known of one topic, over its partitions with a leader that answered."""

    partitions: int = 0
    # Batches in segments that are in no Parquet file yet.
    segment_bytes: int = 0
    # Parquet files of the newest manifests.
    parquet_bytes: int = 0
    parquet_files: int = 0
    bytes_in_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    # Bytes written a second, minute by minute, the newest last.
    history: Sequence[float] = ()

    @property
    def is_of_note(self) -> bool:
        """Returns whether the topic was written or read in the last minutes, or waits for compaction."""
        return bool(self.segment_bytes or self.bytes_in_per_second or self.bytes_out_per_second or self.history)

    @property
    def bytes(self) -> int:
        return self.segment_bytes + self.parquet_bytes


class RequestFigures(NamedTuple):
    """Holds requests to the bucket of one operation and kind since the brokers began, and their rates since then."""

    operation: str
    kind: str
    requests: int
    bytes: int
    requests_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """Holds the sums over all brokers that answered; it is never changed."""

    topics: Mapping[TopicId, TopicFigures]
    requests: tuple[RequestFigures, ...]
    # Segments committed a second, of each broker.
    segments_per_second: tuple[float, ...]
    # How long the youngest and the oldest broker have counted.
    uptime_min_s: float
    uptime_max_s: float
    # Whether the requests of a compactor are among these.
    compacts: bool
    brokers: tuple[str, ...]
    # Why a broker did not answer, by its id.
    silent: Mapping[str, str]
    topics_left_out: int


def added_up(usages: Mapping[str, admin_pb2.BrokerUsage], silent: Mapping[str, str]) -> ClusterUsage:
    """Returns the sums of what the brokers answered, by their ids. Pure."""
    topics: dict[TopicId, TopicFigures] = {}
    requests: dict[tuple[str, str], RequestFigures] = {}
    for usage in usages.values():
        for one in usage.topics:
            topic_id = TopicId(one.topic_id)
            found = TopicFigures(
                one.partitions,
                one.segment_bytes,
                one.parquet_bytes,
                one.parquet_files,
                one.bytes_in_per_second,
                one.bytes_out_per_second,
                array("f", one.history),
            )
            held = topics.get(topic_id)
            topics[topic_id] = found if held is None else _sum(held, found)
        for made in usage.requests:
            sums = requests.get((made.operation, made.kind)) or RequestFigures(made.operation, made.kind, 0, 0, 0.0, 0.0)
            requests[made.operation, made.kind] = sums._replace(
                requests=sums.requests + made.requests,
                bytes=sums.bytes + made.bytes,
                requests_per_second=sums.requests_per_second + made.requests / max(1.0, usage.uptime_seconds),
                bytes_per_second=sums.bytes_per_second + made.bytes / max(1.0, usage.uptime_seconds),
            )
    uptimes = [usage.uptime_seconds for usage in usages.values()]
    return ClusterUsage(
        topics=topics,
        requests=tuple(requests[key] for key in sorted(requests)),
        segments_per_second=tuple(usage.segments / max(1.0, usage.uptime_seconds) for usage in usages.values()),
        uptime_min_s=min(uptimes, default=0.0),
        uptime_max_s=max(uptimes, default=0.0),
        compacts=any(usage.compacts for usage in usages.values()),
        brokers=tuple(usages),
        silent=dict(silent),
        topics_left_out=sum(usage.topics_left_out for usage in usages.values()),
    )


def _sum(one: TopicFigures, other: TopicFigures) -> TopicFigures:
    return TopicFigures(
        one.partitions + other.partitions,
        one.segment_bytes + other.segment_bytes,
        one.parquet_bytes + other.parquet_bytes,
        one.parquet_files + other.parquet_files,
        one.bytes_in_per_second + other.bytes_in_per_second,
        one.bytes_out_per_second + other.bytes_out_per_second,
        sum_of_histories(one.history, other.history),
    )


def sum_of_histories(*histories: Sequence[float]) -> tuple[float, ...]:
    """Adds histories whose newest values belong together; a shorter one had nothing before it began. Pure."""
    newest_first = zip_longest(*(history[::-1] for history in histories), fillvalue=0.0)
    return tuple(map(sum, newest_first))[::-1]


class ClusterUsageReader:
    """Asks all brokers, and keeps the sums for KEPT_S."""

    def __init__(
        self,
        own: Callable[[], Awaitable[admin_pb2.BrokerUsage]],
        peers: PeerChannels,
        registrations: Callable[[], Iterable[BrokerRegistration]],
        *,
        broker_id: str,
    ) -> None:
        """`own` returns what this broker knows. `registrations` are those of all brokers, with this one or without it."""
        self._own = own
        self._peers = peers
        self._registrations = registrations
        self._broker_id = broker_id
        self._threads = BoundedExecutor(1)
        self._asking = asyncio.Lock()
        self._kept: ClusterUsage | None = None
        self._kept_until_s = 0.0

    async def read(self) -> ClusterUsage:
        """Returns the sums, at most KEPT_S old."""
        clock = asyncio.get_running_loop()
        async with self._asking:  # those that wait find the sums of the first
            if self._kept is None or clock.time() >= self._kept_until_s:
                self._kept = await self._asked()
                self._kept_until_s = clock.time() + KEPT_S
            return self._kept

    async def _asked(self) -> ClusterUsage:
        others = [each for each in self._registrations() if each.broker_id != self._broker_id]
        own, *answers = await asyncio.gather(self._own(), *(self._answer(each) for each in others))
        assert isinstance(own, admin_pb2.BrokerUsage)
        usages, silent = {self._broker_id: own}, {}
        for broker, answer in zip(others, answers, strict=True):
            if isinstance(answer, TidelogError):
                silent[broker.broker_id] = answer.message
            else:
                usages[broker.broker_id] = answer
        return await self._threads.run(lambda: added_up(usages, silent))

    async def _answer(self, broker: BrokerRegistration) -> admin_pb2.BrokerUsage | TidelogError:
        try:
            return await self._peers.call(
                broker, METHOD, admin_pb2.DescribeUsageRequest(), admin_pb2.BrokerUsage, timeout_s=ASK_TIMEOUT_S
            )
        except TidelogError as error:
            return error.with_traceback(None)

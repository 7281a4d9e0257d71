"""Builds what this broker knows of bytes, rates and requests: for itself, and as its answer to the other brokers.

The sizes are those of the partitions that it leads, so the sum over brokers is that of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from gateway.concurrency.offload import BoundedExecutor
from gateway.proto import admin_pb2
from gateway.telemetry.log_metrics import stored_bytes
from gateway.topics.usage.topic_rates import TICK_S, TopicRates
from metadata.errors import TidelogError
from metadata.model import TopicId, TopicPartition
from metadata.topics.cache import TopicCache
from segments.counters import LogCounters
from segments.log.session_log import SessionLog
from segments.object_store.instrumented import BucketMeter
from segments.partition.leader_partitions import LeaderPartition

# Topics in one answer, some 200 bytes each; those with the most bytes come first.
TOPICS_MAX: Final = 20_000


class BrokerUsageMeter:
    """Follows the traffic of this broker, and reads the sizes of its partitions. Its owner runs `run()` as a task."""

    def __init__(
        self,
        counters: LogCounters,
        meter: BucketMeter,
        log: Callable[[], SessionLog | None],
        topics: TopicCache,
        *,
        compacts: bool,
    ) -> None:
        """`log` is that of the present session; None without one. `compacts`: this process runs a compactor."""
        self._counters = counters
        self._meter = meter
        self._log = log
        self._topics = topics
        self._compacts = compacts
        self._threads = BoundedExecutor(1)
        self._rates: TopicRates | None = None
        self._began_s = 0.0

    async def run(self) -> None:
        """Ends a tick of the rates every TICK_S, until cancelled."""
        clock = asyncio.get_running_loop()
        self._rates = self._new_rates(clock.time())
        while True:
            await asyncio.sleep(TICK_S)
            try:
                known = {topic.id for topic in self._topics.topics()}
            except TidelogError:  # not read yet
                continue
            self._rates.tick(known, now_s=clock.time())

    async def usage(self) -> admin_pb2.BrokerUsage:
        """Returns what is known now, from memory."""
        now_s = asyncio.get_running_loop().time()
        rates = self._rates if self._rates is not None else self._new_rates(now_s)  # one without topics is false
        log = self._log()
        led = log.partitions.copy() if log is not None else {}
        active = rates.topics()
        return await self._threads.run(lambda: self._built(rates, led, active, now_s))

    def _new_rates(self, now_s: float) -> TopicRates:
        self._began_s = self._began_s or now_s
        return TopicRates(self._counters.topic_bytes_in, self._counters.topic_bytes_out, now_s=now_s)

    def _built(
        self, rates: TopicRates, led: Mapping[TopicPartition, LeaderPartition], active: set[TopicId], now_s: float
    ) -> admin_pb2.BrokerUsage:
        topics = {topic_id: admin_pb2.TopicUsage(topic_id=topic_id) for topic_id in active}
        for at, partition in led.items():
            usage = topics.get(at.topic_id)
            if usage is None:
                usage = topics[at.topic_id] = admin_pb2.TopicUsage(topic_id=at.topic_id)
            stored = stored_bytes(partition)
            usage.partitions += 1
            usage.segment_bytes += stored.segments
            usage.parquet_bytes += stored.parquet
            if partition.history is not None:
                usage.parquet_files += len(partition.history.manifest.files)
        shown = sorted(topics.values(), key=lambda each: each.segment_bytes + each.parquet_bytes, reverse=True)[:TOPICS_MAX]
        for usage in shown:
            rate = rates.rate(TopicId(usage.topic_id), now_s=now_s)
            usage.bytes_in_per_second, usage.bytes_out_per_second = rate.bytes_in_per_second, rate.bytes_out_per_second
            if any(rate.history):
                usage.history.extend(rate.history)
        meter = self._meter
        return admin_pb2.BrokerUsage(
            uptime_seconds=max(1.0, now_s - self._began_s),
            topics=shown,
            requests=[
                admin_pb2.BucketRequests(operation=operation, kind=kind, requests=count, bytes=meter.request_bytes[operation, kind])
                for (operation, kind), count in sorted(meter.requests.copy().items())
            ],
            compacts=self._compacts,
            segments=self._counters.segments,
            topics_left_out=max(0, len(topics) - len(shown)),
        )

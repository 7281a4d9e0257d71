"""A client of a simulated world that asks for DeleteRecords now and then, and writes down what it was answered, if it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from metadata.errors import TidelogError
from metadata.model import Offset, TopicPartition
from segments.log.manifest_follower import HIGH_WATERMARK
from segments.log.session_log import SessionLog
from tests.simulation.clients import Clients
from tests.simulation.policy_judge import Deleted
from tests.simulation.policy_model import Asked
from tests.simulation.virtual_loop import virtual_loop


class RecordDeleter:
    def __init__(self, clients: Clients, partitions: Callable[[], Sequence[TopicPartition]], *, each_s: float) -> None:
        """`partitions`: those that there are now."""
        self._clients = clients
        self._partitions = partitions
        self._each_s = each_s
        self._chance = random.Random(f"{clients.seed}/deleter")
        self.asked: list[Asked] = []
        self.deleted: list[Deleted] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._each_s))
            await self._delete_some(self._chance.choice(self._partitions()))

    async def _delete_some(self, partition: TopicPartition) -> None:
        chance = self._chance
        broker = self._clients.route(chance, partition)
        share = chance.choice((0.05, 0.3, 0.9, 1.0))
        asked: list[Asked] = []

        async def delete(log: SessionLog) -> Offset:
            bounds = log.partitions.bounds(partition)
            before = bounds.log_start_offset + int(share * (bounds.high_watermark - bounds.log_start_offset))
            asked.append(Asked(str(partition), before, virtual_loop().now_ms()))
            self.asked += asked
            return await log.manifests.delete_records(partition, HIGH_WATERMARK if share == 1.0 else before)

        try:
            latency_s, timeout_s = chance.uniform(0.0005, 0.005), chance.choice((0.2, 5.0, 20.0))
            start = await broker.call(delete, latency_s=latency_s, timeout_s=timeout_s, hang_up=chance.random() < 0.5)
        except TidelogError as error:
            self._clients.note(f"the deleter was answered {error.code} for {partition}")
        else:
            reported = Deleted(str(partition), asked[0].before_offset, start, virtual_loop().now_ms())
            self.deleted.append(reported)
            self._clients.note(repr(reported))

"""A producer in bad weather: faults, broken streams, restarts, stalls, programs that give up waiting."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

import tidelog
from metadata.errors import NotLeader, OutcomeUnknown, Throttled, TidelogError
from segments.records.header import BatchHeader
from tests.kit.tidelog.producing import impatient, outcome_of, quick, until
from tests.kit.tidelog.small_broker import BreakStream, SmallBroker
from tidelog.producer import partition_queue

pytestmark = pytest.mark.slow

# Programs at one client, and what each of them sends, one after the other.
WORKERS, RECORDS = 6, 80


class Weather:
    """What goes wrong at the broker, by chance."""

    def __init__(self, broker: SmallBroker, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self.is_bad = True
        broker.before_append = broker.after_append = self._fault

    def _fault(self, topic: str, partition: int, header: BatchHeader) -> None:
        if self.is_bad and self._chance.random() < 0.05:
            faults = [Throttled("full", retry_after_s=0.001), NotLeader("moved"), OutcomeUnknown("slow"), BreakStream()]
            raise self._chance.choice(faults[2:] if self._broker.partitions[topic, partition].values() else faults)

    async def blow(self) -> None:
        while self.is_bad:
            received = len(self._broker.requests)
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            match self._chance.choice(["restart", "stall", "grow", "calm", "calm"]):
                case "restart":
                    await self._broker.stop()
                    await asyncio.sleep(self._chance.uniform(0, 0.01))
                    await self._broker.start()
                case "stall":
                    stalled = self._chance.choice([self._broker.answering, self._broker.reading, self._broker.taking_up])
                    stalled.clear()
                    await asyncio.sleep(self._chance.uniform(0, 0.02))
                    stalled.set()
                case "grow":
                    self._broker.topics["orders"].partition_count = min(6, self._broker.topics["orders"].partition_count + 1)
            await self._a_request_after(received)

    async def _a_request_after(self, received: int) -> None:
        """Returns once more requests than `received` have come, so that faults are no more frequent where all is slow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):  # no producer may have anything to send
                while self.is_bad and len(self._broker.requests) <= received:  # noqa: ASYNC110  # the broker has no event for it
                    await asyncio.sleep(0.001)


class Worker:
    """Sends one record after the other; gives up waiting now and then, for room or for an acknowledgement."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.values = [b"%d.%d " % (number, n) + bytes(chance.randrange(300)) for n in range(RECORDS)]
        self.given_up: set[bytes] = set()
        """Without a handle: they may have been sent all the same."""
        self.outcomes: dict[bytes, tidelog.Ack | TidelogError] = {}
        self._key = b"%d" % number if number % 2 else None
        self._chance = chance

    async def run(self, log: tidelog.Client) -> None:
        deliveries: dict[bytes, tidelog.Delivery] = {}
        for value in self.values:
            patience_s = None if self._chance.random() < 0.8 else self._chance.uniform(0, 0.02)
            try:
                async with asyncio.timeout(patience_s):
                    deliveries[value] = delivery = await log.send("orders", value, key=self._key)
                    if self._chance.random() < 0.1:
                        await outcome_of(delivery)
            except TimeoutError:
                if value not in deliveries:
                    self.given_up.add(value)
            except TidelogError as error:
                self.outcomes[value] = error
        for value, delivery in deliveries.items():
            self.outcomes[value] = await outcome_of(delivery)


@pytest.mark.parametrize("seed", range(6))
def test_each_record_is_there_once_and_in_order_or_its_failure_was_reported(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every other seed, records have so little time that many of them fail."""
    monkeypatch.setattr(partition_queue, "ANSWER_GRACE_S", 0.02)
    chance = random.Random(seed)
    workers = [Worker(number, chance) for number in range(WORKERS)]

    async def run() -> SmallBroker:
        broker = SmallBroker()
        await broker.start()
        broker.create_topic("orders", 2)
        settings = quick(
            buffer_bytes_max=6_000,
            batch_bytes_max=chance.choice([400, 1_500]),
            linger_ms=1,
            topic_age_ms_max=20,
            delivery_timeout_ms=25 if seed % 2 else 20_000,
        )
        async with asyncio.timeout(240), tidelog.connect(broker.address, **settings) as log:
            impatient(log, connect_timeout_ms=200)
            weather = Weather(broker, chance)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(weather.blow())
                await asyncio.wait([tasks.create_task(worker.run(log)) for worker in workers])
                weather.is_bad = False
            with suppress(TidelogError):  # of records that somebody gave up waiting for
                await log.flush()
            await until(lambda: not log._producer._accumulator.ways)
            assert log._producer._accumulator.buffered_bytes == 0
            assert not log._producer._room.waiting
        outcomes = [outcome for worker in workers for outcome in worker.outcomes.values()]
        acked = sum(isinstance(outcome, tidelog.Ack) for outcome in outcomes)
        assert acked <= log.outcomes.acknowledged <= acked + sum(len(worker.given_up) for worker in workers)
        assert acked > WORKERS * RECORDS / 2 or seed % 2
        await broker.stop()
        return broker

    broker = asyncio.run(run())
    held = [[value or b"" for value in broker.partitions["orders", partition].values()] for partition in range(6)]
    assert set(Counter(value for values in held for value in values).values()) <= {1}, "doubled"
    for worker in workers:
        for value, outcome in worker.outcomes.items():
            if isinstance(outcome, tidelog.Ack):
                assert held[outcome.partition][outcome.offset] == value, "an acknowledgement lied"
            elif outcome.nothing_was_written:
                assert not any(value in values for values in held), "it was said that nothing was written"
        assert len(worker.outcomes) + len(worker.given_up) == RECORDS, "a record without an outcome"
        order = {value: index for index, value in enumerate(worker.values)}
        for values in held:
            indexes = [order[value] for value in values if value in order]
            assert indexes == sorted(indexes), "out of order"

"""What a one-shot producer has written is found in every partition that is led here, from the append on and after a takeover."""

from __future__ import annotations

import pytest

from metadata.errors import IdempotencyKeyReused, StaleRouting
from metadata.model import LeaderEpoch, Offset, ProducerId, TopicPartition
from segments.log.keyed_routing import AnyRouting
from segments.log.session_log import SessionLog
from segments.object_store.store_clock import StoreClock
from segments.partition.producer_state import ONE_SHOT, SequencedBatch
from segments.recovery.recover import recover
from tests.kit.segments.batches import BY, ORDERS, PAYMENTS, TIMESTAMP_MS, led, partition_of, sequenced_batch
from tests.kit.segments.serving import SETTINGS, append, bucket, produce, serving, with_log
from tests.simulation.virtual_loop import run, virtual_loop

KEY = ProducerId(ONE_SHOT + 7)
ELSEWHERE = partition_of(9)
ASKED = (ORDERS, PAYMENTS, ELSEWHERE)


def test_a_batch_is_found_from_its_append_on_and_partitions_led_elsewhere_are_not_asked() -> None:
    async def work(log: SessionLog) -> None:
        assert log.written_once(ASKED, KEY) == {}
        await append(log, sequenced_batch(KEY, 0x55, b"a", b"b", producer_epoch=3))
        found = log.written_once(ASKED, KEY)
        assert found == {ORDERS: SequencedBatch(KEY, 3, 0x55, 0x56, Offset(0), Offset(1), TIMESTAMP_MS + 1)}
        assert log.written_once((PAYMENTS, ELSEWHERE), KEY) == {}
        assert log.written_once(ASKED, ProducerId(KEY + 1)) == {}
        await append(log, sequenced_batch(KEY, 0x55, b"c", producer_epoch=3), partition=PAYMENTS)
        assert log.written_once(ASKED, KEY).keys() == {ORDERS, PAYMENTS}
        log.stop_leading(PAYMENTS)
        assert log.written_once(ASKED, KEY).keys() == {ORDERS}

    with_log(bucket(), work)


def test_a_successor_finds_what_was_committed() -> None:
    async def work() -> None:
        store = bucket()
        async with serving(store) as log:
            await produce(log, sequenced_batch(KEY, 0x55, b"a", producer_epoch=12))
        spans = {ORDERS: [led(7)], PAYMENTS: [led(7)]}
        recovered = await recover(store, spans, by=BY, settings=SETTINGS, now_ms=virtual_loop().now_ms)
        partitions = [found for found in recovered.values() if not isinstance(found, Exception)]
        async with serving(store, session=BY, recovered=tuple(partitions)) as log:
            batch = SequencedBatch(KEY, 12, 0x55, 0x55, Offset(0), Offset(0), TIMESTAMP_MS)
            assert log.written_once(ASKED, KEY) == {ORDERS: batch}

    run(work())


class _Grown(AnyRouting):
    """What a leader knows once the topic has more partitions than keyed requests were routed over."""

    def check(self, partition: TopicPartition, leader_epoch: LeaderEpoch, partition_count: int) -> None:
        raise StaleRouting(f"it was routed over {partition_count} partitions")


def test_a_batch_of_the_same_request_that_was_routed_over_another_count_is_no_repeat() -> None:
    async def work(log: SessionLog) -> None:
        await append(log, sequenced_batch(KEY, 0x55, b"a", producer_epoch=3))
        with pytest.raises(StaleRouting, match="routed over 4 partitions, and a part of it is written that was routed over 3"):
            await append(log, sequenced_batch(KEY, 0x55, b"b", producer_epoch=4))
        with pytest.raises(IdempotencyKeyReused):
            await append(log, sequenced_batch(KEY, 0x66, b"b", producer_epoch=4))
        assert log.written_once([ORDERS], KEY).keys() == {ORDERS}

    with_log(bucket(), work)


@pytest.mark.parametrize("heard", [True, False], ids=["the bucket reports its time", "the bucket reports no time"])
def test_a_leader_whose_clock_jumps_ahead_keeps_its_producers_if_the_bucket_reports_its_time(heard: bool) -> None:
    async def work() -> None:
        loop, ahead_ms = virtual_loop(), 0
        clock = StoreClock(lambda: loop.now_ms() + ahead_ms, steady=loop.time)
        async with serving(bucket(), clock=clock) as log:
            await produce(log, sequenced_batch(5, 0, b"a"))
            await produce(log, sequenced_batch(KEY, 0x55, b"a", producer_epoch=3))
            if heard:
                clock.heard(loop.now_ms(), asked_s=loop.time())
            ahead_ms = SETTINGS.producer_expiry_ms
            assert bool(log.written_once([ORDERS], KEY)) == heard
            log.routing = _Grown()
            if heard:
                assert (await produce(log, sequenced_batch(KEY, 0x55, b"a", producer_epoch=3))).duplicate
            else:
                with pytest.raises(StaleRouting):
                    await produce(log, sequenced_batch(KEY, 0x55, b"a", producer_epoch=3))
            again = await produce(log, sequenced_batch(5, 0, b"a"))
            assert again.duplicate == heard

    run(work())

"""The log of one session, whole: from the admission of a batch to its commit, and from one session to the next."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace

from metadata.errors import (
    ConditionFailed,
    Corrupt,
    NoLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    OutOfRange,
    SessionFenced,
    Stopping,
    Throttled,
    TooLarge,
    Unavailable,
    UnknownProducer,
)
from metadata.model import LeaderEpoch, Offset
from segments.byte_budget import ByteBudget
from segments.deadline import Deadline
from segments.log.session_log import Acks, SessionLog, memory_bytes
from segments.partition.partition_log import Appended, TimestampPolicy
from segments.read.tail_cache import BATCH_MEMORY_BYTES
from segments.records.batch import parse_header
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from tests.kit.segments.batches import (
    BY,
    EPOCH,
    ORDERS,
    PAYMENTS,
    SESSION,
    batch_of,
    header_of,
    key_of,
    led,
    partition_of,
    records_in,
    seal_of,
    sequenced_batch,
)
from tests.kit.segments.scripted_store import LOST_ANSWER, REFUSED, SILENCE, slow
from tests.kit.segments.serving import SETTINGS, append, bucket, fetch, now_s, produce, refusal_of, serving, values, with_log
from tests.simulation.virtual_loop import run, virtual_loop

# ── produce ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_acknowledged_when_it_is_committed_and_is_readable_at_once() -> None:
    async def work(log: SessionLog) -> None:
        assert await produce(log, batch_of(b"a", b"b")) == Appended(Offset(0), Offset(1), EPOCH)
        assert now_s() == 0.04
        assert await produce(log, batch_of(b"c")) == Appended(Offset(2), Offset(2), EPOCH)
        assert await values(log) == [b"a", b"b", b"c"]

    with_log(bucket(put_s=0.04), work)


def test_with_acks_of_the_leader_the_answer_comes_at_once_and_the_record_is_readable_when_it_is_committed() -> None:
    async def work(log: SessionLog) -> None:
        assert (await produce(log, acks=Acks.LEADER)).base_offset == 0
        assert now_s() == 0
        assert log.partitions.bounds(ORDERS).high_watermark == 0
        assert await values(log) == []
        await asyncio.sleep(1)
        assert await values(log) == [b"v"]

    with_log(bucket(put_s=0.5), work)


def test_an_uncommitted_record_is_not_readable_even_if_its_segment_has_landed() -> None:
    store = bucket()
    store.script("create", key_of(0), slow(5))

    async def work(log: SessionLog) -> None:
        first = await append(log, batch_of(b"a"))
        await asyncio.sleep(0.1)
        second = await append(log, batch_of(b"b"))
        await asyncio.sleep(1)
        assert store.has(key_of(1))
        assert await values(log) == []
        assert isinstance(await refusal_of(fetch(log, 1)), OutOfRange)
        assert (await second.committed(Deadline.after(10))).base_offset == 1
        assert (await first.committed(Deadline.after(0))).base_offset == 0
        assert await values(log) == [b"a", b"b"]

    with_log(store, work, replace(SETTINGS, hedge_after_ms=10_000))


def test_a_partition_that_is_not_led_here_is_refused_and_nothing_is_charged() -> None:
    async def work(log: SessionLog) -> None:
        for refused in (produce(log, partition=partition_of(9)), fetch(log, 0, partition=partition_of(9))):
            assert isinstance(await refusal_of(refused), NoLeader)

    with_log(bucket(), work)


def test_an_append_may_insist_on_the_end_of_the_log() -> None:
    async def work(log: SessionLog) -> None:
        pending = await append(log, batch_of(b"a"), expected_offset=0)
        assert isinstance(await refusal_of(append(log, batch_of(b"b"), expected_offset=0)), ConditionFailed)
        await pending.committed(Deadline.after(1))
        assert await values(log) == [b"a"]

    with_log(bucket(), work)


def test_log_append_time_replaces_the_producers_time() -> None:
    async def work(log: SessionLog) -> None:
        batch = batch_of(b"a", timestamps_ms=[5])
        await asyncio.sleep(2)
        async with log.admit(memory_bytes(len(batch)), timeout_s=1) as admission:
            pending = log.append(ORDERS, batch, header_of(batch), admission, dates=TimestampPolicy(by_broker=True))
        await pending.committed(Deadline.after(1))
        (stored,) = [b"".join((await fetch(log, 0)).batches)]
        header = parse_header(stored)
        assert header.log_append_time
        assert header.max_timestamp == virtual_loop().now_ms()
        assert records_in([stored]) == [(0, b"a")]

    with_log(bucket(), work)


def test_a_repeat_has_the_log_append_time_of_the_first_append_also_from_the_next_leader() -> None:
    async def stored(log: SessionLog, batch: bytes) -> Appended:
        async with log.admit(memory_bytes(len(batch)), timeout_s=1) as admission:
            pending = log.append(ORDERS, batch, header_of(batch), admission, dates=TimestampPolicy(by_broker=True))
        return await pending.committed(Deadline.after(1))

    async def main() -> None:
        store = bucket()
        batches = [sequenced_batch(1, 0, b"a", b"b"), sequenced_batch(1, 2, b"c")]
        async with serving(store) as log:
            first = [await stored(log, batch) for batch in batches]
            await asyncio.sleep(2)
            again = [await stored(log, batch) for batch in batches]
        found = (await recover(store, {ORDERS: [led(SESSION.id)]}, by=BY, settings=SETTINGS, now_ms=virtual_loop().now_ms))[ORDERS]
        assert isinstance(found, RecoveredPartition)
        await asyncio.sleep(2)
        async with serving(store, session=BY, recovered=(found,)) as log:
            again += [await stored(log, batch) for batch in batches]
            new = await stored(log, sequenced_batch(1, 3, b"d"))
        assert [each.duplicate for each in again] == [True] * 4
        assert [each.log_append_time_ms for each in again] == [each.log_append_time_ms for each in first] * 2
        assert 0 < first[0].log_append_time_ms < new.log_append_time_ms

    run(main())


def test_each_producer_of_a_segment_that_was_refused_has_an_error_of_its_own() -> None:
    """One instance for all would carry the traceback of each who raised it, and what one of them notes on it."""
    store = bucket()
    store.plant(key_of(0), seal_of(SESSION.id, 0))

    async def work(log: SessionLog) -> None:
        pending = [await append(log, batch_of(b"%d" % number)) for number in range(20)]
        refusals = await asyncio.gather(*[refusal_of(one.committed(Deadline.after(10))) for one in pending])
        assert {type(refusal) for refusal in refusals} == {SessionFenced}
        assert len({id(refusal) for refusal in refusals}) == 20
        assert len({len(traceback.extract_tb(refusal.__traceback__)) for refusal in refusals}) == 1
        assert len({id(refusal.details) for refusal in refusals}) == 20

    with_log(store, work)


def test_each_reader_of_a_partition_that_is_refused_has_an_error_of_its_own() -> None:
    async def work(log: SessionLog) -> None:
        damaged = partition_of(9)
        log.partitions.mark_damaged(damaged, Corrupt("its segment is gone", key=key_of(0)))
        first, second = [await refusal_of(fetch(log, 0, partition=damaged)) for _ in range(2)]
        assert first is not second
        assert (first.message, first.details) == (second.message, second.details) == ("its segment is gone", {"key": key_of(0)})

    with_log(bucket(), work)


# ── idempotent repeats ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_repeat_of_a_batch_that_is_on_its_way_waits_for_the_same_commit() -> None:
    store = bucket()
    store.script("create", key_of(0), slow(1))

    async def work(log: SessionLog) -> None:
        batch = sequenced_batch(1, 0)
        first, repeat = await append(log, batch), await append(log, batch)
        assert repeat.appended == first.appended._replace(duplicate=True)
        assert repeat.segment is first.segment is not None
        await repeat.committed(Deadline.after(10))
        assert now_s() == 1
        assert await values(log) == [b"p1-s0"]

    with_log(store, work)
    assert store.count("create", key_of(0)) == 1


def test_the_repeat_of_a_committed_batch_is_answered_at_once_with_the_offsets_of_the_first_time() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log)
        first = await produce(log, sequenced_batch(1, 0))
        assert await produce(log, sequenced_batch(1, 0)) == first._replace(duplicate=True)
        assert log.partitions.bounds(ORDERS).end_offset == 2

    with_log(bucket(), work)


def test_a_repeat_after_a_timeout_returns_the_outcome_of_the_first_append() -> None:
    store = bucket()
    store.script("create", key_of(0), slow(5), SILENCE)

    async def work(log: SessionLog) -> None:
        assert isinstance(await refusal_of(produce(log, sequenced_batch(1, 0), timeout_s=1)), OutcomeUnknown)
        assert await produce(log, sequenced_batch(1, 0)) == Appended(Offset(0), Offset(0), EPOCH, duplicate=True)
        assert now_s() == 5

    with_log(store, work)


def test_a_gap_in_the_sequence_is_refused() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log, sequenced_batch(1, 0))
        assert isinstance(await refusal_of(produce(log, sequenced_batch(1, 2))), OutOfOrderSequence)

    with_log(bucket(), work)


def test_producers_that_all_partitions_remember_are_bounded_together() -> None:
    """A request with an Idempotency-Key is a producer of its own: a bound of each partition alone is none of the broker."""

    async def work(log: SessionLog) -> None:
        for producer, partition in ((1, ORDERS), (2, ORDERS), (3, PAYMENTS)):
            await produce(log, sequenced_batch(producer, 0), partition=partition)
            await asyncio.sleep(1)
        assert isinstance(await refusal_of(produce(log, sequenced_batch(1, 1))), UnknownProducer)
        assert (await produce(log, sequenced_batch(2, 1))).base_offset == 2
        log.stop_leading(PAYMENTS)
        await produce(log, sequenced_batch(4, 0))
        assert (await produce(log, sequenced_batch(2, 2))).base_offset == 4

    with_log(bucket(), work, replace(SETTINGS, producers_max=2))


# ── who waits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_that_hangs_up_does_not_stop_the_others() -> None:
    async def work(log: SessionLog) -> None:
        gone, stays = asyncio.create_task(produce(log)), asyncio.create_task(produce(log))
        await asyncio.sleep(0.5)
        gone.cancel()
        assert (await stays).base_offset == 1
        assert gone.cancelled()
        assert await values(log) == [b"v", b"v"]

    with_log(bucket(put_s=1), work)


def test_when_the_buffer_is_full_producers_wait_for_room_and_are_throttled_in_the_end() -> None:
    batch = batch_of(b"x" * 1000)
    room = 2 * (len(batch) + BATCH_MEMORY_BYTES)

    async def work(log: SessionLog) -> None:
        producers = [asyncio.create_task(refusal_of(produce(log, batch, timeout_s=timeout_s))) for timeout_s in (99, 99, 1)]
        await asyncio.sleep(0)
        fourth = asyncio.create_task(produce(log, batch, timeout_s=99))
        assert isinstance(await producers[2], Throttled)
        assert now_s() == 1
        assert (await fourth).base_offset == 2
        for task in producers[:2]:
            task.cancel()

    with_log(bucket(put_s=3), work, replace(SETTINGS, buffer_bytes_max=room, segment_bytes_max=room, hedge_after_ms=10_000))


def test_a_batch_larger_than_the_buffer_is_refused() -> None:
    async def work(log: SessionLog) -> None:
        assert isinstance(await refusal_of(produce(log, batch_of(b"x" * 2000))), TooLarge)

    with_log(bucket(), work, replace(SETTINGS, buffer_bytes_max=1000, segment_bytes_max=1000))


def test_memory_stays_within_the_buffer_with_a_hundred_producers_against_a_slow_bucket() -> None:
    store = bucket(put_s=5, puts=2000)
    settings = replace(SETTINGS, buffer_bytes_max=1 << 20, segment_bytes_max=1 << 18, hedge_after_ms=9000)

    async def main() -> None:
        async with serving(store, settings) as log:
            batches = [batch_of(b"x" * 5000, b"%d" % number) for number in range(100)]
            for _ in range(3):
                await asyncio.gather(*[produce(log, batch, timeout_s=1000) for batch in batches])
            assert log.budget.bytes_used_peak <= settings.buffer_bytes_max
            assert log.partitions.bounds(ORDERS).high_watermark == 600

    run(main())


# ── leadership ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dropped_partition_refuses_readers_and_still_commits_its_buffered_records() -> None:
    store = bucket()
    store.script("create", key_of(1), slow(1))

    async def work(log: SessionLog) -> None:
        await produce(log)
        polling = asyncio.create_task(refusal_of(fetch(log, 1, wait_ms_max=60_000)))
        in_flight = await append(log, batch_of(b"a"))
        await asyncio.sleep(0.1)
        buffered = await append(log, batch_of(b"b"))
        other = await append(log, batch_of(b"p"), partition=PAYMENTS)
        log.stop_leading(ORDERS)
        assert isinstance(await polling, NoLeader)
        assert now_s() == 0.1
        assert ORDERS not in log.partitions
        assert isinstance(await refusal_of(append(log, batch_of(b"c"))), NoLeader)
        for pending in (in_flight, buffered, other):
            await pending.committed(Deadline.after(10))
        assert await values(log, partition=PAYMENTS) == [b"p"]
        assert log.reads._tail_cache.start_offset(ORDERS) is None

    with_log(store, work, replace(SETTINGS, linger_ms=10_000))
    found = run(recover(store, {ORDERS: [led(SESSION.id)]}, by=BY, settings=SETTINGS, now_ms=lambda: 0))[ORDERS]
    assert isinstance(found, RecoveredPartition)
    assert found.end_offset == 3


def test_a_batch_of_an_earlier_epoch_that_is_committed_late_is_not_the_present_leaders() -> None:
    async def work(log: SessionLog) -> None:
        earlier = await append(log, batch_of(b"a"))
        await asyncio.sleep(0.1)
        log.stop_leading(ORDERS)
        log.lead(empty_partition(ORDERS, SETTINGS), LeaderEpoch(EPOCH + 1))
        assert (await earlier.committed(Deadline.after(10))).leader_epoch == EPOCH
        assert log.partitions.bounds(ORDERS)[:4] == (0, 0, 0, EPOCH + 1)

    with_log(bucket(put_s=0.5), work)


def test_a_damaged_partition_answers_what_is_wrong_with_it_until_it_is_dropped() -> None:
    async def work(log: SessionLog) -> None:
        broken = partition_of(5)
        log.partitions.mark_damaged(broken, Corrupt("wal/1/2 does not end with the trailer of a segment", key="wal/1/2"))
        for request in (produce(log, partition=broken), fetch(log, 0, partition=broken), log.reads.explain(broken, 0)):
            assert isinstance(await refusal_of(request), Corrupt)
        await produce(log)
        log.stop_leading(broken)
        assert isinstance(await refusal_of(fetch(log, 0, partition=broken)), NoLeader)

    with_log(bucket(), work)


# ── the end of a session, and the next one ──────────────────────────────────────────────────────────────────────────────


def test_the_next_session_finds_the_acknowledged_records_and_only_them() -> None:
    store = bucket()
    store.script("create", key_of(1), SILENCE, SILENCE)

    async def main() -> None:
        async with serving(store) as log:
            acknowledged = await produce(log, sequenced_batch(1, 0))
            fenced = asyncio.create_task(refusal_of(produce(log, sequenced_batch(1, 1), partition=ORDERS)))
            polling = asyncio.create_task(refusal_of(fetch(log, 1, wait_ms_max=60_000)))
            await asyncio.sleep(1)
            spans = {ORDERS: [led(SESSION.id)]}
            found = await recover(store.another_client(), spans, by=BY, settings=SETTINGS, now_ms=virtual_loop().now_ms)
            assert isinstance(await fenced, SessionFenced)
            assert isinstance(await polling, SessionFenced)
            assert isinstance(await refusal_of(produce(log)), SessionFenced)
            assert isinstance(await refusal_of(fetch(log, 0)), SessionFenced)
        orders = found[ORDERS]
        assert isinstance(orders, RecoveredPartition)
        async with serving(store, session=BY, recovered=(orders,), epoch=LeaderEpoch(6)) as log:
            assert await values(log) == [b"p1-s0"]
            repeat = await produce(log, sequenced_batch(1, 0))
            assert (repeat.base_offset, repeat.duplicate) == (acknowledged.base_offset, True)
            assert await produce(log, sequenced_batch(1, 1)) == Appended(Offset(1), Offset(1), LeaderEpoch(6))
            assert await values(log) == [b"p1-s0", b"p1-s1"]

    run(main())


def test_closing_flushes_and_answers_before_it_stops() -> None:
    store = bucket(put_s=0.5)

    async def main() -> None:
        async with serving(store, replace(SETTINGS, linger_ms=60_000)) as log:
            in_flight = asyncio.create_task(produce(log, batch_of(b"a")))
            await asyncio.sleep(0.1)
            buffered = asyncio.create_task(produce(log, batch_of(b"b")))
            await asyncio.sleep(0.1)
            log.close()
            assert isinstance(await refusal_of(produce(log)), Stopping)
            assert await values(log) == []
            assert [(await task).base_offset for task in (in_flight, buffered)] == [0, 1]
            assert await values(log) == [b"a", b"b"]

    run(main())


def test_a_cancelled_log_ends_its_waiting_producers_and_readers_with_errors() -> None:
    store = bucket()
    store.script("create", key_of(1), slow(5))
    store.script("get", key_of(0), SILENCE)

    async def main() -> None:
        budget = ByteBudget(SETTINGS.buffer_bytes_max)
        log = SessionLog(store, SESSION, replace(SETTINGS, tail_cache_bytes_max=1), budget=budget, now_ms=virtual_loop().now_ms)
        log.lead(empty_partition(ORDERS, SETTINGS), EPOCH)
        running = asyncio.create_task(log.run())
        await produce(log)
        waiting = [
            asyncio.create_task(refusal_of(request)) for request in (produce(log), fetch(log, 1, wait_ms_max=60_000), fetch(log, 0))
        ]
        await asyncio.sleep(0.5)
        running.cancel()
        await asyncio.wait((running,))
        assert [type(await task) for task in waiting] == [OutcomeUnknown, SessionFenced, SessionFenced]
        assert now_s() == 0.5
        assert budget.bytes_used == 0

    run(main())


def test_a_session_that_ends_does_not_wait_for_its_readers_and_its_readers_not_for_the_bucket() -> None:
    store = bucket()
    store.script("get", key_of(0), SILENCE)

    async def main() -> None:
        async with serving(store, replace(SETTINGS, tail_cache_bytes_max=1)) as log:
            await produce(log)
            reading = asyncio.create_task(refusal_of(fetch(log, 0)))
            await asyncio.sleep(1)
            log.close()
        assert isinstance(await reading, Unavailable)
        assert now_s() == 1

    run(main())


def test_a_read_that_has_a_part_still_to_come_when_the_session_ends_answers_what_it_has() -> None:
    store = bucket()
    store.script("get", key_of(0), slow(3))
    store.script("create", key_of(2), slow(9))

    async def work(log: SessionLog) -> None:
        await produce(log, batch_of(b"a"))
        await produce(log, batch_of(b"b"))
        reading = asyncio.create_task(values(log))
        before_the_seal = asyncio.create_task(produce(log))
        await asyncio.sleep(1)
        store.plant(key_of(3), seal_of(SESSION.id, 3))
        assert isinstance(await refusal_of(produce(log)), SessionFenced)
        log.reads._tail_cache.drop(ORDERS)  # evicted: now the second batch is on the bucket only
        assert await reading == [b"a"]
        assert now_s() == 3
        assert isinstance(await refusal_of(fetch(log, 1)), Unavailable)
        assert (await before_the_seal).base_offset == 2
        assert now_s() == 9

    one_batch = len(batch_of(b"b")) + BATCH_MEMORY_BYTES
    with_log(store, work, replace(SETTINGS, tail_cache_bytes_max=one_batch, hedge_after_ms=10_000))


def test_an_answer_that_was_lost_on_the_way_back_is_no_loss() -> None:
    store = bucket()
    store.script("create", key_of(0), LOST_ANSWER, REFUSED)

    async def work(log: SessionLog) -> None:
        assert (await produce(log)).base_offset == 0
        assert await values(log) == [b"v"]

    with_log(store, work)
    assert store.count("create", key_of(0)) == 3

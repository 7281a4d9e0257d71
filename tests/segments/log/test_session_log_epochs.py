"""Answers to readers by a leader that may have been replaced, and where the records of earlier leaders end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.errors import (
    ConditionFailed,
    FencedLeaderEpoch,
    NoLeader,
    OutOfOrderSequence,
    OutOfRange,
    ProducerFenced,
    SessionFenced,
    TidelogError,
    Unavailable,
    UnknownLeaderEpoch,
    UnknownProducer,
)
from metadata.model import LeaderEpoch, Offset
from segments.bucket.layout import session_prefix
from segments.log.append_result import UnverifiedRejection, resolve_all
from segments.log.session_log import FetchTarget, SessionLog
from segments.partition.partition_log import Bounds
from segments.read.log_reader import FetchResult
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition, empty_partition
from segments.shared_errors import copy_of
from segments.wal.session import Session
from tests.kit.segments.batches import (
    BY,
    EPOCH,
    ORDERS,
    PAYMENTS,
    SESSION,
    TIMESTAMP_MS,
    batch_of,
    key_of,
    led,
    seal_of,
    sequenced_batch,
)
from tests.kit.segments.scripted_store import REFUSED, SILENCE, slow
from tests.kit.segments.serving import (
    EVERYTHING,
    SETTINGS,
    append,
    bucket,
    fetch,
    lose_lease,
    now_s,
    produce,
    refusal_of,
    serving,
    values,
    with_log,
)
from tests.simulation.virtual_loop import run, virtual_loop

LIST = session_prefix(SESSION.id)


async def fetch_in(
    log: SessionLog, *epochs: int | None, wait_ms_max: float = 0, offset: int = 0
) -> list[FetchResult | TidelogError]:
    """Of ORDERS, PAYMENTS, … as a reader that knows these epochs."""
    targets = [
        FetchTarget(partition, offset, EVERYTHING, epoch) for partition, epoch in zip((ORDERS, PAYMENTS), epochs, strict=False)
    ]
    return await log.reads.fetch(targets, bytes_max=EVERYTHING, wait_ms_max=wait_ms_max)


# ── the epoch that a reader names ───────────────────────────────────────────────────────────────────────────────────────


def test_a_fetch_of_another_epoch_is_refused_for_its_partition_and_the_others_are_served() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log, batch_of(b"a"))
        await produce(log, batch_of(b"p"), partition=PAYMENTS)
        for current, kind in ((EPOCH - 1, FencedLeaderEpoch), (0, FencedLeaderEpoch), (EPOCH + 1, UnknownLeaderEpoch)):
            refused, served = await fetch_in(log, current, EPOCH, wait_ms_max=60_000)
            assert type(refused) is kind
            assert refused.details == {"leader_epoch": EPOCH}
            assert isinstance(served, FetchResult)
            assert (served.high_watermark, served.leader_epoch) == (1, EPOCH)
        [unasked] = await fetch_in(log, None)
        assert isinstance(unasked, FetchResult)
        assert now_s() == 0, "no request has waited"

    with_log(bucket(), work)


def test_out_of_range_is_answered_only_in_the_leader_epoch_that_the_reader_knows() -> None:
    """The range in the refusal holds a high watermark as well."""

    async def work(log: SessionLog) -> None:
        [known] = await fetch_in(log, EPOCH, offset=9)
        [unknown] = await fetch_in(log, EPOCH + 1, offset=9)
        assert isinstance(known, OutOfRange)
        assert isinstance(unknown, UnknownLeaderEpoch)

    with_log(bucket(), work)


def test_a_long_poll_ends_when_its_partition_is_led_in_another_epoch() -> None:
    async def work(log: SessionLog) -> None:
        polling = asyncio.create_task(fetch_in(log, EPOCH, wait_ms_max=60_000))
        await asyncio.sleep(1)
        log.stop_leading(ORDERS)
        log.lead(empty_partition(ORDERS, SETTINGS), LeaderEpoch(EPOCH + 2))
        [answer] = await polling
        assert isinstance(answer, FencedLeaderEpoch)
        assert answer.details == {"leader_epoch": EPOCH + 2}
        assert now_s() == 1

    with_log(bucket(), work)


# ── where epochs end ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_present_epoch_ends_at_the_high_watermark_and_not_at_what_is_only_buffered() -> None:
    async def work(log: SessionLog) -> None:
        assert log.reads.end_of_epoch(ORDERS, EPOCH) == (EPOCH, 0)
        assert log.reads.end_of_epoch(ORDERS, EPOCH - 1) == (EPOCH - 1, 0), "Kafka clients that began in it go on"
        await produce(log, batch_of(b"a", b"b"))
        await append(log, batch_of(b"c"))
        assert log.reads.end_of_epoch(ORDERS, EPOCH, current_leader_epoch=EPOCH) == (EPOCH, 2)

    with_log(bucket(put_s=0.1), work)


def test_an_epoch_above_the_leader_s_is_not_known_to_it() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log)
        with pytest.raises(UnknownLeaderEpoch):
            log.reads.end_of_epoch(ORDERS, EPOCH + 1)
        with pytest.raises(UnknownLeaderEpoch):
            log.reads.end_of_epoch(ORDERS, EPOCH, current_leader_epoch=EPOCH + 1)
        with pytest.raises(FencedLeaderEpoch):
            log.reads.end_of_epoch(ORDERS, EPOCH, current_leader_epoch=EPOCH - 1)

    with_log(bucket(), work)


def test_the_end_of_an_epoch_does_not_change_under_later_leaders() -> None:
    store = bucket()

    async def main() -> None:
        async with serving(store) as log:
            await produce(log, batch_of(b"a", b"b"))
        spans = {ORDERS: [led(SESSION.id)]}
        found = (await recover(store, spans, by=BY, settings=SETTINGS, now_ms=virtual_loop().now_ms))[ORDERS]
        assert isinstance(found, RecoveredPartition)
        async with serving(store, session=Session(BY.id, BY.writer), recovered=(found,), epoch=LeaderEpoch(EPOCH + 3)) as log:
            assert log.reads.end_of_epoch(ORDERS, EPOCH + 3) == (EPOCH + 3, 2), "it has written nothing yet"
            await produce(log, batch_of(b"c"))
            assert log.reads.end_of_epoch(ORDERS, EPOCH + 3) == (EPOCH + 3, 3)
            assert [log.reads.end_of_epoch(ORDERS, epoch) for epoch in (EPOCH, EPOCH + 2)] == [(EPOCH, 2)] * 2
            assert log.reads.end_of_epoch(ORDERS, EPOCH - 1) == (EPOCH - 1, 0), "Kafka clients that began in it go on"

    run(main())


def test_a_record_that_is_looked_up_has_the_epoch_of_the_leader_that_wrote_it() -> None:
    store = bucket()

    async def bounds_in(log: SessionLog) -> Bounds:
        [found] = await log.reads.bounds_of([ORDERS])
        assert isinstance(found, Bounds)
        return found

    async def main() -> None:
        async with serving(store) as log:
            assert (await bounds_in(log)).log_start_epoch == EPOCH, "of the leader, where no record is"
            await produce(log, batch_of(b"a", timestamps_ms=[TIMESTAMP_MS]))
        spans = {ORDERS: [led(SESSION.id)]}
        found = (await recover(store, spans, by=BY, settings=SETTINGS, now_ms=virtual_loop().now_ms))[ORDERS]
        assert isinstance(found, RecoveredPartition)
        async with serving(store, session=Session(BY.id, BY.writer), recovered=(found,), epoch=LeaderEpoch(EPOCH + 3)) as log:
            assert await log.reads.offset_of_max_timestamp(ORDERS) == (0, TIMESTAMP_MS, EPOCH)
            await produce(log, batch_of(b"b", timestamps_ms=[TIMESTAMP_MS + 1]))
            looked_up = [await log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS + after) for after in (0, 1, 2)]
            assert looked_up == [(0, TIMESTAMP_MS, EPOCH), (1, TIMESTAMP_MS + 1, EPOCH + 3), None]
            assert await log.reads.offset_of_max_timestamp(ORDERS) == (1, TIMESTAMP_MS + 1, EPOCH + 3)
            assert await bounds_in(log) == Bounds(Offset(0), Offset(2), Offset(2), LeaderEpoch(EPOCH + 3), EPOCH)
            for start, epoch in ((1, EPOCH + 3), (2, EPOCH + 3)):
                log.partitions.at(ORDERS).log.raise_log_start(Offset(start))
                assert (await bounds_in(log)).log_start_epoch == epoch

    run(main())


# ── a leader that may be none any more ──────────────────────────────────────────────────────────────────────────────────


def test_a_partition_whose_handover_is_on_its_way_is_read_no_more_until_that_is_taken_back() -> None:
    async def work(log: SessionLog) -> None:
        await produce(log)
        polling = asyncio.create_task(refusal_of(fetch(log, 1, wait_ms_max=1000)))
        await asyncio.sleep(0.1)
        log.partitions.pause(ORDERS)
        assert await values(log) == [b"v"]
        log.partitions.stop_reads([ORDERS])
        assert isinstance(await refusal_of(fetch(log, 0)), NoLeader)
        assert [type(bounds) for bounds in await log.reads.bounds_of([ORDERS])] == [NoLeader]
        with pytest.raises(NoLeader):
            log.reads.end_of_epoch(ORDERS, EPOCH)
        assert isinstance(await polling, NoLeader)
        assert log.partitions.bounds(ORDERS).high_watermark == 1, "the handover itself still knows"
        log.partitions.resume(ORDERS)
        assert await values(log) == [b"v"]

    with_log(bucket(), work)


def test_while_another_may_lead_readers_are_answered_after_a_look_for_the_seal() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log)
        assert store.count("list", LIST) == 0
        lose_lease(log)
        store.script("list", LIST, slow(0.2))
        assert await values(log) == [b"v"]
        assert (now_s(), store.count("list", LIST)) == (0.2, 1)
        [bounds] = await log.reads.bounds_of([ORDERS])
        assert not isinstance(bounds, TidelogError)
        store.plant(key_of(1), seal_of(SESSION.id, 1))
        assert isinstance(await refusal_of(fetch(log, 0)), SessionFenced)
        assert isinstance(await refusal_of(log.leadership.verify()), SessionFenced)

    with_log(store, work)


def test_no_record_since_a_time_is_answered_only_after_a_check_for_another_leader() -> None:
    """A reader with that answer goes on at the end that the next leader reports: it would skip what that one has committed."""
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log, batch_of(b"v", timestamps_ms=[TIMESTAMP_MS]))
        assert await log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS + 1) is None
        assert store.count("list", LIST) == 0
        lose_lease(log)
        assert await log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS + 1) is None
        assert store.count("list", LIST) == 1
        store.plant(key_of(1), seal_of(SESSION.id, 1))
        assert await log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS) == (0, TIMESTAMP_MS, EPOCH), (
            "it is the first under any leader"
        )
        assert isinstance(await refusal_of(log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS + 1)), SessionFenced)

    with_log(store, work)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_timestamp_lookup_during_a_release_of_its_partition_ends_with_no_leader(comes_back: bool) -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log, batch_of(b"0", b"1", timestamps_ms=[TIMESTAMP_MS, TIMESTAMP_MS - 9]))
        assert await log.manifests.delete_records(ORDERS, 1) == 1
        store.script("get", key_of(0), slow(1))
        looking = asyncio.create_task(refusal_of(log.reads.offset_for_timestamp(ORDERS, TIMESTAMP_MS)))
        await asyncio.sleep(0.5)
        log.partitions.pause(ORDERS)
        log.partitions.stop_reads([ORDERS])
        if comes_back:
            log.stop_leading(ORDERS)
            log.lead(empty_partition(ORDERS, SETTINGS), LeaderEpoch(EPOCH + 2))
        assert isinstance(await looking, NoLeader)

    async def main() -> None:
        async with serving(store, recovered=(empty_partition(ORDERS, SETTINGS, topic="orders"),)) as log:
            await work(log)

    run(main())


def test_a_long_poll_looks_for_the_seal_when_it_ends_and_not_when_it_begins() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        polling = asyncio.create_task(refusal_of(fetch(log, 0, wait_ms_max=5_000)))
        await asyncio.sleep(1)
        lose_lease(log)
        store.plant(key_of(0), seal_of(SESSION.id, 0))
        assert isinstance(await polling, SessionFenced)
        assert now_s() == 5

    with_log(store, work)


def test_readers_that_come_together_share_a_look_that_began_after_all_of_them() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log)
        lose_lease(log)
        store.script("list", LIST, slow(0, 1.0), slow(0, 1.0))
        first = asyncio.create_task(values(log))
        await asyncio.sleep(0.5)
        store.plant(key_of(1), seal_of(SESSION.id, 1))  # behind the look that is on its way
        others = [asyncio.create_task(refusal_of(fetch(log, 0))) for _ in range(50)]
        assert await first == [b"v"]
        assert [type(await other) for other in others] == [SessionFenced] * 50
        assert (now_s(), store.count("list", LIST)) == (2.0, 2)

    with_log(store, work)


def test_readers_get_unavailable_if_the_bucket_cannot_confirm_the_leader() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log)
        lose_lease(log)
        store.script("list", LIST, REFUSED, SILENCE)
        refused = await refusal_of(fetch(log, 0))
        assert type(refused) is Unavailable
        assert "the bucket does not tell" in refused.message
        assert type(await refusal_of(log.reads.bounds_of([ORDERS]))) is Unavailable
        assert now_s() == 2
        assert await values(log) == [b"v"]
        leaving = asyncio.create_task(values(log))
        staying = asyncio.create_task(values(log))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == [b"v"], "who hangs up stops no other"

    with_log(store, work, replace(SETTINGS, put_timeout_ms=2_000))


# ── refusals of producers by a leader that may have been replaced ───────────────────────────────────────────────────────


async def refusals(log: SessionLog) -> list[UnverifiedRejection]:
    """Of a gap in a producer's sequence, of a producer that is not known, and of an end that is not the expected one."""
    found = [
        await refusal_of(append(log, sequenced_batch(1, 5))),
        await refusal_of(append(log, sequenced_batch(2, 5))),
        await refusal_of(append(log, batch_of(b"v"), expected_offset=7)),
    ]
    doubted = [refusal for refusal in found if isinstance(refusal, UnverifiedRejection)]
    assert len(doubted) == len(found)
    return doubted


def test_a_producer_gets_a_sequence_error_only_after_a_check_for_another_leader() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log, sequenced_batch(1, 0))
        lose_lease(log)
        store.script("list", LIST, slow(0.2), slow(0.2), slow(0.2))
        true = [await doubted.resolve() for doubted in await refusals(log)]
        assert [type(error) for error in true] == [OutOfOrderSequence, UnknownProducer, ConditionFailed]
        assert now_s() == pytest.approx(0.6)
        assert log.partitions.bounds(ORDERS).end_offset == 1
        doubted = await refusals(log)
        store.plant(key_of(1), seal_of(SESSION.id, 1))
        assert [type(await each.resolve()) for each in doubted] == [SessionFenced] * 3
        assert log.ended

    with_log(store, work)


def test_a_refused_producer_gets_unavailable_if_the_bucket_cannot_confirm_the_leader() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        await produce(log, sequenced_batch(1, 0))
        lose_lease(log)
        store.script("list", LIST, REFUSED)
        doubted, *_ = await refusals(log)
        assert (doubted.retryable, doubted.nothing_was_written) == (True, True), (
            "a caller that does not ask further errs on the safe side"
        )
        assert type(await doubted.resolve()) is Unavailable
        assert type(await doubted.resolve()) is Unavailable, "it is asked once"
        assert store.count("list", LIST) == 1
        copied = copy_of(doubted)
        assert type(await copied.resolve()) is OutOfOrderSequence

    with_log(store, work)


def test_a_sequence_error_is_verified_in_the_bucket_even_with_a_valid_lease() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        gap = await refusal_of(append(log, sequenced_batch(1, 5)))
        assert isinstance(gap, UnverifiedRejection)
        assert isinstance(await refusal_of(append(log, batch_of(b"v"), expected_offset=7)), ConditionFailed)
        assert store.count("list", LIST) == 0
        assert type(await refusal_of(produce(log, sequenced_batch(1, 5)))) is UnknownProducer
        assert store.count("list", LIST) == 1
        store.plant(key_of(0), seal_of(SESSION.id, 0))
        assert type(await gap.resolve()) is SessionFenced

    with_log(store, work)


def test_rejections_that_are_in_doubt_together_share_a_listing() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        doubted = [refusal for _ in range(9) for refusal in [await refusal_of(append(log, sequenced_batch(1, 5)))]]
        await resolve_all(refusal for refusal in doubted if isinstance(refusal, UnverifiedRejection))
        assert [type(refusal.resolved) for refusal in doubted if isinstance(refusal, UnverifiedRejection)] == [UnknownProducer] * 9
        assert store.count("list", LIST) == 1

    with_log(store, work)


def test_a_repeat_and_an_old_epoch_of_a_producer_need_no_look() -> None:
    store = bucket()

    async def work(log: SessionLog) -> None:
        first = await produce(log, sequenced_batch(1, 0, producer_epoch=1))
        lose_lease(log)
        assert (await produce(log, sequenced_batch(1, 0, producer_epoch=1))) == first._replace(duplicate=True)
        assert type(await refusal_of(append(log, sequenced_batch(1, 1)))) is ProducerFenced
        assert store.count("list", LIST) == 0

    with_log(store, work)

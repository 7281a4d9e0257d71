"""What was read of a session once is not read again, and what is found with it is what would be found without it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from metadata.errors import Corrupt
from metadata.model import SegmentSeq, SessionId, TopicPartition
from segments.bucket.layout import index_key, segment_key, session_prefix, trimmed_key
from segments.recovery.footer_cache import KEPT_S, RUN_BYTES, FooterCache
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.takeover_prefetch import TakeoverPrefetch
from segments.wal.footer_index import TAIL_MIN, IndexBlock
from segments.wal.footer_reader import write_index
from segments.wal.segment_file import BATCH_DTYPE, SEAL_BYTES, FooterBytes
from tests.kit.segments.batches import ORDERS, PAYMENTS, Led, batch_of, led
from tests.kit.segments.past_sessions import SETTINGS, Bucket
from tests.kit.segments.scripted_store import slow
from tests.simulation.virtual_loop import run

ONE = batch_of(b"one")
MIB = 1 << 20


def in_both(bucket: Bucket, segments: int, *, session: int = 1, epoch: int = 1) -> list[str]:
    """So many more segments, each with a record of either partition. Their keys."""
    return [bucket.segment(session, {ORDERS: [ONE], PAYMENTS: [ONE]}, epoch=epoch) for _ in range(segments)]


def requests(bucket: Bucket) -> Counter[str]:
    return Counter({kind: bucket.count(kind) for kind in ("list", "tail", "get", "create")})


async def found(bucket: Bucket, cache: FooterCache | None, partition: TopicPartition, *spans: Led) -> RecoveredPartition:
    recovered = (await bucket.recovering({partition: spans}, cache=cache))[partition]
    if isinstance(recovered, Corrupt):
        raise recovered
    return recovered


async def same_as_without(bucket: Bucket, cache: FooterCache, partition: TopicPartition, *spans: Led) -> int:
    """The partition's end offset."""
    with_it, without = await found(bucket, cache, partition, *spans), await found(bucket, None, partition, *spans)
    assert (with_it.end_offset, with_it.sessions, len(with_it.runs)) == (without.end_offset, without.sessions, len(without.runs))
    return with_it.end_offset


# ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_second_lot_of_a_dead_leaders_partitions_asks_the_bucket_nothing() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 5)
        await found(bucket, cache, ORDERS, led(1, 1))
        asked = requests(bucket)
        assert (await found(bucket, cache, PAYMENTS, led(1, 1))).end_offset == 5
        assert requests(bucket) == asked

    run(scenario())


def test_of_a_session_without_records_it_is_remembered_that_it_is_sealed() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        await found(bucket, cache, ORDERS, led(1, 1))
        asked = requests(bucket)
        await found(bucket, cache, PAYMENTS, led(1, 1))
        assert requests(bucket) == asked

    run(scenario())


def test_concurrent_readers_share_one_read_of_each_footer() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        for key in in_both(bucket, 5):
            bucket.script("tail", key, slow(1))
        async with asyncio.TaskGroup() as lots:
            for partition in (ORDERS, PAYMENTS):
                lots.create_task(found(bucket, cache, partition, led(1, 1)))
        assert bucket.count("tail") == 5

    run(scenario())


def test_a_recovery_that_gives_up_waiting_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        for key in in_both(bucket, 3):
            bucket.script("tail", key, slow(1))
        async with asyncio.TaskGroup() as lots:
            first = lots.create_task(found(bucket, cache, ORDERS, led(1, 1)))
            second = lots.create_task(found(bucket, cache, PAYMENTS, led(1, 1)))
            await asyncio.sleep(0.5)
            first.cancel()
        assert second.result().end_offset == 3

    run(scenario())


def test_a_session_that_goes_on_is_read_from_where_the_last_look_ended() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 5)
        await found(bucket, cache, ORDERS, led(1, 1, released_at_seq=5))
        in_both(bucket, 3)
        asked = requests(bucket)
        assert (await found(bucket, cache, PAYMENTS, led(1, 1, released_at_seq=7))).end_offset == 7
        assert requests(bucket) - asked == Counter(tail=2)
        assert await same_as_without(bucket, cache, PAYMENTS, led(1, 1, released_at_seq=7)) == 7

    run(scenario())


def test_runs_that_are_known_beyond_the_release_of_a_partition_are_none_of_it() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 5)
        await found(bucket, cache, ORDERS, led(1, 1, released_at_seq=5))
        assert await same_as_without(bucket, cache, PAYMENTS, led(1, 1, released_at_seq=2)) == 2

    run(scenario())


def test_a_leader_that_dies_after_it_released_others_is_sealed_and_its_rest_is_read() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 5)
        await found(bucket, cache, ORDERS, led(1, 1, released_at_seq=3))
        assert bucket.count("tail") == 3
        assert (await found(bucket, cache, PAYMENTS, led(1, 1))).end_offset == 5
        assert bucket.count("tail") == 5
        assert len(bucket.content(segment_key(SessionId(1), SegmentSeq(5)))) == SEAL_BYTES

    run(scenario())


def test_footers_that_one_reads_on_are_not_taken_for_those_that_another_had_prefetched() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 3)
        ahead = TakeoverPrefetch(bucket, SETTINGS, cache)
        await ahead.read({ORDERS: [led(1, 1)]})
        in_both(bucket, 3)
        await found(bucket, cache, PAYMENTS, led(1, 1, released_at_seq=6))
        spans = {ORDERS: [led(1, 1, released_at_seq=6)]}
        recovered = (await bucket.recovering(spans, cache=cache, begun=ahead.take({ORDERS})))[ORDERS]
        assert isinstance(recovered, RecoveredPartition), recovered
        assert (recovered.end_offset, len(recovered.runs)) == (6, 6)
        assert bucket.count("tail") == 6, "each once"

    run(scenario())


def test_footers_that_one_reads_on_while_another_reads_elsewhere_are_not_mixed_up() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 1, session=5, epoch=0)
        in_both(bucket, 3, session=1)
        ahead = TakeoverPrefetch(bucket, SETTINGS, cache)
        spans = [led(5, 0, released_at_seq=1), led(1, 1)]
        bucket.script("list", session_prefix(SessionId(5)), slow(1))
        async with asyncio.TaskGroup() as lots:
            lots.create_task(ahead.read({ORDERS: spans}))
            await asyncio.sleep(0.5)  # session 1 is read, and session 5 being listed
            in_both(bucket, 3, session=1)
            await bucket.recovering({PAYMENTS: [led(1, 1, released_at_seq=6)]}, cache=cache)
        assert cache.size_bytes == 14 * RUN_BYTES, "it is known to 6"
        begun = ahead.take({ORDERS})[ORDERS]
        assert (begun.read_to, begun.last_seq, begun.recovered.end_offset) == (3, 2, 4)

    run(scenario())


def test_a_session_that_was_trimmed_meanwhile_is_read_again() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 2)
        bucket.segment(1, {PAYMENTS: [ONE]}, epoch=1)
        await found(bucket, cache, ORDERS, led(1, 1, released_at_seq=2))
        later = batch_of(b"later")
        bucket.ends.pop(ORDERS)
        bucket.segment(1, {ORDERS: [later]}, epoch=1)
        bucket.plant(trimmed_key(SessionId(1), SegmentSeq(3)), b"")
        assert await same_as_without(bucket, cache, ORDERS, led(1, 1)) == 1

    run(scenario())


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known_before", [0, 2], ids=["all at once", "behind what was known"])
def test_damage_is_looked_at_again_and_what_was_restored_is_found(known_before: int) -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        keys = in_both(bucket, 5)
        bucket.seal(1)
        if known_before:
            await found(bucket, cache, ORDERS, led(1, 1, released_at_seq=known_before))
        body = bucket.content(keys[3])
        bucket.remove(keys[3])
        for _ in range(2):
            with pytest.raises(Corrupt) as damage:
                await found(bucket, cache, ORDERS, led(1, 1))
            assert damage.value.details["key"] == keys[3]
        bucket.plant(keys[3], body)
        assert await same_as_without(bucket, cache, ORDERS, led(1, 1)) == 5

    run(scenario())


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_that_was_asked_for_longest_ago_makes_room() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=5 * RUN_BYTES)
        for session in (1, 2, 3):
            bucket.ends.clear()
            in_both(bucket, 1, session=session, epoch=session)
        for session in (1, 2, 1, 3):
            await found(bucket, cache, ORDERS, led(session, session))
            assert cache.size_bytes <= 5 * RUN_BYTES
        before = bucket.count("tail")
        await found(bucket, cache, ORDERS, led(1, 1))
        assert bucket.count("tail") == before, "1 was asked for again, and stayed"
        await found(bucket, cache, ORDERS, led(2, 2))
        assert bucket.count("tail") == before + 1

    run(scenario())


def test_a_session_that_is_larger_than_the_cache_evicts_no_other() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=5 * RUN_BYTES)
        in_both(bucket, 2, session=1)
        await found(bucket, cache, ORDERS, led(1, 1))
        bucket.ends.clear()
        in_both(bucket, 3, session=2, epoch=2)
        assert (await found(bucket, cache, ORDERS, led(2, 2))).end_offset == 3
        assert cache.size_bytes == 4 * RUN_BYTES

    run(scenario())


def test_a_run_of_many_batches_counts_with_all_of_them() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        bucket.segment(1, {ORDERS: [ONE] * 100}, epoch=1)
        await found(bucket, cache, ORDERS, led(1, 1))
        assert cache.size_bytes == RUN_BYTES + 99 * BATCH_DTYPE.itemsize

    run(scenario())


def test_unused_footers_are_forgotten_after_a_while() -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        in_both(bucket, 2)
        await found(bucket, cache, ORDERS, led(1, 1))
        await asyncio.sleep(KEPT_S / 2)
        await found(bucket, cache, ORDERS, led(1, 1))
        await asyncio.sleep(KEPT_S)
        assert cache.size_bytes > 0
        await asyncio.sleep(KEPT_S)
        assert cache.size_bytes == 0

    run(scenario())


# ── the end of a sealed session ─────────────────────────────────────────────────────────────────────────────────────────


async def write_indexes(bucket: Bucket, cache: FooterCache) -> None:
    while cache.unindexed:
        session, block = cache.unindexed.pop()
        await write_index(bucket, session, block, timeout_s=1)


def test_a_new_leader_writes_the_index_that_the_dead_one_had_not_written_yet() -> None:
    async def scenario() -> None:
        bucket = Bucket()
        in_both(bucket, 10)
        for _ in range(2):  # two brokers
            cache = FooterCache(bytes_max=MIB)
            await found(bucket, cache, ORDERS, led(1, 1))
            await write_indexes(bucket, cache)
        assert bucket.has(index_key(SessionId(1), SegmentSeq(0), SegmentSeq(10)))
        asked = requests(bucket)
        assert (await found(bucket, None, ORDERS, led(1, 1))).end_offset == 10
        assert requests(bucket) - asked == Counter(list=1, get=1)

    run(scenario())


@pytest.mark.parametrize("case", ["too few", "not sealed", "damaged"])
def test_no_index_is_written_where(case: str) -> None:
    async def scenario() -> None:
        bucket, cache = Bucket(), FooterCache(bytes_max=MIB)
        keys = in_both(bucket, TAIL_MIN - 1 if case == "too few" else 10)
        if case == "damaged":
            bucket.damage_footer(keys[-1])
        span = led(1, 1, released_at_seq=9) if case == "not sealed" else led(1, 1)
        await bucket.recovering({ORDERS: [span]}, cache=cache)
        assert not cache.unindexed

    run(scenario())


def test_unindexed_tails_are_dropped_before_they_fill_the_memory() -> None:
    cache = FooterCache(bytes_max=MIB)
    for session in range(1, 21):
        cache.keep_unindexed(SessionId(session), IndexBlock(SegmentSeq(0), SegmentSeq(1), (FooterBytes(bytes(MIB), MIB),)))
    assert [session for session, _ in cache.unindexed] == list(range(5, 21))

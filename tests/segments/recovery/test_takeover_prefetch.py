"""What is read before the leader lets go is what is found afterwards, and it is used only where the metadata agree with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence

import pytest

from metadata.errors import Unavailable
from metadata.model import SegmentSeq, TopicPartition
from segments.bucket.layout import claim_key, segment_key
from segments.recovery.footer_cache import FooterCache
from segments.recovery.recover import recover
from segments.recovery.recovered_partition import RecoveredPartition
from segments.recovery.session_runs import LeadershipSpan
from segments.recovery.takeover_prefetch import TakeoverPrefetch, read_footers_ahead
from segments.settings import SegmentSettings
from segments.wal.session import seal
from tests.kit.segments.batches import BY, ORDERS, TIMESTAMP_MS, batch_of, led, seal_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import REFUSED, SILENCE, Act, ScriptedStore
from tests.simulation import virtual_loop

SETTINGS = SegmentSettings()


async def write(store: ScriptedStore, session: int, seq: int, first_offset: int, *, epoch: int, records: int = 1) -> None:
    batches = stamped_run(first_offset, batch_of(*[b"v"] * records), leader_epoch=epoch)
    segment = segment_of(session, seq, [(ORDERS, batches)], leader_epoch=epoch, committed_to=seq)
    await store.create(segment_key(led(session).session, SegmentSeq(seq)), segment.body)


async def read_ahead(store: ScriptedStore, spans: Sequence[LeadershipSpan]) -> TakeoverPrefetch:
    ahead = TakeoverPrefetch(store, SETTINGS)
    await ahead.read({ORDERS: spans})
    return ahead


async def recovered(
    store: ScriptedStore, spans: Sequence[LeadershipSpan], ahead: TakeoverPrefetch | None = None
) -> RecoveredPartition:
    begun = ahead.take({ORDERS}) if ahead is not None else None
    found = (await recover(store, {ORDERS: spans}, by=BY, settings=SETTINGS, now_ms=lambda: TIMESTAMP_MS, begun=begun))[ORDERS]
    assert isinstance(found, RecoveredPartition), found
    return found


async def same_as_without(store: ScriptedStore, spans: Sequence[LeadershipSpan], ahead: TakeoverPrefetch) -> RecoveredPartition:
    with_it, without = await recovered(store, spans, ahead), await recovered(store, spans)
    assert with_it.end_offset == without.end_offset
    assert with_it.sessions == without.sessions
    assert len(with_it.runs) == len(without.runs)
    return with_it


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(scenario)


@pytest.mark.parametrize("released_at", [2, 3, 5])
def test_the_rest_of_a_session_is_read_up_to_the_release_and_no_further(released_at: int) -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        for seq in range(2):
            await write(store, 5, seq, seq, epoch=0)
        ahead = await read_ahead(store, [led(5, 0)])
        for seq in range(2, released_at):
            await write(store, 5, seq, seq, epoch=0)
        found = await same_as_without(store, [led(5, 0, released_at_seq=released_at)], ahead)
        assert found.end_offset == released_at

    run(scenario())


def test_a_leader_that_dies_instead_is_sealed_and_what_it_wrote_since_is_found() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        ahead = await read_ahead(store, [led(5, 0)])
        await write(store, 5, 1, 1, epoch=0)
        found = await same_as_without(store, [led(5, 0)], ahead)
        assert found.end_offset == 2
        assert (await seal(store, led(5).session, by=BY, now_ms=lambda: TIMESTAMP_MS)).sealed

    run(scenario())


def test_reading_ahead_seals_nothing() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        await read_ahead(store, [led(5, 0)])
        assert not store.has(segment_key(led(5).session, SegmentSeq(1)))

    run(scenario())


def test_sessions_before_the_last_are_not_read_again_and_those_taken_off_the_list_do_no_harm() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 3, 0, 0, epoch=0)
        await store.create(segment_key(led(3).session, SegmentSeq(1)), [seal_of(3, 1)])
        await store.create(segment_key(led(4).session, SegmentSeq(0)), [seal_of(4, 0)])
        await write(store, 5, 0, 1, epoch=2)
        ahead = await read_ahead(store, [led(3, 0), led(4, 1), led(5, 2)])
        await write(store, 5, 1, 2, epoch=2)
        found = await same_as_without(store, [led(3, 0), led(5, 2, released_at_seq=2)], ahead)
        assert found.end_offset == 3

    run(scenario())


def test_a_leader_that_wrote_nothing_may_be_missing_from_the_list() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 3, 0, 0, epoch=0)
        await store.create(segment_key(led(3).session, SegmentSeq(1)), [seal_of(3, 1)])
        ahead = await read_ahead(store, [led(3, 0), led(5, 1)])
        assert (await same_as_without(store, [led(3, 0)], ahead)).end_offset == 1

    run(scenario())


@pytest.mark.parametrize(
    "spans",
    [
        [led(5, 0, released_at_seq=1)],  # what was read lies beyond
        [led(6, 0)],  # another session
        [led(5, 1)],  # another epoch
        [led(6, 0), led(5, 1)],  # one more
        [],  # none: the topic was recreated
    ],
)
def test_a_prefetch_that_the_metadata_do_not_bear_out_is_not_used(spans: list[LeadershipSpan]) -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        store.plant(claim_key(led(6).session), b"{}")
        await write(store, 5, 0, 0, epoch=0)
        await write(store, 5, 1, 1, epoch=0)
        ahead = await read_ahead(store, [led(5, 0)])
        await same_as_without(store, spans, ahead)

    run(scenario())


def test_damage_is_left_to_the_recovery_to_report() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        await store.create(segment_key(led(5).session, SegmentSeq(1)), [b"no segment, and longer than a seal " * 4])
        await write(store, 5, 2, 1, epoch=0)
        ahead = await read_ahead(store, [led(5, 0)])
        assert not ahead.held

    run(scenario())


def test_a_bucket_that_is_away_leaves_nothing_half_read() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        store.outage = Unavailable("503")
        ahead = await read_ahead(store, [led(5, 0)])
        assert not ahead.held

    run(scenario())


@pytest.mark.parametrize(
    ("act", "reported"), [(SILENCE, "not prefetched partitions=1: it took too long"), (REFUSED, "not prefetched partitions=1: .")]
)
def test_the_reason_why_nothing_was_read_ahead_is_logged(act: Act, reported: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        store.script("tail", segment_key(led(5).session, SegmentSeq(0)), act)
        began_s = asyncio.get_running_loop().time()
        assert not await TakeoverPrefetch(store, SETTINGS).read({ORDERS: [led(5, 0)]}, timeout_s=2.0)
        assert asyncio.get_running_loop().time() - began_s <= 2.0

    with caplog.at_level("INFO"):
        virtual_loop.run(scenario())
    assert re.search(reported, caplog.text)


def test_a_session_that_fails_or_hangs_holds_none_of_the_others_back() -> None:
    async def scenario() -> None:
        store, cache = ScriptedStore(), FooterCache(bytes_max=1 << 20)
        for session in (3, 4, 5):
            await write(store, session, 0, 0, epoch=0)
        store.script("tail", segment_key(led(3).session, SegmentSeq(0)), REFUSED)
        store.script("tail", segment_key(led(4).session, SegmentSeq(0)), SILENCE)
        sessions = [led(session).session for session in (3, 4, 5)]
        await read_footers_ahead(store, sessions, cache, reads_max=4, timeout_s=1.0)
        known = []
        for session in sessions:
            async with cache.session(session) as kept:
                known.append(kept.runs.is_known)
        assert known == [False, False, True]

    virtual_loop.run(scenario())


def test_a_prefetch_for_a_partition_that_is_not_to_come_any_more_takes_no_memory() -> None:
    async def scenario() -> None:
        store = ScriptedStore()
        await write(store, 5, 0, 0, epoch=0)
        ahead = await read_ahead(store, [led(5, 0)])
        ahead.forget_others(set[TopicPartition]())
        assert not ahead.held

    run(scenario())

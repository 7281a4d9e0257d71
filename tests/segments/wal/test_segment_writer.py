"""Writes the segments of one session: what is answered is true, whatever the bucket does, and everyone is answered.

Every test ends with the same check (`Writing.check_truth`): a successor seals the session; what was acknowledged is visible to it,
what was refused as "nothing was written" is not, and no byte of the budget is left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.errors import AlreadyExists, Denied, OutcomeUnknown, SessionFenced, Stopping, TidelogError, Unavailable
from metadata.model import SegmentSeq
from segments.bucket.layout import index_key, session_prefix, trimmed_key, trimmed_prefix
from segments.object_store.health import HealthState
from segments.object_store.interface import unsynced
from segments.settings import SegmentSettings
from segments.wal.flush_policy import LARGE_BYTES, QUIET_S
from segments.wal.footer_index import parse_index
from segments.wal.pending_segment import PendingSegment
from segments.wal.segment_file import SEAL_BYTES, SegmentFooter, parse_footer, parse_head
from segments.wal.session import seal
from tests.kit.segments.batches import BY, ORDERS, PAYMENTS, SESSION, SUCCESSOR, batch_of, key_of, seal_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import (
    HAPPENS_UNANSWERED,
    LOST_ANSWER,
    LOST_REQUEST,
    REFUSED,
    SILENCE,
    Act,
    ScriptedStore,
    fails,
    late,
    slow,
)
from tests.kit.segments.writing import AT_ONCE, SETTINGS, Writing, now_s, outcome, outcomes, until_s, with_writer, writing
from tests.simulation.virtual_loop import run, virtual_loop

# ── what leaves together, and when ──────────────────────────────────────────────────────────────────────────────────────


def test_a_quiet_writer_answers_in_one_put_time() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(0.03))

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == 0.03

    with_writer(store, work, settings=SETTINGS)


def test_appends_that_come_while_a_put_is_in_flight_gather_for_linger_ms_and_travel_together() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(1))

    async def work(at_work: Writing) -> None:
        first = at_work.add()
        await asyncio.sleep(0.5)
        second = at_work.add(partition=PAYMENTS)
        await asyncio.sleep(0.05)
        assert at_work.add() is second is at_work.add(partition=PAYMENTS) is not first
        await outcome(second)
        assert [(call.key, round(call.at_s, 3)) for call in store.calls] == [(key_of(0), 0), (key_of(1), 0.6)]

    with_writer(store, work, settings=SETTINGS)
    body = store.content(key_of(1))
    runs = parse_footer(body, object_size=len(body), session=SESSION.id, seq=SegmentSeq(1), key="").runs
    assert [(run.partition, run.base_offset, run.last_offset) for run in runs] == [(PAYMENTS, 0, 1), (ORDERS, 1, 1)]


def test_a_large_segment_leaves_without_budget_as_soon_as_no_batch_comes_any_more() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        for _ in range(3):  # spends the budget
            await outcome(at_work.add())
        at_work.add()
        await asyncio.sleep(0.02)
        began_s = now_s()
        large = at_work.add(bytes(LARGE_BYTES))
        await asyncio.sleep(QUIET_S / 2)
        assert at_work.add() is large
        await outcome(large)
        assert now_s() == pytest.approx(began_s + QUIET_S * 1.5)

    with_writer(store, work, settings=replace(SETTINGS, puts_per_second_max=1))


def test_a_full_segment_leaves_before_linger_is_over() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(1))
    batch_bytes = len(batch_of(b"x" * 1000)) + 64

    async def work(at_work: Writing) -> None:
        at_work.add()
        await asyncio.sleep(0.5)
        segments = [at_work.add(b"x" * 1000) for _ in range(5)]
        assert [segment is segments[0] for segment in segments] == [True, True, False, False, False]
        await asyncio.sleep(0.01)
        assert store.count("create") == 3

    with_writer(store, work, settings=replace(SETTINGS, segment_bytes_max=2 * batch_bytes))
    assert store.count("create", key_of(3)) == 1


def test_a_batch_larger_than_a_segment_travels_alone() -> None:
    async def work(at_work: Writing) -> None:
        small, large, after = at_work.add(), at_work.add(b"x" * 2000), at_work.add()
        assert len({id(segment) for segment in (small, large, after)}) == 3
        assert await outcomes([small, large, after]) == [None, None, None]

    with_writer(ScriptedStore(), work, settings=replace(SETTINGS, segment_bytes_max=1000))


def test_puts_in_flight_are_bounded() -> None:
    store = ScriptedStore()
    for seq in range(10):
        store.script("create", key_of(seq), slow(1))

    async def work(at_work: Writing) -> None:
        segments = []
        for _ in range(10):
            segments.append(at_work.add())
            await asyncio.sleep(0.01)
        assert store.count("create") == 3
        assert await outcomes(segments) == [None] * 10

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=3))


# ── in order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_segment_that_lands_early_is_answered_after_those_before_it() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(1))

    async def work(at_work: Writing) -> None:
        first = at_work.add()
        await asyncio.sleep(0.1)
        second = at_work.add()
        await until_s(0.9)
        assert store.has(key_of(1))
        assert not second.outcome.done()
        assert at_work.writer.pending_with(ORDERS, 1) is second
        assert await outcomes([first, second]) == [None, None]
        assert at_work.committed == [(0, 1), (1, 1)]

    with_writer(store, work)


def test_a_segment_that_a_repeat_waits_for_is_found_until_it_is_decided() -> None:
    store = ScriptedStore()
    for seq in range(4):
        store.script("create", key_of(seq), slow(1))

    async def work(at_work: Writing) -> None:
        segments = []
        for _ in range(6):
            segments.append(at_work.add())
            await asyncio.sleep(0.01)
        assert [at_work.writer.pending_with(ORDERS, offset) for offset in range(6)] == segments
        assert at_work.writer.pending_with(ORDERS, 6) is None
        assert at_work.writer.pending_with(PAYMENTS, 0) is None
        await outcomes(segments)
        assert [at_work.writer.pending_with(ORDERS, offset) for offset in range(6)] == [None] * 6

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=2, segment_bytes_max=150))


# ── an unknown outcome is never taken for failure ───────────────────────────────────────────────────────────────────────


def test_after_a_lost_answer_our_own_segment_is_found_and_committed() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), LOST_ANSWER)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None

    with_writer(store, work)
    assert (store.count("create", key_of(0)), store.count("get", key_of(0))) == (2, 1)


# The object is there. Its directory could not be written to the disk.
UNSYNCED = Act(error=unsynced(OutcomeUnknown, "it exists, and a power cut may take it away", hint=""))


def test_a_segment_that_the_store_can_not_make_durable_ends_the_session_and_is_not_sent_again() -> None:
    """A repeat would find it, and prove nothing."""
    store = ScriptedStore()
    store.script("create", key_of(1), UNSYNCED)
    store.script("create", key_of(2), slow(1))

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        sent = [at_work.add(), at_work.add()]
        await asyncio.sleep(0)
        errors = [await outcome(segment) for segment in sent]
        assert [type(error) for error in errors] == [OutcomeUnknown, OutcomeUnknown]
        assert "outlives a power cut" in str(errors[0])
        with pytest.raises(SessionFenced):
            at_work.add()
        await at_work.running

    with_writer(store, work)
    assert store.count("create", key_of(1)) == 1


def test_a_segment_whose_hedge_the_store_can_not_make_durable_is_not_taken_for_committed_by_a_read_back() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), HAPPENS_UNANSWERED, fails(UNSYNCED.error or OutcomeUnknown("")))

    async def work(at_work: Writing) -> None:
        assert isinstance(await outcome(at_work.add()), OutcomeUnknown)
        await at_work.running

    with_writer(store, work)
    assert store.count("get", key_of(0)) == 0


def test_a_session_whose_own_seal_the_store_can_not_make_durable_ends_with_an_unknown_outcome() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), *[SILENCE] * 40)

    async def work(at_work: Writing) -> None:
        pending = at_work.add()
        await asyncio.sleep(AT_ONCE.put_deadline_ms / 1000 - 1)
        store.heal()
        store.script("create", key_of(0), SILENCE, UNSYNCED, UNSYNCED)
        assert isinstance(await outcome(pending), OutcomeUnknown)
        await at_work.running

    with_writer(store, work)


def test_a_put_that_fails_is_sent_again_with_growing_pauses() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), LOST_REQUEST, REFUSED, REFUSED, REFUSED)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        at_s = [call.at_s for call in store.calls]
        assert [round(after - before, 3) for before, after in pairwise(at_s)] == [0.05, 0.1, 0.15, 0.15]

    with_writer(store, work, settings=replace(AT_ONCE, retry_pause_ms=50, retry_pause_ms_max=150))


def test_a_read_back_that_fails_or_hangs_is_tried_again() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), LOST_ANSWER)
    store.script("get", key_of(0), REFUSED, SILENCE)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == pytest.approx(0.05 + 2 + 10 + 2)

    with_writer(store, work)


def test_a_slow_put_is_hedged_and_the_first_to_answer_wins() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), SILENCE, slow(0.5))
    store.script("create", key_of(1), slow(2), slow(9))

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == 2
        assert await outcome(at_work.add()) is None
        assert now_s() == 4

    with_writer(store, work)
    assert (store.count("create", key_of(0)), store.count("create", key_of(1))) == (2, 2)


def test_a_bucket_that_answers_nothing_gets_no_put_twice() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(5))

    async def work(at_work: Writing) -> None:
        at_work.bucket_state = HealthState.UNAVAILABLE
        assert await outcome(at_work.add()) is None
        assert now_s() == 5

    with_writer(store, work)
    assert store.count("create", key_of(0)) == 1


def test_the_parts_of_a_commit_are_counted_one_by_one() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(3), slow(9))
    store.script("create", key_of(1), slow(1))

    async def work(at_work: Writing) -> None:
        first = at_work.add()
        await asyncio.sleep(0.5)
        second = at_work.add()
        await outcomes([first, second])
        counts = at_work.counters
        assert (counts.segments, counts.hedges, counts.segments_lost) == (2, 1, 0)
        assert counts.put_seconds.total == 3 + 1
        assert counts.commit_seconds.total == 3 + 2.5, "the second waits for the first"
        assert (first.sent_at_s, first.landed_at_s, first.committed_at_s) == (0, 3, 3)
        assert (second.sent_at_s, second.landed_at_s, second.committed_at_s) == (0.5, 1.5, 3)
        assert at_work.writer.oldest_waits_since_s is None

    with_writer(store, work)


def test_the_oldest_batch_that_waits_can_be_asked_for() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(3), slow(9))

    async def work(at_work: Writing) -> None:
        await asyncio.sleep(2)
        pending = at_work.add()
        await asyncio.sleep(1)
        at_work.add()
        assert at_work.writer.oldest_waits_since_s == 2
        await outcome(pending)

    with_writer(store, work)


def test_a_hedge_that_meets_the_first_request_recognises_it() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), HAPPENS_UNANSWERED)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == 1.5

    with_writer(store, work)


def test_a_hedge_that_fails_leaves_the_first_request_its_time() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(3), REFUSED)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == 3

    with_writer(store, work)


def test_a_put_without_an_answer_is_given_up_and_sent_again() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), SILENCE, SILENCE)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == pytest.approx(10.05)

    with_writer(store, work)


# ── the deadline: the session seals itself ──────────────────────────────────────────────────────────────────────────────


def test_a_segment_that_misses_its_deadline_ends_the_session_by_a_seal_under_its_key() -> None:
    store = ScriptedStore()
    store.script("create", key_of(1), *[SILENCE] * 6)

    async def work(at_work: Writing) -> None:
        before = at_work.add()
        await asyncio.sleep(0.01)
        missed = at_work.add()
        await asyncio.sleep(0.01)
        landed_behind = at_work.add()
        assert await outcomes([before, missed, landed_behind]) == [None, SessionFenced, SessionFenced]
        assert now_s() == pytest.approx(30.01)
        with pytest.raises(SessionFenced):
            at_work.add()
        await at_work.running

    with_writer(store, work)
    assert [len(store.content(key_of(seq))) == SEAL_BYTES for seq in range(3)] == [False, True, False]


def test_a_segment_that_had_landed_after_all_when_its_deadline_came_is_committed_and_the_session_goes_on() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), late(29.9), *[SILENCE] * 5)

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        assert now_s() == 30
        assert await outcome(at_work.add()) is None

    with_writer(store, work)


@pytest.mark.parametrize("unanswered", [[LOST_ANSWER], [LOST_ANSWER, *[SILENCE] * 6]], ids=["sent again", "its deadline passed"])
def test_a_segment_that_was_compacted_before_its_writer_heard_of_it_is_committed(unanswered: list[Act]) -> None:
    """The collector freed its name, so that the same bytes, or the writer's own seal, find nothing there."""
    store = ScriptedStore()
    store.script("create", key_of(0), *unanswered)

    async def main() -> None:
        at_work = Writing(store, AT_ONCE)
        pending = at_work.add()
        await asyncio.sleep(0.01)
        await store.create(trimmed_key(SESSION.id, SegmentSeq(1)), [b""])
        await store.delete(key_of(0))
        assert await outcome(pending) is None
        at_work.writer.close()
        await at_work.running

    run(main())


def test_another_segment_of_the_same_length_is_not_taken_for_ours_though_our_nonce_is_in_it() -> None:
    """A virtual machine that was set back with its memory sends its next records under a number that it has used before."""
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add(b"first")) is None
        other = b"".join(segment_of(SESSION.id, 1, [(ORDERS, stamped_run(1, batch_of(b"before")))]).body)
        store.plant(key_of(1), other)
        assert isinstance(await outcome(at_work.add(b"behind")), OutcomeUnknown)
        assert len(store.content(key_of(1))) == len(other)
        await at_work.running
        assert at_work.writer.ended

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=1))


def test_another_segment_of_the_same_length_is_not_taken_for_ours_though_it_is_trimmed() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        store.plant(key_of(0), b"".join(segment_of(SESSION.id, 0, [(ORDERS, stamped_run(0, batch_of(b"before")))]).body))
        store.plant(trimmed_key(SESSION.id, SegmentSeq(1)), b"")
        assert isinstance(await outcome(at_work.add(b"behind")), OutcomeUnknown)

    with_writer(store, work)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_after_a_leap_of_the_stores_time_no_place_that_was_trimmed_before_it_was_written_is_acknowledged(in_flight: int) -> None:
    """A virtual machine was set back with its memory. What it had written there was compacted, trimmed and deleted since."""
    store = ScriptedStore()

    async def main() -> None:
        at_work = Writing(store, replace(AT_ONCE, puts_in_flight_max=in_flight))
        assert await outcome(at_work.add(b"first")) is None
        await store.create(trimmed_key(SESSION.id, SegmentSeq(3)), [b""])
        await store.delete(key_of(0))
        at_work.leaps += 1
        store.script("list", trimmed_prefix(SESSION.id), fails(Unavailable("away")))
        pending = [at_work.add(b"again") for _ in range(4)]
        found = await outcomes(pending)
        assert found[0] is OutcomeUnknown
        assert None not in found
        await at_work.running

    run(main())


def test_after_a_leap_a_trimmed_place_is_not_acknowledged_though_the_answer_of_its_put_is_lost() -> None:
    store = ScriptedStore()

    async def main() -> None:
        at_work = Writing(store, AT_ONCE)
        assert await outcome(at_work.add(b"first")) is None
        await store.create(trimmed_key(SESSION.id, SegmentSeq(3)), [b""])
        at_work.leaps += 1
        store.script("create", key_of(1), LOST_ANSWER)
        assert isinstance(await outcome(at_work.add(b"again")), OutcomeUnknown)
        await at_work.running

    run(main())


def test_after_a_leap_a_store_that_does_not_list_ends_the_session_at_the_deadline_of_its_put() -> None:
    store = ScriptedStore()

    async def main() -> None:
        at_work = Writing(store, AT_ONCE)
        assert await outcome(at_work.add(b"first")) is None
        at_work.leaps += 1
        store.script("list", trimmed_prefix(SESSION.id), *[fails(Denied("no listing"))] * 1_000)
        assert isinstance(await outcome(at_work.add(b"again")), OutcomeUnknown)
        assert AT_ONCE.put_deadline_ms <= now_s() * 1000 < 2 * AT_ONCE.put_deadline_ms
        await at_work.running

    run(main())


def test_a_leap_of_the_stores_time_costs_one_look_at_the_trim_markers() -> None:
    """The machine stood still for a while, and was not set back."""
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        assert await outcome(at_work.add()) is None
        before = store.count("list")
        at_work.leaps += 1
        for _ in range(5):
            assert await outcome(at_work.add()) is None
        assert store.count("list") == before + 1

    with_writer(store, work)


def test_an_object_that_is_there_and_then_gone_untrimmed_leaves_its_outcome_unknown() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), fails(AlreadyExists("it is there")))

    async def main() -> None:
        at_work = Writing(store, AT_ONCE)
        assert isinstance(await outcome(at_work.add()), OutcomeUnknown)
        await at_work.running

    run(main())


def test_a_request_that_arrives_after_its_seal_is_refused_by_the_bucket() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), late(31), *[SILENCE] * 5)

    async def work(at_work: Writing) -> None:
        assert await outcomes([at_work.add()]) == [SessionFenced]
        await asyncio.sleep(10)

    with_writer(store, work)
    assert len(store.content(key_of(0))) == SEAL_BYTES


def test_no_append_is_answered_as_not_written_before_the_seal_is_there() -> None:
    """The bucket is down for an hour: no seal, no answer. A caller that waits for less gives up by itself."""
    store = ScriptedStore()
    store.outage = Unavailable("connection refused")

    async def work(at_work: Writing) -> None:
        pending = at_work.add()
        await until_s(3600)
        assert not pending.outcome.done()
        store.outage = None
        assert await outcomes([pending]) == [SessionFenced]

    with_writer(store, work)


def test_a_seal_whose_answer_is_lost_is_recognised_as_a_seal() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), *[SILENCE] * 6, LOST_ANSWER)

    async def work(at_work: Writing) -> None:
        assert await outcomes([at_work.add()]) == [SessionFenced]

    with_writer(store, work)


def test_a_bucket_that_denies_every_put_ends_the_session_when_it_lets_us_in_again() -> None:
    store = ScriptedStore()
    store.outage = Denied("403 AccessDenied")

    async def work(at_work: Writing) -> None:
        pending = at_work.add()
        await until_s(100)
        store.outage = None
        assert await outcomes([pending]) == [SessionFenced]

    with_writer(store, work)


def test_of_two_segments_that_miss_their_deadlines_the_first_decides() -> None:
    store = ScriptedStore()
    for seq in (1, 2):
        store.script("create", key_of(seq), *[SILENCE] * 6)

    async def work(at_work: Writing) -> None:
        segments = []
        for _ in range(4):
            segments.append(at_work.add())
            await asyncio.sleep(1)
        assert await outcomes(segments) == [None, SessionFenced, SessionFenced, SessionFenced]

    with_writer(store, work)


# ── another's seal, or another's object ─────────────────────────────────────────────────────────────────────────────────


def test_a_successors_seal_refuses_what_stands_behind_it_and_what_was_not_sent() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(1))

    async def work(at_work: Writing) -> None:
        at_work.store.plant(key_of(1), seal_of(SESSION.id, 1))
        segments = []
        for _ in range(4):
            segments.append(at_work.add())
            await asyncio.sleep(0)
        assert await outcomes(segments) == [None, SessionFenced, SessionFenced, SessionFenced]
        await at_work.running

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=3))
    assert store.keys() == [key_of(0), key_of(1)] or store.keys() == [key_of(0), key_of(1), key_of(2)]


def test_sealed_with_several_puts_in_flight_each_is_answered_by_what_became_of_it() -> None:
    """0 has landed unanswered, 1 has not; the successor seals at 1; 2 has landed and will never be seen."""
    store = ScriptedStore()
    store.script("create", key_of(0), HAPPENS_UNANSWERED)
    store.script("create", key_of(1), SILENCE)

    async def work(at_work: Writing) -> None:
        segments = []
        for _ in range(3):
            segments.append(at_work.add())
            await asyncio.sleep(0.1)
        await seal(store, SESSION.id, by=BY, now_ms=virtual_loop().now_ms)
        assert store.has(key_of(2))
        assert await outcomes(segments) == [None, SessionFenced, SessionFenced]
        with pytest.raises(SessionFenced, match="session 7 has ended"):
            at_work.add()

    with_writer(store, work)


def test_when_the_session_is_sealed_only_what_stands_before_the_seal_is_waited_for() -> None:
    """The rest is refused at once: what was not sent, and what is on its way and would be for long."""
    store = ScriptedStore()
    store.script("create", key_of(0), slow(7))
    store.script("create", key_of(2), SILENCE, SILENCE)
    store.plant(key_of(1), seal_of(SESSION.id, 1))

    async def work(at_work: Writing) -> None:
        before = at_work.add()
        await asyncio.sleep(0.1)
        behind = at_work.add()
        await asyncio.sleep(0)
        silent = at_work.add()
        await asyncio.sleep(0)
        unsent = at_work.add()
        assert await outcomes([behind, silent, unsent]) == [SessionFenced] * 3
        assert now_s() == 0.1
        assert await outcome(before) is None
        await at_work.running
        assert now_s() == 7

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=3, hedge_after_ms=10_000))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            b"".join(segment_of(7, 1, [(ORDERS, stamped_run(1, batch_of(b"x")))], writer=SUCCESSOR).body), id="anothers segment"
        ),
        pytest.param(b"<html>captive portal</html>" * 20, id="no object of ours"),
    ],
)
def test_behind_an_object_that_is_neither_ours_nor_a_seal_nothing_that_was_sent_is_certain(content: bytes) -> None:
    store = ScriptedStore()
    for seq in (1, 2):
        store.script("create", key_of(seq), slow(seq))

    async def work(at_work: Writing) -> None:
        store.plant(key_of(1), content)
        segments = []
        for _ in range(3):
            segments.append(at_work.add())
            await asyncio.sleep(0.01)
        unsent = at_work.add()
        assert await outcomes([*segments, unsent]) == [None, OutcomeUnknown, OutcomeUnknown, SessionFenced]

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=2))


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_closing_flushes_what_is_buffered_and_seals_the_session() -> None:
    store = ScriptedStore()
    store.script("create", key_of(0), slow(1))

    async def work(at_work: Writing) -> None:
        first = at_work.add()
        await asyncio.sleep(0.1)
        buffered = at_work.add()
        at_work.writer.close()
        with pytest.raises(Stopping):
            at_work.add()
        await at_work.running
        assert await outcomes([first, buffered]) == [None, None]
        assert now_s() == 1
        assert parse_head(store.content(key_of(2)), key="").is_seal

    with_writer(store, work, settings=replace(SETTINGS, linger_ms=60_000))


def test_closing_a_session_that_wrote_nothing_seals_it_too() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        at_work.writer.close()
        await at_work.running

    with_writer(store, work)
    assert parse_head(store.content(key_of(0)), key="").is_seal


def test_closing_waits_for_its_seal_only_until_its_timeout() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        await outcome(at_work.add())
        store.outage = Unavailable("connection refused")
        at_work.writer.close()
        await at_work.running
        assert now_s() == pytest.approx(10)

    with_writer(store, work)


def test_closing_a_session_that_was_sealed_meanwhile_is_no_error() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        await outcome(at_work.add())
        await seal(store, SESSION.id, by=BY, now_ms=virtual_loop().now_ms)
        at_work.writer.close()
        await at_work.running

    with_writer(store, work)


@pytest.mark.parametrize(("closing", "refusal"), [(False, SessionFenced), (True, Stopping)])
def test_a_writer_that_is_cancelled_answers_everyone_what_it_knows(closing: bool, refusal: type[TidelogError]) -> None:
    store = ScriptedStore()
    store.script("create", key_of(1), slow(1))
    store.script("create", key_of(2), slow(1))

    async def work(at_work: Writing) -> None:
        segments = []
        for _ in range(5):
            segments.append(at_work.add())
            await asyncio.sleep(0.01)
        if closing:
            at_work.writer.close()
        at_work.running.cancel()
        await asyncio.wait((at_work.running,))
        assert at_work.running.cancelled()
        assert await outcomes(segments) == [None, OutcomeUnknown, OutcomeUnknown, refusal, refusal]

    with_writer(store, work, settings=replace(AT_ONCE, puts_in_flight_max=2, segment_bytes_max=100))


def test_an_internal_error_ends_the_session_and_leaves_no_append_waiting() -> None:
    store = ScriptedStore()

    async def main() -> None:
        at_work = Writing(store, AT_ONCE)

        def fails(footer: SegmentFooter, segment: PendingSegment) -> None:
            raise ZeroDivisionError

        at_work.writer._on_committed = fails
        pending = at_work.add()
        with pytest.raises(ExceptionGroup):
            await at_work.running
        assert await outcomes([pending]) == [OutcomeUnknown]
        await at_work.check_truth()

    run(main())


# ── whatever the bucket does ────────────────────────────────────────────────────────────────────────────────────────────

acts = st.sampled_from(
    [LOST_ANSWER, LOST_REQUEST, REFUSED, SILENCE, HAPPENS_UNANSWERED, slow(1), slow(2, 1), slow(12), late(5), late(45)]
)
ends = st.sampled_from(["close", "cancel", "another seals", "outage"])


@given(
    pauses_s=st.lists(st.sampled_from([0, 0.001, 0.2, 1, 7]), min_size=1, max_size=10),
    scripts=st.lists(st.lists(acts, max_size=5), max_size=6),
    end=ends,
    end_at_s=st.sampled_from([0, 0.001, 0.2, 1.5, 3, 10, 30, 50]),
    shuffled=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_bucket_does_the_answers_are_true_and_complete(
    pauses_s: list[float], scripts: list[list[Act]], end: str, end_at_s: float, shuffled: bool, seed: int
) -> None:
    store = ScriptedStore()
    for seq, script in enumerate(scripts):
        store.script("create", key_of(seq), *script)

    async def produce(at_work: Writing) -> None:
        for number, pause_s in enumerate(pauses_s):
            await asyncio.sleep(pause_s)
            try:
                at_work.add(partition=PAYMENTS if number % 3 else ORDERS)
            except (SessionFenced, Stopping):
                return

    async def finish(at_work: Writing) -> None:
        await until_s(end_at_s)
        if end == "cancel":
            at_work.running.cancel()
            await asyncio.wait((at_work.running,))
        elif end == "another seals":
            await seal(store.another_client(), SESSION.id, by=BY, now_ms=virtual_loop().now_ms)
        elif end == "outage":
            store.outage = Unavailable("connection refused")
            await asyncio.sleep(40)
            store.outage = None

    async def main() -> None:
        async with writing(store, SegmentSettings(linger_ms=50, puts_in_flight_max=3, segment_bytes_max=400)) as at_work:
            await asyncio.gather(produce(at_work), finish(at_work))

    run(main(), shuffled=shuffled, seed=seed)


# ── indexes of footers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_footers_are_written_once_more_together_after_so_many_commits() -> None:
    store = ScriptedStore()

    async def work(at_work: Writing) -> None:
        for _ in range(5):
            await outcome(at_work.add())

    with_writer(store, work, settings=replace(SETTINGS, index_every_segments=2))
    indexes = [key for key in store.keys(session_prefix(SESSION.id)) if "index-" in key]
    assert indexes == [index_key(SESSION.id, SegmentSeq(0), SegmentSeq(end)) for end in (2, 4)]
    footers = parse_index(store.content(indexes[1]), session=SESSION.id, first=SegmentSeq(0), end=SegmentSeq(4), key="")
    assert [footer.runs[0].base_offset for footer in footers] == [0, 1, 2, 3]


def test_a_failed_write_of_an_index_disturbs_no_append() -> None:
    store = ScriptedStore()
    store.script("create", index_key(SESSION.id, SegmentSeq(0), SegmentSeq(2)), REFUSED)

    async def work(at_work: Writing) -> None:
        for _ in range(4):
            assert await outcome(at_work.add()) is None

    with_writer(store, work, settings=replace(SETTINGS, index_every_segments=2))
    assert [key for key in store.keys(session_prefix(SESSION.id)) if "index-" in key] == [
        index_key(SESSION.id, SegmentSeq(0), SegmentSeq(4))
    ]

"""A broker's life on the bucket: claimed by one, committed up to the first gap, ended by a seal that no writer passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import AlreadyExists, Corrupt, Denied, NotFound, OutcomeUnknown
from metadata.model import SegmentSeq, SessionId
from segments.bucket.layout import claim_key, index_key, segment_key, session_prefix, trimmed_key
from segments.object_store.interface import ListPage, ObjectInfo, unsynced
from segments.wal.footer_index import IndexBlock
from segments.wal.footer_reader import read_footer_bytes, write_index
from segments.wal.segment_file import SEAL_BYTES, Seal, SegmentFooter, parse_seal
from segments.wal.session import (
    ClaimRecord,
    Session,
    claim,
    find_seal,
    is_segment_there,
    list_objects,
    list_session,
    seal,
    trim_point,
)
from segments.wal.session_listing import ListedSession, SessionListing
from segments.wal.session_reader import read_below_trim_point
from tests.kit.segments.batches import ORDERS, SUCCESSOR, TIMESTAMP_MS, WRITER, batch_of, seal_of, segment_of, stamped_run
from tests.kit.segments.scripted_store import LOST_ANSWER, LOST_REQUEST, REFUSED, Act, ScriptedStore, fails, slow
from tests.simulation.virtual_loop import run

SESSION, BY = SessionId(7), Session(SessionId(8), SUCCESSOR)


def key_of(seq: int, session: SessionId = SESSION) -> str:
    return segment_key(session, SegmentSeq(seq))


def body_of(seq: int, *, writer: bytes = WRITER, value: bytes = b"x", committed_to: int = 0) -> bytes:
    run = stamped_run(seq, batch_of(value))
    return b"".join(segment_of(SESSION, seq, [(ORDERS, run)], writer=writer, committed_to=committed_to).body)


def bucket(*seqs: int, sealed_at: int | None = None, vouched_to: int | None = None, trimmed_to: int | None = None) -> ScriptedStore:
    """The session with segments at these places, and perhaps a seal (of a successor, or who knew less) and a trim marker."""
    store = ScriptedStore()
    store.plant(claim_key(SESSION), b"{}")
    for seq in seqs:
        store.plant(key_of(seq), body_of(seq))
    if sealed_at is not None:
        store.plant(key_of(sealed_at), seal_of(SESSION, sealed_at, committed_to=vouched_to))
    if trimmed_to is not None:
        store.plant(trimmed_key(SESSION, SegmentSeq(trimmed_to)), b"")
    return store


# ── the claim ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def numbers_from(first: int) -> Callable[[], Awaitable[SessionId]]:
    numbers = count(first)

    async def next_number() -> SessionId:
        return SessionId(next(numbers))

    return next_number


def claimed(store: ScriptedStore, *, writer: bytes = WRITER, passed_over: list[SessionId] | None = None) -> Session:
    async def pass_over(session: SessionId) -> None:
        assert passed_over is not None, f"session {session} was passed over"
        passed_over.append(session)

    return run(
        claim(
            store,
            next_number=numbers_from(7),
            writer=writer,
            broker_id="b-1",
            now_ms=lambda: TIMESTAMP_MS,
            pass_over=pass_over,
        )
    )


def test_a_session_is_claimed_in_the_name_of_its_writer() -> None:
    store = ScriptedStore()
    assert claimed(store) == Session(SESSION, WRITER)
    held = msgspec.json.decode(store.content(claim_key(SESSION)), type=ClaimRecord)
    assert held == ClaimRecord(SESSION, WRITER.hex(), "b-1", TIMESTAMP_MS)


def test_a_number_that_another_has_claimed_is_passed_over_before_the_next_is_taken() -> None:
    store = ScriptedStore()
    claimed(store, writer=SUCCESSOR)
    store.plant(claim_key(SessionId(8)), b"not a claim at all")
    before = store.content(claim_key(SESSION))
    passed_over: list[SessionId] = []
    assert claimed(store, passed_over=passed_over).id == 9
    assert passed_over == [7, 8]
    assert store.content(claim_key(SESSION)) == before


def test_a_claim_whose_answer_was_lost_is_recognised_as_ones_own() -> None:
    store = ScriptedStore()
    store.script("create", claim_key(SESSION), LOST_ANSWER)
    store.script("get", claim_key(SESSION), REFUSED)
    assert claimed(store).id == SESSION
    assert store.keys() == [claim_key(SESSION)]


def test_a_claim_is_tried_until_the_bucket_is_back() -> None:
    store = ScriptedStore()
    store.script("create", claim_key(SESSION), REFUSED, LOST_REQUEST, REFUSED)
    assert claimed(store).id == SESSION


def test_a_claim_that_the_bucket_can_not_make_durable_is_not_taken_for_ones_own_by_a_repeat() -> None:
    store = ScriptedStore()
    store.script("create", claim_key(SESSION), Act(error=unsynced(OutcomeUnknown, "a power cut may take it away", hint="")))
    with pytest.raises(OutcomeUnknown, match="power cut"):
        claimed(store)
    assert store.count("create", claim_key(SESSION)) == 1


def test_without_permission_there_is_no_session() -> None:
    store = ScriptedStore()
    store.outage = Denied("403 AccessDenied")
    with pytest.raises(Denied):
        claimed(store)


# ── how far a session is committed ──────────────────────────────────────────────────────────────────────────────────────


def listing_of(store: ScriptedStore) -> tuple[range, bool]:
    """The places of the committed segments, and whether a seal follows."""
    listing = run(list_session(store, SESSION))
    seqs = range(listing.trimmed_to, listing.end_seq)
    assert [found and found.key for found in listing.segments] == [key_of(seq) for seq in seqs]
    return seqs, listing.sealed


@pytest.mark.parametrize(
    ("store", "committed", "sealed"),
    [
        pytest.param(bucket(), range(0), False, id="nothing but its claim"),
        pytest.param(bucket(0, 1, 2), range(3), False, id="three segments"),
        pytest.param(bucket(0, 1, 3, 4), range(2), False, id="what stands behind a gap is not committed"),
        pytest.param(bucket(1, 2), range(0), False, id="not even if the gap is the first place"),
        pytest.param(bucket(0, 1, sealed_at=2), range(2), True, id="a seal ends it"),
        pytest.param(bucket(0, 1, 3, 4, sealed_at=2), range(2), True, id="what a zombie wrote behind the seal is not committed"),
        pytest.param(bucket(0, 1, sealed_at=4, vouched_to=1), range(2), False, id="a seal behind a gap is no end yet"),
        pytest.param(bucket(sealed_at=0), range(0), True, id="sealed before it wrote anything"),
        pytest.param(bucket(3, 4, trimmed_to=3), range(3, 5), False, id="the trimmed prefix may be gone"),
        pytest.param(bucket(1, 2, 3, 4, trimmed_to=3), range(3, 5), False, id="or gone in part"),
        pytest.param(bucket(sealed_at=3, trimmed_to=3), range(3, 3), True, id="trimmed up to its seal"),
        pytest.param(bucket(4, trimmed_to=3), range(3, 3), False, id="a gap behind the trim point"),
    ],
)
def test_committed_is_what_stands_without_a_gap_from_the_trim_point_to_the_first_gap_or_seal(
    store: ScriptedStore, committed: range, sealed: bool
) -> None:
    assert listing_of(store) == (committed, sealed)


def test_the_highest_trim_marker_counts() -> None:
    store = bucket(5, 6, trimmed_to=2)
    store.plant(trimmed_key(SESSION, SegmentSeq(5)), b"")
    store.plant(trimmed_key(SESSION, SegmentSeq(4)), b"")
    assert listing_of(store) == (range(5, 7), False)


def test_names_that_are_not_ours_and_other_sessions_do_not_count() -> None:
    store = bucket(0)
    store.plant(session_prefix(SESSION) + "index-0000000000000009", b"")
    store.plant(session_prefix(SESSION) + "notes.txt", b"")
    store.plant(key_of(1, SessionId(SESSION + 1)), b"")
    assert listing_of(store) == (range(1), False)


def test_a_session_of_several_pages_is_listed_to_its_end() -> None:
    store = bucket()
    for seq in range(2500):
        store.plant(key_of(seq), b"x" * 300)
    assert listing_of(store) == (range(2500), False)
    assert store.count("list") == 3


# ── a segment that somebody deleted ─────────────────────────────────────────────────────────────────────────────────────────


def missing_in(store: ScriptedStore) -> tuple[list[int], int, bool, str]:
    """The places of missing segments, where the session ends, whether by a seal, and what object says that they were committed."""
    listing = run(list_session(store, SESSION))
    missing = [seq for seq, found in enumerate(listing.segments, start=listing.trimmed_to) if found is None]
    return missing, listing.end_seq, listing.sealed, listing.evidence


@pytest.mark.parametrize(("there", "cut_at"), [([4, 5, 6], None), ([4, 5, 6, 7], 7), ([4, 5, 6, 9], 7)])
def test_a_listing_with_a_bound_is_cut_off_if_there_is_one_more_segment(there: list[int], cut_at: int | None) -> None:
    listed = ListedSession(SESSION, since=SegmentSeq(4), objects_max=3)
    for seq in there:
        listed.take_in(ObjectInfo(segment_key(SESSION, SegmentSeq(seq)), 500))
    assert (list(listed.objects), listed.cut_at) == ([4, 5, 6], cut_at)
    listing = listed.committed()
    assert (listing.end_seq, listing.is_cut) == (7, cut_at is not None)


def test_a_gap_below_a_successors_seal_is_a_missing_segment_and_no_end() -> None:
    store = bucket(0, 2, 3, sealed_at=4)
    assert missing_in(store) == ([1], 4, True, key_of(4))
    before = store.keys()
    assert sealed(store).end_seq == 4
    assert store.keys() == before, "it is sealed already"


def test_a_gap_below_what_a_later_segment_calls_committed_is_a_missing_segment() -> None:
    store = bucket(0, 3)
    store.plant(key_of(4), body_of(4, committed_to=3))
    assert missing_in(store) == ([1, 2], 5, False, key_of(4))
    assert sealed(store).end_seq == 5


def test_segments_that_were_in_flight_together_prove_nothing_about_each_other() -> None:
    store = bucket(0, 2)
    store.plant(key_of(3), body_of(3, committed_to=1))
    assert missing_in(store) == ([], 1, False, "")


def test_the_seal_of_a_session_that_gave_up_does_not_vouch_for_what_was_still_in_flight() -> None:
    store = bucket(0, 2)
    store.plant(key_of(3), seal_of(SESSION, 3, committed_to=1))
    assert missing_in(store) == ([], 1, False, "")
    assert sealed(store).end_seq == 1


def test_a_damaged_witness_is_passed_over_for_the_one_before_it() -> None:
    store = bucket(0, 3)
    store.plant(key_of(4), body_of(4, committed_to=2))
    store.plant(key_of(5), b"x" * 300)
    assert missing_in(store) == ([1], 2, False, key_of(4)), "2 was not called committed by anyone"


def test_a_trimmed_segment_is_not_missing() -> None:
    store = bucket(3, sealed_at=4, trimmed_to=3)
    assert missing_in(store) == ([], 4, True, "")


def test_a_segment_that_lands_between_two_pages_of_a_listing_is_not_taken_for_missing() -> None:
    class Landing(ScriptedStore):
        async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> ListPage:
            page = await super().list(prefix, start_after=start_after, limit=limit)
            if not self.has(key_of(998)):
                self.plant(key_of(998), body_of(998, committed_to=998))
                self.plant(key_of(1002), body_of(1002, committed_to=1002))
            return page

    store = Landing()
    for seq in (*range(998), 999, 1000, 1001):
        store.plant(key_of(seq), body_of(seq, committed_to=min(seq, 998)))
    assert missing_in(store) == ([], 1003, False, key_of(1002))


def test_a_witness_that_is_trimmed_while_it_is_asked_is_no_harm() -> None:
    store = bucket(0, 2, 3)
    store.script("tail", key_of(3), fails(NotFound("trimmed")))
    assert missing_in(store) == ([], 1, False, "")


# ── the seal ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sealed(store: ScriptedStore, *, by: Session | None = BY) -> SessionListing:
    return run(seal(store, SESSION, by=by, now_ms=lambda: TIMESTAMP_MS))


def test_a_seal_is_created_at_the_first_gap_and_what_stands_before_it_is_committed_for_good() -> None:
    store = bucket(0, 1, 3)
    listing = sealed(store)
    assert (listing.sealed, listing.end_seq) == (True, 2)
    end = SegmentSeq(2)
    assert parse_seal(store.content(key_of(2)), key="") == Seal(SESSION, end, SUCCESSOR, end, TIMESTAMP_MS, BY.id)
    assert run(list_session(store, SESSION)) == listing


def test_a_tool_may_seal_as_well() -> None:
    store = bucket()
    sealed(store, by=None)
    assert parse_seal(store.content(key_of(0)), key="").sealed_by == 0


def test_a_sealed_session_is_not_sealed_again() -> None:
    store = bucket(0, sealed_at=1)
    assert sealed(store) == run(list_session(store, SESSION))
    assert store.count("create") == 0


@pytest.mark.parametrize("act", [LOST_ANSWER, LOST_REQUEST, REFUSED])
def test_a_seal_whose_answer_did_not_come_is_tried_again(act: Act) -> None:
    store = bucket(0)
    store.script("create", key_of(1), act)
    store.script("list", session_prefix(SESSION), REFUSED)
    assert sealed(store).end_seq == 1
    assert store.keys(session_prefix(SESSION)) == [key_of(0), key_of(1), claim_key(SESSION)]


def test_a_segment_that_lands_where_the_seal_was_to_go_is_committed_and_the_seal_stands_behind_it() -> None:
    store = bucket(0)

    async def main() -> SessionListing:
        store.script("list", session_prefix(SESSION), slow(0, answer_after_s=2))
        sealing = asyncio.create_task(seal(store, SESSION, by=BY, now_ms=lambda: TIMESTAMP_MS))
        await asyncio.sleep(1)
        await store.create(key_of(1), [body_of(1)])
        return await sealing

    assert run(main()).end_seq == 2
    assert len(store.content(key_of(2))) == SEAL_BYTES


def test_a_seal_that_was_created_where_a_compacted_segment_stood_is_looked_at_and_another_is_made() -> None:
    """The collector freed the name between the look and the create: the session did not end there."""
    store = bucket(0)

    async def main() -> SessionListing:
        store.script("list", session_prefix(SESSION), slow(0, answer_after_s=2))
        sealing = asyncio.create_task(seal(store, SESSION, by=BY, now_ms=lambda: TIMESTAMP_MS))
        await asyncio.sleep(1)
        await store.create(key_of(1), [body_of(1)])
        await store.create(trimmed_key(SESSION, SegmentSeq(2)), [b""])
        for seq in range(2):
            await store.delete(key_of(seq))
        return await sealing

    assert run(main()).end_seq == 2
    assert len(store.content(key_of(2))) == SEAL_BYTES


def test_a_damaged_seal_seals_all_the_same() -> None:
    """That something of its size stands there is what fences: no segment is that short, and no writer can create one there."""
    store = bucket(0, 2, sealed_at=1)
    store.plant(key_of(1), b"\0" * SEAL_BYTES)
    assert sealed(store).end_seq == 1
    assert store.count("create") == 0


delays = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(delays, delays, delays, st.booleans(), st.integers(0, 99))
def test_two_sealers_and_a_writer_that_goes_on_agree_on_where_the_session_ends(
    lists: list[tuple[int, int]], creates: list[tuple[int, int]], writes: list[tuple[int, int]], shuffled: bool, seed: int
) -> None:
    """Whole seconds make listings, landings and seals fall on one instant, in any order, with answers that are already old."""
    store = bucket()
    store.script("list", session_prefix(SESSION), *[slow(*delay) for delay in lists])
    for seq, delay in enumerate(creates):
        store.script("create", key_of(seq), slow(*delay), slow(*delay))

    async def write() -> list[int]:
        """Returns the segments that the writer knows to exist."""
        landed = []
        for seq, (pause_s, _) in enumerate(writes):
            await asyncio.sleep(pause_s)
            try:
                await store.create(key_of(seq), [body_of(seq)])
                landed.append(seq)
            except AlreadyExists:
                break
        return landed

    async def main() -> None:
        sealers = [seal(store, SESSION, by=Session(SessionId(n), SUCCESSOR), now_ms=lambda: TIMESTAMP_MS) for n in (8, 9)]
        landed, one, other = await asyncio.gather(write(), *sealers)
        assert one == other == await list_session(store, SESSION)
        assert landed == list(range(one.end_seq)) or landed == list(range(len(writes)))
        seals = [key for key in store.keys(session_prefix(SESSION)) if len(store.content(key)) == SEAL_BYTES]
        assert seals == [key_of(one.end_seq)]

    run(main(), shuffled=shuffled, seed=seed)


# ── what stands at a place ──────────────────────────────────────────────────────────────────────────────────────────────


def is_ours(store: ScriptedStore, seq: int) -> bool:
    body = body_of(seq)
    return run(is_segment_there(store, SESSION, SegmentSeq(seq), [body[:7], memoryview(body)[7:]]))


def test_a_segment_key_holds_our_segment_or_a_seal() -> None:
    assert [is_ours(bucket(0, sealed_at=1), seq) for seq in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(body_of(0)[:-1], "holds another segment", id="torn"),
        pytest.param(body_of(0, writer=SUCCESSOR), "holds another segment", id="of another writer"),
        pytest.param(body_of(0, value=b"w"), "holds another segment", id="of the same writer and length, with another record"),
        pytest.param(body_of(1), "holds segment 1 of session 7", id="of another place"),
        pytest.param(b"<html>", "too few", id="no object of ours"),
        pytest.param(b"<html>" * 99, "neither a segment nor a seal", id="no object of ours, but as long"),
    ],
)
def test_any_other_object_at_a_segment_key_is_corrupt(content: bytes, why: str) -> None:
    store = bucket()
    store.plant(key_of(0), content)
    with pytest.raises(Corrupt, match=why):
        is_ours(store, 0)


def test_a_segment_key_without_an_object_is_not_found() -> None:
    with pytest.raises(NotFound):
        is_ours(bucket(), 0)


@pytest.mark.parametrize("trimmed_to", [None, 0, 3])
def test_the_trim_point_is_where_the_highest_marker_says(trimmed_to: int | None) -> None:
    assert run(trim_point(bucket(4, trimmed_to=trimmed_to), SESSION)) == (trimmed_to or 0)


def test_a_refusal_of_the_bucket_is_passed_on() -> None:
    store = bucket(0)
    store.script("get", key_of(0), fails(Denied("403")))
    with pytest.raises(Denied):
        is_ours(store, 0)


# ── whether it was ended ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("store", "from_seq", "found"),
    [
        pytest.param(bucket(0, 1), 0, None, id="it goes on"),
        pytest.param(bucket(0, 1, sealed_at=2), 0, 2, id="sealed"),
        pytest.param(bucket(0, 1, sealed_at=2), 2, 2, id="sealed where its writer is"),
        pytest.param(bucket(sealed_at=3, trimmed_to=3), 1, 3, id="all before the seal was trimmed"),
        pytest.param(bucket(5, 6, sealed_at=3, trimmed_to=5), 3, None, id="a seal that came late, to where a segment had been"),
    ],
)
def test_a_seal_below_the_trim_point_ends_nothing(store: ScriptedStore, from_seq: int, found: int | None) -> None:
    assert run(find_seal(store, SESSION, from_seq=SegmentSeq(from_seq))) == found


def test_a_seal_is_found_behind_more_segments_than_a_page_of_a_listing_shows() -> None:
    """They landed while their writer could not read back the one before them, and so knows none of them as committed."""
    store = bucket(sealed_at=1100)
    body = body_of(0)
    for seq in range(1100):
        store.plant(key_of(seq), body)
    assert run(find_seal(store, SESSION, from_seq=SegmentSeq(0))) == 1100


# ── below the trim point ────────────────────────────────────────────────────────────────────────────────────────────────


def listed(store: ScriptedStore) -> ListedSession:
    return run(list_objects(store, ListedSession(SESSION)))


def seqs_below(found: ListedSession) -> list[list[int]]:
    """The segments of each stretch; those that are gone with a minus."""
    stretches = found.below_trim_point()
    return [
        [seq if info is not None else -seq for seq, info in enumerate(stretch.segments, start=stretch.trimmed_to)]
        for stretch in stretches
    ]


def test_segments_left_below_the_trim_point_are_listed_in_stretches_without_a_gap() -> None:
    assert seqs_below(listed(bucket(0, 1, 2))) == []
    assert seqs_below(listed(bucket(0, 1, 3, 4, 5, trimmed_to=5))) == [[0, 1], [3, 4]]
    with_index = bucket(0, 3, 4, 5, trimmed_to=5)
    with_index.plant(index_key(SESSION, SegmentSeq(1), SegmentSeq(3)), b"")
    assert seqs_below(listed(with_index)) == [[0, -1, -2, 3, 4]]
    reaching_further = bucket(5, trimmed_to=5)
    reaching_further.plant(index_key(SESSION, SegmentSeq(4), SegmentSeq(9)), b"")
    assert seqs_below(listed(reaching_further)) == [[-4]]


def test_segments_are_readable_up_to_the_trim_point_from_behind_the_last_gap_on() -> None:
    assert listed(bucket(0, 1, 3, 4, 5, trimmed_to=5)).readable_from() == 3
    assert listed(bucket(0, 1, trimmed_to=2)).readable_from() == 0
    assert listed(bucket(0, 1, trimmed_to=3)).readable_from() == 3
    assert listed(bucket(1, sealed_at=0, trimmed_to=2)).readable_from() == 1, "a seal that came late is no segment"


def footers_below(store: ScriptedStore, found: ListedSession, *, segments_max: int) -> list[list[int]]:
    async def read() -> list[list[int]]:
        parts = read_below_trim_point(store, found, reads_max=2, segments_max=segments_max)
        return [[footer.seq if isinstance(footer, SegmentFooter) else -1 for footer in part] async for part in parts]

    return run(read())


def test_footers_below_the_trim_point_are_read_in_parts_and_an_unreadable_one_is_an_error_among_them() -> None:
    store = bucket(0, 1, 2, trimmed_to=4)
    store.plant(key_of(3), b"torn" * 100)
    assert footers_below(store, listed(store), segments_max=3) == [[0, 1, 2], [-1]]
    assert footers_below(store, listed(store), segments_max=10) == [[0, 1, 2, -1]]


def test_a_segment_that_is_deleted_after_the_listing_is_left_out() -> None:
    store = bucket(0, 1, 2, trimmed_to=3)
    found = listed(store)
    run(store.delete(key_of(0)))
    assert footers_below(store, found, segments_max=10) == [[1, 2]]


def test_a_footer_whose_segment_is_gone_comes_from_an_index_and_is_left_out_where_that_cannot_be_read() -> None:
    store = bucket(0, 1, 2, trimmed_to=2)
    infos = [info for seq, info in listed(store).objects.items() if seq < 2]
    block = IndexBlock(SegmentSeq(0), SegmentSeq(2), tuple(run(read_footer_bytes(store, info)) for info in infos))
    run(write_index(store, SESSION, block, timeout_s=60))
    run(store.delete(key_of(0)))
    assert footers_below(store, listed(store), segments_max=10) == [[0, 1]]
    torn = bucket(1, trimmed_to=2)
    torn.plant(index_key(SESSION, SegmentSeq(0), SegmentSeq(2)), b"torn")
    assert footers_below(torn, listed(torn), segments_max=10) == [[1]]

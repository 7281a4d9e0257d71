"""Batches of appointments: what is stored is read back or refused, and what is applied again ends where it ended the first time."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.leadership import LeadershipChange, PartitionState, appointed, handed_over, moving, pruned
from metadata.controller.appointments import (
    Batch,
    Progress,
    batch_of,
    decode_batch,
    decode_progress,
    encode_batch,
    encode_progress,
    reapplied,
)
from metadata.errors import Corrupt, Rejected
from metadata.model import LeaderEpoch, Partition, Revision, SegmentSeq, SessionId, TopicId, TopicPartition
from metadata.store.interface import KeyValue

PARTITION = TopicPartition(TopicId("a" * 32), Partition(7))
S1, S2, S3 = SessionId(1), SessionId(2), SessionId(3)
LED = appointed(None, S1)
KEY = "appointments/00000000000000000042"
BATCH = batch_of(42, "nonce", [LeadershipChange(PARTITION, Revision(9), moving(LED, S2))])


def stored(value: bytes) -> KeyValue:
    return KeyValue("/c/appointments", value, Revision(3), Revision(3), version=1)


def test_a_batch_is_read_back_as_it_was_written() -> None:
    assert decode_batch(encode_batch(BATCH), number=42, key=KEY) == BATCH
    assert [(one.of, one.state) for one in BATCH.appointments] == [(PARTITION, moving(LED, S2))]
    empty = Batch(1, "n")
    assert decode_batch(encode_batch(empty), number=1, key=KEY) == empty


@given(st.integers(0, len(encode_batch(BATCH)) - 1), st.integers(1, 255))
def test_a_batch_of_which_a_byte_is_another_is_damage_or_says_the_same(at: int, change: int) -> None:
    body = bytearray(encode_batch(BATCH))
    body[at] ^= change
    with contextlib.suppress(Corrupt, Rejected):
        found = decode_batch(bytes(body), number=42, key=KEY)
        assert found.appointments == BATCH.appointments, "the nonce alone has no checksum: it is compared"


def test_a_batch_of_another_number_or_a_part_of_one_is_damage() -> None:
    with pytest.raises(Corrupt, match="holds batch 42"):
        decode_batch(encode_batch(BATCH), number=41, key=KEY)
    with pytest.raises(Corrupt, match=KEY):
        decode_batch(encode_batch(BATCH)[:-9], number=42, key=KEY)


def test_a_batch_of_a_newer_format_is_refused_and_the_object_named() -> None:
    newer = msgspec.json.encode({**msgspec.json.decode(encode_batch(BATCH)), "format_version": 2})
    with pytest.raises(Rejected, match=f"{KEY} has format version 2"):
        decode_batch(newer, number=42, key=KEY)


def test_the_progress_is_read_back_and_new_metadata_have_none() -> None:
    progress = Progress(41).noting("x").noting("y")
    assert decode_progress(stored(encode_progress(progress)), key="k") == progress
    assert progress.advanced(Revision(8)) == Progress(42, (), Revision(8))
    assert decode_progress(None, key="k") == Progress()
    with pytest.raises(Corrupt, match="can't be read"):
        decode_progress(stored(b"{"), key="/c/appointments")


def test_a_first_leader_is_appointed_where_there_is_none_and_no_other_state_comes_back() -> None:
    assert reapplied(LED, None) == LED
    of_remade_topic = appointed(None, S1, first_epoch=LeaderEpoch(8))
    assert reapplied(of_remade_topic, None) == of_remade_topic
    assert reapplied(appointed(LED, S2), None) is None, "the topic was deleted"
    assert reapplied(LED, LED) is None


def test_a_leader_is_appointed_behind_what_leads_in_an_earlier_epoch() -> None:
    asked = moving(LED, S2)
    decided = appointed(asked, S3)
    assert [(span.leader_epoch, span.session) for span in decided.sessions] == [(0, 1), (1, 2), (2, 3)]
    assert reapplied(decided, asked) == decided
    over = handed_over(asked, SegmentSeq(5), {S1})
    again = reapplied(decided, over)
    assert again is not None
    assert [(span.leader_epoch, span.session, span.released_at_seq) for span in again.sessions] == [
        (0, 1, 5),
        (1, 2, None),
        (2, 3, None),
    ]
    assert (again.leader_session, again.leader_epoch, again.moving_to) == (3, 2, None)


def test_a_leader_that_hands_over_by_itself_or_has_done_so_is_asked_no_more() -> None:
    asked = moving(LED, S2)
    assert reapplied(asked, LED) == asked
    assert reapplied(asked, asked) is None
    assert reapplied(asked, handed_over(asked, SegmentSeq(0), set())) is None
    closing = moving(LED, S1)
    assert reapplied(asked, closing) is None
    assert reapplied(asked, handed_over(closing, SegmentSeq(0), {S1})) is None
    assert reapplied(appointed(asked, S2), handed_over(asked, SegmentSeq(0), set())) is None


def test_a_list_that_its_leader_has_pruned_meanwhile_stays_pruned() -> None:
    current = appointed(appointed(LED, S2), S3)
    again = reapplied(moving(current, S1), pruned(current, set()))
    assert again is not None
    assert ([span.session for span in again.sessions], again.moving_to) == ([3], 1)


def test_a_state_of_a_newer_version_is_left_alone() -> None:
    assert reapplied(appointed(LED, S2), msgspec.structs.replace(LED, format_version=99)) is None


@st.composite
def lives(draw: st.DrawFn) -> tuple[PartitionState, PartitionState]:
    """A state that a batch was planned on, and that state after what its leader may have done since."""
    state = appointed(None, S1, first_epoch=LeaderEpoch(draw(st.sampled_from([0, 8]))))
    for session in draw(st.lists(st.sampled_from([S2, S3, SessionId(4)]), max_size=3)):
        state = appointed(state, session)
    if draw(st.booleans()):
        state = moving(state, SessionId(9))
    later = pruned(state, set()) if draw(st.booleans()) else state
    if later.moving_to is not None and draw(st.booleans()):
        later = handed_over(later, SegmentSeq(0), set())
    return state, later


@given(lives(), st.sampled_from(["appoint", "inherit", "ask"]))
def test_whatever_a_leader_does_meanwhile_the_same_session_leads_in_the_same_epoch(
    life: tuple[PartitionState, PartitionState], what: str
) -> None:
    planned_on, later = life
    if what == "ask" and planned_on.moving_to is None:
        decided = moving(planned_on, SessionId(8))
    elif what == "inherit" and planned_on.moving_to is not None:
        decided = appointed(planned_on, planned_on.moving_to)
    else:
        decided = appointed(planned_on, SessionId(8))
    ends = [reapplied(decided, state) or state for state in (planned_on, later)]
    assert len({(end.leader_session, end.leader_epoch, end.moving_to) for end in ends}) == 1
    assert reapplied(decided, ends[1]) is None, "it is applied once"

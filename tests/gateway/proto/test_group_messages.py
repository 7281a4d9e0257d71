"""Requests and answers of members survive the wire unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proto import group_messages as wire
from gateway.proto import groups_pb2
from metadata.errors import Corrupt, RebalanceInProgress, TidelogError, Unavailable, UnknownMember
from metadata.groups.model import (
    Generation,
    InstanceId,
    Joined,
    JoinedMember,
    JoinRequest,
    MemberId,
    Protocol,
    Synced,
    SyncRequest,
)
from metadata.groups.offsets import CommittedOffset, StoredOffsets
from metadata.model import Partition, TopicId, TopicPartition

TEXT = st.text(max_size=12)
MILLISECONDS = st.integers(1, 2**32 - 1)
MEMBER, INSTANCE = TEXT.map(MemberId), TEXT.map(InstanceId)
GENERATION = st.integers(-1, 2**31 - 1).map(Generation)
BYTES = st.binary(max_size=20)


@given(
    st.builds(
        JoinRequest,
        MEMBER,
        INSTANCE,
        TEXT,
        TEXT,
        TEXT,
        st.lists(st.builds(Protocol, TEXT, BYTES), max_size=3).map(tuple),
        MILLISECONDS,
        MILLISECONDS,
        st.booleans(),
    )
)
def test_a_join(asked: JoinRequest) -> None:
    sent = groups_pb2.JoinGroupRequest.FromString(wire.join_request("g", asked).SerializeToString())
    assert (sent.group, wire.asked_to_join(sent)) == ("g", asked)


def test_a_join_without_a_rebalance_timeout_has_its_session_timeout() -> None:
    assert wire.asked_to_join(groups_pb2.JoinGroupRequest(session_timeout_ms=9)).rebalance_timeout_ms == 9


@given(
    st.builds(
        Joined,
        GENERATION,
        TEXT,
        TEXT,
        MEMBER,
        MEMBER,
        st.lists(st.builds(JoinedMember, MEMBER, INSTANCE, BYTES), max_size=3).map(tuple),
        st.booleans(),
    )
)
def test_the_answer_to_a_join(reported: Joined) -> None:
    assert wire.joined(groups_pb2.JoinGroupResponse.FromString(wire.join_response(reported).SerializeToString())) == reported


@given(st.builds(SyncRequest, MEMBER, INSTANCE, GENERATION, st.dictionaries(MEMBER, BYTES, max_size=3), TEXT, TEXT))
def test_a_sync(asked: SyncRequest) -> None:
    sent = groups_pb2.SyncGroupRequest.FromString(wire.sync_request("g", asked).SerializeToString())
    assert (sent.group, wire.asked_to_sync(sent)) == ("g", asked)


@given(st.builds(Synced, TEXT, TEXT, BYTES))
def test_the_answer_to_a_sync(reported: Synced) -> None:
    assert wire.synced(groups_pb2.SyncGroupResponse.FromString(wire.sync_response(reported).SerializeToString())) == reported


@given(st.lists(st.tuples(MEMBER, INSTANCE), max_size=3))
def test_a_leave(leaving: list[tuple[MemberId, InstanceId]]) -> None:
    assert wire.asked_to_leave(wire.leave_request("g", leaving)) == leaving


@given(
    st.builds(
        CommittedOffset,
        offset=st.integers(-(2**63), 2**63 - 1),
        leader_epoch=st.integers(-(2**31), 2**31 - 1),
        metadata=TEXT,
        committed_at_ms=st.integers(0, 2**53),
    ),
    st.integers(0, 2**31 - 1),
)
def test_an_offset(committed: CommittedOffset, number: int) -> None:
    at = TopicPartition(TopicId("a" * 32), Partition(number))
    sent = wire.committed_offset("orders", at, committed)
    assert (sent.topic, sent.topic_id, sent.partition) == ("orders", at.topic_id, number)
    reported = wire.offset_to_commit(groups_pb2.CommittedOffset.FromString(sent.SerializeToString()))
    assert (reported.offset, reported.leader_epoch, reported.metadata) == (
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
    )
    fetched = [wire.fetched_offset("orders", at, committed), wire.fetched_offset("none", at._replace(partition=Partition(7)), None)]
    assert wire.fetched_offsets(fetched) == StoredOffsets({at: committed}, {})


def test_a_leader_epoch_that_is_left_out_is_not_the_first_one() -> None:
    assert wire.offset_to_commit(groups_pb2.CommittedOffset(offset=1)).leader_epoch == -1
    assert wire.offset_to_commit(groups_pb2.CommittedOffset(offset=1, leader_epoch=0)).leader_epoch == 0


def test_errors_keep_their_indexes() -> None:
    errors: list[TidelogError | None] = [None, UnknownMember("m"), RebalanceInProgress("r")]
    reported = wire.errors_of(wire.statuses(errors), 3)
    assert [error and (type(error), error.message) for error in reported] == [
        None,
        (UnknownMember, "m"),
        (RebalanceInProgress, "r"),
    ]
    with pytest.raises(Unavailable):
        wire.errors_of(wire.statuses(errors), 4)


def test_a_client_reads_errors_with_the_address_of_the_broker() -> None:
    [error] = wire.errors_of(wire.statuses([UnknownMember("m")]), 1, address="b:1")
    assert (type(error), str(error)) == (UnknownMember, "b:1: m")
    with pytest.raises(Unavailable, match=r"^b:1: the group's coordinator answered 1 of 2$") as too_few:
        wire.errors_of(wire.statuses([None]), 2, address="b:1")
    assert too_few.value.details == {"address": "b:1"}
    reported = wire.fetched_offset("orders", TopicPartition(TopicId("a" * 32), Partition(1)), Corrupt("torn"))
    damaged = wire.offset_fetched(reported, address="b:1")
    assert isinstance(damaged, Corrupt)
    assert str(damaged) == "b:1: torn"


def test_partitions_are_named_by_topic_in_order() -> None:
    named = wire.topic_partitions([("payments", 0), ("orders", 2), ("orders", 1)])
    assert [(each.topic, list(each.partitions)) for each in named] == [("orders", [1, 2]), ("payments", [0])]

"""What is told of groups, there and back again."""

from __future__ import annotations

import pytest

from gateway.groups.admin import messages as wire
from gateway.groups.admin.descriptions import (
    FetchedOffset,
    GroupDescription,
    GroupMember,
    MovedOffset,
    PartitionLag,
    SeekTo,
    TopicPartitions,
    assigned_partitions,
)
from gateway.proto import groups_pb2
from metadata.errors import InvalidArgument, InvalidGroupName, InvalidName, NoLeader
from metadata.groups.consumer_protocol import encode_assignment
from tests.kit.gateway.told_log import TOPIC_ID

TOPICS = [TopicPartitions("orders", (0, 3), TOPIC_ID), TopicPartitions("payments")]


def test_a_description_is_told_as_it_was() -> None:
    told = GroupDescription(
        group="billing/eu",
        state="Stable",
        generation=3,
        protocol_type="consumer",
        protocol="range",
        leader="m1",
        coordinator="broker-1",
        members=(GroupMember("m1", "i1", "c1", "10.0.0.7", b"\x00", b"\xff", 45_000, 300_000),),
        lags=(
            PartitionLag("orders", TOPIC_ID, 0, None, 0, 10, 2, 8, 1.5, "m1", "m", 1_700_000_000_000),
            PartitionLag("orders", TOPIC_ID, 1, None, None, 10, 0, 10, 20.25, "m1"),
        ),
    )
    message = wire.description_message(told, [wire.lag_message(lag) for lag in told.lags])
    assert wire.description(message, [wire.lag(lag) for lag in message.lags]) == told
    assert (message.lag_records, message.lag_seconds) == (18, 20.25)


def test_errors_of_partitions_are_told_with_their_class() -> None:
    moved = MovedOffset("orders", TOPIC_ID, 0, NoLeader("nobody leads it"), None, -1)
    back = wire.moved(wire.moved_message(moved))
    assert isinstance(back.error, NoLeader)
    assert back._replace(error=None) == moved._replace(error=None)
    sound = moved._replace(error=None, before=0, after=7)
    assert wire.moved(wire.moved_message(sound)) == sound
    outside = sound._replace(reason="BEYOND_END", asked=9)
    assert wire.moved(wire.moved_message(outside)) == outside
    offset = FetchedOffset("orders", TOPIC_ID, 0, 7, 3, "m", 1_700_000_000_000)
    assert wire.fetched(wire.fetched_message(offset)) == offset


@pytest.mark.parametrize(
    "to",
    [SeekTo("earliest"), SeekTo("latest"), SeekTo("timestamp_ms", 0), SeekTo("offset", 0), SeekTo("shift", -7), SeekTo("shift", 0)],
)
def test_a_seek_is_asked_for_as_it_was(to: SeekTo) -> None:
    request = wire.seek_request("g", TOPICS, to, validate_only=True)
    assert wire.seek_to(request) == to
    assert wire.named_topics(request.topics) == TOPICS


@pytest.mark.parametrize("request_", [groups_pb2.SeekGroupRequest(), groups_pb2.SeekGroupRequest(earliest=False)])
def test_a_seek_to_nowhere_is_refused(request_: groups_pb2.SeekGroupRequest) -> None:
    with pytest.raises(InvalidArgument, match="where to"):
        wire.seek_to(request_)


def test_what_protobuf_could_not_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="64 bits"):
        wire.seek_request("g", (), SeekTo("offset", 2**63), validate_only=True)
    with pytest.raises(InvalidGroupName):
        wire.describe_request("\ud800")
    for topics, error in (
        (TopicPartitions("\ud800"), InvalidName),
        (TopicPartitions("orders", (-1,)), InvalidArgument),
        (TopicPartitions("orders", (2**31,)), InvalidArgument),
        (TopicPartitions("orders", (), "\ud800"), InvalidArgument),
    ):
        with pytest.raises(error):
            wire.delete_offsets_request("g", [topics], validate_only=True)


def test_assignments_are_opened_where_they_are_kafkas() -> None:
    assert assigned_partitions("consumer", encode_assignment({"orders": [0, 2]})) == {"orders": [0, 2]}
    assert assigned_partitions("connect", encode_assignment({"orders": [0, 2]})) == {}
    assert assigned_partitions("consumer", b"\x00\x00\x00") == {}
    assert assigned_partitions("consumer", b"") == {}

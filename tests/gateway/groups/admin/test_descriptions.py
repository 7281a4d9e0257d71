"""What a description of a group says to its reader."""

from __future__ import annotations

from gateway.groups.admin.descriptions import assigned_partitions, hide_topics, sum_lags
from gateway.proto import groups_pb2
from metadata.groups.consumer_protocol import Subscription, decode_subscription, encode_assignment, encode_subscription


def described(subscription: bytes, assignment: bytes, protocol_type: str = "consumer") -> groups_pb2.GroupDescription:
    member = groups_pb2.GroupMember(member_id="m", client_id="c", metadata=subscription, assignment=assignment)
    lags = [
        groups_pb2.PartitionLag(topic="orders", topic_id="1", lag_records=5, lag_seconds=1.5),
        groups_pb2.PartitionLag(topic="salaries", topic_id="2", lag_records=7, lag_seconds=20.25),
    ]
    group = groups_pb2.GroupDescription(group="g", state="Stable", protocol_type=protocol_type, members=[member], lags=lags)
    sum_lags(group)
    return group


def test_the_lag_of_a_group_is_the_sum_of_records_and_the_longest_time() -> None:
    group = described(b"", b"")
    assert (group.lag_records, group.lag_seconds) == (12, 20.25)
    empty = groups_pb2.GroupDescription(lag_records=1, lag_seconds=1)
    sum_lags(empty)
    assert (empty.lag_records, empty.lag_seconds) == (0, 0)


def test_a_group_is_described_without_the_topics_that_may_not_be_seen() -> None:
    both = Subscription(("orders", "salaries"), {"salaries": [0]}, 3, "rack", b"data")
    group = described(encode_subscription(both), encode_assignment({"orders": [0], "salaries": [1]}, b"data"))
    whole = groups_pb2.GroupDescription.FromString(group.SerializeToString())
    hide_topics(group, lambda _: True)
    assert group == whole
    hide_topics(group, lambda topic: topic == "orders")
    assert [lag.topic for lag in group.lags] == ["orders"]
    assert (group.lag_records, group.lag_seconds, group.members[0].member_id) == (5, 1.5, "m")
    assert assigned_partitions("consumer", group.members[0].assignment) == {"orders": [0]}
    assert decode_subscription(group.members[0].metadata) == Subscription(("orders",), {}, 3, "rack", b"data")
    assert b"salaries" not in group.SerializeToString()


def test_undecodable_member_metadata_is_hidden_for_consumers_and_kept_for_other_protocols() -> None:
    group = described(b"\0salaries", b"\0salaries")
    hide_topics(group, lambda _: False)
    assert b"salaries" not in group.SerializeToString()
    other = described(b"\0own", b"\0own", "connect")
    hide_topics(other, lambda _: False)
    assert (other.members[0].metadata, other.members[0].assignment, len(other.lags)) == (b"\0own", b"\0own", 0)


def test_assignments_are_opened_where_they_are_kafkas() -> None:
    assert assigned_partitions("consumer", encode_assignment({"orders": [0, 2]})) == {"orders": [0, 2]}
    assert assigned_partitions("connect", encode_assignment({"orders": [0, 2]})) == {}
    assert assigned_partitions("consumer", b"\x00\x00\x00") == {}
    assert assigned_partitions("consumer", b"") == {}

"""Structs are filled from messages by the names of the fields."""

from __future__ import annotations

import pytest

from gateway.http.groups import bodies
from gateway.proto import admin_pb2, groups_pb2
from gateway.proto.values import value_of
from metadata.groups.model import Joined, JoinRequest, Synced, SyncRequest
from tidelog.admin import access
from tidelog.admin import group_descriptions as sdk
from tidelog.transport import descriptions


def test_fields_are_copied_by_name_and_an_absent_optional_one_is_none() -> None:
    offset = groups_pb2.FetchedOffset(topic="orders", topic_id="1", partition=3, offset=0, leader_epoch=-1, metadata="m")
    expected = bodies.CommittedAnswer("orders", "1", 3, 0, -1, "m", 0)
    assert value_of(offset, bodies.CommittedAnswer) == expected
    offset.ClearField("offset")
    assert value_of(offset, bodies.CommittedAnswer).offset is None


def test_a_field_that_is_given_replaces_that_of_the_message() -> None:
    group = groups_pb2.ListedGroup(group="g", state="Stable", members=2)
    assert value_of(group, sdk.ListedGroup, state="Empty") == sdk.ListedGroup(
        group="g", state="Empty", protocol_type="", members=2, coordinator=""
    )


@pytest.mark.parametrize(
    ("message", "kind", "differing"),
    [
        (groups_pb2.ListedGroup, bodies.ListedAnswer, set()),
        (groups_pb2.GroupDescription, bodies.GroupAnswer, set()),
        (groups_pb2.GroupMember, bodies.DescribedMember, set()),
        (groups_pb2.PartitionLag, bodies.LagAnswer, set()),
        (groups_pb2.MovedOffset, bodies.MovedAnswer, set()),
        (groups_pb2.FetchedOffset, bodies.CommittedAnswer, set()),
        (groups_pb2.ListedGroup, sdk.ListedGroup, set()),
        (groups_pb2.GroupDescription, sdk.GroupInfo, set()),
        (groups_pb2.GroupMember, sdk.MemberInfo, set()),
        (groups_pb2.PartitionLag, sdk.PartitionLag, {"error_code", "hint"}),
        (groups_pb2.MovedOffset, sdk.MovedOffset, {"error_code", "hint"}),
        (groups_pb2.FetchedOffset, sdk.CommittedOffset, set()),
        (groups_pb2.JoinGroupRequest, JoinRequest, set()),
        (groups_pb2.JoinGroupResponse, Joined, set()),
        (groups_pb2.SyncGroupRequest, SyncRequest, set()),
        (groups_pb2.SyncGroupResponse, Synced, set()),
        (admin_pb2.Topic, descriptions.TopicInfo, set()),
        (admin_pb2.PartitionState, descriptions.PartitionInfo, {"error_code", "hint"}),
        (admin_pb2.ClusterDescription, descriptions.ClusterInfo, set()),
        (admin_pb2.Broker, descriptions.BrokerInfo, set()),
        (admin_pb2.BrokerDrain, descriptions.BrokerDrain, set()),
        (admin_pb2.ExplainOffsetResponse, descriptions.Explanation, {"topic", "partition", "offset"}),
        (admin_pb2.ApiKey, access.KeyInfo, set()),
        (admin_pb2.Scope, access.Scope, set()),
        (admin_pb2.Acl, access.AclInfo, set()),
        (admin_pb2.Quota, access.QuotaInfo, set()),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_every_field_of_an_answer_is_one_of_its_message(message: type, kind: type, differing: set[str]) -> None:
    fields = {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]
    named: tuple[str, ...] = getattr(kind, "__struct_fields__", ()) or getattr(kind, "_fields", ())
    assert named
    assert set(named) - differing <= fields

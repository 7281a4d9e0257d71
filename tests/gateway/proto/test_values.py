"""Structs are filled from messages by the names of the fields."""

from __future__ import annotations

import pytest

from gateway.http.groups import bodies
from gateway.proto import groups_pb2
from gateway.proto.values import value_of
from tidelog.admin import group_descriptions as sdk


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
        (groups_pb2.ListedGroup, bodies.ListedAnswer, {}),
        (groups_pb2.GroupDescription, bodies.GroupAnswer, {}),
        (groups_pb2.GroupMember, bodies.DescribedMember, {}),
        (groups_pb2.PartitionLag, bodies.LagAnswer, {}),
        (groups_pb2.MovedOffset, bodies.MovedAnswer, {}),
        (groups_pb2.FetchedOffset, bodies.CommittedAnswer, {}),
        (groups_pb2.ListedGroup, sdk.ListedGroup, {}),
        (groups_pb2.GroupDescription, sdk.GroupInfo, {}),
        (groups_pb2.GroupMember, sdk.MemberInfo, {}),
        (groups_pb2.PartitionLag, sdk.PartitionLag, {"error_code", "hint"}),
        (groups_pb2.MovedOffset, sdk.MovedOffset, {"error_code", "hint"}),
        (groups_pb2.FetchedOffset, sdk.CommittedOffset, {}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_every_field_of_an_answer_is_one_of_its_message(message: type, kind: type, differing: set[str]) -> None:
    fields = {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]
    assert set(kind.__struct_fields__) - set(differing) <= fields  # type: ignore[attr-defined]

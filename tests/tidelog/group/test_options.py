"""The options of a member of a group: their names, their defaults, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from metadata.errors import InvalidArgument
from metadata.group_member.settings import MemberSettings
from tidelog.group.options import GroupOptionChanges, GroupOptions, group_options


def test_every_option_and_every_setting_of_a_member_is_a_keyword_of_consume() -> None:
    of_reader = {field.name for field in fields(GroupOptions)} - {"member"}
    of_member = {field.name for field in fields(MemberSettings)}
    assert set(GroupOptionChanges.__annotations__) == of_reader | of_member
    assert not of_reader & of_member


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert group_options({}) == GroupOptions(member=MemberSettings())
    changed = group_options({"session_timeout_ms": 6_000, "auto_commit": False, "assignors": ("range",)})
    assert changed.member == MemberSettings(session_timeout_ms=6_000, assignors=("range",))
    assert not changed.auto_commit


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="no option 'sesion_timeout_ms'") as raised:
        group_options({"sesion_timeout_ms": 6_000})
    assert "session_timeout_ms" in raised.value.hint
    with pytest.raises(InvalidArgument, match="auto_commit_interval_ms is 0"):
        group_options({"auto_commit_interval_ms": 0})


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_timeout_ms": 2**32},
        {"session_timeout_ms": 6_000.5},
        {"session_timeout_ms": True},
        {"client_id": 5},
        {"client_id": "\ud800"},
        {"instance_id": "billing-\udfff"},
        {"instance_id": None},
        {"assignors": 7},
        {"auto_commit": "no"},
        {"auto_commit_interval_ms": "5"},
        {"on_revoked": 5},
    ],
)
def test_a_value_that_can_not_be_meant_is_refused_before_the_member_joins(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))} is "):
        group_options(wrong)

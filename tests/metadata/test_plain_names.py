"""Which characters no name may have."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from gateway.cluster.settings import ClusterSettings
from metadata.access.acl import Scope, check_principal, check_scope
from metadata.errors import InvalidArgument, InvalidGroupName, TidelogError
from metadata.group_member.settings import MemberSettings
from metadata.groups.model import check_group_name
from metadata.model import check_client_rack
from metadata.plain_names import why_not_plain

SPOILED = "evil\u202ecod.exe"
REPORTED = r"character 5 is U\+202E, a format character \(RIGHT-TO-LEFT OVERRIDE\)"


def test_the_invalid_character_is_named_with_its_index() -> None:
    assert why_not_plain(SPOILED) == "character 5 is U+202E, a format character (RIGHT-TO-LEFT OVERRIDE)"
    assert why_not_plain("\x1b[31m") == "character 1 is U+001B, a control character"
    assert why_not_plain("a\ud800") == "character 2 is U+D800, a surrogate"
    assert why_not_plain("a\u2028b") == "character 2 is U+2028, a line separator (LINE SEPARATOR)"
    assert why_not_plain("x\U000e0001") == "character 2 is U+E0001, a format character (LANGUAGE TAG)"


@pytest.mark.parametrize("name", ["", "billing", "größe 雪", "عربى", "a b", "🙂", "..", "a/b"])
def test_any_other_text_is_plain(name: str) -> None:
    assert why_not_plain(name) is None


def test_every_control_format_and_surrogate_character_is_refused_and_no_letter_is() -> None:
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            assert why_not_plain(chr(code)) is not None, hex(code)
        elif category[0] in "LMNPS":
            assert why_not_plain(chr(code)) is None, hex(code)


def test_a_group_is_refused_with_the_character_that_spoils_its_name() -> None:
    with pytest.raises(InvalidGroupName, match=REPORTED) as raised:
        check_group_name(SPOILED)
    assert "\u202e" not in raised.value.message, "the message itself reaches terminals"
    with pytest.raises(InvalidGroupName, match="250 characters"):
        check_group_name("g" * 250)


def called(field: str, name: str) -> MemberSettings:
    return MemberSettings(client_id=name) if field == "client_id" else MemberSettings(instance_id=name)


@pytest.mark.parametrize("field", ["client_id", "instance_id"])
def test_a_spoiled_name_of_a_member_is_refused_before_it_joins(field: str) -> None:
    with pytest.raises(InvalidArgument, match=REPORTED) as raised:
        called(field, SPOILED)
    assert raised.value.details["field"] == field
    assert "\u202e" not in str(raised.value)
    with pytest.raises(InvalidArgument, match="250 characters"):
        called(field, "m" * 250)


def test_racks_principals_and_names_of_bindings_are_refused_with_the_character() -> None:
    def refused(error: type[TidelogError], *calls: object) -> None:
        for call in calls:
            with pytest.raises(error, match=REPORTED) as raised:
                call()  # type: ignore[operator]
            assert "\u202e" not in str(raised.value)

    refused(
        InvalidArgument,
        lambda: check_client_rack(SPOILED),
        lambda: ClusterSettings(rack=SPOILED),
        lambda: check_principal(SPOILED),
        lambda: check_scope(Scope("read", "group", SPOILED)),
    )

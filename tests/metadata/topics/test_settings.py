"""What can be set per topic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from metadata.topics.settings import INT64_MAX, MESSAGE_BYTES_LIMIT, SETTINGS, TopicSettings

VALUES = {
    "retention.ms": st.integers(-1, INT64_MAX).map(str),
    "retention.bytes": st.integers(-1, INT64_MAX).map(str),
    "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete", "delete,compact", " compact , delete "]),
    "max.message.bytes": st.integers(1024, MESSAGE_BYTES_LIMIT).map(str),
    "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    "message.timestamp.after.max.ms": st.integers(0, INT64_MAX).map(str),
    "min.compaction.lag.ms": st.integers(0, INT64_MAX).map(str),
    "delete.retention.ms": st.integers(0, INT64_MAX).map(str),
}


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    assert [definition.attribute for definition in SETTINGS.values()] == [field.name for field in dataclasses.fields(TopicSettings)]
    assert VALUES.keys() == SETTINGS.keys()


def test_the_defaults_are_those_of_kafka() -> None:
    assert {name: definition.default for name, definition in SETTINGS.items()} == {
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "max.message.bytes": "1048576",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": "3600000",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "86400000",
    }


def test_no_settings_are_the_defaults() -> None:
    assert TopicSettings.parse({}) == TopicSettings()
    assert TopicSettings().differing() == {}


def test_a_default_that_is_written_out_does_not_differ() -> None:
    written_out = {name: definition.default for name, definition in SETTINGS.items()}
    assert TopicSettings.parse(written_out) == TopicSettings()


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_differs_parses_to_the_same_settings(settings: dict[str, str]) -> None:
    parsed = TopicSettings.parse(settings)
    differing = parsed.differing()
    assert TopicSettings.parse(differing) == parsed
    assert TopicSettings.parse(differing).differing() == differing
    assert set(differing) <= set(settings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", "7d"),
        ("retention.ms", "1.5"),
        ("retention.ms", "1_000"),
        ("retention.ms", " 1"),
        ("retention.ms", "+1"),
        ("retention.ms", "--1"),
        ("retention.ms", "٣"),
        ("retention.ms", str(INT64_MAX + 1)),
        ("retention.ms", "9" * 5000),
        ("retention.bytes", "-2"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "remove"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", "compact,"),
        ("cleanup.policy", "DELETE"),
        ("max.message.bytes", "1023"),
        ("max.message.bytes", str(MESSAGE_BYTES_LIMIT + 1)),
        ("message.timestamp.type", "createtime"),
        ("min.compaction.lag.ms", "-1"),
        ("delete.retention.ms", "-1"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_bounds_and_the_default(name: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        TopicSettings.parse({name: text})
    message = str(refused.value)
    assert len(message) < 300
    for told in (name, SETTINGS[name].allowed, SETTINGS[name].default):
        assert told in message
    assert refused.value.details["setting"] == name


@given(name=st.sampled_from(sorted(SETTINGS)), text=st.text(max_size=30))
def test_any_text_is_a_value_or_refused(name: str, text: str) -> None:
    try:
        parsed = TopicSettings.parse({name: text})
    except InvalidArgument:
        return
    assert TopicSettings.parse(parsed.differing()) == parsed


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidArgument, match=r"'retention.m' is not a setting") as refused:
        TopicSettings.parse({"retention.m": "1"})
    assert refused.value.hint == "Did you mean 'retention.ms'?"


def test_an_unknown_setting_that_resembles_none_is_refused_with_all_names() -> None:
    with pytest.raises(InvalidArgument) as refused:
        TopicSettings.parse({"x" * 10_000: "1"})
    assert all(name in refused.value.hint for name in SETTINGS)
    assert len(str(refused.value)) < 200


def test_a_setting_that_a_newer_version_stored_is_skipped_when_reading() -> None:
    stored = {"retention.ms": "5", "from.the.future": "1"}
    assert TopicSettings.parse(stored, skip_unknown=True) == TopicSettings(retention_ms=5)
    with pytest.raises(InvalidArgument):
        TopicSettings.parse({"retention.ms": "-5"}, skip_unknown=True)


@pytest.mark.parametrize(
    ("policy", "deletes", "compacts"), [("delete", True, False), ("compact", False, True), ("delete,compact", True, True)]
)
def test_a_cleanup_policy_deletes_or_compacts_or_both(policy: str, deletes: bool, compacts: bool) -> None:
    settings = TopicSettings.parse({"cleanup.policy": policy})
    assert (settings.deletes, settings.compacts) == (deletes, compacts)

"""What can be set per topic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from metadata.topics.settings import (
    INT64_MAX,
    MESSAGE_BYTES_LIMIT,
    SETTINGS,
    TopicSettings,
    describe_settings,
    differing_settings,
)

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
    effective = [definition for definition in SETTINGS.values() if not definition.inert]
    assert [definition.attribute for definition in effective] == [field.name for field in dataclasses.fields(TopicSettings)]
    assert VALUES.keys() == {definition.name for definition in effective}
    assert {each.name: str(getattr(TopicSettings(), each.attribute)) for each in effective} == {
        each.name: each.default for each in effective
    }


def test_the_defaults_are_those_of_kafka() -> None:
    assert {name: definition.default for name, definition in SETTINGS.items() if not definition.inert} == {
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "max.message.bytes": "1048588",
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
def test_settings_that_differ_from_defaults_parse_to_the_same_settings(settings: dict[str, str]) -> None:
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
    for reported in (name, SETTINGS[name].allowed, SETTINGS[name].default):
        assert reported in message
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


# ── inert settings ──────────────────────────────────────────────────────────────────────────────────────────────────────

# Every topic config of Kafka 4.3, as its broker describes a topic without any: type, default.
KAFKA = {
    "cleanup.policy": ("list", "delete"),
    "compression.gzip.level": ("int", "-1"),
    "compression.lz4.level": ("int", "9"),
    "compression.type": ("string", "producer"),
    "compression.zstd.level": ("int", "3"),
    "delete.retention.ms": ("long", "86400000"),
    "file.delete.delay.ms": ("long", "60000"),
    "flush.messages": ("long", "9223372036854775807"),
    "flush.ms": ("long", "9223372036854775807"),
    "follower.replication.throttled.replicas": ("list", ""),
    "index.interval.bytes": ("int", "4096"),
    "leader.replication.throttled.replicas": ("list", ""),
    "local.retention.bytes": ("long", "-2"),
    "local.retention.ms": ("long", "-2"),
    "max.compaction.lag.ms": ("long", "9223372036854775807"),
    "max.message.bytes": ("int", "1048588"),
    "message.timestamp.after.max.ms": ("long", "3600000"),
    "message.timestamp.before.max.ms": ("long", "9223372036854775807"),
    "message.timestamp.type": ("string", "CreateTime"),
    "min.cleanable.dirty.ratio": ("double", "0.5"),
    "min.compaction.lag.ms": ("long", "0"),
    "min.insync.replicas": ("int", "1"),
    "preallocate": ("boolean", "false"),
    "remote.log.copy.disable": ("boolean", "false"),
    "remote.log.delete.on.disable": ("boolean", "false"),
    "remote.storage.enable": ("boolean", "false"),
    "retention.bytes": ("long", "-1"),
    "retention.ms": ("long", "604800000"),
    "segment.bytes": ("int", "1073741824"),
    "segment.index.bytes": ("int", "10485760"),
    "segment.jitter.ms": ("long", "0"),
    "segment.ms": ("long", "604800000"),
    "unclean.leader.election.enable": ("boolean", "false"),
}


def test_all_topic_configs_of_kafka_are_known_with_its_types_and_defaults() -> None:
    assert len(KAFKA) == 33
    assert {name: (definition.type, definition.default) for name, definition in SETTINGS.items()} == KAFKA


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_described_value_is_accepted_again_and_documented_in_one_sentence_or_more(name: str) -> None:
    definition = SETTINGS[name]
    assert definition.canonical(definition.default) == definition.default
    assert definition.meaning.endswith(".")
    assert definition.allowed


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "9", "9"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", "1e-3", "0.001"),
        ("unclean.leader.election.enable", "TRUE", "true"),
        ("leader.replication.throttled.replicas", "0:1,12:3", "0:1,12:3"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("segment.bytes", "52428800", "52428800"),
        ("local.retention.ms", "-1", "-1"),
    ],
)
def test_an_inert_setting_is_stored_and_described_and_changes_nothing(name: str, text: str, stored: str) -> None:
    assert TopicSettings.parse({name: text}) == TopicSettings()
    assert differing_settings({name: text}) == {name: stored}
    described = {each.definition.name: each for each in describe_settings({name: stored})}
    assert described.keys() == SETTINGS.keys()
    assert (described[name].value, described[name].source) == (stored, "dynamic topic")
    assert {each.source for each in described.values() if each.definition.name != name} == {"default"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("flush.messages", "0"),
        ("index.interval.bytes", str(2**31)),
        ("leader.replication.throttled.replicas", "0:1,"),
        ("local.retention.bytes", "-3"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.insync.replicas", "0"),
        ("preallocate", "yes"),
        ("segment.bytes", "1048575"),
        ("segment.index.bytes", "3"),
        ("segment.ms", "0"),
    ],
)
def test_an_inert_setting_out_of_kafkas_bounds_is_refused(name: str, text: str) -> None:
    for refusing in (TopicSettings.parse, differing_settings):
        with pytest.raises(InvalidArgument, match=name):
            refusing({name: text})


def test_a_stored_inert_value_that_is_out_of_bounds_by_now_does_not_keep_a_topic_from_being_read() -> None:
    assert TopicSettings.parse({"segment.bytes": "1"}, skip_unknown=True) == TopicSettings()

"""The stored form of a topic."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, InvalidArgument
from metadata.model import LeaderEpoch, Revision, TopicId
from metadata.store.interface import KeyValue
from metadata.topics.topic import PARTITION_COUNT_MAX, Topic, check_partition_count, decode_topic, encode_topic

STORED = {
    "format_version": 1,
    "id": "1f" * 16,
    "name": "orders",
    "partition_count": 6,
    "settings": {"retention.ms": "86400000"},
    "created_at_ms": 1767225600000,
}


def kept(value: bytes, key: str = "/tidelog/topics/orders") -> KeyValue:
    return KeyValue(key, value, Revision(5), Revision(9), 2)


def test_a_topic_is_stored_as_the_documentation_draws_it() -> None:
    topic = Topic(
        id=TopicId("1f" * 16),
        name="orders",
        partition_count=6,
        settings={"retention.ms": "86400000"},
        created_at_ms=1767225600000,
        revision=Revision(77),
    )
    assert encode_topic(topic) == (
        b'{"format_version":1,"id":"1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f","name":"orders","partition_count":6,'
        b'"settings":{"retention.ms":"86400000"},"created_at_ms":1767225600000}'
    )


def test_a_first_leader_epoch_is_stored_where_it_is_not_0() -> None:
    topic = msgspec.structs.replace(decode_topic(kept(json.dumps(STORED).encode())), first_leader_epoch=LeaderEpoch(12))
    assert json.loads(encode_topic(topic)) == STORED | {"first_leader_epoch": 12}
    assert decode_topic(kept(encode_topic(topic))) == topic


@given(
    name=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}", fullmatch=True),
    partition_count=st.integers(1, PARTITION_COUNT_MAX),
    settings=st.dictionaries(st.text(), st.text(), max_size=3),
    created_at_ms=st.integers(0, 2**62),
)
def test_a_topic_reads_back_as_it_was_with_the_revision_that_wrote_it(
    name: str, partition_count: int, settings: dict[str, str], created_at_ms: int
) -> None:
    topic = Topic(
        id=TopicId("0a" * 16),
        name=name,
        partition_count=partition_count,
        settings=settings,
        created_at_ms=created_at_ms,
        revision=Revision(9),
    )
    assert decode_topic(kept(encode_topic(topic), f"/tidelog/topics/{name}")) == topic


def test_fields_of_a_newer_version_do_not_stop_an_older_reader() -> None:
    topic = decode_topic(kept(json.dumps(STORED | {"format_version": 2, "from_the_future": [1, 2]}).encode()))
    assert (topic.name, topic.partition_count, topic.format_version) == ("orders", 6, 2)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        json.dumps({key: value for key, value in STORED.items() if key != "id"}).encode(),
        json.dumps(STORED | {"id": "1f"}).encode(),
        json.dumps(STORED | {"id": "1F" * 16}).encode(),
        json.dumps(STORED | {"name": "other"}).encode(),
        json.dumps(STORED | {"name": ".."}).encode(),
        json.dumps(STORED | {"partition_count": 0}).encode(),
        json.dumps(STORED | {"partition_count": "6"}).encode(),
        json.dumps(STORED | {"settings": {"retention.ms": 5}}).encode(),
    ],
)
def test_a_value_that_is_no_topic_is_corrupt_and_names_its_key(value: bytes) -> None:
    with pytest.raises(Corrupt, match="/tidelog/topics/orders") as corrupt:
        decode_topic(kept(value))
    assert corrupt.value.details["key"] == "/tidelog/topics/orders"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_topic_or_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_topic(kept(value))


@pytest.mark.parametrize("count", [0, -1, PARTITION_COUNT_MAX + 1])
def test_a_topic_has_1_to_10000_partitions(count: int) -> None:
    assert check_partition_count(1) == 1
    assert check_partition_count(PARTITION_COUNT_MAX) == 10_000
    with pytest.raises(InvalidArgument, match=f"{count} is not a partition count"):
        check_partition_count(count)

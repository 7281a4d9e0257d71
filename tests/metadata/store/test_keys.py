"""The keys of etcd, spelled out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, InvalidArgument
from metadata.model import Partition, SessionId, TopicId, TopicPartition
from metadata.store.keys import KeyLayout

ID = TopicId("00112233445566778899aabbccddeeff")


def test_every_key_is_where_the_documentation_says() -> None:
    layout = KeyLayout()
    assert layout.cluster_id == "/tidelog/cluster_id"
    assert layout.next_session == "/tidelog/next_session"
    assert layout.beginning_session(SessionId(26)) == "/tidelog/beginning/000000000000001a"
    assert layout.next_kafka_node_id == "/tidelog/next_kafka_node_id"
    assert layout.kafka_node_id("b-1") == "/tidelog/kafka_node_ids/b-1"
    assert layout.written_by(SessionId(26)) == "/tidelog/written/000000000000001a"
    assert layout.written_by(SessionId(26)).startswith(layout.written)
    assert layout.partition_count == "/tidelog/partition_count"
    assert layout.first_leader_epoch == "/tidelog/first_leader_epoch"
    assert layout.revision_base == "/tidelog/revision_base"
    assert layout.restoration == "/tidelog/restoration"
    assert layout.skipped_sessions == "/tidelog/skipped_sessions"
    assert layout.restoring == "/tidelog/restoring"
    assert layout.restoring.startswith(layout.root)
    assert layout.scratch("0a") == "/tidelog/scratch/0a"
    assert layout.topic("orders") == "/tidelog/topics/orders"
    assert layout.partition(TopicPartition(ID, Partition(12))) == f"/tidelog/partitions/{ID}/12"
    assert layout.partitions_of(ID) == f"/tidelog/partitions/{ID}/"
    assert layout.group("billing") == "/tidelog/groups/billing"
    assert layout.group("a/b %") == "/tidelog/groups/a%2Fb%20%25"
    assert layout.offset("a/b", TopicPartition(ID, Partition(12))) == f"/tidelog/offsets/a%2Fb/{ID}/12"
    assert layout.api_key("00ff") == "/tidelog/keys/00ff"
    assert layout.acl("00ff") == "/tidelog/acls/00ff"
    assert layout.quota("a/b") == "/tidelog/quotas/a%2Fb"
    assert layout.quota("*") == "/tidelog/quotas/%2A"
    assert layout.peer_secret == "/tidelog/peer_secret"
    assert KeyLayout("prod-eu").topic("orders") == "/prod-eu/topics/orders"


@given(name=st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True))
def test_the_key_of_a_topic_parses_to_its_name(name: str) -> None:
    layout = KeyLayout()
    assert layout.topic(name).startswith(layout.topics)
    assert layout.parse_topic(layout.topic(name)) == name


@given(number=st.integers(0, 2**63 - 1))
def test_the_key_of_a_session_that_has_yet_to_begin_parses_to_it(number: int) -> None:
    layout = KeyLayout()
    key = layout.beginning_session(SessionId(number))
    assert key.startswith(layout.beginning)
    assert layout.parse_beginning(key) == number
    with pytest.raises(Corrupt, match="is not the key of a session"):
        layout.parse_beginning(key[:-1])


@given(topic_id=st.from_regex(r"[0-9a-f]{32}", fullmatch=True), partition=st.integers(0, 99_999))
def test_the_key_of_a_partition_parses_to_it(topic_id: str, partition: int) -> None:
    layout = KeyLayout()
    led = TopicPartition(TopicId(topic_id), Partition(partition))
    assert layout.partition(led).startswith(layout.partitions)
    assert layout.parse_partition(layout.partition(led)) == led


@pytest.mark.parametrize(
    "rest", ["", ID, f"{ID}/", f"{ID}/x", f"{ID}/-1", f"{ID}/01", f"{ID}/1/2", f"{ID[1:]}/1", f"{ID.upper()}/1"]
)
def test_a_key_that_is_no_partition_is_corrupt(rest: str) -> None:
    with pytest.raises(Corrupt, match="is not the key of a partition"):
        KeyLayout().parse_partition(KeyLayout().partitions + rest)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a.b", "a\n", "é", "a" * 64])
def test_a_cluster_name_that_would_make_bad_keys_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a name for a cluster"):
        KeyLayout(name)


@pytest.mark.parametrize("name", ["a", "0", "prod-eu-1", "a" * 63])
def test_a_cluster_name_is_a_dns_label(name: str) -> None:
    assert KeyLayout(name).cluster == name


GROUP_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=249)


@given(name=GROUP_NAMES)
def test_the_key_of_a_group_parses_to_its_name(name: str) -> None:
    layout = KeyLayout()
    assert "/" not in layout.group(name).removeprefix(layout.groups)
    assert layout.parse_group(layout.group(name)) == name


@given(group=GROUP_NAMES, other=GROUP_NAMES, partition=st.integers(0, 99_999))
def test_the_key_of_a_committed_offset_parses_to_it_and_lies_under_its_group_alone(group: str, other: str, partition: int) -> None:
    layout = KeyLayout()
    committed = TopicPartition(ID, Partition(partition))
    key = layout.offset(group, committed)
    assert layout.parse_offset(key) == (group, committed)
    assert key.startswith(layout.committed_offsets)
    assert key.startswith(layout.offsets(other)) == (group == other)


@pytest.mark.parametrize("rest", ["", "a/b", "%", "%2f", "a%20%zz", "%ff", "\N{SNOWMAN}"])
def test_a_key_that_is_no_group_is_corrupt(rest: str) -> None:
    with pytest.raises(Corrupt, match="is not the key of a consumer group"):
        KeyLayout().parse_group(KeyLayout().groups + rest)


@pytest.mark.parametrize("rest", ["", "g", f"g/{ID}", f"g/{ID}/x", f"g/{ID}/01", f"/{ID}/1", f"g/h/{ID}/1", f"%2f/{ID}/1"])
def test_a_key_that_is_no_committed_offset_is_corrupt(rest: str) -> None:
    with pytest.raises(Corrupt, match="is not the key of a"):
        KeyLayout().parse_offset(KeyLayout().committed_offsets + rest)

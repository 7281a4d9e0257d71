"""Which partition a record goes to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from segments.records.partitioner import partition_of
from tidelog.producer.topic_partitions import Partitioner


@given(st.binary(max_size=20), st.integers(1, 100), st.integers(0, 1 << 30))
def test_a_key_goes_where_kafkas_clients_put_it(key: bytes, partition_count: int, start: int) -> None:
    assert Partitioner(partition_count, start=start).of_key(key) == partition_of(key, partition_count)


@given(st.integers(1, 20), st.integers(0, 1 << 30))
def test_without_keys_the_partitions_take_turns(partition_count: int, start: int) -> None:
    partitioning = Partitioner(partition_count, start=start)
    turns = [partitioning.keyless_partition, *(partitioning.next_keyless() for _ in range(partition_count - 1))]
    assert sorted(turns) == list(range(partition_count))
    assert partitioning.next_keyless() == turns[0]


@given(st.binary(max_size=20), st.integers(1, 20), st.integers(1, 30), st.integers(0, 1 << 30))
def test_a_salted_key_goes_evenly_to_its_partition_and_those_behind_it(
    key: bytes, partition_count: int, salt_count: int, start: int
) -> None:
    partitioning = Partitioner(partition_count, start=start, salt_count=salt_count)
    spread = min(salt_count, partition_count)
    counts = Counter(partitioning.of_key(key) for _ in range(10 * spread))
    home = partition_of(key, partition_count)
    assert counts == {(home + salt) % partition_count: 10 for salt in range(spread)}

"""A key goes to the partition where Kafka's own clients put it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from segments.records.partitioner import NO_PARTITION, partition_of, partitions_of
from tests.kit.segments.kernel_forms import kernel_form

__all__ = ["kernel_form"]


@pytest.mark.parametrize(
    ("key", "signed_hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_own_tests(kernel_form: Any, key: bytes, signed_hash: int) -> None:
    assert kernel_form.murmur2(key) == signed_hash % 2**32


@given(st.binary(max_size=40), st.integers(1, 100_000))
def test_a_key_goes_where_aiokafka_sends_it(key: bytes, partition_count: int) -> None:
    assert partition_of(key, partition_count) == (aiokafka_murmur2(key) & 0x7FFFFFFF) % partition_count


@given(st.lists(st.none() | st.binary(max_size=12), max_size=20), st.integers(1, 1000), st.integers(0, 3))
def test_a_column_of_keys_goes_where_each_key_goes(keys: list[bytes | None], partition_count: int, skipped: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skipped)
    expected = [NO_PARTITION if key is None else partition_of(key, partition_count) for key in keys[skipped:]]
    found = partitions_of(column, partition_count)
    assert found.dtype == np.int32
    assert found.tolist() == expected


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(2), pa.binary_view()])
def test_a_column_of_another_kind_of_strings_or_bytes_is_taken(type_: pa.DataType) -> None:
    assert partitions_of(pa.array(["k1", None, "k2"], type_), 12).tolist() == [
        partition_of(b"k1", 12),
        NO_PARTITION,
        partition_of(b"k2", 12),
    ]


def test_a_column_of_nulls_has_no_partitions() -> None:
    assert partitions_of(pa.nulls(3), 12).tolist() == [NO_PARTITION] * 3


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="int64"):
        partitions_of(pa.array([1, 2]), 12)

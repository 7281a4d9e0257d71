"""Chooses the partition of a key as Kafka's own clients do, so that both write a key to the same place. Pure.

Invariant: one key and one partition count always give the same partition. A null key has none: the caller spreads those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segments.records.batch_kernel import murmur2, murmur2_column
from segments.records.columns import binary_reader

if TYPE_CHECKING:
    import pyarrow as pa

_POSITIVE = 0x7FFFFFFF  # Kafka's toPositive clears the sign bit; it does not negate

# The partition of a null key.
NO_PARTITION = -1


def partition_of(key: bytes, partition_count: int) -> int:
    """Returns the partition of one key, in [0, partition_count)
    (org.apache.kafka.clients.producer.internals.BuiltInPartitioner)."""
    return (murmur2(key) & _POSITIVE) % partition_count


def partitions_of(keys: pa.BinaryArray, partition_count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns the partitions of a column of keys (binary or string), as int32; NO_PARTITION where the key is null."""
    reader = binary_reader(keys, "key")
    hashes = np.empty(len(keys), np.uint32)
    murmur2_column(reader, hashes.data)
    partitions = ((hashes & _POSITIVE) % partition_count).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return partitions

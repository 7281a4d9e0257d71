"""Which partition a key belongs to: the choice of Kafka's own clients, so that both write a key to the same place. Pure.

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

# Of a null key.
NO_PARTITION = -1


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of one key, in [0, partition_count) (org.apache.kafka.clients.producer.internals.BuiltInPartitioner)."""
    return (murmur2(key) & _POSITIVE) % partition_count


def partitions_of(keys: pa.BinaryArray, partition_count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The same for a column of keys, as int32; NO_PARTITION where the key is null. The column may be of strings, too."""
    reader = binary_reader(keys, "key")
    hashes = np.empty(len(keys), np.uint32)
    murmur2_column(reader, hashes.data)
    partitions = ((hashes & _POSITIVE) % partition_count).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return partitions

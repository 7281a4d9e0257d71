"""Which partition a record goes to. Pure.

With a key: murmur2 of its bytes, as Kafka's clients have it, so equal keys meet in one partition and keep their order. "salted"
adds 0, 1, 2, … in turn to that, so the records of one hot key spread over `salt_count` partitions, and their order is lost.
Without a key: one partition until its batch leaves, then the next (KIP-480's sticky partitioner, in turn instead of at random).
"""

from __future__ import annotations

from segments.records.partitioner import partition_of


class Partitioning:
    """Of one topic. `start` is where it begins in turn: different for each client, or all would begin with partition 0."""

    def __init__(self, partition_count: int, *, start: int, salt_count: int = 1) -> None:
        self.partition_count = partition_count
        self.keyless_partition = start % partition_count
        self._salt_count = min(salt_count, partition_count)
        self._salt = start % self._salt_count

    def of_key(self, key: bytes) -> int:
        partition = partition_of(key, self.partition_count)
        if self._salt_count == 1:
            return partition
        self._salt = (self._salt + 1) % self._salt_count
        return (partition + self._salt) % self.partition_count

    def next_keyless(self) -> int:
        """The batch of the keyless partition has left: moves on to the next."""
        self.keyless_partition = (self.keyless_partition + 1) % self.partition_count
        return self.keyless_partition

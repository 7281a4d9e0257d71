"""Builds batches of a plan for tests that look at the counts of records and the partitions alone."""

from __future__ import annotations

import msgspec

from gateway.records.partitioning import CheckedBatch
from tests.kit.segments.batches import batch_of, header_of, partition_of


def counted(partition: int, record_count: int) -> CheckedBatch:
    """Returns a batch without its bytes, whose header says that it has so many records."""
    return CheckedBatch(partition_of(partition), b"", msgspec.structs.replace(_HEADER, record_count=record_count))


_HEADER = header_of(batch_of(b"a"))

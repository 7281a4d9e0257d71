"""What the load generators send: record batches and bodies, encoded once before the clock runs."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from gateway.proto import log_pb2
from segments.records.batch import BATCH_OVERHEAD_BYTES
from segments.records.columns import encode_batch

VALUE_BYTES = 100
NOTE_BYTES = VALUE_BYTES - len('{"id":"000000000000","note":""}')
MESSAGE_BYTES_MAX = 1 << 20
# Now: older records would go by retention, once they are compacted.
TIMESTAMP_MS = int(time.time() * 1000)


def values(count: int) -> pa.BinaryArray:
    """JSON objects of VALUE_BYTES each, all different."""
    texts = [b'{"id":"%012d","note":"%s"}' % (index, b"x" * NOTE_BYTES) for index in range(count)]
    assert all(len(text) == VALUE_BYTES for text in texts)
    return pa.array(texts, pa.binary())


def record_batch(record_count: int) -> bytes:
    """A ready record batch of so many records without keys, VALUE_BYTES each."""
    keys = pa.nulls(record_count, pa.binary())
    return encode_batch(keys, values(record_count), timestamps_ms=np.full(record_count, TIMESTAMP_MS, np.int64))


def records_in(batch_bytes: int) -> int:
    """How many such records fit a batch of this size."""
    sample = record_batch(20_000)
    per_record = (len(sample) - BATCH_OVERHEAD_BYTES) / 20_000
    return int((batch_bytes - BATCH_OVERHEAD_BYTES) / per_record)


def produce_request(topic: str, batch: bytes, partitions: range) -> bytes:
    """A ProduceRequest with the batch for each of the partitions."""
    appends = [log_pb2.Append(topic=topic, partition=partition, record_batch=batch) for partition in partitions]
    return log_pb2.ProduceRequest(correlation_id=1, acks=log_pb2.ACKS_ALL, appends=appends).SerializeToString()

"""Bounds the bytes that records, batches and requests take on the wire. Pure.

    record    36 bytes of lengths, timestamp and offset, key, value, and of each header 10 bytes, name, value
    batch     its header (BATCH_OVERHEAD_BYTES of segments/records/batch.py), its records
    request   20 bytes, and of each append 60 bytes, the topic's name, its batch

Invariant: what is encoded is never longer than what is said here, whatever the records hold. A codec changes nothing of that: what
it would make longer stays as it is. So batches and requests that were filled by these figures fit the limits that they were
filled to.

Sources: segments/records/batch_kernel.py (varints of at most 5 bytes, varlongs of 10), gateway/proto/log.proto.
"""

from __future__ import annotations

from typing import Final

from tidelog.records import Headers

# Length 5, attributes 1, timestamp delta 10, offset delta 5, lengths of key and value 5 each, count of headers 5.
RECORD_OVERHEAD_BYTES: Final = 36
# Lengths of name and value, 5 each.
HEADER_OVERHEAD_BYTES: Final = 10
# Of a ProduceRequest: correlation id 11, acks 2, timeout 6.
REQUEST_OVERHEAD_BYTES: Final = 20
# Of an Append: its own length 6, of the topic's name 3, partition 6, the batch's length 6, the topic's id 34; and 5 to spare.
APPEND_OVERHEAD_BYTES: Final = 60
# metadata/model.py: ASCII.
TOPIC_NAME_BYTES_MAX: Final = 249
# What a request with one batch takes beside the batch.
LONE_BATCH_OVERHEAD_BYTES: Final = REQUEST_OVERHEAD_BYTES + APPEND_OVERHEAD_BYTES + TOPIC_NAME_BYTES_MAX


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns the bytes of one record within a batch."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, header_value in headers:
        size += HEADER_OVERHEAD_BYTES + (len(name) if name.isascii() else len(name.encode()))
        size += len(header_value) if header_value else 0
    return size


def append_bytes(topic: str, batch_bytes: int) -> int:
    """Returns the bytes of a batch of this length within a request."""
    return APPEND_OVERHEAD_BYTES + len(topic.encode()) + batch_bytes

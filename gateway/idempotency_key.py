"""A durable Idempotency-Key without a table: the key becomes a producer that writes once. Pure.

    producer_id     2^62 | first 62 bits of BLAKE2b(topic id, key)      ids from 2^62 on are never handed out
    producer_epoch  0
    base_sequence   first 31 bits of BLAKE2b(media type, body)          the fingerprint of the request

So the partition's producer state, which is rebuilt from the segments' footers, is the memory of the key: a repeat is answered
with the offsets of the first time, on any broker and after any crash, and another body under the same key is refused. The
fingerprint is of the body as it came: timestamps that the broker assigns are no part of it. A record without a key goes to a
partition that is chosen from the Idempotency-Key, so that a repeat finds the same one.

Source: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/ (quoted or bare, both are in use).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument
from metadata.model import ProducerId, TopicId
from segments.producer_state import ONE_SHOT

KEY_CHARACTERS_MAX: Final = 255

_PLAIN = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class ProducerFields(NamedTuple):
    """What goes into the header of the one batch in each partition."""

    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int


def producer_of(header: bytes, *, topic_id: TopicId, media_type: str, body: bytes) -> ProducerFields:
    """The one-shot producer of a request with this Idempotency-Key. InvalidArgument where it is empty, too long or not plain."""
    key = header[1:-1] if len(header) >= 2 and header[:1] == header[-1:] == b'"' else header
    if not _PLAIN.fullmatch(key) or len(key) > KEY_CHARACTERS_MAX:
        raise InvalidArgument(
            f"the Idempotency-Key has {len(key)} bytes, or others than printable ASCII",
            hint=f"Use 1 to {KEY_CHARACTERS_MAX} printable ASCII characters, for example a UUID.",
        )
    producer = int.from_bytes(blake2b(key, digest_size=8, person=b"tidelog-key", salt=bytes.fromhex(topic_id)).digest(), "big")
    fingerprint = int.from_bytes(blake2b(body, digest_size=4, key=media_type.encode()).digest(), "big")
    return ProducerFields(ProducerId(ONE_SHOT | producer >> 2), 0, fingerprint >> 1)


def partition_for_keyless(producer: ProducerFields, partition_count: int) -> int:
    """Where the records without a key of such a request go: the same for every repeat, spread over keys."""
    return producer.producer_id % partition_count

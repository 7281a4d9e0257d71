"""Encodes what members of a group send each other about partitions, in the bytes of Kafka's consumers. Pure.

    subscription = version i16 · topics [string] · user data bytes
                   · from 1: owned [topic string · partitions [i32]] · from 2: generation i32 · from 3: rack string
    assignment   = version i16 · assigned [topic string · partitions [i32]] · user data bytes

Big-endian; a string is i16 length · UTF-8, bytes are i32 length · bytes, an array is i32 count · items; -1 is null. The coordinator
never decodes them: members of other protocol types put there what they like. Trailing fields belong to a newer version and are
ignored. Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Apache Kafka, KIP-429, KIP-792, KIP-881.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata.errors import InvalidArgument

PROTOCOL_TYPE: Final = "consumer"
VERSION: Final = 3
STRING_BYTES_MAX: Final = 0x7FFF
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")

# Partition numbers by topic.
Partitions = Mapping[str, Sequence[int]]


class Subscription(NamedTuple):
    """Holds what a member subscribes to, and what it owns."""

    topics: tuple[str, ...]
    # What the member owned in `generation`, and still owns under a cooperative assignor.
    owned: Mapping[str, Sequence[int]] = {}
    generation: int = -1
    rack: str = ""
    user_data: bytes = b""


def encode_subscription(subscription: Subscription) -> bytes:
    parts = [_I16.pack(VERSION), _I32.pack(len(subscription.topics)), *map(_string, subscription.topics)]
    parts += [_bytes(subscription.user_data), *_partitions(subscription.owned)]
    parts += [_I32.pack(subscription.generation), _string(subscription.rack) if subscription.rack else _I16.pack(-1)]
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """Decodes a subscription. Raises InvalidArgument."""
    reader = _Reader(data, "a subscription")
    version = reader.version()
    topics = tuple(reader.string() or "" for _ in range(reader.count()))
    user_data = reader.data()
    owned = reader.partitions() if version >= 1 else {}
    generation = reader.i32() if version >= 2 else -1
    rack = reader.string() or "" if version >= 3 else ""
    return Subscription(topics, owned, generation, rack, user_data)


def encode_assignment(partitions: Partitions, user_data: bytes = b"") -> bytes:
    return b"".join([_I16.pack(VERSION), *_partitions(partitions), _bytes(user_data)])


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Decodes the partitions of an assignment; no bytes are no partitions. Raises InvalidArgument."""
    if not data:
        return {}
    reader = _Reader(data, "an assignment")
    reader.version()
    return reader.partitions()


def user_data_of_assignment(data: bytes) -> bytes:
    """Returns the user data of an assignment. Raises InvalidArgument."""
    if not data:
        return b""
    reader = _Reader(data, "an assignment")
    reader.version()
    reader.partitions()
    return reader.data()


def _string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise InvalidArgument(f"a text of {len(encoded)} bytes is longer than {STRING_BYTES_MAX}")
    return _I16.pack(len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _partitions(partitions: Partitions) -> Iterable[bytes]:
    yield _I32.pack(len(partitions))
    for topic, numbers in sorted(partitions.items()):
        yield _string(topic)
        yield struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


class _Reader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def i16(self) -> int:
        return int(_I16.unpack(self._take(2))[0])

    def version(self) -> int:
        if (version := self.i16()) < 0:
            raise InvalidArgument(f"{self._what} has the invalid version {version}")
        return version

    def i32(self) -> int:
        return int(_I32.unpack(self._take(4))[0])

    def count(self) -> int:
        """Reads the length of an array, which is at most the bytes that are left."""
        count = self.i32()
        if count > len(self._data) - self._at:
            raise self._torn()
        return max(0, count)

    def string(self) -> str | None:
        size = self.i16()
        try:
            return self._take(size).decode() if size >= 0 else None
        except UnicodeDecodeError as error:
            raise self._torn() from error

    def data(self) -> bytes:
        size = self.i32()
        return self._take(size) if size >= 0 else b""

    def partitions(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _ in range(self.count()):
            topic = self.string() or ""
            count = self.count()
            found.setdefault(topic, []).extend(struct.unpack(f">{count}i", self._take(4 * count)))
        return found

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise self._torn()
        taken, self._at = self._data[self._at : end], end
        return taken

    def _torn(self) -> InvalidArgument:
        return InvalidArgument(f"{self._what} of {len(self._data)} bytes is torn at byte {self._at}")

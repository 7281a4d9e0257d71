# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, auto_pickle=False
# mypy: disable-error-code="import-untyped, import-not-found, no-any-return"
"""Reads and writes the primitive types of Kafka's protocol. Pure.

    type          legacy versions                     flexible versions ("compact", KIP-482)
    string        int16 length, -1: null              unsigned varint of length + 1, 0: null
    bytes         int32 length, -1: null              unsigned varint of length + 1, 0: null
    records       as bytes                            as bytes
    array         int32 count, -1: null               unsigned varint of count + 1, 0: null
    struct        its fields                          its fields, then its tagged fields
    null struct   int8, -1: null, 1: present          the same
    tagged        -                                   count, then of each: tag, size (unsigned varints), value

Source: https://kafka.apache.org/protocol#protocol_types

Cython compiles this file with the C types of primitives.pxd; uncompiled, the same file runs as Python.

Invariants:
- Compiled code checks no index, so this module checks each position and length before it uses them.
- It checks a count of elements against the bytes left and the elements allowed for the request before it makes a list.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import cython

from gateway.kafka.protocol.errors import MalformedFrame

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy, memmove

if TYPE_CHECKING:
    from segments.object_store.interface import Buffer

COMPILED: bool = cython.compiled

# Elements of all arrays of one request. A request that names each partition of a cluster at Kafka's documented limit of 200,000
# fits. An element costs up to 150 bytes of memory, so a hostile frame costs at most 40 MB beyond its own size.
ELEMENTS_MAX: Final = 250_000
# The longest string that Kafka reads or writes.
STRING_BYTES_MAX: Final = 32_767
ZERO_UUID: Final = bytes(16)


class Reader:
    """Reads the fields of one request, in order. Each method raises MalformedFrame if the bytes are not of its type."""

    __slots__ = ("at", "data", "elements_left", "end", "view")

    def __init__(self, frame: Buffer, offset: int, elements_max: int = ELEMENTS_MAX) -> None:
        self.view = memoryview(frame)
        self.data = self.view
        self.end = len(self.view)
        self.at = offset
        self.elements_left = elements_max
        if offset < 0 or offset > self.end:
            raise MalformedFrame(f"a frame of {self.end} bytes ends before byte {offset}")

    def take(self, size: int) -> int:
        """Moves on by `size` bytes, and returns where they start."""
        if size > self.end - self.at:
            raise MalformedFrame(f"{size} bytes are expected at byte {self.at}, the frame has {self.end - self.at} more")
        self.at += size
        return self.at - size

    def boolean(self) -> bool:
        at = self.take(1)
        return self.data[at] != 0

    def int8(self) -> int:
        at = self.take(1)
        if cython.compiled:
            return cython.cast(cython.schar, self.data[at])
        return int.from_bytes(self.view[at : at + 1], "big", signed=True)

    def int16(self) -> int:
        at = self.take(2)
        if cython.compiled:
            return cython.cast(cython.short, self.data[at] << 8 | self.data[at + 1])
        return int.from_bytes(self.view[at : at + 2], "big", signed=True)

    def int32(self) -> int:
        at = self.take(4)
        if cython.compiled:
            return cython.cast(
                cython.int,
                cython.cast(cython.uint, self.data[at]) << 24
                | self.data[at + 1] << 16
                | self.data[at + 2] << 8
                | self.data[at + 3],
            )
        return int.from_bytes(self.view[at : at + 4], "big", signed=True)

    def int64(self) -> int:
        at = self.take(8)
        if cython.compiled:
            # The checks of both halves pass: their bytes are taken.
            self.at = at
            high = cython.cast(cython.uint, self.int32())
            low = cython.cast(cython.uint, self.int32())
            return cython.cast(cython.longlong, cython.cast(cython.ulonglong, high) << 32 | low)
        return int.from_bytes(self.view[at : at + 8], "big", signed=True)

    def float64(self) -> float:
        at = self.take(8)
        value: float = struct.unpack_from(">d", self.view, at)[0]
        return value

    def uuid(self) -> bytes:
        return self.copied(16)

    def uvarint(self) -> int:
        """Reads 7 bits a byte, the lowest first, into at most 31 bits."""
        value = 0
        shift = 0
        while True:
            byte = self.data[self.take(1)]
            if shift == 28 and byte > 7:
                raise MalformedFrame(f"the varint before byte {self.at} is larger than an int32")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def nullable_length(self, compact: bool, short: bool) -> int:
        """Reads a length; -1 is null."""
        size = self.uvarint() - 1 if compact else self.int16() if short else self.int32()
        if size < -1 or size > self.end - self.at:
            raise MalformedFrame(f"length {size} before byte {self.at}, the frame has {self.end - self.at} more")
        if short and size > STRING_BYTES_MAX:
            raise MalformedFrame(f"a string of {size} bytes before byte {self.at}; the longest has {STRING_BYTES_MAX}")
        return size

    def string(self, compact: bool) -> str:
        size = self.nullable_length(compact, True)
        if size < 0:
            raise MalformedFrame(f"null before byte {self.at}, in a string that is never null")
        return self.text(size)

    def nullable_string(self, compact: bool) -> str | None:
        size = self.nullable_length(compact, True)
        return None if size < 0 else self.text(size)

    def text(self, size: int) -> str:
        at = self.take(size)
        try:
            if cython.compiled:
                if size == 0:
                    return ""
                return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, cython.address(self.data[at])), size, cython.NULL)
            return str(self.view[at : at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"the string at byte {at} is not UTF-8: {error.reason}") from None

    def octets(self, compact: bool) -> bytes:
        size = self.nullable_length(compact, False)
        if size < 0:
            raise MalformedFrame(f"null before byte {self.at}, in a field that is never null")
        return self.copied(size)

    def nullable_octets(self, compact: bool) -> bytes | None:
        size = self.nullable_length(compact, False)
        return None if size < 0 else self.copied(size)

    def copied(self, size: int) -> bytes:
        at = self.take(size)
        if cython.compiled:
            if size == 0:
                return b""
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(self.data[at])), size)
        return bytes(self.view[at : at + size])

    def records(self, compact: bool) -> memoryview:
        """Returns a slice of the frame, which it keeps alive."""
        size = self.nullable_length(compact, False)
        if size < 0:
            raise MalformedFrame(f"null before byte {self.at}, in records that are never null")
        return self.slice_of(size)

    def nullable_records(self, compact: bool) -> memoryview | None:
        size = self.nullable_length(compact, False)
        return None if size < 0 else self.slice_of(size)

    def slice_of(self, size: int) -> memoryview:
        at = self.take(size)
        return self.view[at : at + size]

    def array_length(self, compact: bool, element_bytes_min: int) -> int:
        count = self.nullable_array_length(compact, element_bytes_min)
        if count < 0:
            raise MalformedFrame(f"null before byte {self.at}, in an array that is never null")
        return count

    def nullable_array_length(self, compact: bool, element_bytes_min: int) -> int:
        """Reads the number of elements; -1 is null. `element_bytes_min` is the least that one element takes in any version."""
        count = self.uvarint() - 1 if compact else self.int32()
        if count < -1 or count > (self.end - self.at) // element_bytes_min:
            raise MalformedFrame(
                f"an array of {count} elements before byte {self.at}, the frame has {self.end - self.at} more bytes"
            )
        if count > self.elements_left:
            raise MalformedFrame(
                f"an array of {count} elements before byte {self.at}; the request may have {self.elements_left} more"
            )
        if count > 0:
            self.elements_left -= count
        return count

    def present(self) -> bool:
        """Reads the byte before a struct that may be null. Kafka takes any byte from 0 up for present."""
        return self.int8() >= 0

    def tag_end(self) -> int:
        """Reads the size of a tagged field, and returns where the field ends."""
        size = self.uvarint()
        if size > self.end - self.at:
            raise MalformedFrame(f"a tagged field of {size} bytes at byte {self.at}, the frame has {self.end - self.at} more")
        return self.at + size

    def check_tag_end(self, end: int) -> bool:
        if self.at != end:
            raise MalformedFrame(f"a tagged field ends at byte {self.at}, by its size at byte {end}")
        return True

    def skip_tag(self, end: int) -> bool:
        self.at = end
        return True

    def skip_tags(self) -> bool:
        """Skips the tagged fields of a struct that has none in this version. A newer client may send some."""
        left = self.uvarint()
        while left > 0:
            self.uvarint()
            self.skip_tag(self.tag_end())
            left -= 1
        return True

    def position(self) -> int:
        return self.at

    def finish(self) -> bool:
        """Returns whether all bytes were read. Bytes behind the last field are no error, as in Kafka.

        librdkafka sends three of them if it asks Metadata only for brokers.
        """
        return self.at == self.end


class Writer:
    """Writes the fields of one frame, in order, and cuts its buffer where records go: those are not copied.

    Raises OverflowError, TypeError or ValueError if a value does not fit its field, which is a fault of the caller.
    """

    __slots__ = ("at", "buffer", "capacity", "cut_bytes", "parts")

    def __init__(self) -> None:
        self.capacity = 256
        self.buffer = bytearray(self.capacity)
        self.at = 0
        self.parts: list[Buffer] = []
        self.cut_bytes = 0

    def take(self, size: int) -> int:
        """Makes room for `size` bytes, and returns where they start."""
        if size > self.capacity - self.at:
            self.capacity = 2 * self.capacity + size
            self.buffer.extend(bytes(self.capacity - len(self.buffer)))
        self.at += size
        return self.at - size

    def boolean(self, value: bool) -> bool:
        at = self.take(1)
        self.buffer[at] = 1 if value else 0
        return True

    def int8(self, value: int) -> bool:
        at = self.take(1)
        if cython.compiled:
            self.buffer[at] = value & 0xFF
        else:
            self.buffer[at : at + 1] = value.to_bytes(1, "big", signed=True)
        return True

    def int16(self, value: int) -> bool:
        at = self.take(2)
        if cython.compiled:
            self.buffer[at] = (value >> 8) & 0xFF
            self.buffer[at + 1] = value & 0xFF
        else:
            self.buffer[at : at + 2] = value.to_bytes(2, "big", signed=True)
        return True

    def int32(self, value: int) -> bool:
        at = self.take(4)
        if cython.compiled:
            self.buffer[at] = (value >> 24) & 0xFF
            self.buffer[at + 1] = (value >> 16) & 0xFF
            self.buffer[at + 2] = (value >> 8) & 0xFF
            self.buffer[at + 3] = value & 0xFF
        else:
            self.buffer[at : at + 4] = value.to_bytes(4, "big", signed=True)
        return True

    def int64(self, value: int) -> bool:
        if cython.compiled:
            self.int32(cython.cast(cython.int, value >> 32))
            self.int32(cython.cast(cython.int, value))  # the low half: C keeps the lowest bits
        else:
            at = self.take(8)
            self.buffer[at : at + 8] = value.to_bytes(8, "big", signed=True)
        return True

    def float64(self, value: float) -> bool:
        return self.raw(struct.pack(">d", value), 8)

    def uuid(self, value: bytes) -> bool:
        if len(value) != 16:
            raise ValueError(f"an id has 16 bytes, not {len(value)}")
        return self.raw(value, 16)

    def uvarint(self, value: int) -> bool:
        while value > 0x7F:
            at = self.take(1)
            self.buffer[at] = (value & 0x7F) | 0x80
            value >>= 7
        at = self.take(1)
        self.buffer[at] = value
        return True

    def string(self, value: str, compact: bool) -> bool:
        encoded = value.encode("utf-8")
        size = len(encoded)
        if size > STRING_BYTES_MAX:
            raise ValueError(f"a string has {size} bytes; the protocol's longest has {STRING_BYTES_MAX}")
        if compact:
            self.uvarint(size + 1)
        else:
            self.int16(size)
        return self.raw(encoded, size)

    def nullable_string(self, value: str | None, compact: bool) -> bool:
        if value is not None:
            return self.string(value, compact)
        return self.uvarint(0) if compact else self.int16(-1)

    def octets(self, value: Buffer, compact: bool) -> bool:
        self.array_length(len(value), compact)
        return self.raw(value, len(value))

    def nullable_octets(self, value: Buffer | None, compact: bool) -> bool:
        if value is not None:
            return self.octets(value, compact)
        return self.array_length(-1, compact)

    def raw(self, value: Buffer, size: int) -> bool:
        """Adds bytes that are encoded already. `size` is their number."""
        at = self.take(size)
        if cython.compiled and isinstance(value, bytes):
            memcpy(PyByteArray_AS_STRING(self.buffer) + at, PyBytes_AS_STRING(value), size)
            return True
        self.buffer[at : at + size] = value
        return True

    def records(self, buffers: Sequence[Buffer], size_bytes: int, compact: bool) -> bool:
        """Adds `buffers` to the frame without a copy. `size_bytes` is their total, -1 where the caller has not added it up."""
        if size_bytes < 0:
            size_bytes = sum(map(len, buffers))
        self.array_length(size_bytes, compact)
        self.parts.append(self.buffer[: self.at])
        self.parts.extend(buffers)
        self.cut_bytes += self.at + size_bytes
        self.at = 0
        return True

    def nullable_records(self, buffers: Sequence[Buffer] | None, size_bytes: int, compact: bool) -> bool:
        if buffers is not None:
            return self.records(buffers, size_bytes, compact)
        return self.array_length(-1, compact)

    def array_length(self, count: int, compact: bool) -> bool:
        """Writes the number of elements; -1 is null."""
        return self.uvarint(count + 1) if compact else self.int32(count)

    def present(self, value: bool) -> bool:
        return self.int8(1 if value else -1)

    def begin_tag(self, tag: int) -> int:
        """Writes a tag, and returns where its value starts; `end_tag` puts the value's size before it."""
        self.uvarint(tag)
        return self.at

    def end_tag(self, start: int) -> bool:
        size = self.at - start
        shift = 1
        left = size >> 7
        while left > 0:
            shift += 1
            left >>= 7
        self.take(shift)
        if cython.compiled:
            memmove(PyByteArray_AS_STRING(self.buffer) + start + shift, PyByteArray_AS_STRING(self.buffer) + start, size)
        else:
            self.buffer[start + shift : start + shift + size] = self.buffer[start : start + size]
        self.at = start
        self.uvarint(size)
        self.at += size
        return True

    def finish(self) -> list[Buffer]:
        """Returns the buffers of the frame, and writes the int32 length of the rest into the first four bytes."""
        total = self.cut_bytes + self.at - 4
        if self.at > 0:
            self.parts.append(self.buffer[: self.at])
        first = self.parts[0]
        assert isinstance(first, bytearray)
        first[0:4] = total.to_bytes(4, "big")
        return self.parts

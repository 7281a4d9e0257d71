# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="import-untyped, import-not-found, valid-type, type-arg, untyped-decorator, no-any-return"
"""The loops of checksum.py over records, compiled by Cython (setup.py); uncompiled, the same file runs as Python. Pure.

The checksum of a record is 64 bits, of these words one after the other, each of 8 bytes:

    offset · timestamp · (timestamp type << 32 | number of headers) · key · value · of each header its key and its value

where a key or value is the word of its length (2^64 - 1 for null), then its bytes as little-endian words. The last word ends with
the last byte, so it overlaps the one before; what is shorter than a word is filled up with zeros. As long as there are 32 bytes,
they are mixed as a stripe of XXH64 (https://github.com/Cyan4973/xxHash, its specification), whose seed is what was mixed so far;
the words behind the last stripe, and the outcome, as there. A stripe has four lanes: a core works on four words at a time.

Invariant: no byte outside of the given buffers is read, whatever they hold. Sections and columns are read by code that shares
nothing with what turns one into the other (batch_kernel.py): whatever that loses or changes, the two checksums do not agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython

from metadata.errors import InvalidArgument, InvalidRecord

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from segments.object_store.interface import Buffer

COMPILED: bool = cython.compiled

_UINT64 = 2**64 - 1
_PRIME_1 = cython.declare(cython.ulonglong, 0x9E3779B185EBCA87)
_PRIME_2 = cython.declare(cython.ulonglong, 0xC2B2AE3D27D4EB4F)
_PRIME_3 = cython.declare(cython.ulonglong, 0x165667B19E3779F9)
_PRIME_4 = cython.declare(cython.ulonglong, 0x85EBCA77C2B2AE63)
_PRIME_5 = cython.declare(cython.ulonglong, 0x27D4EB2F165667C5)


@cython.final
@cython.cclass
class SectionReader:
    """Reads the records of one section (batch_kernel.py draws it) from the first on. What is malformed sets `torn`."""

    data: cython.const[cython.uchar][::1]
    end: cython.Py_ssize_t
    position: cython.Py_ssize_t
    torn: cython.bint

    def __init__(self, section: Buffer) -> None:
        self.data = memoryview(section).cast("B")
        self.end = len(section)
        self.position = 0
        self.torn = False

    def checksum(
        self, record_count: int, base_offset: int, base_timestamp: int, append_timestamp: int, log_append_time: bool
    ) -> int:
        """Returns the sum, modulo 2^64, of the checksums of all records. InvalidRecord where they are not exactly `record_count`.

        `append_timestamp` is that of all records where `log_append_time` is set.
        """
        count: cython.Py_ssize_t = record_count
        offset: cython.longlong = base_offset
        timestamp: cython.longlong = append_timestamp if log_append_time else base_timestamp
        append: cython.bint = log_append_time
        total: cython.ulonglong
        with cython.nogil:
            total = self._sum(count, offset, timestamp, append)
        if self.torn or self.position != self.end or count < 0:
            raise InvalidRecord(f"the batch does not hold {record_count} whole records and nothing else")
        return total

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _sum(
        self, count: cython.Py_ssize_t, base_offset: cython.longlong, base_timestamp: cython.longlong, append: cython.bint
    ) -> cython.ulonglong:
        total: cython.ulonglong = 0
        row: cython.Py_ssize_t = 0
        length: cython.longlong
        end: cython.Py_ssize_t
        while row < count and not self.torn:
            length = self._varint()
            if length < 1 or length > self.end - self.position:
                self.torn = True
                break
            end = self.position + length
            total = _wrapped(total + self._record(base_offset, base_timestamp, append))
            if self.position != end:
                self.torn = True
            row += 1
        return total

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _record(self, base_offset: cython.longlong, base_timestamp: cython.longlong, append: cython.bint) -> cython.ulonglong:
        timestamp: cython.ulonglong = _wrapped(base_timestamp)
        delta: cython.ulonglong
        headers: cython.longlong
        mixed: cython.ulonglong
        if self.data[self.position] != 0:  # its attributes: no bit has a meaning yet
            self.torn = True
        self.position += 1
        delta = _wrapped(self._varint())
        if not append:
            timestamp = _wrapped(timestamp + delta)
        delta = _wrapped(self._varint())
        mixed = _mix(_PRIME_5, _wrapped(_wrapped(base_offset) + delta))
        mixed = _mix(mixed, timestamp)
        # The number of headers stands behind key and value: it is read ahead of them, and their bytes are mixed after it.
        key_length: cython.longlong = self._length()
        key: cython.Py_ssize_t = self.position
        self.position += max(key_length, 0)
        value_length: cython.longlong = self._length()
        value: cython.Py_ssize_t = self.position
        self.position += max(value_length, 0)
        headers = self._varint()
        if self.torn or headers < 0 or headers > self.end - self.position:
            self.torn = True
            return 0
        mixed = _mix(mixed, _kind_and_headers(1 if append else 0, headers))
        mixed = _mix_bytes(mixed, _bytes_from(self.data, key), key_length)
        mixed = _mix_bytes(mixed, _bytes_from(self.data, value), value_length)
        headers *= 2  # a key and a value each
        while headers > 0 and not self.torn:
            key_length = self._length()
            mixed = _mix_bytes(mixed, _bytes_from(self.data, self.position), key_length)
            self.position += max(key_length, 0)
            headers -= 1
        return _finished(mixed)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _length(self) -> cython.longlong:
        """Reads a length, and checks that its bytes are there; returns -1 for null, and sets `torn` if they are not."""
        length: cython.longlong = self._varint()
        if length < -1 or length > self.end - self.position:
            self.torn = True
        return -1 if self.torn else length

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _varint(self) -> cython.longlong:
        shift: cython.int = 0
        byte: cython.ulonglong
        zigzag: cython.ulonglong = 0
        half: cython.longlong
        odd: cython.longlong
        while self.position < self.end and shift < 64:
            byte = self.data[self.position]
            self.position += 1
            zigzag |= _wrapped((byte & 0x7F) << shift)
            if byte < 0x80:
                half = zigzag >> 1
                odd = zigzag & 1
                return half ^ -odd
            shift += 7
        self.torn = True
        return 0


@cython.final
@cython.cclass
class ColumnReader:
    """Reads `count` rows of an Arrow binary, string or list array, from row `first` on. Empty `validity`: no row is null.

    The offsets point into `size` bytes of `data`, or rows of a list's child. Raises InvalidArgument if the buffers are too short,
    or the offsets do not ascend within it.
    """

    offsets: cython.const[cython.int][::1]
    validity: cython.const[cython.uchar][::1]
    data: cython.const[cython.uchar][::1]
    first: cython.Py_ssize_t
    count: cython.Py_ssize_t
    nullable: cython.bint

    def __init__(self, count: int, first: int, offsets: memoryview, validity: memoryview, data: memoryview, size: int) -> None:
        row: cython.Py_ssize_t
        at: cython.int = 0
        end: cython.Py_ssize_t = first + count
        limit: cython.Py_ssize_t = size
        self.offsets = offsets
        self.validity = validity
        self.data = data
        self.first = first
        self.count = count
        self.nullable = len(validity) > 0
        if count == 0:
            return
        if count < 0 or first < 0 or len(offsets) <= end or (self.nullable and len(validity) * 8 < end):
            raise InvalidArgument(f"an Arrow array of {count} rows from row {first} on has too short buffers")
        for row in range(self.first, end + 1):
            if self.offsets[row] < at or self.offsets[row] > limit:
                raise InvalidArgument(f"the offsets of an Arrow array do not ascend within the {size} that they point into")
            at = self.offsets[row]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def mix(self, mixed: cython.ulonglong, row: cython.Py_ssize_t) -> cython.ulonglong:
        at: cython.Py_ssize_t = self.first + row
        start: cython.Py_ssize_t = self.offsets[at]
        if self.nullable and not (self.validity[at >> 3] >> (at & 7)) & 1:
            return _mix_bytes(mixed, _bytes_from(self.data, start), -1)
        return _mix_bytes(mixed, _bytes_from(self.data, start), self.offsets[at + 1] - start)


def checksum_of_rows(
    offsets: memoryview,
    timestamps: memoryview,
    timestamp_types: memoryview,
    keys: ColumnReader,
    values: ColumnReader,
    headers: ColumnReader,
    header_keys: ColumnReader,
    header_values: ColumnReader,
) -> int:
    """Returns the checksum of records that are columns of equal length, equal to that of the same records in batches.

    A null list of headers counts as an empty one.
    """
    of: cython.const[cython.longlong][::1] = offsets
    times: cython.const[cython.longlong][::1] = timestamps
    types: cython.const[cython.int][::1] = timestamp_types
    count: cython.Py_ssize_t = len(offsets)
    row: cython.Py_ssize_t
    header: cython.Py_ssize_t
    end: cython.Py_ssize_t
    mixed: cython.ulonglong
    total: cython.ulonglong = 0
    assert count == len(timestamps) == len(timestamp_types) == keys.count == values.count == headers.count
    assert header_keys.count == header_values.count
    with cython.nogil:
        for row in range(count):
            mixed = _mix(_PRIME_5, _wrapped(of[row]))
            mixed = _mix(mixed, _wrapped(times[row]))
            header = headers.offsets[headers.first + row]
            end = headers.offsets[headers.first + row + 1]
            if headers.nullable and not (headers.validity[(headers.first + row) >> 3] >> ((headers.first + row) & 7)) & 1:
                end = header
            mixed = _mix(mixed, _kind_and_headers(types[row], end - header))
            mixed = keys.mix(mixed, row)
            mixed = values.mix(mixed, row)
            while header < end:
                mixed = header_keys.mix(mixed, header)
                mixed = header_values.mix(mixed, header)
                header += 1
            total = _wrapped(total + _finished(mixed))
    return total


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _kind_and_headers(timestamp_type: cython.longlong, headers: cython.longlong) -> cython.ulonglong:
    return _wrapped(timestamp_type << 32 | headers)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mix_bytes(mixed: cython.ulonglong, data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    """`length`, which is -1 for null, then the bytes."""
    at: cython.Py_ssize_t = 0
    word: cython.ulonglong = 0
    mixed = _mix(mixed, _wrapped(length))
    if length <= 0:
        return mixed
    if length < 8:
        while at < length:
            word = word << 8 | data[length - 1 - at]
            at += 1
        return _mix(mixed, word)
    if length >= 32:
        mixed = _mix_stripes(mixed, data, length)
        at = length - (length & 31)
        if at == length:
            return mixed
    while at + 8 < length:
        mixed = _mix(mixed, _word(data, at))
        at += 8
    return _mix(mixed, _word(data, length - 8))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mix_stripes(mixed: cython.ulonglong, data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    """Mixes all whole stripes of 32 bytes, at least one."""
    at: cython.Py_ssize_t = 0
    first: cython.ulonglong = _wrapped(mixed + _wrapped(_PRIME_1 + _PRIME_2))
    second: cython.ulonglong = _wrapped(mixed + _PRIME_2)
    third: cython.ulonglong = mixed
    fourth: cython.ulonglong = _wrapped(mixed - _PRIME_1)
    while at + 32 <= length:
        first = _in_lane(first, _word(data, at))
        second = _in_lane(second, _word(data, at + 8))
        third = _in_lane(third, _word(data, at + 16))
        fourth = _in_lane(fourth, _word(data, at + 24))
        at += 32
    mixed = _wrapped(_rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18))
    mixed = _with_lane(_with_lane(mixed, first), second)
    return _with_lane(_with_lane(mixed, third), fourth)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _in_lane(lane: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    return _wrapped(_rotated(_wrapped(lane + _wrapped(word * _PRIME_2)), 31) * _PRIME_1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _with_lane(mixed: cython.ulonglong, lane: cython.ulonglong) -> cython.ulonglong:
    return _wrapped((mixed ^ _in_lane(0, lane)) * _PRIME_1 + _PRIME_4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mix(mixed: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    return _wrapped(_rotated(mixed ^ _wrapped(_rotated(_wrapped(word * _PRIME_2), 31) * _PRIME_1), 27) * _PRIME_1 + _PRIME_4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _finished(mixed: cython.ulonglong) -> cython.ulonglong:
    mixed = _wrapped((mixed ^ (mixed >> 33)) * _PRIME_2)
    mixed = _wrapped((mixed ^ (mixed >> 29)) * _PRIME_3)
    return mixed ^ (mixed >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(word: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    return _wrapped(word << bits) | (word >> (64 - bits))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _wrapped(number: cython.ulonglong) -> cython.ulonglong:
    """Wraps modulo 2^64, as C does by itself."""
    if cython.compiled:
        return number
    else:  # noqa: RET505 - where compiled, this branch does not exist
        return number & _UINT64


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(data: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.ulonglong:
    """Reads 8 bytes, little-endian: as Arrow, this runs on no other machine."""
    word: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(word), data + at, 8)
        return word
    else:  # noqa: RET505
        return int.from_bytes(data[at : at + 8], "little")


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _bytes_from(data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t) -> cython.p_const_uchar:
    """Returns the bytes from `start` on: a pointer, or uncompiled a view."""
    if cython.compiled:
        return cython.address(data[start])
    else:  # noqa: RET505
        return data[start:]

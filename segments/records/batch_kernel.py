# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="import-untyped, import-not-found, valid-type, type-arg, untyped-decorator, no-any-return"
"""The loops over single records and bytes, compiled by Cython (setup.py); uncompiled, the same file runs as Python. Pure.

A record section is record_count of these, one after the other (https://kafka.apache.org/documentation/#record):

    length           varint     bytes that follow, up to the next record
    attributes       int8       0: no bit has a meaning yet
    timestamp_delta  varlong    to the batch's base_timestamp
    offset_delta     varint     to the batch's base_offset
    key_length       varint     -1: null     then the key
    value_length     varint     -1: null     then the value
    header_count     varint     then of each header:
        key_length   varint     then the key, UTF-8
        value_length varint     -1: null     then the value

varint and varlong: zigzag (0, -1, 1, -2, …), 7 bits a byte, the lowest first, at most 5 and 10 bytes.

Invariant: no byte outside of the given buffers is read or written, whatever they hold. Compiled code checks no index, so this
module checks every position and length before it uses them. Reading and writing columns let other threads run, so each pass that
reads checks everything again. Writing trusts that Arrow's buffers stay as they were when checked, since they are immutable, but
checks that a record fits when it writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cython
from awscrt.checksums import crc32c

from metadata.errors import InvalidArgument, InvalidRecord, TooLarge

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memchr, memcpy

if TYPE_CHECKING:
    from segments.object_store.interface import Buffer
    from segments.records.header import BatchHeader

# offset, timestamp_ms, key, value, headers
RecordTuple = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
# key, value, headers, timestamp_ms
NewRecordTuple = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]

COMPILED: bool = cython.compiled

_RECORD_BYTES_MIN = cython.declare(cython.Py_ssize_t, 7)  # one for each of its fields
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)
_INT64_MAX = 2**63 - 1
_UINT32 = cython.declare(cython.uint, 0xFFFFFFFF)
_TIMESTAMP_MAX = cython.declare(cython.longlong, 2**63 - 2)  # so that its distance to -1 is an int64
_HEADER_BYTES = cython.declare(cython.Py_ssize_t, 61)
_CRC_AT = cython.declare(cython.Py_ssize_t, 17)

_FINE = cython.declare(cython.int, 0)
_TORN = cython.declare(cython.int, 1)
_VARINT = cython.declare(cython.int, 2)
_LENGTH = cython.declare(cython.int, 3)
_ATTRIBUTES = cython.declare(cython.int, 4)
_HEADER_COUNT = cython.declare(cython.int, 5)
_HEADER_KEY = cython.declare(cython.int, 6)
_UNFILLED = cython.declare(cython.int, 7)
_OFFSET = cython.declare(cython.int, 8)
_TIMESTAMP = cython.declare(cython.int, 9)
_SURPLUS = cython.declare(cython.int, 10)
_CHANGED = cython.declare(cython.int, 11)
_FAULTS = (
    "it is sound",
    "it runs past the end of the record section",
    "a varint is cut off, or larger than its field",
    "a length is too small, or runs past the end of the record",
    "its attributes are not 0",
    "its count of headers is negative, or more than its bytes can hold",
    "the key of a header is null or not UTF-8",
    "its fields do not fill its length",
    "its offset delta is out of order, or past the batch's last",
    "its timestamp is below -1, or later than the batch's max timestamp",
    "bytes follow the last record",
    "the buffer was changed while it was read",
)


@cython.final
@cython.cclass
class RecordSection:
    """The records of one batch, not compressed. Each method reads them all, from the first on.

    InvalidRecord from any of them if the header contradicts itself, a record is malformed, or anything follows the last.
    """

    data: cython.const[cython.uchar][::1]
    end: cython.Py_ssize_t
    record_count: cython.Py_ssize_t
    base_offset: cython.longlong
    last_offset_delta: cython.longlong
    base_timestamp: cython.longlong
    max_timestamp: cython.longlong
    timestamp_delta_min: cython.longlong
    timestamp_delta_max: cython.longlong
    log_append_time: cython.bint

    # How far reading has come. `limit` is the end of what may be read next: the section's, or the record's.
    position: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    row: cython.Py_ssize_t
    next_delta: cython.longlong
    fault: cython.int
    # The record read last, as positions in `data`; a length of -1 is null.
    timestamp: cython.longlong
    offset_delta: cython.longlong
    key_start: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_start: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    headers_left: cython.Py_ssize_t
    header_key_start: cython.Py_ssize_t
    header_key_length: cython.Py_ssize_t
    header_value_start: cython.Py_ssize_t
    header_value_length: cython.Py_ssize_t
    # What `measure` has counted.
    key_bytes: cython.longlong
    value_bytes: cython.longlong
    header_count: cython.longlong
    header_key_bytes: cython.longlong
    header_value_bytes: cython.longlong
    # The first record without a key; -1 where each has one.
    keyless_row: cython.Py_ssize_t

    def __init__(self, section: Buffer, header: BatchHeader) -> None:
        self.data = memoryview(section).cast("B")  # whatever its format is called
        self.end = len(section)
        self.record_count = header.record_count
        self.base_offset = header.base_offset
        self.last_offset_delta = header.last_offset_delta
        self.base_timestamp = header.base_timestamp
        self.max_timestamp = header.max_timestamp
        self.log_append_time = header.log_append_time
        if self.record_count < 0 or self.record_count > self.end // _RECORD_BYTES_MIN:
            raise InvalidRecord(f"the batch says {header.record_count} records; a section of {self.end} bytes can't hold as many")
        if self.log_append_time:
            self.timestamp_delta_min = -_INT64_MAX - 1
            self.timestamp_delta_max = _INT64_MAX
            return
        if self.base_timestamp < -1 or self.max_timestamp < self.base_timestamp:
            raise InvalidRecord(
                f"the batch says base timestamp {header.base_timestamp} and max timestamp {header.max_timestamp}; "
                "the base is -1 or later, and the max is not before it"
            )
        self.timestamp_delta_min = -1 - header.base_timestamp
        self.timestamp_delta_max = min(header.max_timestamp - header.base_timestamp, _INT64_MAX)

    def check(self, dense: bool) -> int:
        """Reads every record. Returns the first that has no key; -1 where each has one.

        `dense`: offset deltas are 0, 1, 2, …, as clients send them; else they ascend (key compaction leaves gaps).
        """
        self._scan(dense)
        if self.fault != _FINE:
            raise self._refusal()
        return self.keyless_row

    def measure(self) -> tuple[int, int, int, int, int]:
        """Returns the bytes of all keys and of all values, headers, bytes of their keys and of their values."""
        with cython.nogil:
            self._scan(False)
        if self.fault != _FINE:
            raise self._refusal()
        return self.key_bytes, self.value_bytes, self.header_count, self.header_key_bytes, self.header_value_bytes

    def fill(self, columns: RecordColumns) -> None:
        """Appends every record to `columns`, which have room for what `measure` has counted."""
        with cython.nogil:
            self._fill(columns)
        if self.fault != _FINE:
            raise self._refusal()

    def tuples(self) -> list[RecordTuple]:
        rows: list = []
        headers: list
        self._begin()
        while self._next_record(False):
            key = self._bytes_at(self.key_start, self.key_length)
            value = self._bytes_at(self.value_start, self.value_length)
            if self.headers_left == 0:
                rows.append((self.base_offset + self.offset_delta, self.timestamp, key, value, ()))
                continue
            headers = []
            while self._next_header():
                name: bytes = self._bytes_at(self.header_key_start, self.header_key_length)
                try:
                    headers.append((name.decode(), self._bytes_at(self.header_value_start, self.header_value_length)))
                except UnicodeDecodeError:
                    self.fault = _HEADER_KEY
            rows.append((self.base_offset + self.offset_delta, self.timestamp, key, value, tuple(headers)))
        if self.fault != _FINE:
            raise self._refusal()
        return rows

    @cython.cfunc
    def _bytes_at(self, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> object:
        if length < 0:
            return None
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, cython.address(self.data[start])), length)
        else:  # noqa: RET505 - where compiled, this branch does not exist
            return bytes(self.data[start : start + length])

    @cython.cfunc
    def _refusal(self) -> object:
        if self.fault == _SURPLUS:
            return InvalidRecord(f"{self.end - self.position} bytes follow the last record of the batch")
        return InvalidRecord(f"record {self.row} of the batch is malformed at byte {self.position}: {_FAULTS[self.fault]}")

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _scan(self, dense: cython.bint) -> cython.void:
        self.key_bytes = self.value_bytes = 0
        self.header_count = self.header_key_bytes = self.header_value_bytes = 0
        self.keyless_row = -1
        self._begin()
        while self._next_record(dense):
            if self.key_length < 0 and self.keyless_row < 0:
                self.keyless_row = self.row
            self.key_bytes += max(self.key_length, 0)
            self.value_bytes += max(self.value_length, 0)
            while self._next_header():
                self.header_count += 1
                self.header_key_bytes += self.header_key_length
                self.header_value_bytes += max(self.header_value_length, 0)
                if not _is_utf8(_at(self.data, self.header_key_start), self.header_key_length):
                    self.fault = _HEADER_KEY

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _fill(self, columns: RecordColumns) -> cython.void:
        fits: cython.bint
        self._begin()
        while self._next_record(False):
            fits = columns.begin_row(self.base_offset + self.offset_delta, self.timestamp, self.log_append_time)
            fits = fits and columns.keys.append(self.data, self.key_start, self.key_length)
            fits = fits and columns.values.append(self.data, self.value_start, self.value_length)
            while fits and self._next_header():
                fits = columns.header_keys.append(self.data, self.header_key_start, self.header_key_length)
                fits = fits and columns.header_values.append(self.data, self.header_value_start, self.header_value_length)
            if not fits:
                self.fault = _CHANGED
            columns.end_row()

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _begin(self) -> cython.void:
        self.position = 0
        self.limit = 0
        self.row = -1
        self.next_delta = 0
        self.headers_left = 0
        self.fault = _FINE

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _next_record(self, dense: cython.bint) -> cython.bint:
        """Ends the record before; reads the next one up to its headers. False after the last one, or at a fault."""
        length: cython.longlong
        timestamp_delta: cython.longlong
        if self.fault == _FINE and self.position != self.limit:
            self.fault = _UNFILLED
        if self.fault != _FINE:
            return False
        self.row += 1
        self.limit = self.end
        if self.row == self.record_count:
            if self.position != self.end:
                self.fault = _SURPLUS
            return False
        length = self._varint(32)
        if self.fault == _FINE and (length < 0 or length > self.end - self.position):
            self.fault = _TORN
        if self.fault != _FINE:
            return False
        self.limit = self.position + length
        if length < _RECORD_BYTES_MIN - 1:
            self.fault = _LENGTH
            return False
        if self.data[self.position] != 0:
            self.fault = _ATTRIBUTES
            return False
        self.position += 1
        timestamp_delta = self._varint(64)
        self.offset_delta = self._varint(32)
        self.key_length = self._length()
        self.key_start = self.position
        self.position += max(self.key_length, 0)
        self.value_length = self._length()
        self.value_start = self.position
        self.position += max(self.value_length, 0)
        self.headers_left = self._varint(32)
        if self.fault != _FINE:
            return False
        if self.headers_left < 0 or self.headers_left > (self.limit - self.position) // 2:
            self.fault = _HEADER_COUNT
        elif timestamp_delta < self.timestamp_delta_min or timestamp_delta > self.timestamp_delta_max:
            self.fault = _TIMESTAMP
        elif self.offset_delta < self.next_delta or self.offset_delta > (self.next_delta if dense else self.last_offset_delta):
            self.fault = _OFFSET
        if self.fault != _FINE:
            return False
        self.timestamp = self.max_timestamp if self.log_append_time else self.base_timestamp + timestamp_delta
        self.next_delta = self.offset_delta + 1
        return True

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _next_header(self) -> cython.bint:
        """Reads the next header of the record. False after the last one, or at a fault."""
        if self.headers_left == 0 or self.fault != _FINE:
            return False
        self.headers_left -= 1
        self.header_key_length = self._length()
        if self.header_key_length < 0 and self.fault == _FINE:
            self.fault = _HEADER_KEY
        self.header_key_start = self.position
        self.position += max(self.header_key_length, 0)
        self.header_value_length = self._length()
        self.header_value_start = self.position
        self.position += max(self.header_value_length, 0)
        return self.fault == _FINE

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _length(self) -> cython.Py_ssize_t:
        length: cython.longlong = self._varint(32)
        if length < -1 or length > self.limit - self.position:
            self.fault = _LENGTH
            return -1
        return length

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _varint(self, bits: cython.int) -> cython.longlong:
        """Returns the next varint (32 bits) or varlong (64); 0 at a fault, and from then on."""
        at: cython.Py_ssize_t = self.position
        shift: cython.int = 0
        byte: cython.ulonglong
        zigzag: cython.ulonglong = 0
        half: cython.longlong
        odd: cython.longlong
        if self.fault != _FINE:
            return 0
        while at < self.limit and shift < bits:
            byte = self.data[at]
            at += 1
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift + 7 > bits and (byte >> (bits - shift)) != 0:
                    break
                self.position = at
                half = zigzag >> 1
                odd = zigzag & 1
                return half ^ -odd
            shift += 7
        self.fault = _VARINT
        return 0


@cython.final
@cython.cclass
class BinaryWriter:
    """The buffers of an Arrow binary array that is being filled: offsets (rows + 1), validity (a bit a row, zeroed), bytes."""

    offsets: cython.int[::1]
    validity: cython.uchar[::1]
    data: cython.uchar[::1]
    row: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    used: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self, offsets: memoryview, validity: memoryview, data: memoryview) -> None:
        self.offsets = offsets
        self.validity = validity
        self.data = data
        self.row = self.used = 0
        self.rows = len(offsets) - 1
        self.size = len(data)
        assert self.rows >= 0
        assert len(validity) * 8 >= self.rows
        self.offsets[0] = 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def append(self, source: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.bint:
        """Appends a value, or null where `length` is -1. Returns False where there is no room for it."""
        if self.row >= self.rows or length > self.size - self.used:
            return False
        if length >= 0:
            if cython.compiled:
                memcpy(cython.address(self.data[self.used]), cython.address(source[start]), length)
            else:
                self.data[self.used : self.used + length] = source[start : start + length]
            self.validity[self.row >> 3] |= 1 << (self.row & 7)
            self.used += length
        self.row += 1
        self.offsets[self.row] = self.used
        return True


@cython.final
@cython.cclass
class RecordColumns:
    """The columns that `RecordSection.fill` appends to. `header_offsets` (rows + 1) are those of the list of headers."""

    offsets: cython.longlong[::1]
    timestamps: cython.longlong[::1]
    timestamp_types: cython.int[::1]
    header_offsets: cython.int[::1]
    keys: BinaryWriter
    values: BinaryWriter
    header_keys: BinaryWriter
    header_values: BinaryWriter
    row: cython.Py_ssize_t
    rows: cython.Py_ssize_t

    def __init__(
        self,
        offsets: memoryview,
        timestamps: memoryview,
        timestamp_types: memoryview,
        header_offsets: memoryview,
        keys: BinaryWriter,
        values: BinaryWriter,
        header_keys: BinaryWriter,
        header_values: BinaryWriter,
    ) -> None:
        self.offsets = offsets
        self.timestamps = timestamps
        self.timestamp_types = timestamp_types
        self.header_offsets = header_offsets
        self.keys = keys
        self.values = values
        self.header_keys = header_keys
        self.header_values = header_values
        self.row = 0
        self.rows = len(offsets)
        assert len(timestamps) == len(timestamp_types) == len(header_offsets) - 1 == self.rows
        self.header_offsets[0] = 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def begin_row(self, offset: cython.longlong, timestamp: cython.longlong, timestamp_type: cython.int) -> cython.bint:
        if self.row >= self.rows:
            return False
        self.offsets[self.row] = offset
        self.timestamps[self.row] = timestamp
        self.timestamp_types[self.row] = timestamp_type
        return True

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def end_row(self) -> cython.void:
        if self.row < self.rows:
            self.row += 1
            self.header_offsets[self.row] = self.header_keys.row


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _at(data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t) -> cython.p_const_uchar:
    """Returns the bytes from `start` on: a pointer, or uncompiled a view."""
    if cython.compiled:
        return cython.address(data[start])
    else:  # noqa: RET505
        return data[start:]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    """Returns whether the bytes are well-formed UTF-8 (Unicode 15, table 3-7): no surrogates, no longer form than needed."""
    at: cython.Py_ssize_t = 0
    lead: cython.uint
    follow: cython.Py_ssize_t
    lowest: cython.uint
    highest: cython.uint
    while at < length:
        lead = text[at]
        at += 1
        if lead < 0x80:
            continue
        lowest = 0x80
        highest = 0xBF
        if 0xC2 <= lead <= 0xDF:
            follow = 1
        elif 0xE0 <= lead <= 0xEF:
            follow = 2
            if lead == 0xE0:
                lowest = 0xA0
            elif lead == 0xED:
                highest = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            follow = 3
            if lead == 0xF0:
                lowest = 0x90
            elif lead == 0xF4:
                highest = 0x8F
        else:
            return False
        if follow > length - at:
            return False
        while follow > 0:
            if text[at] < lowest or text[at] > highest:
                return False
            lowest = 0x80
            highest = 0xBF
            at += 1
            follow -= 1
    return True


@cython.final
@cython.cclass
class ArrowReader:
    """Reads `count` rows of an Arrow binary or list array, from row `first` of its buffers on. Empty `validity`: no row is null.

    The offsets point into `size` bytes of `data`, or rows of a list's child. Raises InvalidArgument if they do not ascend within
    it, since Arrow data that came over a network is not checked.
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
    def start(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.offsets[self.first + row]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def length(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the length; -1 for null."""
        at: cython.Py_ssize_t = self.first + row
        if self.nullable and not (self.validity[at >> 3] >> (at & 7)) & 1:
            return -1
        return self.offsets[at + 1] - self.offsets[at]


@cython.final
@cython.cclass
class ByteWriter:
    """Writes a bytes object of known size before it is shared. Bytes that do not fit are left out, which `written` detects."""

    out: cython.p_uchar
    position: cython.Py_ssize_t
    size: cython.Py_ssize_t
    target: bytes | bytearray

    def __init__(self, size: int) -> None:
        self.size = size
        self.position = 0
        if cython.compiled:
            self.target = PyBytes_FromStringAndSize(cython.NULL, self.size)
            self.out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(self.target))
        else:
            self.target = self.out = bytearray(self.size)

    @cython.cfunc
    def written(self) -> bytes:
        assert self.position == self.size
        return bytes(self.target)  # which is the very same object where it is bytes already

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_varint(self, value: cython.longlong) -> cython.void:
        zigzag: cython.ulonglong = _zigzag(value)
        while zigzag >= 0x80:
            self.put_byte((zigzag & 0x7F) | 0x80)
            zigzag >>= 7
        self.put_byte(zigzag)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_byte(self, byte: cython.uchar) -> cython.void:
        if self.position < self.size:
            self.out[self.position] = byte
            self.position += 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_bytes(self, source: cython.p_const_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.void:
        if 0 < length <= self.size - self.position:
            if cython.compiled:
                memcpy(self.out + self.position, source + start, length)
            else:
                self.out[self.position : self.position + length] = source[start : start + length]
            self.position += length

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_value(self, value: bytes | None) -> cython.void:
        """Writes the length of a value, and the value."""
        if value is None:
            self.put_varint(-1)
            return
        self.put_varint(len(value))
        self.put_bytes(value, 0, len(value))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_rows(self, rows: Rows) -> cython.void:
        """Writes all records up to the first that does not fit. Measures and writes each record in one pass."""
        out: cython.p_uchar = self.out
        at: cython.Py_ssize_t = self.position
        row: cython.Py_ssize_t
        header: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = 0
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        time: cython.longlong
        delta: cython.longlong
        body: cython.longlong
        for row in range(rows.count):
            time = rows.times[row] - rows.base
            delta = rows.delta(row)
            key = rows.keys.length(row)
            value = rows.values.length(row)
            if rows.has_headers:
                header = rows.headers.start(row)
                end = header + max(rows.headers.length(row), 0)
            body = _body_bytes(time, delta, key, value) + _headers_bytes(header, end, rows.header_keys, rows.header_values)
            if _value_bytes(body) > self.size - at:
                break
            at = _put_varint(out, at, body)
            at = _put_varint(out, at, 0)
            at = _put_varint(out, at, time)
            at = _put_varint(out, at, delta)
            at = _put_row(out, at, rows.keys, row, key)
            at = _put_row(out, at, rows.values, row, value)
            at = _put_varint(out, at, end - header)
            while header < end:
                key = rows.header_keys.length(header)
                value = rows.header_values.length(header)
                if _value_bytes(key) + _value_bytes(value) > self.size - at:
                    break
                at = _put_row(out, at, rows.header_keys, header, key)
                at = _put_row(out, at, rows.header_values, header, value)
                header += 1
        self.position = at

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put_int(self, value: cython.longlong, width: cython.int) -> cython.void:
        """Writes a number big-endian, in `width` bytes."""
        while width > 0:
            width -= 1
            self.put_byte((value >> (8 * width)) & 0xFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Writes a zigzag varint at `at`, and returns where it ends. The caller has checked that it fits."""
    zigzag: cython.ulonglong = _zigzag(value)
    while zigzag >= 0x80:
        out[at] = (zigzag & 0x7F) | 0x80
        zigzag >>= 7
        at += 1
    out[at] = zigzag
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_row(
    out: cython.p_uchar, at: cython.Py_ssize_t, source: ArrowReader, row: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Writes the length of a value of a column (-1: null) and the value, and returns where it ends. There is room: the caller has
    looked."""
    start: cython.Py_ssize_t
    at = _put_varint(out, at, length)
    if length <= 0:
        return at
    start = source.start(row)
    if cython.compiled:
        memcpy(out + at, _at(source.data, start), length)
    else:
        out[at : at + length] = source.data[start : start + length]
    return at + length


@cython.final
@cython.cclass
class Rows:
    """The columns of one batch to be written, and what was found of them: other threads run while it is measured and written."""

    count: cython.Py_ssize_t
    times: cython.const[cython.longlong][::1]
    deltas: cython.const[cython.longlong][::1]
    dense: cython.bint
    keys: ArrowReader
    values: ArrowReader
    has_headers: cython.bint
    headers: ArrowReader
    header_keys: ArrowReader
    header_values: ArrowReader

    base: cython.longlong
    latest: cython.longlong
    section: cython.longlong
    wrong_row: cython.Py_ssize_t

    def __init__(
        self,
        keys: ArrowReader,
        values: ArrowReader,
        timestamps: memoryview,
        offset_deltas: memoryview | None,
        headers: ArrowReader | None,
        header_keys: ArrowReader | None,
        header_values: ArrowReader | None,
    ) -> None:
        self.count = keys.count
        self.times = timestamps
        self.dense = offset_deltas is None
        self.deltas = timestamps if offset_deltas is None else offset_deltas
        assert 0 < self.count == values.count == len(timestamps) == len(self.deltas)
        self.keys = keys
        self.values = values
        self.has_headers = headers is not None
        if headers is not None:
            assert headers.count == self.count
            assert header_keys is not None
            assert header_values is not None
            assert header_keys.count == header_values.count
            _check_header_keys(headers, header_keys)
        self.headers = keys if headers is None else headers
        self.header_keys = keys if header_keys is None else header_keys
        self.header_values = keys if header_values is None else header_values

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def delta(self, row: cython.Py_ssize_t) -> cython.longlong:
        return row if self.dense else self.deltas[row]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def measure(self) -> cython.void:
        """Finds the bytes of all records, or the first that can't be written."""
        row: cython.Py_ssize_t
        header: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = 0
        body: cython.longlong
        delta: cython.longlong = -1
        self.wrong_row = -1
        self.section = 0
        self.base = self.latest = self.times[0]
        for row in range(self.count):
            if self.times[row] < -1 or self.times[row] > _TIMESTAMP_MAX or self.delta(row) <= delta or self.delta(row) > _INT32_MAX:
                self.wrong_row = row
                return
            delta = self.delta(row)
            self.latest = max(self.latest, self.times[row])
            if self.has_headers:
                header = self.headers.start(row)
                end = header + max(self.headers.length(row), 0)
            body = _body_bytes(self.times[row] - self.base, delta, self.keys.length(row), self.values.length(row))
            self.section += _value_bytes(body + _headers_bytes(header, end, self.header_keys, self.header_values))

    @cython.cfunc
    def refusal(self) -> object:
        row: cython.Py_ssize_t = self.wrong_row
        if self.times[row] < -1 or self.times[row] > _TIMESTAMP_MAX:
            return _wrong_timestamp(row, self.times[row])
        before: cython.longlong = self.delta(row - 1) if row else -1
        return InvalidArgument(f"record {row} lies {self.delta(row)} after the base offset, the one before it {before}")


def encode_columns(
    header: BatchHeader,
    keys: ArrowReader,
    values: ArrowReader,
    timestamps: memoryview,
    offset_deltas: memoryview | None,
    headers: ArrowReader | None,
    header_keys: ArrowReader | None,
    header_values: ArrowReader | None,
    last_offset_delta: cython.longlong = -1,
) -> bytes:
    """Returns one uncompressed batch of the rows: at least one, and as many in each column. Offset deltas: 0, 1, 2, … where none
    are given.

    `header` gives the base offset, the leader epoch, the attributes and the producer's fields. `last_offset_delta`: of the batch,
    at least that of the last row, which is the default. InvalidArgument, TooLarge.
    """
    rows: Rows = Rows(keys, values, timestamps, offset_deltas, headers, header_keys, header_values)
    with cython.nogil:
        rows.measure()
    if rows.wrong_row >= 0:
        raise rows.refusal()
    writer: ByteWriter = _begin_batch(rows.section)
    with cython.nogil:
        writer.put_rows(rows)
    last_offset_delta = max(last_offset_delta, rows.delta(rows.count - 1))
    return _sealed_batch(writer, header, rows.count, last_offset_delta, rows.base, rows.latest)


def encode_tuples(header: BatchHeader, records: Sequence[NewRecordTuple]) -> bytes:
    """Encodes records that are tuples to one batch, as `encode_columns` does for columns."""
    rows: list = list(records)
    count: cython.Py_ssize_t = len(rows)
    headers: list = [_NO_HEADERS] * count
    record: tuple
    row: cython.Py_ssize_t
    base: cython.longlong = 0
    latest: cython.longlong = -1
    time: cython.longlong
    body: cython.longlong
    section: cython.longlong = 0
    if count == 0:
        raise InvalidArgument("a record batch needs at least one record")
    for row in range(count):
        if type(rows[row]) is not tuple or len(rows[row]) != 4:
            raise InvalidArgument(f"record {row} is not a tuple of key, value, headers and timestamp_ms")
        record = rows[row]
        time = _timestamp_of(record, row)
        base = time if row == 0 else base
        latest = max(latest, time)
        if record[2]:
            headers[row] = _encoded_headers(record[2], row)
        body = _body_bytes(time - base, row, _length_of(record[0], row), _length_of(record[1], row))
        section += _value_bytes(body + len(headers[row]))
    writer: ByteWriter = _begin_batch(section)
    for row in range(count):
        record = rows[row]
        time = record[3]
        encoded: bytes = headers[row]
        body = _body_bytes(time - base, row, _length_of(record[0], row), _length_of(record[1], row))
        writer.put_varint(body + len(encoded))
        writer.put_varint(0)
        writer.put_varint(time - base)
        writer.put_varint(row)
        writer.put_value(record[0])
        writer.put_value(record[1])
        writer.put_bytes(encoded, 0, len(encoded))
    return _sealed_batch(writer, header, count, count - 1, base, latest)


_NO_HEADERS = b"\x00"  # their count


@cython.cfunc
def _encoded_headers(headers: Sequence[tuple[str, bytes | None]], row: cython.Py_ssize_t) -> bytes:
    """Returns the headers of record `row`, from their count on."""
    try:
        pairs: list = list(headers)
    except TypeError:
        raise InvalidArgument(f"the headers of record {row} are {type(headers).__name__}, not a sequence") from None
    keys: list = []
    pair: tuple
    index: cython.Py_ssize_t
    size: cython.longlong = _varint_bytes(len(pairs))
    for index in range(len(pairs)):
        if type(pairs[index]) is not tuple or len(pairs[index]) != 2 or type(pairs[index][0]) is not str:
            raise InvalidArgument(f"header {index} of record {row} is not a tuple of a key (str) and a value (bytes or None)")
        pair = pairs[index]
        try:
            key: bytes = pair[0].encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"the header key {pair[0]!r} of record {row} can't be written as UTF-8") from None
        keys.append(key)
        size += _value_bytes(len(key)) + _value_bytes(_length_of(pair[1], row))
    writer: ByteWriter = ByteWriter(size)
    writer.put_varint(len(pairs))
    for index in range(len(pairs)):
        pair = pairs[index]
        writer.put_value(keys[index])
        writer.put_value(pair[1])
    return writer.written()


@cython.cfunc
def _begin_batch(section_bytes: cython.longlong) -> ByteWriter:
    if section_bytes > _INT32_MAX - _HEADER_BYTES:
        raise TooLarge(f"the records take {section_bytes} bytes; a record batch holds less than 2 GiB")
    writer: ByteWriter = ByteWriter(_HEADER_BYTES + section_bytes)
    writer.position = _HEADER_BYTES
    return writer


@cython.cfunc
def _sealed_batch(
    writer: ByteWriter,
    header: BatchHeader,
    record_count: cython.Py_ssize_t,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
) -> bytes:
    """Returns the batch whose records stand in `writer`, with its header and CRC (drawn in batch.py)."""
    assert writer.position == writer.size
    writer.position = 0
    writer.put_int(header.base_offset, 8)
    writer.put_int(writer.size - 12, 4)
    writer.put_int(header.leader_epoch, 4)
    writer.put_int(header.magic, 1)
    writer.put_int(0, 4)
    writer.put_int(header.attributes, 2)
    writer.put_int(last_offset_delta, 4)
    writer.put_int(base_timestamp, 8)
    writer.put_int(max_timestamp, 8)
    writer.put_int(header.producer_id, 8)
    writer.put_int(header.producer_epoch, 2)
    writer.put_int(header.base_sequence, 4)
    writer.put_int(record_count, 4)
    writer.position = _CRC_AT
    writer.put_int(crc32c(memoryview(writer.target)[_CRC_AT + 4 :]), 4)
    writer.position = writer.size
    return writer.written()


@cython.cfunc
@cython.exceptval(-2)
def _length_of(value: object, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the length; -1 for None."""
    if value is None:
        return -1
    if type(value) is not bytes:
        raise InvalidArgument(f"a key or value of record {row} is {type(value).__name__}; it must be bytes or None")
    return len(value)


@cython.cfunc
@cython.exceptval(-2)
def _timestamp_of(record: tuple, row: cython.Py_ssize_t) -> cython.longlong:
    if type(record[3]) is not int or not -1 <= record[3] <= _TIMESTAMP_MAX:
        raise _wrong_timestamp(row, record[3])
    return record[3]


@cython.cfunc
def _wrong_timestamp(row: cython.Py_ssize_t, timestamp: object) -> object:
    return InvalidArgument(f"record {row} has timestamp {timestamp!r}; it must be the milliseconds since 1970, or -1 for none")


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _body_bytes(
    timestamp_delta: cython.longlong, offset_delta: cython.longlong, key: cython.Py_ssize_t, value: cython.Py_ssize_t
) -> cython.longlong:
    """Returns the bytes of a record between its length and its headers, from the lengths of key and value."""
    return 1 + _varint_bytes(timestamp_delta) + _varint_bytes(offset_delta) + _value_bytes(key) + _value_bytes(value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _headers_bytes(header: cython.Py_ssize_t, end: cython.Py_ssize_t, keys: ArrowReader, values: ArrowReader) -> cython.longlong:
    """Returns the bytes of the headers [header, end) of a record, with their count."""
    total: cython.longlong = _varint_bytes(end - header)
    while header < end:
        total += _value_bytes(keys.length(header)) + _value_bytes(values.length(header))
        header += 1
    return total


@cython.cfunc
def _check_header_keys(headers: ArrowReader, keys: ArrowReader) -> object:
    row: cython.Py_ssize_t
    header: cython.Py_ssize_t
    for row in range(headers.count):
        for header in range(headers.start(row), headers.start(row) + max(headers.length(row), 0)):
            if keys.length(header) < 0:
                raise InvalidArgument(f"a header of record {row} has null as its key")
            if not _is_utf8(_at(keys.data, keys.start(header)), keys.length(header)):
                raise InvalidArgument(f"a header key of record {row} is not UTF-8")
    return None


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _value_bytes(length: cython.longlong) -> cython.longlong:
    """Returns the bytes of a length and of the data that it announces; -1 is null."""
    return _varint_bytes(length) + max(length, 0)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_bytes(value: cython.longlong) -> cython.longlong:
    zigzag: cython.ulonglong = _zigzag(value)
    count: cython.longlong = 1
    while zigzag >= 0x80:
        zigzag >>= 7
        count += 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(value: cython.longlong) -> cython.ulonglong:
    doubled: cython.ulonglong = value
    sign: cython.ulonglong = value >> 63
    return (doubled << 1) ^ sign


def murmur2(key: bytes) -> int:
    """Returns the hash by which Kafka's clients partition, as an unsigned 32-bit number
    (org.apache.kafka.common.utils.Utils.murmur2)."""
    return _murmur2(key, len(key))


def murmur2_column(keys: ArrowReader, hashes: memoryview) -> None:
    """Writes the hash of each key into `hashes` (uint32); 0 for null."""
    row: cython.Py_ssize_t
    out: cython.uint[::1] = hashes
    assert len(hashes) == keys.count
    for row in range(keys.count):
        out[row] = _murmur2(_at(keys.data, keys.start(row)), keys.length(row)) if keys.length(row) >= 0 else 0


@cython.cfunc
@cython.exceptval(check=False)
def _murmur2(key: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.uint:
    """Returns murmur2 of a key, as Kafka's clients compute it. C wraps around at each `& _UINT32`; Python needs it."""
    multiplier: cython.uint = 0x5BD1E995
    mixed: cython.uint = 0x9747B28C ^ length
    word: cython.uint
    at: cython.Py_ssize_t = 0
    while at + 4 <= length:
        word = key[at] | key[at + 1] << 8 | key[at + 2] << 16 | cython.cast(cython.uint, key[at + 3]) << 24
        word = (word * multiplier) & _UINT32
        word ^= word >> 24
        word = (word * multiplier) & _UINT32
        mixed = ((mixed * multiplier) & _UINT32) ^ word
        at += 4
    if at < length:
        word = key[at]
        if at + 1 < length:
            word |= key[at + 1] << 8
        if at + 2 < length:
            word |= key[at + 2] << 16
        mixed = ((mixed ^ word) * multiplier) & _UINT32
    mixed ^= mixed >> 13
    mixed = (mixed * multiplier) & _UINT32
    return mixed ^ (mixed >> 15)


def compact_json(text: bytes) -> bytes:
    """Returns the JSON text without the white space between its tokens; the very same object where it has none.

    Everything else stays as it is written: 1.10 stays 1.10. That the text is JSON is for the caller to know.
    """
    source: cython.p_const_uchar = text
    length: cython.Py_ssize_t = len(text)
    at: cython.Py_ssize_t = 0
    run: cython.Py_ssize_t = 0
    byte: cython.uchar
    writer: ByteWriter | None = None
    while at < length:
        byte = source[at]
        if byte == 0x22:
            at = _end_of_string(text, at)
        elif byte <= 0x20 and (byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09):
            if writer is None:
                writer = ByteWriter(length)
            writer.put_bytes(source, run, at - run)
            run = at + 1
        at += 1
    if writer is None:
        return text
    writer.put_bytes(source, run, length - run)
    return bytes(writer.target[: writer.position])


@cython.cfunc
@cython.exceptval(check=False)
def _end_of_string(text: bytes, start: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the position of the closing quotation mark of the JSON string at `start`, or the end of a text without one."""
    source: cython.p_const_uchar = text
    length: cython.Py_ssize_t = len(text)
    at: cython.Py_ssize_t = start
    backslashes: cython.Py_ssize_t = 1
    while backslashes & 1:  # an odd number of them escapes the mark
        at = _find(text, 0x22, at + 1)
        if at == length:
            return length
        backslashes = 0
        while source[at - 1 - backslashes] == 0x5C:
            backslashes += 1
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _find(text: bytes, byte: cython.int, start: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the first index of the byte from `start` on, or the length of the text."""
    source: cython.p_const_uchar = text
    length: cython.Py_ssize_t = len(text)
    if cython.compiled:
        found: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(source + start, byte, length - start))
        return length if found is cython.NULL else found - source
    else:  # noqa: RET505
        index = text.find(byte, start)
        return length if index < 0 else index


def sound_batches(run: Buffer, base_offset: int, last_offset: int, leader_epoch: int) -> tuple[list[int], list[int]]:
    """Returns the base offsets of a run's batches, and where each begins, then where the last one ends.

    It stops before the first batch that is not as it was written: its header or CRC-32C is wrong, or another offset or leader epoch
    comes next. The caller then finds out what is wrong.
    """
    view = memoryview(run)
    data: cython.const[cython.uchar][::1] = view
    size: cython.Py_ssize_t = len(view)
    at: cython.Py_ssize_t = 0
    expected: cython.longlong = base_offset
    last: cython.longlong = last_offset
    epoch: cython.longlong = leader_epoch
    length: cython.longlong
    delta: cython.longlong
    crc: cython.longlong
    base_offsets: list[int] = []
    starts: list[int] = [0]
    while expected <= last and size - at >= _HEADER_BYTES:
        length = _big_endian(data, at + 8)
        delta = _big_endian(data, at + 23)
        if length < _HEADER_BYTES - 12 or length > size - at - 12 or data[at + 16] != 2 or (data[at + 22] & 7) > 4:
            break
        if (_big_endian(data, at) << 32 | (_big_endian(data, at + 4) & _UINT32)) != expected:
            break
        if _big_endian(data, at + 12) != epoch or delta < 0 or delta > last - expected:
            break
        crc = crc32c(view[at + _CRC_AT + 4 : at + 12 + length])
        if crc != (_big_endian(data, at + _CRC_AT) & _UINT32):
            break
        base_offsets.append(expected)
        at += 12 + length
        starts.append(at)
        expected += delta + 1
    return base_offsets, starts


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _big_endian(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Returns the int32 at `at`, which has four bytes behind it."""
    if cython.compiled:
        return cython.cast(
            cython.int,
            cython.cast(cython.uint, data[at]) << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3],
        )
    return int.from_bytes(data[at : at + 4], "big", signed=True)

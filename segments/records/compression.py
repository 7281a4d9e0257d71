"""The five codecs of a record batch's record section, each way, with a bound on what comes out. Pure.

Invariant: decompressing never holds more than `bytes_max` bytes of output, whatever the input claims.

What is read is what Kafka's clients write: gzip (one or more members), snappy (raw, as librdkafka writes it, or framed by
snappy-java, as the Java client and aiokafka do), lz4 and zstd frames (one or more, with or without their content size).
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import cramjam
import numpy as np
import pyarrow as pa

from metadata.errors import InvalidRecord, TooLarge
from segments.object_store.interface import Buffer


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, section: Buffer) -> Buffer:
    """Returns the section under `codec`, as the Java client, librdkafka and aiokafka all read it."""
    if codec is Codec.GZIP:
        return zlib.compress(section, wbits=_GZIP)
    if codec is Codec.SNAPPY:
        return memoryview(cramjam.snappy.compress_raw(section))
    if codec is Codec.LZ4:
        # The Java client refuses frames whose blocks refer to earlier blocks (KIP-57).
        lz4 = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        lz4.compress(bytes(section))
        return memoryview(lz4.finish())
    if codec is Codec.ZSTD:
        return memoryview(cramjam.zstd.compress(section, level=_ZSTD_LEVEL))
    return section


def decompress(codec: Codec, section: Buffer, *, bytes_max: int) -> Buffer:
    """Returns the section as it was before `compress`; where there is no codec, the section itself, whatever its size.

    InvalidRecord if it is malformed or anything follows its end, TooLarge if it would not fit into `bytes_max`.
    """
    if codec is Codec.NONE:
        return section
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(section), bytes_max)
    if (known := _decompress_known(codec, section, bytes_max)) is not None:
        return known
    size_guess = max(_GUESS_BYTES_MIN, _GUESS_RATIO * len(section))
    if size_guess < bytes_max:
        guess = _decompress_into(codec, section, np.empty(size_guess, np.uint8).data)
        if guess is not None:
            return guess
    whole = _decompress_into(codec, section, np.empty(bytes_max, np.uint8).data)
    if whole is None:
        raise _too_large(codec, bytes_max)
    return whole


# Measured on 2 shared cores with JSON-like records, 1 MB and 10 kB to a section, in MB/s:
#
#              compress               decompress, and what else was tried
#   gzip   6     39    88    cramjam  340  400    zlib's decompressobj 290 420, pyarrow's stream 290 330
#   snappy      390   930    cramjam 1020 1850
#   lz4    1    390   750    cramjam 2000  890    pyarrow's stream 1950 1160; compressing at cramjam's own level: 60
#   zstd   1    310   280    cramjam 1000  550    pyarrow's stream 935 320; level 3: 240, 260, no smaller here
#
# cramjam's decompress_into never writes past the buffer that it gets, reads on over concatenated frames and members, and refuses
# what is no frame. The size of the output is not known before (frames that were streamed do not tell it). A large buffer costs
# 100 us, as the kernel clears huge pages; so a likely size is tried first.
_GZIP = 31  # zlib's wbits for a gzip header
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 1
_GUESS_BYTES_MIN = 64 * 1024
_GUESS_RATIO = 16
_INTO = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
_FULL = "failed to write whole buffer"
# A frame's claim of its size is believed up to this multiple of its own size: 20 bytes don't get 64 MiB of memory.
_KNOWN_RATIO_MAX = 1000


_ARENA_BYTES = 64 << 20


class Decompressor:
    """Decompresses many sections that are needed at the same time into a few large arrays, one behind the other.

    The kernel backs large arrays with huge pages. With memory of its own for each section, page faults would double the cost of
    decompression. A returned section stays valid while a reference to it exists.
    """

    def __init__(self, *, sections_bytes: int, bytes_max: int) -> None:
        """`sections_bytes`: of all sections to come, about. `bytes_max`: of each, as in `decompress`."""
        self._arena_bytes = min(_GUESS_BYTES_MIN + _GUESS_RATIO * sections_bytes, _ARENA_BYTES)
        self._bytes_max = bytes_max
        self._arena = memoryview(b"")

    def decompress(self, codec: Codec, section: Buffer) -> Buffer:
        if (known := _decompress_known(codec, section, self._bytes_max)) is not None:
            return known
        guess = min(max(_GUESS_BYTES_MIN, _GUESS_RATIO * len(section)), self._bytes_max)
        if codec not in _INTO or guess > self._arena_bytes:
            return decompress(codec, section, bytes_max=self._bytes_max)
        if len(self._arena) < guess:
            self._arena = np.empty(self._arena_bytes, np.uint8).data
        found = _decompress_into(codec, section, self._arena[:guess])
        if found is None:
            return decompress(codec, section, bytes_max=self._bytes_max)
        self._arena = self._arena[len(found) :]
        return found


def _decompress_into(codec: Codec, section: Buffer, out: memoryview) -> memoryview | None:
    """Returns the filled part of `out`; None if it is too small."""
    try:
        return out[: _INTO[codec](section, out)]
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            return None
        raise InvalidRecord(f"the record section is not {codec.name.lower()}: {error}") from None


# A zstd frame (RFC 8878, 3.1.1), as far as it is read here. The content's size takes 1 byte where the frame is a single segment, or
# none; 2, which count from 256 on; 4; or 8. A writer that streams into the frame omits it.
#
#     28 b5 2f fd | size: 2 bits, single segment, 3 others, dictionary: 2 bits | window, if not a single segment | dictionary | size
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_BYTES = (0, 1, 2, 4)


def _zstd_content_size(section: Buffer) -> int | None:
    """Returns the size that the first frame claims."""
    head = bytes(memoryview(section)[:18])
    if len(head) < 6 or head[:4] != _ZSTD_MAGIC:
        return None
    descriptor = head[4]
    single_segment = descriptor >> 5 & 1
    form = descriptor >> 6
    width = 1 << form if form else single_segment
    at = 6 - single_segment + _DICTIONARY_BYTES[descriptor & 3]
    if width == 0 or len(head) < at + width:
        return None
    return int.from_bytes(head[at : at + width], "little") + (256 if form == 1 else 0)


def _decompress_known(codec: Codec, section: Buffer, bytes_max: int) -> Buffer | None:
    """Decompresses one zstd frame that claims its size, at once. None for all others, and for a malformed one."""
    if codec is not Codec.ZSTD:
        return None
    size = _zstd_content_size(section)
    if not size or size > bytes_max or size > _KNOWN_RATIO_MAX * len(section):
        return None
    try:
        return memoryview(pa.Codec("zstd").decompress(pa.py_buffer(section), size))
    except (pa.ArrowException, OSError):  # another frame follows, or it is damaged: the other way tells
        return None


# snappy-java's stream:
#
#     82 53 4e 41 50 50 59 00 | version int32 | compatible int32 | (block size int32 | raw snappy block)*
_SNAPPY_JAVA = b"\x82SNAPPY\x00"
_SNAPPY_JAVA_HEADER_BYTES = 16


def _decompress_snappy(section: memoryview, bytes_max: int) -> Buffer:
    blocks = [section]
    if section[:8] == _SNAPPY_JAVA:
        blocks = []
        at = _SNAPPY_JAVA_HEADER_BYTES
        while at != len(section):
            size = int.from_bytes(section[at : at + 4])
            at += 4
            if at > len(section) or size > len(section) - at:
                raise InvalidRecord("the record section is not snappy: its last block, or its header, is torn")
            blocks.append(section[at : at + size])
            at += size
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > bytes_max:
            raise _too_large(Codec.SNAPPY, bytes_max)
        out = np.empty(sum(sizes), np.uint8)
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            if cramjam.snappy.decompress_raw_into(block, out[at : at + size].data) != size:
                raise InvalidRecord("the record section is not snappy: a block is shorter than it claims")
            at += size
    except cramjam.DecompressionError as error:
        raise InvalidRecord(f"the record section is not snappy: {error}") from None
    return out.data


def _too_large(codec: Codec, bytes_max: int) -> TooLarge:
    return TooLarge(
        f"the record section takes more than {bytes_max} bytes without its {codec.name.lower()} compression",
        hint="Send smaller batches.",
        bytes_max=bytes_max,
    )

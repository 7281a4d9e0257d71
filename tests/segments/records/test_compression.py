"""Record sections under each codec: as every Kafka client writes them, and never more out than the bound."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiokafka.codec
import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidRecord, TooLarge
from segments.records.compression import Codec, Decompressor, _zstd_content_size, compress, decompress

CODECS = list(Codec)[1:]
TEXT = b"".join(b'{"id":%d,"name":"alice"}' % number for number in range(4000))
AIOKAFKA: dict[Codec, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    Codec.GZIP: (aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    Codec.SNAPPY: (aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    Codec.LZ4: (aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    Codec.ZSTD: (aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
}


def read(codec: Codec, section: bytes, bytes_max: int = 1 << 20) -> bytes:
    return bytes(decompress(codec, section, bytes_max=bytes_max))


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=300), repeat=st.integers(1, 400))
def test_compressed_bytes_come_back(codec: Codec, data: bytes, repeat: int) -> None:
    assert read(codec, bytes(compress(codec, data * repeat))) == data * repeat


@pytest.mark.parametrize("codec", CODECS)
def test_any_kind_of_buffer_is_compressed_and_read(codec: Codec) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert bytes(decompress(codec, kind(bytes(compress(codec, kind(TEXT)))), bytes_max=len(TEXT))) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_reads_what_is_compressed_here_and_the_other_way_round(codec: Codec) -> None:
    encode, decode = AIOKAFKA[codec]
    assert decode(bytes(compress(codec, TEXT))) == TEXT
    assert read(codec, encode(TEXT)) == TEXT


def _streamed_zstd(data: bytes) -> bytes:
    """As a streaming client writes it: without the content's size in the frame, in more than one flush."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data[: len(data) // 2])
        stream.flush()
        stream.write(data[len(data) // 2 :])
    return bytes(sink.getvalue())


def _linked_lz4(data: bytes) -> bytes:
    lz4 = cramjam.lz4.Compressor(level=3, content_checksum=True, block_linked=True)
    lz4.compress(data)
    return bytes(lz4.finish())


@pytest.mark.parametrize(
    ("codec", "section"),
    [
        (Codec.GZIP, gzip.compress(TEXT[:100], mtime=0) + gzip.compress(TEXT[100:])),
        (Codec.GZIP, zlib.compress(TEXT, 0, 31)),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Codec.SNAPPY, aiokafka.codec.snappy_encode(TEXT, xerial_blocksize=100)),
        (Codec.LZ4, bytes(compress(Codec.LZ4, TEXT[:100])) + bytes(compress(Codec.LZ4, TEXT[100:]))),
        (Codec.LZ4, _linked_lz4(TEXT)),
        (Codec.ZSTD, _streamed_zstd(TEXT)),
        (Codec.ZSTD, _streamed_zstd(TEXT[:100]) + bytes(cramjam.zstd.compress(TEXT[100:]))),
        (Codec.ZSTD, b"\x50\x2a\x4d\x18\x03\x00\x00\x00any" + _streamed_zstd(TEXT)),
    ],
    ids=["members", "stored", "raw", "framed", "frames", "linked and checked", "streamed", "mixed frames", "skippable frame"],
)
def test_every_form_that_clients_write_is_read_to_its_end(codec: Codec, section: bytes) -> None:
    assert read(codec, section) == TEXT
    assert read(codec, section, bytes_max=len(TEXT)) == TEXT
    with pytest.raises(TooLarge):
        read(codec, section, bytes_max=len(TEXT) - 1)


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    section = bytes(cramjam.zstd.compress(TEXT))
    assert section[4] >> 5 == 0b101  # 4 bytes of content size, behind 1 byte of descriptor: a single segment has no window
    for reported in (1, len(TEXT) - 1, len(TEXT) + 1, 1 << 20, (1 << 32) - 1):
        lying = section[:5] + reported.to_bytes(4, "little") + section[9:]
        with pytest.raises((InvalidRecord, TooLarge)):
            read(Codec.ZSTD, lying)


@pytest.mark.parametrize("size", [1, 255, 256, 300, 65_535 + 256, 65_536 + 256])
def test_the_content_size_of_a_zstd_frame_is_read_in_each_of_its_widths(size: int) -> None:
    section = bytes(cramjam.zstd.compress(TEXT[:size]))
    assert _zstd_content_size(section) == size
    assert _zstd_content_size(_streamed_zstd(TEXT[:size])) is None
    assert read(Codec.ZSTD, section) == TEXT[:size]


def test_a_streamed_zstd_frame_in_these_tests_does_not_contain_its_size() -> None:
    descriptor = _streamed_zstd(TEXT)[4]
    assert not descriptor & 0b1110_0000  # no content size, no single segment (RFC 8878, 3.1.1.1.1)


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_may_follow_the_end(codec: Codec) -> None:
    section = bytes(compress(codec, TEXT))
    for surplus in (b"\0", b"x", b"\0" * 100, section[: len(section) // 2]):
        with pytest.raises(InvalidRecord):
            read(codec, section + surplus)


@pytest.mark.parametrize("codec", CODECS)
def test_a_torn_section_is_refused(codec: Codec) -> None:
    section = bytes(compress(codec, TEXT[:500]))
    for size in range(len(section)):
        with pytest.raises(InvalidRecord):
            read(codec, section[:size])


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3))
def test_a_damaged_section_is_refused_or_read_within_the_bound(codec: Codec, noise: bytes, changes: list[tuple[int, int]]) -> None:
    section = bytearray(compress(codec, TEXT[:2000]))
    for at, byte in changes:
        section[at % len(section)] = byte
    for damaged in (bytes(section), noise, bytes(section[:20]) + noise):
        with suppress(InvalidRecord, TooLarge):
            assert len(read(codec, damaged, 3000)) <= 3000


def _snappy_framed(*blocks: bytes, sizes: tuple[int, ...] = ()) -> bytes:
    claimed = sizes or tuple(map(len, blocks))
    framed = b"".join(struct.pack(">i", size) + block for size, block in zip(claimed, blocks, strict=True))
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed


def test_a_snappy_frame_is_refused_where_a_block_lies_about_its_length() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"hello"))
    assert read(Codec.SNAPPY, _snappy_framed(block, block)) == b"hellohello"
    assert read(Codec.SNAPPY, _snappy_framed()) == b""
    for sizes in ((len(block) + 1,), (-1,), (2**31 - 1,)):
        with pytest.raises(InvalidRecord, match="torn"):
            read(Codec.SNAPPY, _snappy_framed(block, sizes=sizes))
    for torn in (_snappy_framed(block) + b"\0\0", b"\x82SNAPPY\0\0\0", b"\x82SNAPPY\0"):
        with pytest.raises(InvalidRecord):
            read(Codec.SNAPPY, torn)


def test_a_snappy_block_that_claims_to_be_larger_than_it_is_is_refused_before_memory_is_taken_for_it() -> None:
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + b"\x00a"
    with pytest.raises(TooLarge):
        read(Codec.SNAPPY, claims_4_gib)
    with pytest.raises(InvalidRecord):
        read(Codec.SNAPPY, b"\x64" + b"\x00a")


def _bomb(codec: Codec, size: int) -> bytes:
    return bytes(compress(codec, bytes(size)))


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused(codec: Codec) -> None:
    with pytest.raises(TooLarge) as caught:
        read(codec, _bomb(codec, 1 << 24))
    assert caught.value.details == {"bytes_max": 1 << 20}


_MEASURE = """
import resource, sys
from metadata.errors import TooLarge
from segments.records.compression import Codec, decompress
codec, section = Codec(int(sys.argv[1])), sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3):
    try:
        decompress(codec, section, bytes_max=1 << 20)
    except TooLarge:
        continue
    sys.exit("the bomb went off")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_of_256_mib_takes_no_more_memory_than_the_bound_and_the_codecs_own_buffers(codec: Codec) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(int(codec))], input=_bomb(codec, 1 << 28), capture_output=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    assert int(run.stdout) < 24 * 1024  # KiB


def test_no_codec_bounds_nothing_and_copies_nothing() -> None:
    section: Any = memoryview(TEXT)
    assert decompress(Codec.NONE, section, bytes_max=1) is section
    assert compress(Codec.NONE, section) is section


# Many sections that are needed at the same time


@pytest.mark.parametrize("codec", list(Codec))
@given(
    texts=st.lists(st.tuples(st.binary(max_size=50), st.sampled_from([1, 40, 9000])), max_size=8),
    reported=st.sampled_from([0, 100, 10**6]),
)
def test_sections_stay_as_they_were_read_whatever_is_read_after_them(
    codec: Codec, texts: list[tuple[bytes, int]], reported: int
) -> None:
    wholes = [text * times for text, times in texts]
    decompressor = Decompressor(sections_bytes=reported, bytes_max=1 << 20)
    read = [decompressor.decompress(codec, compress(codec, whole)) for whole in wholes]
    assert [bytes(section) for section in read] == wholes


@pytest.mark.parametrize("codec", CODECS)
def test_each_of_many_sections_is_refused_beyond_the_bound(codec: Codec) -> None:
    decompressor = Decompressor(sections_bytes=1 << 20, bytes_max=len(TEXT) - 1)
    section = compress(codec, TEXT)
    with pytest.raises(TooLarge):
        decompressor.decompress(codec, section)
    torn = bytearray(section)[: len(section) // 2]
    with pytest.raises(InvalidRecord):
        Decompressor(sections_bytes=1 << 20, bytes_max=1 << 24).decompress(codec, torn)

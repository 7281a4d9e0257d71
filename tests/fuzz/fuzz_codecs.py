"""Feeds the codecs random bytes, guided by what they reach (atheris, libFuzzer).

    python -m tests.fuzz.fuzz_codecs --seconds 60

The uncompiled kernel is instrumented and guides the search; the compiled one runs beside it and has to answer alike. A finding is
written to the directory of `--findings`, and ends the run with a traceback; `--replay FILE` runs it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.record.default_records import _DefaultRecordBatchPy

from metadata.errors import InvalidArgument, InvalidRecord, TooLarge
from segments.records import batch_kernel
from segments.records.batch import BATCH_OVERHEAD_BYTES, assemble, check_produced, parse_header, split_batches
from segments.records.batch_kernel import RecordTuple
from segments.records.columns import decode_batches, encode_records, iterate_records
from segments.records.compression import Codec, compress, decompress
from segments.records.header import BatchHeader
from segments.records.json_values import from_bytes, to_bytes
from tests.kit.segments.kernel_forms import UNCOMPILED

BOUND = 1 << 16


def fuzz_record_section(data: bytes) -> None:
    """A batch whose header and CRC are right and whose records are the input: [codec, record_count, section]."""
    if len(data) < 2:
        return
    codec, record_count, section = Codec(data[0] % len(Codec)), data[1] & 15, data[2:]
    header = BatchHeader(0, 0, -1, 2, 0, codec, record_count - 1, 0, 2**62, -1, -1, -1, record_count)
    batch = assemble(header, section)
    _both_forms_read_alike(section, header)
    try:
        check_produced(batch, message_bytes_max=1 << 20, decompressed_bytes_max=BOUND)
    except (InvalidRecord, TooLarge):
        return
    records = iterate_records(batch, decompressed_bytes_max=BOUND)
    columns = decode_batches([batch], decompressed_bytes_max=BOUND)
    columns.validate(full=True)
    assert columns.column("value").to_pylist() == [value for _, _, _, value, _ in records]
    assert records == _aiokafka_reads(batch)
    again = encode_records([(key, value, headers, time) for _, time, key, value, headers in records], codec=codec)
    assert iterate_records(again, decompressed_bytes_max=1 << 20) == records


def fuzz_batches(data: bytes) -> None:
    """Anything at all where batches are expected."""
    for act in (
        lambda: check_produced(data, message_bytes_max=1 << 20, decompressed_bytes_max=BOUND),
        lambda: decode_batches(split_batches(data), decompressed_bytes_max=BOUND),
        lambda: parse_header(data, len(data) // 2),
    ):
        _refuses_or_answers(act)


def fuzz_decompression(data: bytes) -> None:
    """[codec, compressed section]"""
    if data:
        codec = Codec(data[0] % len(Codec))
        found = _refuses_or_answers(lambda: decompress(codec, data[1:], bytes_max=BOUND))
        if codec is not Codec.NONE and not isinstance(found, str):
            assert len(found) <= BOUND
            assert bytes(decompress(codec, compress(codec, found), bytes_max=BOUND)) == bytes(found)


def fuzz_json_values(data: bytes) -> None:
    """A stored value that is read as JSON, and JSON that is produced."""
    given = bytes(from_bytes(data))
    msgspec.json.decode(given)
    assert b"\n" not in given
    assert batch_kernel.compact_json(data) == UNCOMPILED.compact_json(data)
    try:
        value = msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        assert to_bytes(msgspec.Raw(given)) == data
        return
    stored = _refuses_or_answers(lambda: to_bytes(value))
    if isinstance(stored, bytes):
        _refuses_or_answers(lambda: to_bytes(from_bytes(stored)))


TARGETS: tuple[Callable[[bytes], None], ...] = (fuzz_record_section, fuzz_batches, fuzz_decompression, fuzz_json_values)


def one_input(data: bytes) -> None:
    """The first byte picks the target, the rest is its input."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds() -> list[bytes]:
    """Inputs that go deep, to begin with."""
    records = [(b"key", b"value", (("h", b"v"), ("n", None)), 5), (None, None, (), 2**40), (b"", b"x" * 200, (), 0)]
    found = []
    for codec in Codec:
        batch = encode_records(records, codec=codec)
        used = parse_header(batch).codec
        found.append(bytes([0, used, 3]) + batch[BATCH_OVERHEAD_BYTES:])
        found.append(b"\1" + batch)
        found.append(bytes([2, codec]) + bytes(compress(codec, batch)))
    return [
        *found,
        b'\3{"a": [1.10, "\\u00e9"], "type": "binary", "data": "AA=="}',
        b'\3{"type":"binary","data":"AA=="}',
        b"\3null",
    ]


def _both_forms_read_alike(section: bytes, header: BatchHeader) -> None:
    def read(kernel: Any, method: str, *arguments: object) -> object:
        return _refuses_or_answers(lambda: getattr(kernel.RecordSection(section, header), method)(*arguments))

    for method, *arguments in (("check", True), ("measure",), ("tuples",)):
        assert read(batch_kernel, method, *arguments) == read(UNCOMPILED, method, *arguments)


def _aiokafka_reads(batch: bytes) -> list[RecordTuple]:
    reader = _DefaultRecordBatchPy(batch)
    return [(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in reader]


def _refuses_or_answers(act: Callable[[], Any]) -> Any:
    """The answer, or the refusal's message; any other error is a finding."""
    try:
        return act()
    except (InvalidArgument, TooLarge) as refusal:
        return refusal.message


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.fuzz_codecs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--replay", type=Path)
    options = parser.parse_args(arguments)
    if options.replay is not None:
        one_input(options.replay.read_bytes())
        return

    import atheris

    for function in (
        UNCOMPILED.RecordSection._next_record,
        UNCOMPILED.RecordSection._next_header,
        UNCOMPILED.RecordSection._length,
        UNCOMPILED.RecordSection._varint,
        UNCOMPILED.RecordSection._scan,
        UNCOMPILED._is_utf8,
        UNCOMPILED.compact_json,
        *TARGETS,
    ):
        atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, f"{number:04d}").write_bytes(seed)
        atheris.Setup(
            [
                sys.argv[0],
                corpus,
                f"-max_total_time={options.seconds}",
                "-max_len=2048",
                "-timeout=10",
                f"-artifact_prefix={options.findings}/",
            ],
            one_input,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])

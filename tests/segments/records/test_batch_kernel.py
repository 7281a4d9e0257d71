"""The kernel does the same compiled and uncompiled, whatever it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.errors import InvalidRecord
from segments.records import batch_kernel
from segments.records.batch import BATCH_OVERHEAD_BYTES, parse_header, stamp
from segments.records.batch_kernel import NewRecordTuple
from segments.records.columns import encode_records
from segments.records.header import BatchHeader
from tests.kit.segments.kernel_forms import SOURCE, UNCOMPILED
from tests.kit.segments.record_strategies import record_lists

both_forms = pytest.mark.parametrize("kernel", [batch_kernel, UNCOMPILED], ids=["compiled", "uncompiled"])
needs_compiled = pytest.mark.skipif(not batch_kernel.COMPILED, reason="the kernel is not compiled here")


@needs_compiled
def test_the_compiled_kernel_is_not_older_than_its_source() -> None:
    built = Path(batch_kernel.__file__)
    assert built.stat().st_mtime >= SOURCE.stat().st_mtime, f"{built.name} is stale: python setup.py build_ext --inplace"


@needs_compiled
def test_the_uncompiled_kernel_is_the_same_source_without_the_compiler() -> None:
    assert not UNCOMPILED.COMPILED
    public = {name for name in vars(UNCOMPILED) if not name.startswith("_")} - {"annotations", "TYPE_CHECKING", "cython"}
    assert public <= set(vars(batch_kernel))


def outcome(act: Callable[[], object]) -> object:
    """What it gave, or how it refused."""
    try:
        return act()
    except InvalidRecord as refusal:
        return refusal.message


def both_read(section: bytes, header: BatchHeader) -> object:
    """How both forms read a section; they must not differ."""

    def read(kernel: Any, method: str, *arguments: object) -> object:
        return outcome(lambda: getattr(kernel.RecordSection(section, header), method)(*arguments))

    found = [
        [read(kernel, "check", True), read(kernel, "check", False), read(kernel, "measure"), read(kernel, "tuples")]
        for kernel in (batch_kernel, UNCOMPILED)
    ]
    assert found[0] == found[1]
    return found[0][3]


@needs_compiled
@given(record_lists)
def test_both_forms_read_alike(records: list[NewRecordTuple]) -> None:
    batch = encode_records(records)
    assert isinstance(both_read(batch[BATCH_OVERHEAD_BYTES:], parse_header(batch)), list)


@pytest.mark.slow
@needs_compiled
@settings(max_examples=3 * settings().max_examples)
@given(record_lists, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 3))
def test_both_forms_read_what_was_damaged_alike(records: list[NewRecordTuple], changes: list[tuple[int, int]], cut: int) -> None:
    batch = encode_records(records)
    section = bytearray(batch[BATCH_OVERHEAD_BYTES:])
    for at, byte in changes:
        section[at % len(section)] = byte
    both_read(bytes(section[: len(section) - cut]), parse_header(batch))


@both_forms
@pytest.mark.parametrize("missing", ["rows", "keys", "values", "headers", "header keys", "header values"])
def test_columns_without_room_for_all_records_are_never_written_past_their_end(kernel: Any, missing: str) -> None:
    """As where a buffer was changed between the pass that measures it and the pass that reads it."""
    batch = encode_records([(b"key", b"value", (("name", b"text"),), 5)] * 2)
    section = kernel.RecordSection(memoryview(batch)[BATCH_OVERHEAD_BYTES:], parse_header(batch))
    assert section.measure() == (6, 10, 2, 8, 8)

    def room(name: str, size: int) -> int:
        return size - 1 if name == missing else size

    def writer(name: str, rows: int, size: int) -> Any:
        return kernel.BinaryWriter(
            np.zeros(rows + 1, np.int32).data, np.zeros(1, np.uint8).data, np.zeros(room(name, size), np.uint8).data
        )

    rows, headers = room("rows", 2), room("headers", 2)
    columns = kernel.RecordColumns(
        np.zeros(rows, np.int64).data,
        np.zeros(rows, np.int64).data,
        np.zeros(rows, np.int32).data,
        np.zeros(rows + 1, np.int32).data,
        writer("keys", rows, 6),
        writer("values", rows, 10),
        writer("header keys", headers, 8),
        writer("header values", headers, 8),
    )
    with pytest.raises(InvalidRecord, match=r"record 1 .* was changed while it was read"):
        section.fill(columns)


HEADERS = st.builds(
    BatchHeader,
    base_offset=st.just(0),
    batch_length=st.just(0),
    leader_epoch=st.just(0),
    magic=st.just(2),
    crc=st.just(0),
    attributes=st.sampled_from([0, 8]),
    last_offset_delta=st.integers(-1, 8),
    base_timestamp=st.sampled_from([-(2**63), -2, -1, 0, 5, 2**63 - 1]),
    max_timestamp=st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]),
    producer_id=st.just(-1),
    producer_epoch=st.just(-1),
    base_sequence=st.just(-1),
    record_count=st.integers(-1, 5),
)
ONE = BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
_field_bytes = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 12, 14, 0x7F, 0x80, 0xFF])


@needs_compiled
@settings(max_examples=3 * settings().max_examples)
@given(st.lists(_field_bytes, max_size=40).map(bytes), HEADERS)
@example(b"\x0c\0\x01\0\0\0\0", BatchHeader(0, 0, 0, 2, 0, 0, 0, -1, 2**63 - 1, -1, -1, -1, 1))
@example(b"\x1e\0\xfe" + b"\xff" * 8 + b"\x01\0\0\0\0", BatchHeader(0, 0, 0, 2, 0, 0, 0, -1, 2**63 - 1, -1, -1, -1, 1))
def test_both_forms_read_what_never_was_a_batch_alike(section: bytes, header: BatchHeader) -> None:
    both_read(section, header)


@needs_compiled
@given(record_lists, st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.integers(-1, 2**15 - 1))
def test_both_forms_write_alike(records: list[NewRecordTuple], base_offset: int, epoch: int, producer_epoch: int) -> None:
    header = BatchHeader(base_offset, 0, epoch, 2, 0, 8, 0, 0, 0, base_offset, producer_epoch, epoch, 0)
    assert batch_kernel.encode_tuples(header, records) == UNCOMPILED.encode_tuples(header, records)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@both_forms
@given(value=_json)
def test_json_without_its_white_space_is_otherwise_the_same_text(kernel: Any, value: object) -> None:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    for indent, separators in ((None, (" , ", " : ")), (2, (",", ": ")), ("\t", (",\r\n", ":"))):
        assert kernel.compact_json(json.dumps(value, indent=indent, separators=separators, ensure_ascii=False).encode()) == compact
    assert kernel.compact_json(compact) is compact


@needs_compiled
@given(st.lists(st.sampled_from([b" ", b"\n", b'"', b"\\", b"{", b"1", b"\xff"]), max_size=12).map(b"".join))
def test_both_forms_compact_what_is_no_json_alike(text: bytes) -> None:
    assert batch_kernel.compact_json(text) == UNCOMPILED.compact_json(text)


@both_forms
@given(
    key=st.one_of(
        st.binary(max_size=5),
        st.text(max_size=4).map(str.encode),
        st.lists(st.sampled_from(b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"), max_size=5).map(
            bytes
        ),
    )
)
@example(key=b"\xed\x9f\xbf")
@example(key=b"\xf4\x8f\xbf\xbf")
@example(key=b"\xf4\x90\x80\x80")
@example(key=b"\xe0\x9f\xbf")
@example(key=b"\xf0\x8f\xbf\xbf")
@example(key=b"\xe2\x82")
def test_a_header_key_is_taken_just_when_python_decodes_it(kernel: Any, key: bytes) -> None:
    body = b"\0\0\0\1\1\2" + bytes([2 * len(key)]) + key + b"\1"
    section = kernel.RecordSection(bytes([2 * len(body)]) + body, ONE)
    try:
        name = key.decode()
    except UnicodeDecodeError:
        with pytest.raises(InvalidRecord, match="UTF-8"):
            section.check(True)
        with pytest.raises(InvalidRecord, match="UTF-8"):
            section.tuples()
    else:
        section.check(True)
        assert section.tuples() == [(0, 0, None, None, ((name, None),))]


@both_forms
def test_a_check_finds_the_first_record_without_a_key(kernel: Any) -> None:
    records: list[NewRecordTuple] = [(key, b"value", (), 1) for key in (b"a", b"", None, None)]

    for count, found in ((2, -1), (3, 2), (4, 2)):
        batch = encode_records(records[:count])
        assert kernel.RecordSection(batch[BATCH_OVERHEAD_BYTES:], parse_header(batch)).check(True) == found


# ── whole batches ───────────────────────────────────────────────────────────────────────────────────────────────────────

RUN_START, RUN_EPOCH = 2**40, 7
RUN_BATCHES = [encode_records([(b"k", b"v" * size, (), 5)] * count) for count, size in ((1, 0), (3, 40), (2, 300))]
RUN_ENDS = [RUN_START + 1, RUN_START + 4, RUN_START + 6]


def stamped_batches() -> list[bytes]:
    starts = [RUN_START, *RUN_ENDS]
    return [
        stamp(batch, base_offset=start, leader_epoch=RUN_EPOCH) + batch[16:]
        for start, batch in zip(starts, RUN_BATCHES, strict=False)
    ]


@both_forms
def test_sound_batches_are_found_with_their_offsets_and_positions(kernel: Any) -> None:
    batches = stamped_batches()
    positions = [0, *np.cumsum([len(batch) for batch in batches]).tolist()]
    found = kernel.sound_batches(b"".join(batches), RUN_START, RUN_ENDS[-1] - 1, RUN_EPOCH)
    assert found == ([RUN_START, *RUN_ENDS[:-1]], positions)


@pytest.mark.slow
@both_forms
@settings(max_examples=200)
@given(bit=st.integers(0, 8 * sum(map(len, RUN_BATCHES)) - 1), kept=st.integers(0, sum(map(len, RUN_BATCHES))))
def test_batches_are_sound_up_to_the_first_changed_bit_or_the_end(kernel: Any, bit: int, kept: int) -> None:
    batches = stamped_batches()
    changed = bytearray(b"".join(batches))
    changed[bit // 8] ^= 1 << bit % 8
    ends = np.cumsum([len(batch) for batch in batches]).tolist()
    sound = sum(end <= min(bit // 8, kept) for end in ends)
    found = kernel.sound_batches(bytes(changed[:kept]), RUN_START, RUN_ENDS[-1] - 1, RUN_EPOCH)
    assert found == ([RUN_START, *RUN_ENDS][:sound], [0, *ends[:sound]])


@both_forms
def test_batches_of_other_offsets_or_epochs_are_not_sound(kernel: Any) -> None:
    run = b"".join(stamped_batches())
    assert kernel.sound_batches(run, RUN_START + 1, RUN_ENDS[-1], RUN_EPOCH) == ([], [0])
    assert kernel.sound_batches(run, RUN_START, RUN_ENDS[-1], RUN_EPOCH + 1) == ([], [0])
    assert kernel.sound_batches(run, RUN_START, RUN_ENDS[0], RUN_EPOCH)[0] == [RUN_START]

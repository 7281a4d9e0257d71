"""The kernel does the same compiled and uncompiled, whatever it is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.errors import InvalidRecord
from segments import batch_kernel
from segments.batch_kernel import NewRecordTuple
from segments.record_batch import BATCH_OVERHEAD_BYTES, BatchHeader, parse_header
from segments.record_columns import encode_records
from tests.segments.kernel_forms import SOURCE, UNCOMPILED
from tests.segments.record_strategies import record_lists

needs_compiled = pytest.mark.skipif(not batch_kernel.COMPILED, reason="the kernel is not compiled here")


def test_the_compiled_kernel_is_not_older_than_its_source() -> None:
    if not batch_kernel.COMPILED:
        pytest.skip("the kernel is not compiled here")
    built = Path(batch_kernel.__file__)
    assert built.stat().st_mtime >= SOURCE.stat().st_mtime, f"{built.name} is stale: python setup.py build_ext --inplace"


def test_a_machine_with_a_c_compiler_has_the_kernel_compiled() -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler here")
    assert batch_kernel.COMPILED, "python setup.py build_ext --inplace"


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

    def read(kernel: object, method: str, *arguments: object) -> object:
        return outcome(lambda: getattr(kernel.RecordSection(section, header), method)(*arguments))  # type: ignore[attr-defined]

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


@needs_compiled
@settings(max_examples=400)
@given(record_lists, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 3))
def test_both_forms_read_what_was_damaged_alike(
    records: list[NewRecordTuple], changes: list[tuple[int, int]], cut: int
) -> None:
    batch = encode_records(records)
    section = bytearray(batch[BATCH_OVERHEAD_BYTES:])
    for at, byte in changes:
        section[at % len(section)] = byte
    both_read(bytes(section[: len(section) - cut]), parse_header(batch))


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
_field_bytes = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 12, 14, 0x7F, 0x80, 0xFF])


@needs_compiled
@settings(max_examples=400)
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


@pytest.mark.parametrize("kernel", [batch_kernel, UNCOMPILED], ids=["compiled", "uncompiled"])
class TestText:
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_json_is_compacted_to_what_it_was_without_its_white_space(self, kernel: object, value: object) -> None:
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        for indent, separators in ((None, (" , ", " : ")), (2, (",", ": ")), ("\t", (",\r\n", ":"))):
            spread = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False).encode()
            assert kernel.compact_json(spread) == compact  # type: ignore[attr-defined]
        assert kernel.compact_json(compact) is compact  # type: ignore[attr-defined]

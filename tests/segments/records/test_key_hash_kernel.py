"""SipHash-2-4 of 128 bits over a column: that of its reference, compiled and not, and within its buffers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import InvalidArgument
from segments.records import key_hash_kernel
from segments.records.columns import bytes_of, value_offsets

SECRET = bytes(range(16))
SOURCE = Path(__file__).parents[3] / "segments" / "records" / "key_hash_kernel.py"
REFERENCE = {  # the first of SipHash's own vectors of 128 bits, as `openssl mac … SIPHASH` says them, too
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
}


def _uncompiled() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uncompiled_key_hash_kernel", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORMS = [key_hash_kernel, _uncompiled()]


def hashes_of(values: list[bytes], form: ModuleType = key_hash_kernel, secret: bytes = SECRET) -> list[str]:
    column = pa.array(values, pa.binary())
    words = np.zeros(2 * len(column), np.uint64)
    form.hash_values(words.data, value_offsets(column).data, bytes_of(column.buffers()[2]), secret)
    return [words[at : at + 2].tobytes().hex() for at in range(0, len(words), 2)]


@pytest.mark.parametrize("form", FORMS, ids=["as it is here", "uncompiled"])
def test_the_key_hash_equals_the_reference_implementation(form: ModuleType) -> None:
    assert hashes_of([bytes(range(size)) for size in REFERENCE], form) == list(REFERENCE.values())


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.binary(min_size=16, max_size=16))
def test_the_compiled_and_uncompiled_kernels_return_the_same_hash(values: list[bytes], secret: bytes) -> None:
    assert hashes_of(values, FORMS[0], secret) == hashes_of(values, FORMS[1], secret)


def test_another_secret_makes_another_hash() -> None:
    assert hashes_of([b"key"]) != hashes_of([b"key"], secret=bytes(16))


@pytest.mark.parametrize("form", FORMS, ids=["as it is here", "uncompiled"])
@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 5, 9], [-1, 0, 1]])
def test_offsets_that_lead_out_of_their_buffer_are_refused(form: ModuleType, offsets: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        form.hash_values(np.zeros(4, np.uint64).data, np.array(offsets, np.int32).data, memoryview(b"12345678"), SECRET)


@pytest.mark.skipif(not key_hash_kernel.COMPILED, reason="the kernel is not compiled here")
def test_the_compiled_kernel_is_not_older_than_its_source() -> None:
    built = Path(key_hash_kernel.__file__)
    assert built.stat().st_mtime >= SOURCE.stat().st_mtime, f"{built.name} is stale: python setup.py build_ext --inplace"

# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# mypy: disable-error-code="import-untyped, import-not-found, valid-type, type-arg, untyped-decorator, no-any-return"
"""SipHash-2-4 of 128 bits of each value of a column, compiled by Cython (setup.py); uncompiled, the same file runs as Python. Pure.

A hash under a secret of 128 bits (https://www.aumasson.jp/siphash/siphash.pdf, and its reference code for outputs of 128): who does
not know the secret can't choose two values that have the same.

Invariant: no byte outside of the given buffers is read or written, whatever they hold.
"""

from __future__ import annotations

import cython

from metadata.errors import InvalidArgument

if cython.compiled:
    from cython.cimports.libc.string import memcpy

COMPILED: bool = cython.compiled
SECRET_BYTES = 16

_UINT64 = 2**64 - 1
_A = cython.declare(cython.ulonglong, 0x736F6D6570736575)
_B = cython.declare(cython.ulonglong, 0x646F72616E646F6D ^ 0xEE)  # of 128 bits
_C = cython.declare(cython.ulonglong, 0x6C7967656E657261)
_D = cython.declare(cython.ulonglong, 0x7465646279746573)


def hash_values(hashes: memoryview, offsets: memoryview, data: memoryview, secret: bytes) -> None:
    """Writes two words for each value into `hashes`, first the one that the reference writes first.

    hashes: uint64, two for each value · offsets: int32, where each value begins in `data`, and where the last one ends.
    InvalidArgument where offsets do not ascend within the data.
    """
    out: cython.ulonglong[::1] = hashes
    bounds: cython.const[cython.int][::1] = offsets
    bytes_: cython.const[cython.uchar][::1] = data
    count: cython.Py_ssize_t = len(offsets) - 1
    size: cython.Py_ssize_t = len(data)
    row: cython.Py_ssize_t
    end: cython.Py_ssize_t
    start: cython.Py_ssize_t = 0
    low: cython.ulonglong = int.from_bytes(secret[:8], "little")
    high: cython.ulonglong = int.from_bytes(secret[8:], "little")
    assert len(secret) == SECRET_BYTES
    assert count >= 0
    assert len(hashes) == 2 * count
    for row in range(count + 1):
        end = bounds[row]
        if end < start or end > size:
            raise InvalidArgument(f"the offsets of an Arrow array do not ascend within the {size} that they point into")
        start = end
    with cython.nogil:
        for row in range(count):
            start = bounds[row]
            _hash(out, 2 * row, _bytes_from(bytes_, start), bounds[row + 1] - start, low, high)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hash(
    out: cython.ulonglong[::1],
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    low: cython.ulonglong,
    high: cython.ulonglong,
) -> cython.void:
    words: cython.Py_ssize_t = (length >> 3) + 1  # the last one has the length, and what is left
    step: cython.Py_ssize_t
    rounds: cython.int
    word: cython.ulonglong
    a: cython.ulonglong = low ^ _A
    b: cython.ulonglong = high ^ _B
    c: cython.ulonglong = low ^ _C
    d: cython.ulonglong = high ^ _D
    for step in range(words + 2):
        word = 0
        rounds = 2
        if step + 1 < words:
            word = _word(data, 8 * step)
        elif step < words:
            word = _last_word(data, length)
        else:
            rounds = 4
            if step == words:
                c ^= 0xEE
            else:
                b ^= 0xDD
        d ^= word
        while rounds > 0:
            rounds -= 1
            a = _wrapped(a + b)
            c = _wrapped(c + d)
            b = _rotated(b, 13) ^ a
            d = _rotated(d, 16) ^ c
            a = _wrapped(_rotated(a, 32) + d)
            c = _wrapped(c + b)
            d = _rotated(d, 21) ^ a
            b = _rotated(b, 17) ^ c
            c = _rotated(c, 32)
        a ^= word
        if step >= words:
            out[at + step - words] = a ^ b ^ c ^ d


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _last_word(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    word: cython.ulonglong = length & 0xFF
    at: cython.Py_ssize_t = 7
    while at > 0:
        at -= 1
        word = _wrapped(word << 8)
        if at < (length & 7):
            word |= data[length - (length & 7) + at]
    return word


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

"""Maps each key to its newest offset, in bounded memory. Pure.

    keys of a row group ─▶ one of each ─▶ SipHash-128 under the secret of this pass ─▶ rows (high, low, offset), 24 bytes a key

A key is known by its hash. Under a secret drawn for each pass no client can choose two colliding keys, and by chance it takes
2^64 keys in one pass. Memory counts the arrays and what sorting them takes for a moment. No step of Python handles a single key.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segments.records.columns import bytes_of, value_offsets
from segments.records.key_hash_kernel import hash_values

# Memory of a row, with its share of the arrays that sorting needs.
BYTES_PER_KEY: Final = 100
ABSENT: Final = -1

_Words = npt.NDArray[np.uint64]
_Offsets = npt.NDArray[np.int64]


class KeyMap:
    """Holds the newest offset of each key by the key's hash."""

    def __init__(self, *, bytes_max: int, secret: bytes) -> None:
        """`secret`: 16 bytes."""
        self._keys_max = max(1, bytes_max // BYTES_PER_KEY)
        self._secret = secret
        self._hashes: _Words = np.empty((0, 2), np.uint64)
        self._newest: _Offsets = np.empty(0, np.int64)
        self._fresh: list[tuple[_Words, _Offsets]] = []
        self._fresh_keys = 0

    def __len__(self) -> int:
        """Returns the number of keys; recent ones may be counted twice."""
        return len(self._newest) + self._fresh_keys

    def add(self, keys: pa.Array, offsets: _Offsets) -> bool:
        """Adds the records of a row group, null keys left out. Returns False, and adds nothing, where they do not fit.

        The first ones always fit, so that a pass makes progress.
        """
        known = keys.is_valid()
        distinct, indices = _distinct(keys.filter(known))
        hashes = self._hashes_of(distinct)
        if len(self) and len(self) + len(distinct) > self._keys_max:
            self._settle()
            if len(self) + int((self._find(hashes) == ABSENT).sum()) > self._keys_max:
                return False
        newest = np.full(len(distinct), ABSENT, np.int64)
        np.maximum.at(newest, indices, offsets[known.to_numpy(zero_copy_only=False)])
        self._fresh.append((hashes, newest))
        self._fresh_keys += len(distinct)
        if self._fresh_keys > len(self._newest) // 2:
            self._settle()
        return True

    def newest(self, keys: pa.Array) -> _Offsets:
        """Returns the newest offset of each key; ABSENT for a null key, and for an unknown one."""
        self._settle()
        found = np.full(len(keys), ABSENT, np.int64)
        known = keys.is_valid().to_numpy(zero_copy_only=False)
        if not len(self._newest) or not known.any():
            return found
        distinct, indices = _distinct(keys.filter(pa.array(known)))
        found[known] = self._find(self._hashes_of(distinct))[indices]
        return found

    def _find(self, hashes: _Words) -> _Offsets:
        found = np.full(len(hashes), ABSENT, np.int64)
        at = np.searchsorted(self._hashes[:, 0], hashes[:, 0])
        left = np.arange(len(hashes))
        while len(left):  # rows of one high word stand side by side, and more than one is rare
            left = left[at[left] < len(self._newest)]
            rows = self._hashes[at[left]]
            left, rows = left[rows[:, 0] == hashes[left, 0]], rows[rows[:, 0] == hashes[left, 0]]
            same = rows[:, 1] == hashes[left, 1]
            found[left[same]] = self._newest[at[left[same]]]
            left = left[~same]
            at[left] += 1
        return found

    def _settle(self) -> None:
        if not self._fresh:
            return
        hashes = np.concatenate([self._hashes, *(words for words, _ in self._fresh)])
        newest = np.concatenate([self._newest, *(offsets for _, offsets in self._fresh)])
        self._fresh, self._fresh_keys = [], 0
        order = np.lexsort((newest, hashes[:, 1], hashes[:, 0]))
        hashes, newest = hashes[order], newest[order]
        last = np.ones(len(newest), bool)
        last[:-1] = (hashes[1:] != hashes[:-1]).any(axis=1)
        self._hashes, self._newest = hashes[last], newest[last]

    def _hashes_of(self, keys: pa.Array) -> _Words:
        hashes = np.empty((len(keys), 2), np.uint64)
        if len(keys):
            hash_values(hashes.reshape(-1).data, value_offsets(keys).data, bytes_of(keys.buffers()[2]), self._secret)
        return hashes


def _distinct(keys: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Returns each key once, and for each of `keys`, none of them null, the index of its key."""
    encoded = pc.dictionary_encode(keys)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

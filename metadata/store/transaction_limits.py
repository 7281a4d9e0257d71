"""Checks which transactions a metadata store takes. Pure; shared by all stores, so that what passes on SQLite passes on etcd.

The limits are etcd's defaults: 128 compares and 128 operations (`--max-txn-ops`), 1.5 MiB for a request
(`--max-request-bytes`), and no key written twice in one transaction. Invariant: what is refused here wrote nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from metadata.errors import InvalidArgument, TooLarge
from metadata.store.interface import OPERATIONS_MAX, VALUE_BYTES_MAX, Compare, Delete, DeletePrefix, Operation, Put

# Bound on the keys and values of one transaction: etcd refuses requests over 1.5 MiB.
TRANSACTION_BYTES_MAX = 3 << 19
# Bytes of a request that the framing of one compare or operation takes, rounded up.
REQUEST_OVERHEAD_BYTES = 64


def check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Returns when a store may run the transaction; else raises InvalidArgument (shape, keys) or TooLarge (bytes)."""
    for what, count in (("compares", len(compares)), ("operations", len(operations))):
        if count > OPERATIONS_MAX:
            raise InvalidArgument(f"a transaction of {count} {what} is longer than {OPERATIONS_MAX}", hint="Split it.", count=count)
    size = sum(len(check_key(compare.key)) + REQUEST_OVERHEAD_BYTES for compare in compares)
    for operation in operations:
        size += _operation_size(operation)
    if size > TRANSACTION_BYTES_MAX:
        raise TooLarge(f"a transaction of {size} bytes is larger than {TRANSACTION_BYTES_MAX}", hint="Split it.", size=size)
    twice = _written_twice(operations)
    if twice is not None:
        raise InvalidArgument(f"the transaction writes {twice.decode()} twice", key=twice.decode())


def check_key(key: str) -> bytes:
    """Returns the key as the bytes that order it. Raises InvalidArgument where it is empty or not UTF-8."""
    if not key:
        raise InvalidArgument("a key must not be empty")
    return encode_key(key)


def encode_key(key: str) -> bytes:
    """Returns a key or a prefix (which may be empty) as UTF-8. Raises InvalidArgument where it holds half a surrogate pair."""
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the key {key!a} is not valid Unicode") from error


def prefix_end(prefix: bytes) -> bytes:
    """Returns the first key after all that begin with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"  # UTF-8 has no byte 0xFF


def _operation_size(operation: Operation) -> int:
    if isinstance(operation, Put):
        if len(operation.value) > VALUE_BYTES_MAX:
            raise TooLarge(
                f"the value of {operation.key} has {len(operation.value)} bytes, more than {VALUE_BYTES_MAX}",
                key=operation.key,
                size=len(operation.value),
            )
        return _key_size(operation.key) + len(operation.value) + REQUEST_OVERHEAD_BYTES
    if isinstance(operation, Delete):
        return _key_size(operation.key) + REQUEST_OVERHEAD_BYTES
    if not operation.prefix:
        raise InvalidArgument("refusing to delete the empty prefix, which is every key of the store")
    return len(encode_key(operation.prefix)) + REQUEST_OVERHEAD_BYTES


def _key_size(key: str) -> int:
    return len(key) if key and key.isascii() else len(check_key(key))


def _written_twice(operations: Sequence[Operation]) -> bytes | None:
    """Returns a key that breaks etcd's rule: two puts, or a put and a delete, of one key in a transaction."""
    keys = [operation.key for operation in operations if isinstance(operation, Put)]
    if len(keys) == len(operations) == len(set(keys)):
        return None
    puts = sorted(map(encode_key, keys))
    for first, second in pairwise(puts):
        if first == second:
            return first
    for operation in operations:
        if not isinstance(operation, Put):
            start, end = _deleted(operation)
            index = bisect_left(puts, start)
            if index < len(puts) and puts[index] < end:
                return puts[index]
    return None


def _deleted(operation: Delete | DeletePrefix) -> tuple[bytes, bytes]:
    """Returns the range of keys that the operation deletes: its first key, and the first after it."""
    if isinstance(operation, Delete):
        key = encode_key(operation.key)
        return key, key + b"\0"
    prefix = encode_key(operation.prefix)
    return prefix, prefix_end(prefix)

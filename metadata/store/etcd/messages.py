"""Translates between metadata/store/interface.py and etcd's protocol (store/etcd/proto/etcd.proto). Pure.

Invariant: every request has passed the same checks as on every other store; a received key is UTF-8, or Tidelog did not write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metadata.errors import Corrupt
from metadata.model import Revision
from metadata.store.etcd.proto import etcd_pb2, mvcc_pb2
from metadata.store.interface import NO_LEASE, Compare, Delete, Event, KeyValue, LeaseId, Operation, Put, TransactionResult
from metadata.store.transaction_limits import check_transaction, encode_key, prefix_end

_RELATIONS = {
    "=": etcd_pb2.Compare.EQUAL,
    "<": etcd_pb2.Compare.LESS,
    ">": etcd_pb2.Compare.GREATER,
    "!=": etcd_pb2.Compare.NOT_EQUAL,
}
# The first of all keys: etcd takes no empty key.
_FIRST_KEY = b"\0"
# Field and wire type of TxnRequest.success, RequestOp.request_put, PutRequest.key and PutRequest.value.
_SUCCESS: Final = b"\x12"
_PUT: Final = b"\x12"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"


def key_range(prefix: str) -> tuple[bytes, bytes]:
    """Returns the first key under a prefix (empty: of all), and the first after it."""
    start = encode_key(prefix)
    return start or _FIRST_KEY, prefix_end(start)


def encode_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> bytes:
    """Encodes a TxnRequest. Raises InvalidArgument and TooLarge where etcd, with its default limits, would refuse it.

    Puts are encoded here: as objects of protobuf they take five times as long, and a commit of offsets puts one for each partition.
    """
    check_transaction(compares, operations)
    parts: list[bytes] = [etcd_pb2.TxnRequest(compare=[_compare(compare) for compare in compares]).SerializeToString()]
    for operation in operations:
        if isinstance(operation, Put) and operation.lease == NO_LEASE:
            key, value = operation.key.encode(), operation.value
            key_size, value_size = _varint(len(key)), _varint(len(value))
            put_size = len(_KEY) + len(key_size) + len(key) + len(_VALUE) + len(value_size) + len(value)
            put_length = _varint(put_size)
            operation_length = _varint(len(_PUT) + len(put_length) + put_size)
            parts += (_SUCCESS, operation_length, _PUT, put_length, _KEY, key_size, key, _VALUE, value_size, value)
        else:
            encoded = _operation(operation).SerializeToString()
            parts += (_SUCCESS, _varint(len(encoded)), encoded)
    if compares and not operations:
        # Without an operation a member compares with what it has applied so far, which may be old. A read makes it ask the leader.
        read = etcd_pb2.RequestOp(request_range=etcd_pb2.RangeRequest(key=encode_key(compares[0].key), limit=1)).SerializeToString()
        parts += (_SUCCESS, _varint(len(read)), read)
    return b"".join(parts)


def transaction_result(response: etcd_pb2.TxnResponse) -> TransactionResult:
    return TransactionResult(response.succeeded, Revision(response.header.revision))


def key_value(stored: mvcc_pb2.KeyValue) -> KeyValue:
    return KeyValue(
        decode_key(stored.key),
        stored.value,
        Revision(stored.create_revision),
        Revision(stored.mod_revision),
        stored.version,
        LeaseId(stored.lease),
    )


def event(seen: mvcc_pb2.Event) -> Event:
    kind, stored = seen.type, seen.kv
    if kind == mvcc_pb2.Event.DELETE:
        return Event("delete", decode_key(stored.key), b"", Revision(stored.mod_revision))
    return Event("put", decode_key(stored.key), stored.value, Revision(stored.mod_revision))


def decode_key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(
            f"etcd holds the key {key[:120]!r}, which is not UTF-8", hint="Delete it: Tidelog did not write it.", key=repr(key)
        ) from error


def _compare(compare: Compare) -> etcd_pb2.Compare:
    return etcd_pb2.Compare(
        key=encode_key(compare.key),
        target=etcd_pb2.Compare.MOD,
        result=_RELATIONS[compare.is_],
        mod_revision=compare.mod_revision,
    )


def _operation(operation: Operation) -> etcd_pb2.RequestOp:
    if isinstance(operation, Put):
        put = etcd_pb2.PutRequest(key=encode_key(operation.key), value=operation.value, lease=operation.lease)
        return etcd_pb2.RequestOp(request_put=put)
    if isinstance(operation, Delete):
        return etcd_pb2.RequestOp(request_delete_range=etcd_pb2.DeleteRangeRequest(key=encode_key(operation.key)))
    start, end = key_range(operation.prefix)
    return etcd_pb2.RequestOp(request_delete_range=etcd_pb2.DeleteRangeRequest(key=start, range_end=end))


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < len(_VARINTS) else _encode_varint(number)


def _encode_varint(number: int) -> bytes:
    """Encodes 7 bits a byte, the lowest first, as protobuf does."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_VARINTS: Final = tuple(map(_encode_varint, range(1024)))

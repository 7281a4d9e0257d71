"""Our terms in etcd's protocol, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Corrupt, InvalidArgument, TooLarge
from metadata.model import Revision
from metadata.store.etcd.messages import decode_key, encode_transaction, event, key_range, key_value, transaction_result
from metadata.store.etcd.proto import etcd_pb2, mvcc_pb2
from metadata.store.interface import Compare, Delete, DeletePrefix, Event, KeyValue, LeaseId, Operation, Put, TransactionResult

KEYS = st.text(min_size=1, max_size=40) | st.text("ab/", min_size=100, max_size=20_000)


def transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> etcd_pb2.TxnRequest:
    return etcd_pb2.TxnRequest.FromString(encode_transaction(compares, operations))


def test_a_prefix_is_the_range_of_all_keys_that_begin_with_it() -> None:
    assert key_range("/a/") == (b"/a/", b"/a0")
    assert key_range("é") == (b"\xc3\xa9", b"\xc3\xaa")


def test_the_empty_prefix_is_every_key_that_is_text() -> None:
    assert key_range("") == (b"\0", b"\xff")  # etcd takes no empty key


@pytest.mark.parametrize(
    ("relation", "result"),
    [
        ("=", etcd_pb2.Compare.EQUAL),
        ("<", etcd_pb2.Compare.LESS),
        (">", etcd_pb2.Compare.GREATER),
        ("!=", etcd_pb2.Compare.NOT_EQUAL),
    ],
)
def test_a_compare_is_of_the_mod_revision(relation: Any, result: int) -> None:
    (compare,) = transaction([Compare("/a", 7, relation)], []).compare
    assert (compare.key, compare.mod_revision, compare.target, compare.result) == (b"/a", 7, etcd_pb2.Compare.MOD, result)


def test_a_transaction_that_only_compares_reads_so_that_a_member_which_lags_does_not_answer_it_alone() -> None:
    (read,) = transaction([Compare("/a", 7), Compare("/b", 0)], []).success
    assert read.request_range == etcd_pb2.RangeRequest(key=b"/a", limit=1)
    (put,) = transaction([Compare("/a", 7)], [Put("/a", b"1")]).success
    assert put.HasField("request_put")


def test_operations_keep_their_order() -> None:
    put, delete, prefix = transaction([], [Put("/a", b"1", LeaseId(5)), Delete("/b"), DeletePrefix("/c/")]).success
    assert put.request_put == etcd_pb2.PutRequest(key=b"/a", value=b"1", lease=5)
    assert delete.request_delete_range == etcd_pb2.DeleteRangeRequest(key=b"/b")
    assert prefix.request_delete_range == etcd_pb2.DeleteRangeRequest(key=b"/c/", range_end=b"/c0")


@given(
    compares=st.lists(st.tuples(KEYS, st.integers(0, 2**62)), max_size=3),
    puts=st.dictionaries(KEYS, st.tuples(st.binary(max_size=40) | st.just(bytes(20_000)), st.sampled_from([0, 5])), max_size=5),
)
def test_a_transaction_is_encoded_as_protobuf_encodes_it(
    compares: list[tuple[str, int]], puts: dict[str, tuple[bytes, int]]
) -> None:
    found = transaction(
        [Compare(key, revision) for key, revision in compares],
        [Put(key, value, LeaseId(lease)) for key, (value, lease) in puts.items()],
    )
    if compares and not puts:
        del found.success[:]
    assert found == etcd_pb2.TxnRequest(
        compare=[
            etcd_pb2.Compare(key=key.encode(), target=etcd_pb2.Compare.MOD, result=etcd_pb2.Compare.EQUAL, mod_revision=revision)
            for key, revision in compares
        ],
        success=[
            etcd_pb2.RequestOp(request_put=etcd_pb2.PutRequest(key=key.encode(), value=value, lease=lease))
            for key, (value, lease) in puts.items()
        ],
    )


def test_a_transaction_that_etcd_would_refuse_becomes_no_message() -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        transaction([], [Put("/a", b""), Put("/a", b"")])
    with pytest.raises(InvalidArgument, match="129 operations"):
        transaction([], [Delete(f"/{n}") for n in range(129)])
    with pytest.raises(TooLarge):
        transaction([], [Put("/a", bytes((1 << 20) + 1))])


def test_answers_of_etcd_read_in_our_terms() -> None:
    stored = mvcc_pb2.KeyValue(key=b"/a", value=b"1", create_revision=2, mod_revision=3, version=4, lease=5)
    assert key_value(stored) == KeyValue("/a", b"1", Revision(2), Revision(3), 4, LeaseId(5))
    assert event(mvcc_pb2.Event(kv=stored)) == Event("put", "/a", b"1", Revision(3))
    assert event(mvcc_pb2.Event(type=mvcc_pb2.Event.DELETE, kv=stored)) == Event("delete", "/a", b"", Revision(3))
    answer = etcd_pb2.TxnResponse(succeeded=True, header=etcd_pb2.ResponseHeader(revision=9))
    assert transaction_result(answer) == TransactionResult(succeeded=True, revision=Revision(9))


def test_a_key_that_is_no_text_is_not_ours() -> None:
    with pytest.raises(Corrupt, match="not UTF-8"):
        decode_key(b"/a/\xff")

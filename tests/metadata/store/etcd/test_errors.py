"""What each error of etcd means. The sentences are etcd's own (api/v3rpc/rpctypes/error.go)."""

from __future__ import annotations

import pytest

from metadata.errors import (
    Corrupt,
    Denied,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
)
from metadata.store.etcd.errors import AnswerTooLarge, HistoryGone, failure
from metadata.store.interface import LeaseLost

URL = "http://etcd-0:2379"


def said(code: str, details: str, kind: type[Exception], then: str, *, writes: bool) -> None:
    failed = failure(code, details, doing="write /a", url=URL, writes=writes)
    assert (type(failed.error), failed.then) == (kind, then)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("UNAVAILABLE", "etcdserver: no leader"),
        ("UNAVAILABLE", "etcdserver: rpc not supported for learner"),
        ("UNAVAILABLE", "etcdserver: not capable"),
        ("FAILED_PRECONDITION", "etcdserver: not leader"),
    ],
)
def test_a_request_that_etcd_refuses_before_it_proposes_it_is_asked_of_another_member(code: str, details: str) -> None:
    for writes in (False, True):
        said(code, details, Unavailable, "ask another member", writes=writes)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("UNAVAILABLE", "etcdserver: request timed out"),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure"),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to connection lost"),
        ("UNAVAILABLE", "etcdserver: leader changed"),
        ("UNAVAILABLE", "etcdserver: server stopped"),
        ("UNAVAILABLE", "Socket closed"),
        ("UNAVAILABLE", "failed to connect to all addresses"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        ("CANCELLED", "etcdserver: request cancelled"),
        ("RESOURCE_EXHAUSTED", "Bandwidth exhausted"),
        ("INTERNAL", "stream removed"),
        ("UNKNOWN", "raft proposal dropped"),
        ("ABORTED", ""),
        ("UNKNOWN", "an error of an etcd to come"),
    ],
)
def test_a_write_without_a_clear_answer_is_unknown_and_a_read_is_asked_of_another_member(code: str, details: str) -> None:
    said(code, details, OutcomeUnknown, "raise", writes=True)
    said(code, details, Unavailable, "ask another member", writes=False)
    for writes in (False, True):
        assert failure(code, details, doing="write /a", url=URL, writes=writes).leaves


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("UNAUTHENTICATED", "etcdserver: invalid auth token"),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old"),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty"),
        ("UNAUTHENTICATED", "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
    ],
)
def test_a_token_that_is_no_longer_good_is_replaced(code: str, details: str) -> None:
    for writes in (False, True):
        said(code, details, Denied, "take a new token", writes=writes)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Throttled),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (3000000 vs. 2097152)", TooLarge),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", TooLarge),
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", InvalidArgument),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", InvalidArgument),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Denied),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", InvalidArgument),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", HistoryGone),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Denied),
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseLost),
        ("FAILED_PRECONDITION", "etcdserver: lease already exists", Rejected),
        ("DATA_LOSS", "etcdserver: corrupt cluster", Corrupt),
    ],
)
def test_a_definite_refusal_is_raised_at_once(code: str, details: str, kind: type[Exception]) -> None:
    for writes in (False, True):
        said(code, details, kind, "raise", writes=writes)


def test_an_address_that_is_no_etcd_is_passed_over() -> None:
    for writes in (False, True):
        said("UNIMPLEMENTED", "unknown service etcdserverpb.KV", Rejected, "ask another member", writes=writes)


def test_etcd_may_keep_a_transaction_that_it_says_it_has_no_space_for() -> None:
    details = "etcdserver: mvcc: database space exceeded"
    said("RESOURCE_EXHAUSTED", details, OutcomeUnknown, "raise", writes=True)
    said("RESOURCE_EXHAUSTED", details, Unavailable, "raise", writes=False)
    failed = failure("RESOURCE_EXHAUSTED", details, doing="write /a", url=URL, writes=True)
    assert isinstance(failed.error, TidelogError)
    assert "alarm disarm" in failed.error.hint
    assert not failed.leaves  # every member would say the same


def test_an_answer_that_is_too_large_is_asked_for_in_smaller_pieces() -> None:
    said("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (5 vs. 4)", AnswerTooLarge, "raise", writes=False)
    said("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (5 vs. 4)", OutcomeUnknown, "raise", writes=True)


def test_only_no_answer_at_all_is_silence() -> None:
    assert failure("DEADLINE_EXCEEDED", "", doing="read /a", url=URL, writes=False).silent
    assert not failure("UNAVAILABLE", "etcdserver: request timed out", doing="read /a", url=URL, writes=False).silent


@pytest.mark.parametrize(
    ("code", "details", "hint"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", "Most of etcd's members are down"),
        ("UNAVAILABLE", "failed to connect; last error: Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", "Check etcd_ca"),
        ("UNAVAILABLE", "failed to connect; last error: connection refused", "Check that etcd runs there"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", "Correct etcd_user"),
    ],
)
def test_an_error_has_its_address_cause_and_remedy(code: str, details: str, hint: str) -> None:
    error = failure(code, details, doing="read /a", url=URL, writes=False).error
    assert isinstance(error, TidelogError)
    assert str(error) == f"can't read /a at etcd {URL}: {details.removeprefix('etcdserver: ')}"
    assert error.hint.startswith(hint)
    assert error.details["endpoint"] == URL

"""What brokers answer becomes the error tree again."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from google.rpc.status_pb2 import Status

from gateway.grpc_status import DETAILS_TRAILER, status_of
from metadata import errors
from metadata.errors import (
    Denied,
    InvalidArgument,
    OutcomeUnknown,
    OutOfRange,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
)
from tidelog.rpc_errors import error_of_rpc, error_of_status


def classes(kind: type[TidelogError] = TidelogError) -> Iterator[type[TidelogError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


@pytest.mark.parametrize("kind", list(classes()), ids=lambda kind: kind.__name__)
def test_every_class_of_the_tree_comes_back_as_itself_with_its_hint(kind: type[TidelogError]) -> None:
    error = error_of_status(status_of(kind("it happened", hint="do this")), address="broker:9090")
    assert type(error) is kind
    assert str(error) == "broker:9090: it happened"
    assert (error.hint, error.details["address"]) == ("do this", "broker:9090")
    assert type(error_of_status(status_of(kind("x")), address="b")).default_hint == kind.default_hint


def test_details_come_back_as_the_facts_that_they_were() -> None:
    error = error_of_status(status_of(OutOfRange("gone", log_start_offset=5, high_watermark=-1, topic="007x")), address="b")
    assert (error.details["log_start_offset"], error.details["high_watermark"], error.details["topic"]) == (5, -1, "007x")


def test_a_throttled_client_learns_how_long_to_wait() -> None:
    error = error_of_status(status_of(Throttled("full", retry_after_s=2.5)), address="b")
    assert isinstance(error, Throttled)
    assert error.retry_after_s == 2.5


def test_a_reason_of_a_newer_broker_is_an_error_all_the_same() -> None:
    assert type(error_of_status(Status(code=9, message="new"), address="b")) is TidelogError


def rpc_error(code: grpc.StatusCode, details: str, *trailers: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


def test_a_call_that_the_broker_refused_carries_its_error() -> None:
    trailer = (DETAILS_TRAILER, status_of(TooLarge("too large", bytes_max=5)).SerializeToString())
    error = error_of_rpc(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "too large", trailer), address="b", writes=True)
    assert (type(error), error.details["bytes_max"]) == (TooLarge, 5)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED])
def test_a_lost_answer_is_of_unknown_outcome_for_a_write_and_unavailable_for_a_read(code: grpc.StatusCode) -> None:
    lost = rpc_error(code, "Socket closed")
    assert type(error_of_rpc(lost, address="b", writes=True)) is OutcomeUnknown
    assert type(error_of_rpc(lost, address="b", writes=False)) is Unavailable


def test_a_connection_that_was_never_made_wrote_nothing() -> None:
    refused = rpc_error(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: refused")
    error = error_of_rpc(refused, address="b", writes=True)
    assert type(error) is Unavailable
    assert "tidelog dev" in error.hint


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, Rejected),
        (grpc.StatusCode.UNAUTHENTICATED, Denied),
        (grpc.StatusCode.PERMISSION_DENIED, Denied),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooLarge),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
    ],
)
def test_codes_without_details_have_their_meaning(code: grpc.StatusCode, kind: type[TidelogError]) -> None:
    error = error_of_rpc(rpc_error(code, "so it is"), address="b:1", writes=True)
    assert isinstance(error, kind)
    assert str(error) == "b:1: so it is"


def test_an_error_of_the_broker_itself_may_have_written() -> None:
    internal = rpc_error(grpc.StatusCode.INTERNAL, "oops")
    assert type(error_of_rpc(internal, address="b", writes=True)) is OutcomeUnknown
    assert type(error_of_rpc(internal, address="b", writes=False)) is TidelogError

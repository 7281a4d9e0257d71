from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from gateway.error_codes import WIRE_CODES
from gateway.proto.status import DETAILS_TRAILER, from_status, status_in, to_status
from metadata.errors import (
    InvalidArgument,
    NoLeader,
    OutcomeUnknown,
    OutOfRange,
    Rejected,
    Throttled,
    TidelogError,
    TooLarge,
    Unavailable,
    UnknownTopic,
)
from tests.gateway.test_error_codes import EVERY_CLASS


def detail(status: Status, kind: type[ErrorInfo | RetryInfo | BadRequest]) -> ErrorInfo | RetryInfo | BadRequest | None:
    for packed in status.details:
        found = kind()
        if packed.Unpack(found):
            return found
    return None


def test_error_info_has_the_code_the_facts_and_the_hint() -> None:
    status = to_status(OutOfRange("beyond", hint="Read from 5.", log_start_offset=5, high_watermark=9))
    info = detail(status, ErrorInfo)
    assert status.code == StatusCode.OUT_OF_RANGE.value[0]
    assert status.message == "beyond"
    assert isinstance(info, ErrorInfo)
    assert (info.reason, info.domain) == ("OFFSET_OUT_OF_RANGE", "tidelog")
    assert dict(info.metadata) == {
        "log_start_offset": "5",
        "high_watermark": "9",
        "hint": "Read from 5.",
        "retryable": "false",
        "nothing_was_written": "true",
    }


def test_retry_info_says_when_to_come_back() -> None:
    throttled = detail(to_status(Throttled("full", retry_after_s=2.5)), RetryInfo)
    leaderless = detail(to_status(NoLeader("none")), RetryInfo)
    assert isinstance(throttled, RetryInfo)
    assert isinstance(leaderless, RetryInfo)
    assert throttled.retry_delay.ToMilliseconds() == 2500
    assert leaderless.retry_delay.ToMilliseconds() == 100
    assert detail(to_status(UnknownTopic("x")), RetryInfo) is None


def test_a_field_to_blame_becomes_a_bad_request() -> None:
    blamed = detail(to_status(InvalidArgument("negative", field="appends[2].partition")), BadRequest)
    assert isinstance(blamed, BadRequest)
    assert [(violation.field, violation.description) for violation in blamed.field_violations] == [
        ("appends[2].partition", "negative")
    ]
    assert detail(to_status(InvalidArgument("negative")), BadRequest) is None


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_every_error_has_its_code_and_reason(kind: type[TidelogError]) -> None:
    status = to_status(kind("what happened"))
    info = detail(status, ErrorInfo)
    assert isinstance(info, ErrorInfo)
    assert (status.code, info.reason) == (WIRE_CODES[kind].grpc.value[0], kind.code)


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_every_error_is_read_back_as_it_was(kind: type[TidelogError]) -> None:
    error = kind("what happened", hint="what to do", topic="17", end_offset=42, is_first=True)
    back = from_status(to_status(error))
    assert type(back) is kind
    assert (back.message, back.hint, back.details) == (error.message, error.hint, error.details)


def test_a_throttled_error_keeps_its_retry_time_and_an_unknown_code_becomes_a_plain_error() -> None:
    back = from_status(to_status(Throttled("full", retry_after_s=2.5)))
    assert isinstance(back, Throttled)
    assert back.retry_after_s == 2.5
    assert type(from_status(Status(code=13, message="of a newer broker"))) is TidelogError


@pytest.mark.parametrize("kind", EVERY_CLASS, ids=lambda kind: kind.__name__)
def test_a_client_reads_the_same_error_with_the_address_of_the_broker(kind: type[TidelogError]) -> None:
    error = kind("it happened", hint="do this", topic="17", log_start_offset=5, high_watermark=-1, is_first=True)
    read = from_status(to_status(error), address="broker:9090")
    assert type(read) is kind
    assert (str(read), read.hint) == ("broker:9090: it happened", "do this")
    assert read.details == error.details | {"address": "broker:9090"}


def test_an_error_without_a_hint_is_read_back_without_one() -> None:
    assert from_status(to_status(UnknownTopic("gone", hint=""))).hint == ""


def test_a_number_of_thousands_of_digits_stays_text() -> None:
    assert from_status(to_status(TidelogError("x", seen="9" * 5_000))).details["seen"] == "9" * 5_000


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (Throttled("x"), Unavailable),
        (TooLarge("x"), Rejected),
        (OutcomeUnknown("x"), OutcomeUnknown),
        (TidelogError("x"), TidelogError),
    ],
)
def test_an_unknown_reason_still_says_what_to_do_next(sent: TidelogError, kind: type[TidelogError]) -> None:
    status = to_status(sent)
    info = ErrorInfo()
    status.details[0].Unpack(info)
    info.reason = "OF_TOMORROW"
    info.metadata["message"] = "a detail of this name"
    status.details[0].Pack(info)
    for error in (from_status(status), from_status(status, address="b")):
        assert type(error) is kind
        assert error.details | {"address": "b"} == {"message": "a detail of this name", "address": "b"}


def test_a_detail_that_cannot_be_read_is_skipped() -> None:
    damaged = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")
    assert str(from_status(Status(code=8, message="full", details=[damaged]), address="b")) == "b: full"


def test_the_trailers_of_a_call_hold_a_status_only_where_a_broker_has_put_one() -> None:
    status = to_status(UnknownTopic("gone"))
    assert status_in([("x", "y"), (DETAILS_TRAILER, status.SerializeToString())]) == status
    for without in (None, [], [(DETAILS_TRAILER, b"\xff\xff\xff")], [(DETAILS_TRAILER, b"")], [(DETAILS_TRAILER, "text")]):
        assert status_in(without) is None

from __future__ import annotations

import msgspec
import pytest

from gateway.error_codes import MethodNotAllowed
from gateway.http.problem_details import error_members, problem, problem_headers
from metadata.errors import NoLeader, OutOfRange, Throttled, TidelogError, UnknownTopic

OUT_OF_RANGE = OutOfRange("orders/0 holds 5 to 9", log_start_offset=5, high_watermark=9)


def test_a_problem_has_the_members_of_rfc_9457_and_ours() -> None:
    error = UnknownTopic("there is no topic ordrs", hint="Did you mean 'orders'?", topic="ordrs")
    reported = msgspec.json.decode(problem(error, status=404, path="/v1/topics/ordrs", request_id="r-1"))
    assert reported == {
        "type": "urn:tidelog:error:UNKNOWN_TOPIC",
        "title": "Unknown topic",
        "status": 404,
        "detail": "there is no topic ordrs",
        "instance": "/v1/topics/ordrs",
        "code": "UNKNOWN_TOPIC",
        "retryable": False,
        "nothing_was_written": True,
        "hint": "Did you mean 'orders'?",
        "request_id": "r-1",
        "topic": "ordrs",
    }


def test_details_never_replace_a_member() -> None:
    error = TidelogError("what happened", code="mine", status="mine", retryable="mine")
    reported = msgspec.json.decode(problem(error, status=500, path="/", request_id="r"))
    assert (reported["code"], reported["status"], reported["retryable"]) == ("INTERNAL", 500, False)


def test_within_results_an_error_does_not_describe_the_response() -> None:
    assert not {"type", "title", "status", "instance", "request_id"} & error_members(OUT_OF_RANGE).keys()


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (Throttled("full", retry_after_s=2.6), 429, b"3"),
        (Throttled("full", retry_after_s=0.01), 429, b"1"),
        (NoLeader("x"), 503, b"1"),
    ],
)
def test_retryable_errors_have_a_retry_after_header(error: TidelogError, status: int, retry_after: bytes) -> None:
    assert (b"retry-after", retry_after) in problem_headers(error, status=status)


def test_an_error_that_can_not_be_retried_has_no_retry_after() -> None:
    assert b"retry-after" not in dict(problem_headers(UnknownTopic("x"), status=404))


def test_an_offset_out_of_range_has_the_range_in_its_headers() -> None:
    headers = dict(problem_headers(OUT_OF_RANGE, status=416))
    assert headers[b"content-range"] == b"offsets */9"
    assert (headers[b"tidelog-log-start-offset"], headers[b"tidelog-high-watermark"]) == (b"5", b"9")


def test_a_method_that_is_not_allowed_has_an_allow_header() -> None:
    headers = dict(problem_headers(MethodNotAllowed("x", allow="GET, POST"), status=405))
    assert headers[b"allow"] == b"GET, POST"

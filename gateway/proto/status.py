"""An error as a gRPC client meets it: google.rpc.Status with ErrorInfo, RetryInfo and BadRequest. Pure.

    code, message     from gateway/error_codes.py, and what happened
    ErrorInfo         reason = the error's code · domain = tidelog · metadata = its details, hint, retryable, nothing_was_written
    RetryInfo         where the same request may succeed later
    BadRequest        where one field is to blame
    Help              is not used: the hint stands in ErrorInfo.metadata["hint"]

The same Status travels in the result of one append, and as the trailer grpc-status-details-bin of a failed call. A broker that has
forwarded a request reads it back (`from_status`), and so does the SDK: their callers meet the error that the leader raised.
Source: https://google.aip.dev/193, google/rpc/error_details.proto
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from gateway.error_codes import ERROR_CLASSES, wire_codes
from metadata.errors import InvalidArgument, OutcomeUnknown, Rejected, Throttled, TidelogError, Unavailable

DOMAIN: Final = "tidelog"
DETAILS_TRAILER: Final = "grpc-status-details-bin"
# For errors that say nothing of their own.
RETRY_DELAY_S: Final = 0.1
# Longer numbers are no offsets or sizes; Python refuses to convert very long ones.
INT_DIGITS_MAX: Final = 19
# Details that stay text when they are read back, whatever they look like.
_TEXT_DETAILS: Final = frozenset(
    {"broker_id", "field", "group", "grpc_address", "http_address", "key", "member_id", "name", "principal", "topic", "topic_id"}
)


def to_status(error: TidelogError) -> Status:
    """Returns the whole error. `details["field"]`, where an InvalidArgument has it, becomes a BadRequest field violation."""
    code: int = wire_codes(error).grpc.value[0]
    status = Status(code=code, message=error.message)
    info = ErrorInfo(reason=error.code, domain=DOMAIN)
    info.metadata.update({name: _text(value) for name, value in error.details.items()})
    info.metadata["retryable"] = _text(error.retryable)
    info.metadata["nothing_was_written"] = _text(error.nothing_was_written)
    if error.hint:
        info.metadata["hint"] = error.hint
    _pack(status, info)
    if error.retryable:
        delay = Duration()
        delay.FromMilliseconds(round(1000 * (error.retry_after_s if isinstance(error, Throttled) else RETRY_DELAY_S)))
        _pack(status, RetryInfo(retry_delay=delay))
    if isinstance(error, InvalidArgument) and "field" in error.details:
        violation = BadRequest.FieldViolation(field=str(error.details["field"]), description=error.message, reason=error.code)
        _pack(status, BadRequest(field_violations=[violation]))
    return status


def from_status(status: Status, *, address: str = "") -> TidelogError:
    """Returns the error that `status_of` was given: its class, message, hint and details.

    A client gives the `address` of the broker that answered: the message begins with it, and it stands among the details. Where the
    reason is not known here, the class follows from `retryable` and `nothing_was_written`. A detail that cannot be read is skipped.
    """
    info, retry = ErrorInfo(), RetryInfo()
    for detail in status.details:
        with suppress(DecodeError):
            _ = detail.Unpack(info) or detail.Unpack(retry)
    details = dict(info.metadata)
    hint = details.pop("hint", "")
    retryable, nothing_was_written = (details.pop(fact, "") == "true" for fact in ("retryable", "nothing_was_written"))
    kind = ERROR_CLASSES.get(info.reason) or _nearest_class(retryable=retryable, nothing_was_written=nothing_was_written)
    error = kind(f"{address}: {status.message}" if address else status.message, hint=hint)
    error.details = {name: text if name in _TEXT_DETAILS else _value(text) for name, text in details.items()}
    if address:
        error.details["address"] = address
    if isinstance(error, Throttled) and retry.HasField("retry_delay"):
        error.retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    return error


def status_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> Status | None:
    """Returns the Status that a broker adds to a call that it refuses; None where there is none, or it cannot be read."""
    for key, value in trailers or ():
        if key == DETAILS_TRAILER and isinstance(value, bytes):
            try:
                status = Status.FromString(value)
            except DecodeError:
                return None
            return status if status.details else None
    return None


def _nearest_class(*, retryable: bool, nothing_was_written: bool) -> type[TidelogError]:
    if nothing_was_written:
        return Unavailable if retryable else Rejected
    return OutcomeUnknown if retryable else TidelogError


def _pack(status: Status, detail: ErrorInfo | RetryInfo | BadRequest) -> None:
    packed = AnyMessage()
    packed.Pack(detail)
    status.details.append(packed)


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str) -> str | int | bool:
    if text in {"true", "false"}:
        return text == "true"
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) <= INT_DIGITS_MAX else text

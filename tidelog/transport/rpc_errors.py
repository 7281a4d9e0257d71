"""The one place where what a broker, or the way to it, answers becomes an error of metadata/errors.py. No I/O.

    google.rpc.Status with ErrorInfo      the class whose `code` is ErrorInfo.reason, with its details and hint
    a gRPC code alone                     by what may have happened before it was lost:

        read, or the connection was never made    Unavailable: nothing was written
        write, and bytes may have gone out        OutcomeUnknown
        RESOURCE_EXHAUSTED of grpc itself         TooLarge for a message above a limit, Throttled for a call above the broker's
                                                  grpc_streams_max, which it has not even looked at
        CANCELLED without a word                  the broker lives, and has dropped the call: more came than it takes up in time.
                                                  Throttled for a read; a write is not relied upon, as above. The detail
                                                  `ended_by_broker` says that there is no other broker to be looked for

Every message begins with the address that it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import RpcError, StatusCode

from metadata.errors import Denied, InvalidArgument, OutcomeUnknown, Rejected, Throttled, TidelogError, TooLarge, Unavailable

if TYPE_CHECKING:
    import grpc.aio

STATUS_METADATA_KEY: Final = "grpc-status-details-bin"


class NotImplementedHere(Rejected):
    """Whoever answers does not know the call."""


def error_of_status(status: status_pb2.Status, *, address: str) -> TidelogError:
    """What a broker said of a request, or of one part of it."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        try:
            _ = detail.Unpack(info) or detail.Unpack(retry)  # each takes its own kind only
        except DecodeError:
            continue  # the message says it all the same
    metadata = dict(info.metadata)
    hint = metadata.pop("hint", None)
    retryable, nothing_was_written = (metadata.pop(fact, "") == "true" for fact in ("retryable", "nothing_was_written"))
    details = {name: _fact(value) for name, value in metadata.items() if name not in {"message", "retry_after_s"}}
    details["address"] = address
    kind = _CLASS_OF.get(info.reason) or _nearest_class(retryable=retryable, nothing_was_written=nothing_was_written)
    message = f"{address}: {status.message}"
    if issubclass(kind, Throttled):
        retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9 if retry.HasField("retry_delay") else 1.0
        return kind(message, hint=hint, retry_after_s=retry_after_s, **details)
    return kind(message, hint=hint, **details)


def error_of_rpc(error: grpc.aio.AioRpcError, *, address: str, writes: bool) -> TidelogError:
    """How a call ended that did not succeed. `writes`: whether it would have changed anything."""
    if (status := _status_in_trailers(error)) is not None:
        return error_of_status(status, address=address)
    code, said = error.code(), error.details() or error.code().name
    if code in _BY_CODE:
        kind, hint = _BY_CODE[code]
        return kind(f"{address}: {said}", hint=hint, address=address)
    if code is StatusCode.RESOURCE_EXHAUSTED and (exhausted := _exhausted(said, address, writes)) is not None:
        return exhausted
    if code is StatusCode.UNAVAILABLE and said.startswith(_NEVER_CONNECTED):
        return unreachable(address, _BEFORE_THE_CAUSE.sub("", said))
    ended_by_broker = code is StatusCode.CANCELLED and said == _WITHOUT_A_WORD
    if ended_by_broker and not writes:
        return Throttled(f"{address}: the broker has more calls than it can take up", address=address, ended_by_broker=True)
    if said == _TIMEOUT:
        said = "the time was over"
    if writes:
        unknown = OutcomeUnknown(f"{address}: no answer came that says what was written: {said}", address=address)
        if ended_by_broker:
            unknown.details["ended_by_broker"] = True
        return unknown
    if code in {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED, StatusCode.RESOURCE_EXHAUSTED}:
        return Unavailable(f"{address}: no answer: {said}", address=address)
    return TidelogError(f"{address}: {code.name}: {said}", hint="Look into the broker's log.", address=address)


def is_timeout(error: TidelogError) -> bool:
    """Whether it was made of a call that got no answer in the time that it had."""
    cause = error.__cause__
    return isinstance(cause, RpcError) and cause.code() is StatusCode.DEADLINE_EXCEEDED


def is_told_by_broker(error: grpc.aio.AioRpcError) -> bool:
    """Whether it is the answer of a broker, and not what grpc makes of its silence."""
    return _status_in_trailers(error) is not None


def is_said_by_broker(error: TidelogError) -> bool:
    """The same of what was made of it."""
    cause = error.__cause__
    return not isinstance(cause, RpcError) or is_told_by_broker(cast("grpc.aio.AioRpcError", cause))


def _status_in_trailers(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """What the broker itself said of the call; None where it was not asked, or what it said can't be read."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_METADATA_KEY:
            status = status_pb2.Status()
            try:
                status.ParseFromString(value if isinstance(value, bytes) else value.encode("latin-1"))
            except DecodeError:
                return None
            return status if status.details else None
    return None


def _exhausted(said: str, address: str, writes: bool) -> TidelogError | None:
    """What grpc itself refuses in its own words; None for others' words, which say nothing of what was written."""
    is_answer = _ANSWER_REFUSED in said
    if (sizes := _MESSAGE_TOO_LARGE.search(said)) and not (is_answer and writes):
        what = "Ask for less at once." if is_answer else "Send less at once: smaller records, or a smaller batch_bytes_max."
        return TooLarge(f"{address}: {said}", hint=what, address=address, bytes_max=int(sizes[1]))
    if _TOO_MANY_CALLS in said:
        return Throttled(
            f"{address}: {said}", hint="Retry, with fewer clients at once, or raise grpc_streams_max.", address=address
        )
    return None


def unreachable(address: str, cause: object) -> Unavailable:
    return Unavailable(
        f"{address}: can't connect: {cause}",
        hint="Check the address, and that a broker runs there; `tidelog dev` starts one on this machine.",
        address=address,
    )


# grpc's own words, of which its codes alone say too little:
_NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")  # so that nothing went out
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded"
_BEFORE_THE_CAUSE = re.compile(r"^.*; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?(?:Failed to connect to remote host: )?")
_TIMEOUT = "Deadline Exceeded"
_WITHOUT_A_WORD = StatusCode.CANCELLED.name  # its stream was reset, and nothing said why
_ANSWER_REFUSED = "CLIENT: Received"
_MESSAGE_TOO_LARGE = re.compile(r"larger than max \(\d+ vs\.? (\d+)\)")

_BY_CODE: Final[dict[StatusCode, tuple[type[TidelogError], str]]] = {
    StatusCode.UNIMPLEMENTED: (
        NotImplementedHere,
        "It is no Tidelog broker, or an older one: compare `tidelog --version` with its version.",
    ),
    StatusCode.UNAUTHENTICATED: (Denied, "Send credentials."),
    StatusCode.PERMISSION_DENIED: (Denied, "Ask for the permission."),
    StatusCode.INVALID_ARGUMENT: (InvalidArgument, ""),
}


def _nearest_class(*, retryable: bool, nothing_was_written: bool) -> type[TidelogError]:
    """For a reason that a newer broker gives: what its caller does next is told beside it."""
    if nothing_was_written:
        return Unavailable if retryable else Rejected
    return OutcomeUnknown if retryable else TidelogError


def _fact(value: str) -> str | int:
    """Details travel as text; offsets, sizes and counts become numbers again."""
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else value


def _classes(kind: type[TidelogError]) -> Iterator[type[TidelogError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _classes(child)


_CLASS_OF: Final = {kind.code: kind for kind in _classes(TidelogError) if kind.__module__ == TidelogError.__module__}

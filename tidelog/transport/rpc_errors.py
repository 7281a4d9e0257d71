"""Translates the errors of gRPC calls to those of metadata/errors.py; no other module does. No I/O.

    google.rpc.Status with ErrorInfo      gateway/proto/status.py decodes it: the same errors as between brokers
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
from typing import TYPE_CHECKING, Final, cast

from grpc import RpcError, StatusCode

from gateway.proto.status import from_status, status_in
from metadata.errors import Denied, InvalidArgument, OutcomeUnknown, Rejected, Throttled, TidelogError, TooLarge, Unavailable

if TYPE_CHECKING:
    import grpc.aio


class NotImplementedHere(Rejected):
    """The server does not know the call."""


def error_of_rpc(error: grpc.aio.AioRpcError, *, address: str, writes: bool) -> TidelogError:
    """Returns the error of a failed call. `writes`: whether the call would have changed anything."""
    if (status := status_in(error.trailing_metadata())) is not None:
        return from_status(status, address=address)
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
    """Returns whether the error comes from a call without an answer in time."""
    cause = error.__cause__
    return isinstance(cause, RpcError) and cause.code() is StatusCode.DEADLINE_EXCEEDED


def is_broker_status(error: grpc.aio.AioRpcError) -> bool:
    """Returns whether a broker answered, and grpc did not make up the error after silence."""
    return status_in(error.trailing_metadata()) is not None


def is_said_by_broker(error: TidelogError) -> bool:
    """Returns whether the error comes from a broker's answer."""
    cause = error.__cause__
    return not isinstance(cause, RpcError) or is_broker_status(cast("grpc.aio.AioRpcError", cause))


def _exhausted(said: str, address: str, writes: bool) -> TidelogError | None:
    """Translates an error that grpc itself raises; None for other texts, which leave open what was written."""
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

"""The one place where what a broker, or the way to it, answers becomes an error of metadata/errors.py. Pure.

    google.rpc.Status with ErrorInfo      the class whose `code` is ErrorInfo.reason, with its details and hint
    a gRPC code alone                     by what may have happened before it was lost:

        read, or the connection was never made    Unavailable: nothing was written
        write, and bytes may have gone out        OutcomeUnknown

Every message begins with the address that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from metadata.errors import Denied, InvalidArgument, OutcomeUnknown, Rejected, Throttled, TidelogError, TooLarge, Unavailable

if TYPE_CHECKING:
    import grpc.aio

STATUS_METADATA_KEY: Final = "grpc-status-details-bin"


class NotImplementedHere(Rejected):
    """Whoever answers does not know the call."""


def error_of_status(status: status_pb2.Status, *, address: str) -> TidelogError:
    """What a broker said of a request, or of one part of it."""
    info, hint, retry_after_s = error_details_pb2.ErrorInfo(), None, 1.0
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    metadata = dict(info.metadata)
    hint = metadata.pop("hint", None)
    details = {name: _fact(value) for name, value in metadata.items()}
    details["address"] = address
    kind = _CLASS_OF.get(info.reason, TidelogError)
    message = f"{address}: {status.message}"
    if issubclass(kind, Throttled):
        details.pop("retry_after_s", None)
        return kind(message, hint=hint, retry_after_s=retry_after_s, **details)
    return kind(message, hint=hint, **details)


def error_of_rpc(error: grpc.aio.AioRpcError, *, address: str, writes: bool) -> TidelogError:
    """How a call ended that did not succeed. `writes`: whether it would have changed anything."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_METADATA_KEY:
            status = status_pb2.Status()
            status.ParseFromString(value if isinstance(value, bytes) else value.encode("latin-1"))
            if status.details:
                return error_of_status(status, address=address)
    code, said = error.code(), error.details() or error.code().name
    if code in _BY_CODE:
        kind, hint = _BY_CODE[code]
        return kind(f"{address}: {said}", hint=hint, address=address)
    if code is StatusCode.UNAVAILABLE and _NEVER_CONNECTED in said:
        return unreachable(address, said)
    if writes:
        return OutcomeUnknown(f"{address}: the connection was lost before the answer came: {said}", address=address)
    if code in {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}:
        return Unavailable(f"{address}: no answer: {said}", address=address)
    return TidelogError(f"{address}: {code.name}: {said}", hint="Look into the broker's log.", address=address)


def unreachable(address: str, cause: object) -> Unavailable:
    return Unavailable(
        f"{address}: can't connect: {cause}",
        hint="Check the address, and that a broker runs there; `tidelog dev` starts one on this machine.",
        address=address,
    )


_NEVER_CONNECTED = "failed to connect to all addresses"  # how grpc says that no connection was made, so that nothing went out

_BY_CODE: Final[dict[StatusCode, tuple[type[TidelogError], str]]] = {
    StatusCode.UNIMPLEMENTED: (
        NotImplementedHere,
        "It is no Tidelog broker, or an older one: compare `tidelog --version` with its version.",
    ),
    StatusCode.UNAUTHENTICATED: (Denied, "Send credentials."),
    StatusCode.PERMISSION_DENIED: (Denied, "Ask for the permission."),
    StatusCode.RESOURCE_EXHAUSTED: (TooLarge, "Send less at once: smaller records, or a smaller batch_bytes_max."),
    StatusCode.INVALID_ARGUMENT: (InvalidArgument, ""),
}


def _fact(value: str) -> str | int:
    """Details travel as text; offsets, sizes and counts become numbers again."""
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else value


def _classes(kind: type[TidelogError]) -> Iterator[type[TidelogError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _classes(child)


_CLASS_OF: Final = {kind.code: kind for kind in _classes(TidelogError) if kind.__module__ == TidelogError.__module__}

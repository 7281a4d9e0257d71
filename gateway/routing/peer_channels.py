"""The other brokers of the cluster, as this one calls them: one long-lived gRPC channel to each.

    wait_connected? ─▶ no, and not in CONNECT_TIMEOUT_S: Unreachable, nothing was sent
               └▶ yes: call ─▶ answered: the answer, or the error that the other broker raised
                            ├▶ the connection broke: a write may have arrived (OutcomeUnknown), a read may be asked again
                            └▶ it was dropped unread, as the other broker has more calls than it takes up: Throttled, but of a
                               write nobody knows that it was not begun (OutcomeUnknown)

Every call carries FORWARDED_BY with the id of this broker, and what `call_metadata` gives for the called broker and the method. The
called broker answers from what it leads itself: no request is forwarded twice. Invariants: a call has a deadline; of those with
records at most WRITES_MAX are open to a broker; a channel is dropped when no registered broker has its address any more, and
connects again by itself as long as one has.

With TLS, the other broker's certificate is checked by `tls_peer_ca_file` against the host at which it is advertised, or against
tls_peer_name, and our own is shown. When these files change, calls go over new channels, and the old ones end with their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from gateway.access import peer_tokens
from gateway.access.peer_tokens import CallMetadata, PeerMetadata
from gateway.proto.status import DETAILS_TRAILER, from_status
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoLeader, OutcomeUnknown, Throttled, TidelogError, Unavailable

if TYPE_CHECKING:
    from grpc.aio import Metadata

    from gateway.net.tls.identity import TlsReloader

# Key of the metadata of a forwarded call; its value is the id of the broker that the client has asked.
FORWARDED_BY: Final = peer_tokens.FORWARDED_BY
CONNECT_TIMEOUT_S: Final = 2.0
# How long calls to a broker that is registered no more may go on.
CLOSE_GRACE_S: Final = 30.0
# How long calls may go on over a channel that has given way to one with a new certificate: longer than any long poll.
RENEW_GRACE_S: Final = 90.0
WRITES_MAX: Final = 64
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
]

# What gRPC says of a call that it dropped before it was taken up (grpc_queue_timeout_ms); of a server that stops it says more.
_UNREAD_DETAILS: Final = grpc.StatusCode.CANCELLED.name

_Answer = TypeVar("_Answer", bound=Message)


class Unreachable(NoLeader):
    """There is no connection to that broker: nothing was sent."""


class PeerChannels:
    """Its owner calls `drop_others` when brokers come and go, and `close` in the end."""

    def __init__(self, broker_id: str, tls: TlsReloader | None = None, *, call_metadata: PeerMetadata | None = None) -> None:
        """`call_metadata`: what goes with each call beside FORWARDED_BY, asked for in the task that calls."""
        self._metadata: CallMetadata = ((FORWARDED_BY, broker_id),)
        self._call_metadata = call_metadata
        self._tls = tls
        self._channels: dict[str, _Channel] = {}

    async def call(
        self,
        peer: BrokerRegistration,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        *,
        timeout_s: float,
        is_write: bool = False,
        lost: Callable[[str], TidelogError] | None = None,
    ) -> _Answer:
        """The answer to /service/method. `is_write`: it carries records, of which only so many are open.

        Raises what the peer raised; Unreachable, which is a NoLeader; Throttled; where the answer was lost, or is late, what `lost`
        makes of the reason: by default OutcomeUnknown for records, Unavailable for the rest. A call that was dropped unread is
        Throttled, unless `lost` makes an OutcomeUnknown of it.
        """
        answer_lost = lost or (lambda why: _lost(why, peer, is_write))
        channel = self._channels.get(peer.grpc_address)
        if channel is None:
            channel = self._channels[peer.grpc_address] = _Channel(peer.grpc_address, self._tls)
        async with channel.write_slots if is_write else nullcontext():
            await channel.wait_connected(peer, timeout_s)
            metadata = self._metadata
            if self._call_metadata is not None:  # made when the call goes out: what it holds expires
                metadata = (*metadata, *self._call_metadata(peer.broker_id, method))
            try:
                answer = await channel.method(method)(request.SerializeToString(), timeout=timeout_s, metadata=metadata)
                return answer_type.FromString(answer)
            except grpc.aio.AioRpcError as error:
                raise _translate(error, peer, answer_lost) from None
            except grpc.aio.UsageError:  # the channel was dropped while this waited for its turn: nothing was sent
                raise _unreachable(peer) from None
            except DecodeError as error:
                raise answer_lost(f"what it answered is not a {answer_type.DESCRIPTOR.name}: {error}") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise answer_lost("the connection was closed") from None  # the channel was dropped

    async def drop_others(self, addresses: Collection[str]) -> None:
        """Closes the channels to all but these addresses, once the calls on them have ended."""
        gone = [self._channels.pop(address) for address in list(self._channels) if address not in addresses]
        await asyncio.gather(*(channel.close(CLOSE_GRACE_S) for channel in gone))

    async def renew(self) -> None:
        """Calls go over new channels from now on; returns when those on the old ones have ended, or after RENEW_GRACE_S."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close(RENEW_GRACE_S) for channel in channels))

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close(None) for channel in channels))


class _Channel:
    def __init__(self, address: str, tls: TlsReloader | None) -> None:
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            named = [("grpc.ssl_target_name_override", tls.peer_name)] if tls.peer_name else []
            self._channel = grpc.aio.secure_channel(address, tls.channel_credentials(), options=[*_OPTIONS, *named])
        self._tls = tls is not None
        self._methods: dict[str, Callable[..., Awaitable[bytes]]] = {}
        self.close = self._channel.close
        self.write_slots = asyncio.Semaphore(WRITES_MAX)

    def method(self, name: str) -> Callable[..., Awaitable[bytes]]:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = self._channel.unary_unary(name)
        return method

    async def wait_connected(self, peer: BrokerRegistration, timeout_s: float) -> None:
        """Unreachable where there is no connection in time."""
        try:
            if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                return
            async with asyncio.timeout(min(CONNECT_TIMEOUT_S, timeout_s)):
                await self._channel.channel_ready()
        except (TimeoutError, grpc.aio.UsageError):
            raise _unreachable(peer, tls=self._tls) from None


def _unreachable(peer: BrokerRegistration, *, tls: bool = False) -> Unreachable:
    hint = "Retry with back-off. Where it lasts: can the brokers reach each other (--advertise-grpc)?"
    if tls:
        hint += " Is its certificate for that host (else tls_peer_name), and of an authority in tls_peer_ca_file?"
    return Unreachable(
        f"broker {peer.broker_id}, which leads the partition, can't be reached at {peer.grpc_address}",
        hint=hint,
        broker_id=peer.broker_id,
    )


def _translate(error: grpc.aio.AioRpcError, peer: BrokerRegistration, lost: Callable[[str], TidelogError]) -> TidelogError:
    trailer = _details(error.trailing_metadata())
    if trailer is not None:
        return from_status(trailer)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Throttled(f"broker {peer.broker_id} takes no more calls: {error.details()}", broker_id=peer.broker_id)
    as_lost = lost(f"{error.code().name}: {error.details()}")
    is_unread = error.code() is grpc.StatusCode.CANCELLED and error.details() == _UNREAD_DETAILS
    if is_unread and not isinstance(as_lost, OutcomeUnknown):
        return Throttled(f"broker {peer.broker_id} has more calls than it can take up", broker_id=peer.broker_id)
    return as_lost


def _details(trailers: Metadata | None) -> Status | None:
    """What a broker adds to an error of its own."""
    found: Any = dict(trailers or ()).get(DETAILS_TRAILER)
    if not isinstance(found, bytes):
        return None
    try:
        return Status.FromString(found)
    except DecodeError:
        return None


def _lost(why: str, peer: BrokerRegistration, is_write: bool) -> TidelogError:
    if is_write:
        return OutcomeUnknown(
            f"the records were forwarded to broker {peer.broker_id}, and its answer was lost ({why})", broker_id=peer.broker_id
        )
    return Unavailable(f"broker {peer.broker_id} did not answer ({why})", broker_id=peer.broker_id)

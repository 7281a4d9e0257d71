"""Calls the other brokers of the cluster, over one long-lived gRPC channel to each.

    connected? ─▶ not within CONNECT_TIMEOUT_S: Unreachable, nothing was sent
               └▶ yes: call ─▶ answered: the answer, or the error that the other broker raised
                            ├▶ the connection broke: a write may have arrived (OutcomeUnknown), a read may be repeated
                            └▶ dropped unread because the other broker has too many calls: Throttled; OutcomeUnknown for a write,
                               since a write may have begun

Every call carries FORWARDED_BY with the id of this broker, and what `call_metadata` gives for the called broker and the method. The
called broker answers from the partitions that it leads, so no request is forwarded twice. Invariants: every call has a deadline. At
most WRITES_MAX calls with records are open to a broker. A channel reconnects by itself, and is closed once no registered broker has
its address.

With TLS, the other broker's certificate is verified with `tls_peer_ca_file` against its advertised host, or against tls_peer_name,
and this broker sends its own. When these files change, calls go over new channels, and the old ones end with their calls.
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

# Key of the metadata of a forwarded call; its value is the id of the forwarding broker.
FORWARDED_BY: Final = peer_tokens.FORWARDED_BY
CONNECT_TIMEOUT_S: Final = 2.0
# How long calls to a broker that is no longer registered may continue.
CLOSE_GRACE_S: Final = 30.0
# How long calls may continue on a channel that was replaced after a change of certificates: longer than any long poll.
RENEW_GRACE_S: Final = 90.0
# Calls with records that are open to one broker.
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

# Details of a call that gRPC dropped before a handler took it (grpc_queue_timeout_ms); a stopping server sends longer ones.
_UNREAD_DETAILS: Final = grpc.StatusCode.CANCELLED.name

_Answer = TypeVar("_Answer", bound=Message)


class Unreachable(NoLeader):
    """Says that there is no connection to a broker, so that nothing was sent."""


class PeerChannels:
    """Holds the channels to other brokers. Its owner calls `drop_others` when brokers change, and `close` at the end."""

    def __init__(self, broker_id: str, tls: TlsReloader | None = None, *, call_metadata: PeerMetadata | None = None) -> None:
        """`call_metadata` returns the metadata of a call beside FORWARDED_BY; it runs in the task of the call."""
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
        """Calls /service/method at a broker and returns the answer. `is_write` marks calls with records, bounded by WRITES_MAX.

        Raises the error of the other broker; Unreachable, which is a NoLeader; Throttled. If the answer is lost or late, raises
        the error that `lost` makes of the reason: by default OutcomeUnknown for records, else Unavailable. A call that was dropped
        unread is Throttled, unless `lost` makes an OutcomeUnknown of it.
        """
        answer_lost = lost or (lambda why: _lost(why, peer, is_write))
        channel = self._channels.get(peer.grpc_address)
        if channel is None:
            channel = self._channels[peer.grpc_address] = _Channel(peer.grpc_address, self._tls)
        async with channel.write_slots if is_write else nullcontext():
            await channel.wait_connected(peer, timeout_s)
            metadata = self._metadata
            if self._call_metadata is not None:  # made when the call is sent, since tokens expire
                metadata = (*metadata, *self._call_metadata(peer.broker_id, method))
            try:
                answer = await channel.method(method)(request.SerializeToString(), timeout=timeout_s, metadata=metadata)
                return answer_type.FromString(answer)
            except grpc.aio.AioRpcError as error:
                raise _translate(error, peer, answer_lost) from None
            except grpc.aio.UsageError:  # the channel was closed while this call waited: nothing was sent
                raise _unreachable(peer) from None
            except DecodeError as error:
                raise answer_lost(f"its answer is not a {answer_type.DESCRIPTOR.name}: {error}") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise answer_lost("the connection was closed") from None  # the channel was closed

    async def drop_others(self, addresses: Collection[str]) -> None:
        """Closes the channels to all but these addresses; their calls have CLOSE_GRACE_S to end."""
        gone = [self._channels.pop(address) for address in list(self._channels) if address not in addresses]
        await asyncio.gather(*(channel.close(CLOSE_GRACE_S) for channel in gone))

    async def renew(self) -> None:
        """Replaces all channels; returns when the calls on the old ones have ended, or after RENEW_GRACE_S."""
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
        """Raises Unreachable if there is no connection within `timeout_s` and CONNECT_TIMEOUT_S."""
        try:
            if self._is_ready():
                return
            try:
                async with asyncio.timeout(min(CONNECT_TIMEOUT_S, timeout_s)):
                    await self._channel.channel_ready()
            except TimeoutError:
                # After a stall of this process, the timer may come before the news of a connection that gRPC has made meanwhile.
                if not self._is_ready():
                    raise
        except (TimeoutError, grpc.aio.UsageError):
            raise _unreachable(peer, tls=self._tls) from None

    def _is_ready(self) -> bool:
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY


def _unreachable(peer: BrokerRegistration, *, tls: bool = False) -> Unreachable:
    hint = "Retry with back-off. If it persists, check that the brokers can reach each other (--advertise-grpc)."
    if tls:
        hint += " Its certificate must name that host (else tls_peer_name) and come from an authority in tls_peer_ca_file."
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
        return Throttled(f"broker {peer.broker_id} accepts no more calls: {error.details()}", broker_id=peer.broker_id)
    as_lost = lost(f"{error.code().name}: {error.details()}")
    is_unread = error.code() is grpc.StatusCode.CANCELLED and error.details() == _UNREAD_DETAILS
    if is_unread and not isinstance(as_lost, OutcomeUnknown):
        return Throttled(f"broker {peer.broker_id} has more calls than it can take up", broker_id=peer.broker_id)
    return as_lost


def _details(trailers: Metadata | None) -> Status | None:
    """Returns the status that a broker attaches to its own errors; None without one."""
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

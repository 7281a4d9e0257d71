"""Keeps one gRPC channel for each broker that is called, with stubs of its services.

    held(address) ─▶ Stubs: log, topics, cluster, groups, access  while a call or a stream is under way, its channel stays
    drop_idle ─▶ channels of brokers that are gone, or that nothing was asked of for IDLE_S, are closed; and, where the files of TLS
                 have changed, those with the old ones: calls go over new channels, and the old ones end with what is under way

Invariant: there are no more channels than brokers in the cluster, addresses that the user gave, and calls under way at others.

AuthorizedChannel adds the credentials to each call. grpc's own call credentials do not fit: they need TLS, which a broker on this
machine does not, and use a thread for each call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from gateway.proto import admin_pb2_grpc, groups_pb2_grpc, log_pb2_grpc
from metadata.errors import InvalidArgument, OutcomeUnknown, Rejected, Unavailable
from tidelog.settings import MIB, ClientSettings
from tidelog.transport.credentials import Credentials, Pem
from tidelog.transport.rpc_errors import unreachable
from tidelog.transport.tls_diagnosis import TlsProblem, diagnose_tls

# An answer to a fetch may be this much above `fetch_bytes_max`: one batch is always answered, were it larger.
ANSWER_SLACK_BYTES: Final = 32 * MIB
IDLE_S: Final = 300.0
LAST_EVENTS_S: Final = 0.01
# How long a diagnosis of TLS at an address stays valid.
TROUBLE_S: Final = 10.0
TROUBLE_TIMEOUT_S: Final = 2.0

CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that vanished without a word is noticed after 30 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a client's back-off is its own
)


class Stubs:
    """The services at one address."""

    def __init__(self, address: str, *, answer_bytes_max: int, credentials: Credentials, pem: Pem | None) -> None:
        """`pem`: of TLS; None: in plain text."""
        self.address = address
        self.pem = pem
        # Under way.
        self.calls = 0
        self.used_s = time.monotonic()
        options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", answer_bytes_max))
        if pem is None:
            plain = grpc.aio.insecure_channel(address, options=options)
        else:
            named = [("grpc.ssl_target_name_override", credentials.server_name)] if credentials.server_name else []
            plain = grpc.aio.secure_channel(address, credentials.channel_credentials(pem), options=[*options, *named])
        channel: Any = AuthorizedChannel(plain, credentials.authorization) if credentials.has_key else plain
        self.channel = channel
        # The generated stubs carry no types, and are made for blocking channels too.
        self.log: Any = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.topics: Any = admin_pb2_grpc.TopicsStub(channel)  # type: ignore[no-untyped-call]
        self.cluster: Any = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        self.access: Any = admin_pb2_grpc.AccessStub(channel)  # type: ignore[no-untyped-call]
        self.groups: Any = groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]


class Channels:
    """The gRPC channels of one client."""

    def __init__(self, settings: ClientSettings, credentials: Credentials | None = None) -> None:
        self._answer_bytes_max = settings.fetch_bytes_max + ANSWER_SLACK_BYTES
        self._credentials = credentials or Credentials(settings, tls=False)
        self._pem = self._credentials.pem() if self._credentials.tls else None
        self._stubs: dict[str, Stubs] = {}
        # Channels with replaced certificates, and calls in flight.
        self._retired: list[Stubs] = []
        # The TLS problem at an address, with the time of its diagnosis.
        self._troubles: dict[str, tuple[float, TlsProblem | None]] = {}
        self._is_closed = False

    @contextmanager
    def held(self, address: str, *, writes: bool = False) -> Iterator[Stubs]:
        """Yields the stubs of a gRPC address; the connection is made at the first call, and again whenever it broke.

        Raises Rejected once the channels are closed, and for a call that this cut off; that is OutcomeUnknown where it `writes`.
        """
        stubs = self._at(address)
        stubs.calls += 1
        try:
            yield stubs
        except asyncio.CancelledError:
            if not self._is_closed or _is_cancelled():
                raise
            # grpc cancels what is under way, as if a caller had cancelled the task: that would end without a word
            cut_off = "the client was closed before the call had its answer"
            raise (OutcomeUnknown(cut_off, address=address) if writes else Rejected(cut_off, address=address)) from None
        except grpc.aio.UsageError:
            if not self._is_closed:
                raise
            raise _closed() from None
        finally:
            stubs.calls -= 1
            stubs.used_s = time.monotonic()

    async def until_connected(self, address: str, *, timeout_s: float) -> None:
        """Returns when a connection stands. Raises Unavailable."""
        with self.held(address) as stubs:
            channel = stubs.channel
            try:
                async with asyncio.timeout(timeout_s):
                    state = channel.get_state(try_to_connect=True)
                    while state is not grpc.ChannelConnectivity.READY:
                        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                            raise await self._unconnected(address)
                        await channel.wait_for_state_change(state)
                        state = channel.get_state(try_to_connect=True)
            except TimeoutError:
                raise unreachable(address, f"no connection within {1000 * timeout_s:g} ms") from None

    def is_connected(self, address: str) -> bool:
        """Returns whether a connection stands now; if not, starts an attempt."""
        return self._at(address).channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def drop_idle(self, keep: Collection[str]) -> None:
        """Closes channels without a call under way: of addresses that are none of `keep`, and those that were not used lately."""
        await self._renew()
        idle_since_s = time.monotonic() - IDLE_S
        idle = [stubs for stubs in self._retired if not stubs.calls]
        self._retired = [stubs for stubs in self._retired if stubs.calls]
        for address, stubs in list(self._stubs.items()):
            if not stubs.calls and (address not in keep or stubs.used_s < idle_since_s):
                idle.append(self._stubs.pop(address))
        self._troubles = {address: found for address, found in self._troubles.items() if address in keep}
        for stubs in idle:
            await stubs.channel.close()

    async def close(self) -> None:
        self._is_closed = True
        for stubs in [*self._stubs.values(), *self._retired]:
            await stubs.channel.close()
        # grpc reports cancelled operations once more from its own thread; after the loop's end that would disturb the next loop.
        await asyncio.sleep(LAST_EVENTS_S)

    async def _renew(self) -> None:
        """Opens new channels for later calls after the TLS files changed. Unreadable files count as unchanged."""
        if not self._credentials.tls:
            return
        with suppress(InvalidArgument):
            self._pem = await asyncio.to_thread(self._credentials.pem)
        for address, stubs in list(self._stubs.items()):
            if stubs.pem != self._pem:
                self._retired.append(self._stubs.pop(address))

    async def _unconnected(self, address: str) -> Unavailable:
        """Explains why no connection was made; for TLS in more detail than gRPC."""
        if self._credentials.tls:
            found_s, trouble = self._troubles.get(address, (float("-inf"), None))
            if time.monotonic() - found_s > TROUBLE_S:
                host, _, port = address.rpartition(":")
                diagnose = partial(diagnose_tls, host, int(port), self._credentials, protocol="h2", timeout_s=TROUBLE_TIMEOUT_S)
                trouble = await asyncio.to_thread(diagnose)
                self._troubles[address] = time.monotonic(), trouble
            if trouble is not None:
                return Unavailable(f"{address}: can't connect: {trouble.cause}", hint=trouble.remedy, address=address)
        return unreachable(address, "the connection is refused, or was lost")

    def _at(self, address: str) -> Stubs:
        if self._is_closed:
            raise _closed()
        if address not in self._stubs:
            self._credentials.check_way(address.rpartition(":")[0])
            self._stubs[address] = Stubs(
                address, answer_bytes_max=self._answer_bytes_max, credentials=self._credentials, pem=self._pem
            )
        return self._stubs[address]


def _closed() -> Rejected:
    return Rejected("the client is closed", hint="Use it within `async with tidelog.connect(…) as log:`.")


def _is_cancelled() -> bool:
    """Returns whether this task itself was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


AUTHORIZATION = "authorization"


class AuthorizedChannel:
    """A gRPC channel that adds the `authorization` header to each call."""

    def __init__(self, channel: grpc.aio.Channel, authorization: Callable[[], str | None]) -> None:
        """`authorization` is called for each call."""
        self._channel = channel
        self._authorization = authorization

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._authorized(self._channel.stream_stream(*args, **options))

    def _authorized(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, metadata: Any = (), **options: Any) -> Any:
            header = self._authorization()
            return call(*args, metadata=(*metadata, (AUTHORIZATION, header)) if header else metadata, **options)

        return begin

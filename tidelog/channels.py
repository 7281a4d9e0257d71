"""One gRPC channel for each broker that is called, and the services behind it.

    held(address) ─▶ Stubs: log, topics, cluster, groups  while a call or a stream is under way, its channel stays
    drop_idle ─▶ channels of brokers that are gone, or that nothing was asked of for IDLE_S, are closed

Invariant: there are no more channels than brokers in the cluster, addresses that the user gave, and calls under way at others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from gateway.proto import admin_pb2_grpc, groups_pb2_grpc, log_pb2_grpc
from tidelog.rpc_errors import unreachable
from tidelog.settings import MIB, ClientSettings

ANSWER_SLACK_BYTES: Final = 32 * MIB
"""An answer to a fetch may be this much above `fetch_bytes_max`: one batch is always answered, were it larger."""
IDLE_S: Final = 300.0
LAST_EVENTS_S: Final = 0.01

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

    def __init__(self, address: str, *, answer_bytes_max: int) -> None:
        self.address = address
        self.calls = 0
        """Under way."""
        self.used_s = time.monotonic()
        options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", answer_bytes_max))
        self.channel = channel = grpc.aio.insecure_channel(address, options=options)
        # The generated stubs carry no types, and are made for blocking channels too.
        self.log: Any = log_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.topics: Any = admin_pb2_grpc.TopicsStub(channel)  # type: ignore[no-untyped-call]
        self.cluster: Any = admin_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        self.groups: Any = groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]


class Channels:
    def __init__(self, settings: ClientSettings) -> None:
        self._answer_bytes_max = settings.fetch_bytes_max + ANSWER_SLACK_BYTES
        self._stubs: dict[str, Stubs] = {}

    @contextmanager
    def held(self, address: str) -> Iterator[Stubs]:
        """The services at a gRPC address; the connection is made at the first call, and again whenever it broke."""
        stubs = self._at(address)
        stubs.calls += 1
        try:
            yield stubs
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
                            raise unreachable(address, "the connection is refused, or was lost")
                        await channel.wait_for_state_change(state)
                        state = channel.get_state(try_to_connect=True)
            except TimeoutError:
                raise unreachable(address, f"no connection within {1000 * timeout_s:g} ms") from None

    def is_connected(self, address: str) -> bool:
        """At this moment; where it is not, an attempt begins."""
        return self._at(address).channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def drop_idle(self, keep: Collection[str]) -> None:
        """Closes channels without a call under way: of addresses that are none of `keep`, and those that were not used lately."""
        idle_since_s = time.monotonic() - IDLE_S
        for address, stubs in list(self._stubs.items()):
            if not stubs.calls and (address not in keep or stubs.used_s < idle_since_s):
                del self._stubs[address]
                await stubs.channel.close()

    async def close(self) -> None:
        for stubs in self._stubs.values():
            await stubs.channel.close()
        # grpc reports cancelled operations once more from its own thread; after the loop's end that would disturb the next loop.
        await asyncio.sleep(LAST_EVENTS_S)

    def _at(self, address: str) -> Stubs:
        if address not in self._stubs:
            self._stubs[address] = Stubs(address, answer_bytes_max=self._answer_bytes_max)
        return self._stubs[address]

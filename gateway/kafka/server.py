"""Runs the Kafka listeners of a broker: opens them, closes idle connections, and ends all connections in order.

start   listen on each port
stop    refuse new connections ─▶ end long polls ─▶ stop reading ─▶ answer requests in progress, up to the grace ─▶ close
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.kafka.access.authentication import KafkaAuthentication
from gateway.kafka.connection import KafkaConnection
from gateway.kafka.handlers import kafka_handlers
from gateway.kafka.leaders import KafkaLeaders
from gateway.kafka.listener_config import ListenerConfig
from gateway.kafka.requests import KafkaRequests
from gateway.net.addresses import host_and_port
from gateway.net.connection_limiter import ConnectionLimiter, ConnectionSlot
from gateway.net.ports import BACKLOG, ReservedPort
from gateway.net.tls.listener import TlsListener
from metadata.cluster.broker_registry import KafkaListener

if TYPE_CHECKING:
    from gateway.net.tls.identity import TlsReloader

# connections.max.idle.ms of Kafka's brokers: clients expect it, and connect again.
IDLE_S: Final = 600.0
# A request must not pause for longer while it is received: it holds memory that others wait for.
RECEIVE_S: Final = 10.0
SWEEP_S: Final = 5.0
_POLL_S: Final = 0.02

log = logging.getLogger(__name__)


class KafkaServer:
    """Serves Kafka's protocol on the listeners of one broker."""

    def __init__(self, broker: BrokerApi, listeners: Sequence[ListenerConfig], tls: TlsReloader | None = None) -> None:
        self._listeners = listeners
        self._tls = tls
        self._is_guarded = broker.guard is not None
        self._waits = InterruptibleWaits()
        leaders = KafkaLeaders(broker)
        authentication = KafkaAuthentication(broker.guard, session_s_max=broker.settings.kafka_session_ms_max / 1000)
        self.requests = KafkaRequests(broker, leaders, kafka_handlers(broker, leaders, self._waits, listeners), authentication)
        self._servers: list[asyncio.Server] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> ConnectionLimiter:
        """Returns the open connections of all listeners."""
        return self.requests.connections

    async def start(self, ports: Sequence[ReservedPort]) -> tuple[KafkaListener, ...]:
        """Listens on the ports, one for each listener. Returns the listeners as clients reach them."""
        loop = asyncio.get_running_loop()
        advertised = []
        for listener, port in zip(self._listeners, ports, strict=True):
            sockets = port.listen()
            connect = self._connector(listener)
            if self._tls is None:
                self._servers += [await loop.create_server(connect, sock=each, backlog=BACKLOG) for each in sockets]
            else:
                accepting = TlsListener(sockets, partial(_context, self._tls), connect, self.connections)
                task = loop.create_task(accepting.run(), name=f"Kafka with TLS, {listener.name}")
                task.add_done_callback(_log_end)
                self._accepting.append(task)
            host, number = host_and_port(listener.advertised or port.address)
            advertised.append(
                KafkaListener(name=listener.name, host=host.strip("[]"), port=number, security_protocol=self._security_protocol)
            )
        self._sweep_idle()
        return tuple(advertised)

    async def stop(self, grace_s: float) -> None:
        """Returns when every answer is sent, or after `grace_s`."""
        self._waits.stop()
        for server in self._servers:
            server.close()
        for accepting in self._accepting:
            accepting.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        if self._sweep is not None:
            self._sweep.cancel()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + grace_s
        # Polls, since a stop happens once, and an event would cost every request.
        for connection in tuple(self.requests.open):
            connection.drain()
        while (busy := [each for each in self.requests.open if not each.is_closed]) and loop.time() < ends_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if busy:
            log.warning("connections cut at the stop count=%d: their requests are not answered yet", len(busy))
        for connection in tuple(self.requests.open):
            connection.close()

    @property
    def _security_protocol(self) -> str:
        transport = "PLAINTEXT" if self._tls is None else "SSL"
        return f"SASL_{transport}" if self._is_guarded else transport

    def _connector(self, listener: ListenerConfig) -> Callable[..., KafkaConnection]:
        def connect(slot: ConnectionSlot | None = None) -> KafkaConnection:
            return KafkaConnection(self.requests, listener, slot)

        return connect

    def _sweep_idle(self) -> None:
        self.requests.close_idle(idle_s=IDLE_S, receive_s=RECEIVE_S)
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_idle)


def _context(tls: TlsReloader) -> ssl.SSLContext:
    return tls.context


def _log_end(accepting: asyncio.Task[None]) -> None:
    if not accepting.cancelled() and (error := accepting.exception()) is not None:
        log.critical("a Kafka listener accepts no more connections", exc_info=error)

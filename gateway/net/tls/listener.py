"""Accepts TLS connections: each gets a slot, a handshake with the current certificate, and its protocol.

  accept ─▶ a slot (net/connection_limiter.py) ─▶ handshake, HANDSHAKE_TIMEOUT_S ─▶ the protocol's connection_made
              └▶ none: closed                       └▶ it failed: closed, its slot given back
                                                         └▶ it was plain HTTP: answered in plain HTTP that TLS is required

asyncio's own server keeps one certificate for its life, and reports a connection only after its handshake, which may never end.
Invariants: a handshake that does not end holds a slot for its timeout at most. An error of one connection touches no other. When
the
process has no more file descriptors, connections wait to be accepted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from gateway.net.connection_limiter import ConnectionLimiter, ConnectionSlot

HANDSHAKE_TIMEOUT_S: Final = 10.0
# Time that the other end has to shut TLS down in order.
SHUTDOWN_TIMEOUT_S: Final = 5.0
# Pause before accepting is tried again.
NO_DESCRIPTORS_S: Final = 0.2
_SPEAK_TLS: Final = b"This port speaks TLS: write https:// to it.\n"
PLAIN_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
    len(_SPEAK_TLS),
    _SPEAK_TLS,
)

log = logging.getLogger(__name__)


class TlsListener:
    """Accepts connections on its sockets and runs their TLS handshakes with the current certificate."""

    def __init__(
        self,
        sockets: list[socket.socket],
        context: Callable[[], ssl.SSLContext],
        protocol: Callable[[ConnectionSlot], asyncio.BaseProtocol],
        open_connections: ConnectionLimiter,
    ) -> None:
        """`context` is called before each handshake."""
        self._sockets = sockets
        self._context = context
        self._protocol = protocol
        self._open = open_connections

    async def run(self) -> None:
        """Accepts until it is cancelled; then it closes the sockets and ends the open handshakes."""
        try:
            async with asyncio.TaskGroup() as handshakes:
                for listener in self._sockets:
                    handshakes.create_task(self._accept(listener, handshakes), name="accept TLS")
        finally:
            for listener in self._sockets:
                listener.close()

    async def _accept(self, listener: socket.socket, handshakes: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        complaint = ""  # the last logged reason; each is logged once
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except ConnectionError:  # the client disconnected before it was accepted
                continue
            except OSError as error:
                if complaint != (complaint := str(error.strerror)):
                    log.error("accept failed: %s; retrying", complaint)
                await asyncio.sleep(NO_DESCRIPTORS_S)
                continue
            complaint = ""
            slot = self._open.take(str(address[0]))
            if slot is None:
                connection.close()
            else:
                handshakes.create_task(self._shake_hands(connection, slot), name="TLS handshake")

    async def _shake_hands(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        began = False
        spare: socket.socket | None = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            spare = connection.dup()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(slot),
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
            began = True
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST" and spare is not None:
                _send_plain_http(spare)
            log.debug("TLS handshake failed: %s", error.reason)
        except OSError as error:  # a timeout as well
            log.debug("TLS handshake failed: %s", error)
        except Exception:
            log.exception("TLS handshake failed; the connection is closed")
        finally:
            if spare is not None:
                spare.close()
            if not began:
                connection.close()
                slot.give_back()


def _send_plain_http(plain: socket.socket) -> None:
    """Sends a client of plain HTTP an answer that it can read, without waiting for a client that does not read it."""
    try:
        plain.setblocking(False)
        plain.send(PLAIN_HTTP)
        plain.shutdown(socket.SHUT_WR)
    except OSError:
        pass

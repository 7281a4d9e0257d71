"""Looking at TLS from outside leaves no socket behind, whatever the other end does. The messages:
tests/tidelog/cli/doctor/test_tls.py."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import warnings
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from tidelog.transport.tls_diagnosis import connected

pytestmark = pytest.mark.slow
# SO_LINGER of a socket that ends its connection by a reset.
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def resetting_port() -> Iterator[int]:
    """Where each connection is reset as soon as it was taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset_all() -> None:
            while True:
                try:
                    taken, _ = listener.accept()
                except OSError:
                    return
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                taken.close()

        resetting = Thread(target=reset_all)
        resetting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        resetting.join()


class Slow(ssl.SSLContext):
    """Comes to wrap a connected socket only when that was reset."""

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **more: Any) -> ssl.SSLSocket:
        with suppress(OSError):
            sock.getpeername()
            select.select([sock], [], [], 5)
        return super().wrap_socket(sock, *arguments, **more)


def test_a_connection_that_is_reset_at_once_leaves_no_socket_behind(resetting_port: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(OSError), connected(Slow(ssl.PROTOCOL_TLS_CLIENT), "127.0.0.1", resetting_port, timeout_s=60):
            pass
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_port_without_a_listener_refuses_the_connection() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with (
            pytest.raises(ConnectionRefusedError),
            connected(ssl.create_default_context(), "127.0.0.1", bound.getsockname()[1], timeout_s=60),
        ):
            pass

"""What a client without TLS reaches through a sidecar: the server, as the principal of the sidecar's certificate."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_suites.sidecar import CHUNK_BYTES, Route, sidecars
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.servers import free_port

pytestmark = pytest.mark.slow
PATIENCE_S = 20.0


@contextmanager
def greeting_server(files: Certificates) -> Iterator[int]:
    """Sends each client the name in its certificate, and back what it sends until it closes its end."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_OPTIONAL

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with context.wrap_socket(connection, server_side=True) as tls:
                shown: Any = tls.getpeercert() or {}
                names = [value for pairs in shown.get("subject", ()) for name, value in pairs if name == "commonName"]
                tls.sendall(f"{names}\n".encode())
                while data := tls.recv(CHUNK_BYTES):
                    tls.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


def test_a_sidecar_passes_bytes_in_both_directions_and_shows_its_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, client="orders")
    shown = ssl.create_default_context(cafile=files.ca)
    shown.load_cert_chain(files.client_cert, files.client_key)
    hidden = ssl.create_default_context(cafile=files.ca)
    ports = [free_port(), free_port()]
    sent = b"0123456789abcdef" * CHUNK_BYTES
    with greeting_server(files) as port, sidecars([Route(own, port, how) for own, how in zip(ports, (shown, hidden), strict=True)]):
        for own, greeting in zip(ports, (b"['orders']\n", b"[]\n"), strict=True):
            with socket.create_connection(("127.0.0.1", own), timeout=PATIENCE_S) as client:
                sender = threading.Thread(target=client.sendall, args=(sent,))
                sender.start()
                wanted = greeting + sent
                found = b""
                while len(found) < len(wanted):
                    found += client.recv(CHUNK_BYTES) or pytest.fail("the connection ended early")
                sender.join()
                assert found == wanted


def test_connections_end_with_the_sidecars(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=files.ca)
    own = free_port()
    with greeting_server(files) as port:
        with sidecars([Route(own, port, context)]):
            client = socket.create_connection(("127.0.0.1", own), timeout=PATIENCE_S)
            assert client.recv(CHUNK_BYTES) == b"[]\n"
        with client:
            assert client.recv(CHUNK_BYTES) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", own), timeout=PATIENCE_S)

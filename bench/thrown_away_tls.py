"""What a client with TLS does to the machine, without TLS on the wire: it encrypts each request, and throws that away.

On two cores that share their caches, a client that encrypts slows whatever else runs there, by a quarter as measured: a broker that
speaks no TLS as well. So one without TLS has such a client, too; else the client's share would be taken for the broker's.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

# As much as a transport gives to TLS at once.
PIECE_BYTES: Final = 256 << 10


class TlsFiles(NamedTuple):
    ca: Path
    cert: Path
    key: Path


class ThrownAwayTls:
    """The client's end of a connection whose server is in memory, and reads nothing after the handshake."""

    def __init__(self, files: TlsFiles) -> None:
        from_server, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        accepting.load_cert_chain(files.cert, files.key)
        server = accepting.wrap_bio(self._to_server, from_server, server_side=True)
        connecting = ssl.create_default_context(cafile=files.ca)
        connecting.check_hostname = False
        self._client = connecting.wrap_bio(from_server, self._to_server)
        ends = [self._client, server]
        while ends:
            ends = [end for end in ends if not _has_shaken_hands(end)]

    def encrypt(self, request: bytes) -> int:
        """How many bytes would have gone out."""
        view, sent, encrypted = memoryview(request), 0, 0
        while sent < len(view):
            sent += self._client.write(view[sent : sent + PIECE_BYTES])
            encrypted += len(self._to_server.read())
        return encrypted


def _has_shaken_hands(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True

"""A client that encrypts for no receiver: all of what it is given, and it keeps none of it."""

from __future__ import annotations

from pathlib import Path

from bench.thrown_away_tls import PIECE_BYTES, ThrownAwayTls, TlsFiles
from tests.kit.certificates import make_certificates

# Of TLS, at most.
RECORD_BYTES = 16 << 10
TAG_BYTES = 16


def test_all_of_a_request_is_encrypted_each_time_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    thrown_away = ThrownAwayTls(TlsFiles(made.ca, made.cert, made.key))
    request = bytes(3 * PIECE_BYTES + 1)
    records = len(request) // RECORD_BYTES
    for _ in range(2):
        assert thrown_away.encrypt(request) >= len(request) + records * TAG_BYTES
        assert not thrown_away._to_server.pending

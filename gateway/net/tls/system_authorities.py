"""The authorities that this machine trusts, for gRPC, which by itself goes by those that it brings along."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine; OpenSSL finds its folder there, and names no file
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def system_authorities() -> bytes | None:
    """PEM, by SSL_CERT_FILE where that is set, as for HTTP. None: no bundle is found, and those that gRPC brings along count."""
    for path in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        try:
            if path:
                return Path(path).read_bytes()
        except OSError:
            continue
    return None

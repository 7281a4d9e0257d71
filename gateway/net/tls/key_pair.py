"""A certificate and its private key as PEM files, those of a broker or of a client, given to a context of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from metadata.errors import InvalidArgument


def load_key_pair(context: ssl.SSLContext, cert_file: Path | str, key_file: Path | str, *, setting: str) -> None:
    """`setting`: what named the key's file. Raises InvalidArgument where one can't be read, the two do not fit together, or
    a password is wanted."""
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(
            f"{setting}: {key_file} is not the key of the certificate in {cert_file}, or has a password "
            f"({getattr(error, 'reason', None) or error})",
            hint="Name the PEM file of its private key, without a password.",
        ) from None
    except OSError as error:  # OpenSSL does not say which of the two
        raise InvalidArgument(
            f"{setting}: the certificate in {cert_file} and its key in {key_file} can't both be read ({error.strerror or error})",
            hint="Look whether both files are there, and may be read.",
        ) from None

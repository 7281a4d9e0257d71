"""Parses HOST:PORT, and explains why a listener cannot open there. Pure."""

from __future__ import annotations

import errno
from typing import Final

from metadata.errors import InvalidArgument, TidelogError, Unavailable

PORT_MAX: Final = 65_535


def host_and_port(address: str, *, name: str = "") -> tuple[str, int]:
    """Splits HOST:PORT; raises InvalidArgument for anything else. With `name`, the setting's name, IPv6 must stand in brackets."""
    host, _, port = address.rpartition(":")
    is_host = bool(host) and host.isprintable() and not any(sign in host for sign in "/@ ")
    if name and ":" in host and not host.startswith("["):
        is_host = False
    if is_host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX:
        return host, int(port)
    shown, why = repr(address[:100]), f": a port is a number from 0 to {PORT_MAX}" if is_host else ""
    raise InvalidArgument(
        (f"{name} is {shown}, not HOST:PORT" if name else f"{shown} is not HOST:PORT") + why,
        hint=f"Write {f'--{name} ' if name else ''}127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 for every interface; port 0 takes a "
        "free one.",
    )


def cannot_listen(host: str, port: int, error: OSError, *, listener: str) -> TidelogError:
    """Returns the error of a listener ("HTTP", "gRPC") that cannot open: Unavailable if the port is taken, else InvalidArgument."""
    flag = f"--{listener.lower()} HOST:PORT"
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"the port {port} on {host} is taken",
            hint=f"Stop what listens there (another broker?), or choose another: {flag}, where port 0 takes a free one.",
        )
    return InvalidArgument(f"{listener} can't listen on {host}:{port}: {error.strerror or error}", hint=f"Choose another {flag}.")

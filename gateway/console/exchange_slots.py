"""Shares the exchanges with the OpenID provider between readers who have signed in before, and strangers. Pure.

    anyone               ≤ UNKNOWN_MAX together, ≤ PER_ADDRESS_MAX from one address
    a known reader       any free slot of EXCHANGES_MAX, ≤ PER_READER_MAX at the same time

Anyone may begin sign-ins, and present invented codes. Each occupies a slot until the provider answers, or for seconds where it is
slow. Behind a load balancer all readers may have one address, so an address alone tells no reader from a stranger. A browser in
which a reader has signed in keeps a sealed cookie that names the reader; a stranger has none, and so never takes the slots that
are left for known readers (OWASP, "device cookies").

Invariant: each slot that was taken is given back once.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXCHANGES_MAX: Final = 16
UNKNOWN_MAX: Final = 8
PER_ADDRESS_MAX: Final = 4
PER_READER_MAX: Final = 2
# The part of an IPv6 address that one customer of a network has.
IPV6_PREFIX: Final = 64


class AllTaken(Exception):
    """Says that no slot is free for this reader."""


class ExchangeSlots:
    """Counts the exchanges under way."""

    def __init__(self) -> None:
        self._by_address: Counter[str] = Counter()
        self._by_reader: Counter[str] = Counter()

    @contextmanager
    def taken(self, *, address: str, reader: str) -> Iterator[None]:
        """Holds a slot for the block. `reader` is the one that the browser's cookie names; empty for a stranger.

        Raises AllTaken.
        """
        held, name = self._slot(_network(address), reader)
        held[name] += 1
        try:
            yield
        finally:
            held[name] -= 1
            if not held[name]:
                del held[name]

    def _slot(self, network: str, reader: str) -> tuple[Counter[str], str]:
        unknown, known = self._by_address.total(), self._by_reader.total()
        if unknown + known < EXCHANGES_MAX:
            if reader and self._by_reader[reader] < PER_READER_MAX:
                return self._by_reader, reader
            if unknown < UNKNOWN_MAX and self._by_address[network] < PER_ADDRESS_MAX:
                return self._by_address, network
        raise AllTaken


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))

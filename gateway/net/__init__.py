"""Binds ports, limits connections, checks Host headers and reads addresses. Knows no protocol.

- ports.py binds all ports before the broker writes anything.
- connection_limiter.py bounds open connections, in all and by address.
- host_check.py refuses requests that a foreign page sends through a browser.
- tls/ holds certificates.

Entries: `ReservedPort` in ports.py, `ConnectionLimiter` in connection_limiter.py.

Invariant: a connection has a slot before its TLS handshake, and gives it back once.

Must not import anything of the gateway but error_codes.py.
"""

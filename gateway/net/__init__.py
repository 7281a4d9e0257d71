"""Binds ports, limits connections, checks Host headers and reads addresses. Knows no protocol.

- ports.py binds all ports before the broker writes anything.
- connection_limiter.py bounds open connections, in all and by address.
- host_check.py refuses requests that a foreign page sends through a browser.
- tls/ holds certificates.

Must not import anything of the gateway but error_codes.py.
"""

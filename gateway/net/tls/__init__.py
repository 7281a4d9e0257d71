"""Holds the broker's certificates: loading, rotation, listeners, and the subject of a client certificate.

Entry: `TlsReloader` in identity.py reads the files at the start and again when they change; listener.py accepts connections.

Invariants:
- A new certificate applies to new connections; existing ones continue until their maximum age.
- A certificate that cannot be used is refused at the start, with the reason (credentials.py).

Must not import a listener of a protocol.
"""

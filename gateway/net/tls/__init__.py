"""Holds certificates: the broker's identity and its rotation, listeners with TLS, and who a client certificate names."""

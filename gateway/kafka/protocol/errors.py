"""Declares the one error of decoding. Pure."""

from __future__ import annotations

from metadata.errors import InvalidArgument


class MalformedFrame(InvalidArgument):
    """The bytes of a request do not follow its API's definition. The listener closes the connection, as Kafka does."""

    code = "MALFORMED_FRAME"
    default_hint = "Use a client that speaks Kafka's protocol; see docs/guides/kafka-clients.md."

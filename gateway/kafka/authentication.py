"""Who a Kafka client is: nobody, where authentication is off; else its certificate, or what it proves by SASL.

connection ─▶ certificate? ─▶ its principal
                  └ none ─▶ ApiVersions and SASL only, until the client has authenticated
"""

from __future__ import annotations

from typing import Final

from gateway.access.guard import AccessGuard
from gateway.kafka.api_versions import API_VERSIONS
from gateway.kafka.connection import Answer, KafkaConnection
from metadata.errors import Unauthenticated

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_OPEN: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})


class KafkaAuthentication:
    """Authenticates the connections of all Kafka listeners of a broker."""

    def __init__(self, guard: AccessGuard | None) -> None:
        self._guard = guard

    def opened(self, connection: KafkaConnection) -> None:
        """Takes the certificate that the client has shown, if any."""
        if self._guard is not None and connection.subject is not None:
            connection.authenticated = self._guard.certified(connection.subject)

    def check(self, connection: KafkaConnection, api_key: int) -> None:
        """Raises Unauthenticated for a request of a client that has not authenticated."""
        if self._guard is not None and connection.authenticated is None and api_key not in _OPEN:
            raise Unauthenticated("the client sent a request before it has authenticated", hint="Set security.protocol to SASL_….")

    def takes_bare_tokens(self, connection: KafkaConnection) -> bool:
        """Whether the next frame is a token without a header: after SaslHandshake of version 0."""
        return False

    async def answer_bare_token(self, connection: KafkaConnection, answer: Answer, token: bytes) -> None:
        """Takes a token without a header, and answers in the same form."""
        raise Unauthenticated("no SASL exchange is under way")

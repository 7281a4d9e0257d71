"""Warns of Produce requests that are longer than the broker takes, and delays answers that a client would not delay itself.

Java's producer before the fix of KAFKA-8350 splits the batches that are answered with MESSAGE_TOO_LARGE, and sends them again
without back-off. Where each batch is small enough, and only the request is too long, the next one is as long again.

Invariant: a request whose largest batch none of its topics takes is refused at once, since a split helps. Others wait for
OVERSIZED_PAUSE_S.
"""

from __future__ import annotations

import logging
from typing import Final

from metadata.errors import TooLarge

# Delay of the answer to a request whose batches are small enough.
OVERSIZED_PAUSE_S: Final = 0.5
# The least time between two warnings about the requests of one client.
WARNING_INTERVAL_S: Final = 60.0
# Characters of a client's id that are logged.
CLIENT_ID_MAX: Final = 100
# Clients that are remembered to have been warned about.
WARNED_MAX: Final = 1_000

log = logging.getLogger(__name__)


class OversizedRequests:
    """Words the refusals of requests that are too long, and remembers which clients a warning has named."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # When the last warning about a client was logged, by its host and id.
        self._warned_s: dict[tuple[str, str], float] = {}

    def error(self, size_bytes: int) -> TooLarge:
        """Returns the error of each partition of a request of this size."""
        return TooLarge(
            f"the request has {size_bytes} bytes; the broker takes {self._bytes_max}",
            hint="Send smaller requests (max.request.size, batch.size), or raise request_bytes_max.",
            size=size_bytes,
            bytes_max=self._bytes_max,
        )

    def warn(self, size_bytes: int, *, host: str, client_id: str, listener: str, now_s: float) -> None:
        """Logs the refusal, at most once in WARNING_INTERVAL_S for a client."""
        client = host, client_id[:CLIENT_ID_MAX]
        if now_s - self._warned_s.get(client, float("-inf")) < WARNING_INTERVAL_S:
            return
        if len(self._warned_s) >= WARNED_MAX:
            self._warned_s.clear()
        self._warned_s[client] = now_s
        error = self.error(size_bytes)
        log.warning("produce refused client=%s client_id=%r listener=%s: %s. %s", *client, listener, error.message, error.hint)

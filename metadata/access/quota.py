"""Defines quotas: what one principal may use of one broker, and the token bucket that meters it. Pure: the caller brings the time.

The value of /{cluster}/quotas/{principal}, JSON in UTF-8, the name percent-encoded; that of `*` applies to principals without one:

    {"format_version":1,"principal":"billing","bytes_in_per_second":1048576,"bytes_out_per_second":0,"requests_per_second":0}

0 is no limit. Limits apply per broker, as in Kafka: a principal that uses three brokers may use three times as much.

    tokens  burst ┌───────┐        use is taken after the fact, also below zero: no request is cut in the middle
                  │       │ rate   the next request waits, or is refused, while the bucket is below zero
                0 ├───────┤
             debt └───────┘

Invariant: over any time that begins with a full bucket, what was let through is at most burst + rate · time + the last request.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from metadata.access.acl import EVERYONE, check_principal
from metadata.errors import Corrupt, InvalidArgument, TidelogError
from metadata.store.interface import KeyValue

FORMAT_VERSION: Final = 1
QUOTAS_MAX: Final = 10_000
# Seconds of its rate that an idle principal may use at once.
BURST_S: Final = 1.0
RATE_MAX: Final = 2**40


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits what one principal may use of one broker, per second."""

    principal: str
    # Bytes of requests and messages that write records.
    bytes_in_per_second: int = 0
    # Bytes of answers and messages of calls that read records.
    bytes_out_per_second: int = 0
    # Requests; on streams, messages.
    requests_per_second: int = 0
    format_version: int = FORMAT_VERSION

    @property
    def has_limits(self) -> bool:
        return any((self.bytes_in_per_second, self.bytes_out_per_second, self.requests_per_second))


def check_quota(quota: Quota) -> Quota:
    if quota.principal != EVERYONE:
        check_principal(quota.principal)
    limits = (quota.bytes_in_per_second, quota.bytes_out_per_second, quota.requests_per_second)
    if any(not 0 <= limit <= RATE_MAX for limit in limits):
        raise InvalidArgument(f"a limit is a whole number from 0, which is none, to {RATE_MAX}")
    if not quota.has_limits:
        raise InvalidArgument(
            "the quota limits nothing", hint="Give bytes_in_per_second, bytes_out_per_second or requests_per_second."
        )
    return quota


def quoted_principal(principal: str) -> str:
    """Returns the name as it stands in a key of the store."""
    return quote(principal, safe="")


class TokenBucket:
    """Meters use against a rate: it fills with time up to BURST_S of the rate, and may be overdrawn."""

    __slots__ = ("_at_s", "_tokens", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._tokens = rate * BURST_S
        self._at_s = now_s

    def take(self, count: float, now_s: float) -> None:
        """Takes `count` tokens, also below zero."""
        self._fill(now_s)
        self._tokens -= count

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until the bucket is no longer overdrawn; 0: now."""
        self._fill(now_s)
        return max(0.0, -self._tokens / self.rate)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:  # a clock that stands still brings nothing, and one that goes back takes nothing
            self._tokens = min(self.rate * BURST_S, self._tokens + (now_s - self._at_s) * self.rate)
            self._at_s = now_s


_decoder = msgspec.json.Decoder(Quota)


def encode_quota(quota: Quota) -> bytes:
    return msgspec.json.encode(quota)


def decode_quota(kept: KeyValue) -> Quota:
    """Decodes a stored quota. Raises Corrupt, naming the key of the store, where the value is not what this module writes."""
    try:
        quota = check_quota(_decoder.decode(kept.value))
        if not kept.key.endswith(f"/{quoted_principal(quota.principal)}"):
            raise InvalidArgument("it is another's")
    except (msgspec.DecodeError, UnicodeDecodeError, TidelogError) as error:
        raise Corrupt(f"the quota at {kept.key} can't be read: {error}", key=kept.key) from error
    return quota

"""Meters what each principal uses of its quota at this broker, and how long it must wait.

    a request   ─▶ `begin` raises Throttled with the wait while the quota is overdrawn ─▶ bytes are counted as they pass
    a stream    ─▶ begins as a request; then each message waits here instead of failing

permissions.py says which limits concern a call: that of requests every call, that of bytes in a call that writes records, that of
bytes out a call that reads records. A call counts for no other limit, and waits for no other.

A request may overdraw the quota; the next one waits until the bucket has refilled.
Invariant: at most METERS_MAX principals have meters; a principal whose meter was dropped begins with a full bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from gateway.access.permissions import RequiredAccess
from metadata.access.quota import Quota, TokenBucket
from metadata.errors import Throttled

METERS_MAX: Final = 10_000
# The longest sleep of a stream before it checks again, since its quota may have been raised.
PAUSE_S_MAX: Final = 10.0
_SETTING_NAMES: Final = {
    "bytes_in": "bytes_in_per_second",
    "bytes_out": "bytes_out_per_second",
    "requests": "requests_per_second",
}


class Quotas(Protocol):
    """Looks up quotas, as AccessCache of metadata/access/cache.py does."""

    def quota(self, principal: str) -> Quota | None: ...


class Meter:
    """Counts what one principal uses of its quota, in one token bucket for each limit; None where there is no limit."""

    __slots__ = ("_clock", "_principal", "bytes_in", "bytes_out", "quota", "requests")

    def __init__(self, principal: str, quota: Quota, clock: Callable[[], float]) -> None:
        now_s = clock()
        self.quota = quota
        self._principal = principal
        self._clock = clock
        self.bytes_in = TokenBucket(quota.bytes_in_per_second, now_s) if quota.bytes_in_per_second else None
        self.bytes_out = TokenBucket(quota.bytes_out_per_second, now_s) if quota.bytes_out_per_second else None
        self.requests = TokenBucket(quota.requests_per_second, now_s) if quota.requests_per_second else None

    def begin(self, needs: RequiredAccess) -> None:
        """Begins a request and counts it. Raises Throttled, with the wait, while an earlier one has overdrawn one of its limits."""
        throttled = self.throttled(needs)
        if throttled is not None:
            raise throttled
        self.add_request()

    def throttled(self, needs: RequiredAccess) -> Throttled | None:
        """Returns the error of a call that must wait for one of its limits, with the longest wait; None if it need not wait."""
        now_s = self._clock()
        waits = ((bucket.wait_s(now_s), name, bucket) for name, bucket in self._limits(needs))
        wait_s, name, bucket = max(waits, key=lambda each: each[0], default=(0.0, "", None))
        if bucket is None or wait_s <= 0:
            return None
        return Throttled(
            f"{self._principal} has used up its {_SETTING_NAMES[name]} of {bucket.rate:g} at this broker",
            retry_after_s=wait_s,
            hint="Retry after that time, ask for less, or ask for a larger quota.",
        )

    def add_request(self) -> None:
        """Counts a request, or a message of a stream."""
        if self.requests is not None:
            self.requests.take(1, self._clock())

    def add_bytes_in(self, bytes_count: int) -> None:
        if self.bytes_in is not None:
            self.bytes_in.take(bytes_count, self._clock())

    def add_bytes_out(self, bytes_count: int) -> None:
        if self.bytes_out is not None:
            self.bytes_out.take(bytes_count, self._clock())

    def charge(self, needs: RequiredAccess, *, bytes_in: int, bytes_out: int) -> float:
        """Counts a whole request. Returns the seconds until none of its limits is overdrawn."""
        self.add_request()
        if needs.bytes_in:
            self.add_bytes_in(bytes_in)
        if needs.bytes_out:
            self.add_bytes_out(bytes_out)
        now_s = self._clock()
        return max((bucket.wait_s(now_s) for _, bucket in self._limits(needs)), default=0.0)

    def wait_s(self, *buckets: TokenBucket | None) -> float:
        """Returns the seconds until none of these buckets is overdrawn."""
        now_s = self._clock()
        return max((bucket.wait_s(now_s) for bucket in buckets if bucket is not None), default=0.0)

    def _limits(self, needs: RequiredAccess) -> Iterator[tuple[str, TokenBucket]]:
        if needs.bytes_in and self.bytes_in is not None:
            yield "bytes_in", self.bytes_in
        if needs.bytes_out and self.bytes_out is not None:
            yield "bytes_out", self.bytes_out
        if self.requests is not None:
            yield "requests", self.requests


class QuotaState(NamedTuple):
    """Says how long a principal waits at this broker until none of its limits is overdrawn."""

    quota: Quota
    # 0: none is overdrawn. A call waits only for the limits that concern it (permissions.py).
    wait_s: float


class StreamUsage:
    """Meters one stream. It looks the meter up each time, since quotas change while a stream is open."""

    __slots__ = ("_meter", "_needs")

    def __init__(self, meter: Callable[[], Meter | None], needs: RequiredAccess) -> None:
        self._meter = meter
        self._needs = needs

    async def wait_to_send(self) -> None:
        """Waits until the client may send the next message, and counts it as a request."""
        while (meter := self._meter()) is not None:
            wait_s = meter.wait_s(meter.bytes_in if self._needs.bytes_in else None, meter.requests)
            if not wait_s:
                meter.add_request()
                return
            await asyncio.sleep(min(wait_s, PAUSE_S_MAX))

    def throttled(self) -> Throttled | None:
        """Returns why the broker does not read the next message of the client now, with the wait; None while it does."""
        meter = self._meter()
        return meter.throttled(self._needs) if meter is not None else None

    async def wait_to_receive(self) -> None:
        """Waits until the client may receive more bytes."""
        while self._needs.bytes_out and (meter := self._meter()) is not None:
            wait_s = meter.wait_s(meter.bytes_out)
            if not wait_s:
                return
            await asyncio.sleep(min(wait_s, PAUSE_S_MAX))

    def add_bytes_in(self, bytes_count: int) -> None:
        if self._needs.bytes_in and (meter := self._meter()) is not None:
            meter.add_bytes_in(bytes_count)

    def add_bytes_out(self, bytes_count: int) -> None:
        if self._needs.bytes_out and (meter := self._meter()) is not None:
            meter.add_bytes_out(bytes_count)


class PrincipalQuotas:
    """Holds the meters of principals with quotas."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._quotas = quotas
        self._clock = clock
        self._meters: dict[str, Meter] = {}

    def meter(self, principal: str) -> Meter | None:
        """Returns the meter of a principal, a new one after its quota changed; None without a quota."""
        quota = self._quotas.quota(principal)
        if quota is None:
            return None
        meter = self._meters.get(principal)
        if meter is None or meter.quota != quota:  # an equal one was only read again: what the principal owes stays
            if len(self._meters) >= METERS_MAX and principal not in self._meters:
                del self._meters[next(iter(self._meters))]
            meter = self._meters[principal] = Meter(principal, quota, self._clock)
        return meter

    def state(self, principal: str) -> QuotaState | None:
        """Returns the quota of a principal and its wait, and makes no meter; None without a quota."""
        quota = self._quotas.quota(principal)
        if quota is None:
            return None
        meter = self._meters.get(principal)
        if meter is None or meter.quota != quota:
            return QuotaState(quota, 0.0)
        return QuotaState(quota, meter.wait_s(meter.bytes_in, meter.bytes_out, meter.requests))

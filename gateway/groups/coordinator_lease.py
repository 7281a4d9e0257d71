"""Proves that this broker's view of the cluster is current: once a second while it coordinates groups.

  a call ─▶ proven less than PROOF_S ago? ─ yes ─▶ proceed           so heartbeats cost etcd nothing: all share one proof
              └─ no ─▶ etcd shows the same ──────────────────────────────────────────▶ proven
                       ├─ it shows others: read again; not proven until the watch shows them, too
                       └─ it does not answer: another broker sees the same, and has proven it ──▶ proven as of then
                                              all brokers see the same, which none can change ──▶ proven

So members are answered while etcd is away for all brokers, and an isolated broker stops answering. A new coordinator of a group
waits
PROOF_S longer before it gives away what silent members hold.

Invariant: a proof holds for the moment of its question. It cannot see an unknown broker that registers while etcd does not answer
any
other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoCoordinator, TidelogError
from metadata.model import Revision

# How long a proof is valid.
PROOF_S: Final = 3.0
# Age of a proof at which a call starts the next one, without waiting for it.
REFRESH_S: Final = 1.0
# Timeout of etcd, and then of the other brokers.
ANSWER_S: Final = 1.0
CATCH_UP_S: Final = 0.05
# Reads of etcd, with pauses of CATCH_UP_S, if it shows other brokers than the watch: either may be behind.
CATCH_UPS: Final = 4
# Pause between two checks that prove nothing.
AGAIN_S: Final = 0.2
FORMER_MAX: Final = 100
_ASK_ANOTHER: Final = "Ask another broker for the coordinator, or retry with back-off."

log = logging.getLogger(__name__)


class SeenRegistrations(Protocol):
    """Gives access to the registrations that BrokerCache holds (metadata/cluster/broker_registry.py)."""

    @property
    def brokers(self) -> Mapping[str, BrokerRegistration]: ...
    @property
    def revisions(self) -> Mapping[str, Revision]: ...
    @property
    def revision(self) -> Revision: ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class ClusterSnapshot(NamedTuple):
    """Holds what another broker sees of the cluster."""

    # Revision of each registration, by broker id.
    revisions: Mapping[str, Revision]
    # Revision of the store up to which its watch has come.
    revision: Revision
    # Infinite without a proof.
    proven_s_ago: float


class CoordinatorLease:
    """Proves this broker's view, and lets callers wait for a proof. Its owner runs `run()` as a task; once that ends, nothing is
    proven."""

    def __init__(
        self,
        seen: SeenRegistrations,
        *,
        broker_id: str,
        registered: Callable[[], Awaitable[Mapping[str, Revision]]],
        ask: Callable[[BrokerRegistration], Awaitable[ClusterSnapshot]],
        is_needed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`registered` asks the metadata store for the revision of each registration, `ask` asks another broker what it sees.
        `is_needed` returns whether the view must be proven all the time: proofs that lie far apart do not cover the time between.
        """
        self._seen = seen
        self._broker_id = broker_id
        self._registered = registered
        self._ask = ask
        self._is_needed = is_needed
        self._proven_s = float("-inf")
        self._wanted = asyncio.Event()
        # Resolved by the check that runs or begins next.
        self._checked: asyncio.Future[None] | None = None
        self._is_over = False
        self._subscribers: list[Callable[[float], None]] = []
        # Brokers that were registered before: one that has restarted may know more than the present ones.
        self._former: dict[str, BrokerRegistration] = {}
        self._known = dict(seen.brokers)
        seen.subscribe(self._brokers_changed)

    @property
    def here(self) -> ClusterSnapshot:
        return ClusterSnapshot(self._seen.revisions, self._seen.revision, _now_s() - self._proven_s)

    def subscribe(self, proven: Callable[[float], None]) -> None:
        """Adds a callback for each proof, with the seconds since the proof before. It must neither block nor raise."""
        self._subscribers.append(proven)

    @property
    def is_fresh(self) -> bool:
        """Returns True if `verify` returns at once, and no proof need be sought yet."""
        return not self._is_over and _now_s() - self._proven_s < REFRESH_S

    async def verify(self) -> None:
        """Returns if this broker's view was proven PROOF_S ago at most; waits for a proof otherwise. Raises NoCoordinator."""
        while True:
            if self._is_over:
                raise NoCoordinator("this broker stops, and coordinates no group any more", hint=_ASK_ANOTHER)
            if self.is_fresh:
                return
            before_s = self._proven_s
            self._wanted.set()
            if self._checked is None:
                self._checked = asyncio.get_running_loop().create_future()
            if _now_s() - self._proven_s < PROOF_S:
                return
            await asyncio.shield(self._checked)
            if _now_s() - self._proven_s < PROOF_S:
                return
            if self._proven_s == before_s:
                raise NoCoordinator(
                    "this broker can't make sure that it still coordinates the group: "
                    "neither the metadata store nor others confirm it",
                    hint=_ASK_ANOTHER,
                )
            # proven, but too long ago: this process stood still meanwhile

    async def run(self) -> None:
        try:
            while True:
                await self._until_wanted()
                proven_s = await self._prove_view()
                self._wanted.clear()
                self._wake()
                if proven_s is None:
                    await asyncio.sleep(AGAIN_S)
        finally:  # callers that came before a check, or during a pause, would wait without bound
            self._is_over = True
            self._wake()

    def _wake(self) -> None:
        """Wakes all callers that wait for this check."""
        checked, self._checked = self._checked, None
        if checked is not None and not checked.done():
            checked.set_result(None)

    async def _until_wanted(self) -> None:
        while not self._wanted.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._wanted.wait()
            if self._is_needed() and _now_s() - self._proven_s >= REFRESH_S:
                return

    async def _prove_view(self) -> float | None:
        """Returns when the view was known to be true; None if it was not proven."""
        for _ in range(CATCH_UPS):
            asked_s = _now_s()
            try:
                async with asyncio.timeout(ANSWER_S):
                    registered = await self._registered()
            except (TidelogError, TimeoutError) as error:
                log.info("view not proven by the metadata store: %s; asking other brokers", error or "no answer")
                return self._proven(await self._as_others_see_it())
            # A late watch may still bring brokers that have left meanwhile. Such a broker can only make this one give up groups.
            if registered == self._seen.revisions:
                return self._proven(asked_s)
            await asyncio.sleep(CATCH_UP_S)
        return None

    async def _as_others_see_it(self) -> float | None:
        asked_s = _now_s()
        others = {at: broker for at, broker in self._seen.brokers.items() if at != self._broker_id}
        former = {at: broker for at, broker in self._former.items() if at not in others}
        snapshots = await asyncio.gather(*map(self._snapshot_from, (*others.values(), *former.values())))
        return proven_by_others(asked_s, self.here, snapshots[: len(others)], snapshots[len(others) :])

    async def _snapshot_from(self, broker: BrokerRegistration) -> ClusterSnapshot | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(broker)
        except (TidelogError, TimeoutError):
            return None

    def _proven(self, at_s: float | None) -> float | None:
        if at_s is None or at_s <= self._proven_s:
            return None
        after_s, self._proven_s = at_s - self._proven_s, at_s
        for proven in self._subscribers:
            proven(after_s)
        return at_s

    def _brokers_changed(self) -> None:
        for broker_id, broker in self._known.items():
            if broker_id != self._broker_id and broker_id not in self._seen.brokers:
                self._former.pop(broker_id, None)
                self._former[broker_id] = broker
        while len(self._former) > FORMER_MAX:
            del self._former[next(iter(self._former))]
        self._known = dict(self._seen.brokers)


def proven_by_others(
    asked_s: float, here: ClusterSnapshot, others: list[ClusterSnapshot | None], former: list[ClusterSnapshot | None]
) -> float | None:
    """Returns as of when the view `here` is true, by the views of all `others` that are registered and of `former` brokers; None if
    it is not proven.

    If all see the same, no broker can have begun to coordinate a group of this one: that takes another view, and etcd.
    """
    same = [there for there in others if there is not None and there.revisions == here.revisions]
    if any(
        there is not None and there.revisions != here.revisions and there.revision > here.revision for there in (*others, *former)
    ):
        return None
    if len(same) == len(others):
        return asked_s
    return max((asked_s - there.proven_s_ago for there in same if there.proven_s_ago < PROOF_S), default=None)


def _now_s() -> float:
    return asyncio.get_running_loop().time()

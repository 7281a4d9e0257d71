"""Serves the lag of a group over the last hour, at any broker. Samples are taken while clients ask, and for some minutes longer.

    a client asks any broker ─▶ the group is watched here ─▶ the other brokers are asked: they watch it as well, and send samples
    each refresh of the figures of groups (metrics.py) ─▶ a sample of each watched group that this broker coordinates

The coordinator takes the samples, of figures that it keeps for Prometheus in any case: a sample costs neither the metadata store
nor a leader nor the bucket anything. Every broker watches a group that one broker was asked for, so whichever coordinates it next
goes on at its next refresh. A broker that was asked keeps what the others have answered. So pages behind a load balancer show the
same history, and it outlives a coordinator: what is lost with a broker is what no other one has been asked for since.

A group with a partition whose end is unknown has no sample, since its lag would seem to fall. Invariants: nothing is held before
the first request. A broker asks each other one once in EXCHANGE_S, and another time for groups that it has not named yet.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import Context
from typing import Final, NamedTuple

from gateway.access.authorization import may_see_every_topic, may_see_topic
from gateway.concurrency.offload import LoopYielder
from gateway.groups.admin.lag_samples import GROUPS_MAX, GroupLagHistory, LagSamples, PartitionLag
from gateway.groups.metrics import GroupMetrics, GroupMetricsSnapshot
from gateway.proto import groups_pb2
from gateway.routing.peer_channels import PeerChannels
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoCoordinator, NotCoordinator, Stopping, TidelogError, Unavailable

METHOD: Final = "/tidelog.v1.Groups/ListLagSamples"
# A page waits for a silent broker as long.
ASK_TIMEOUT_S: Final = 1.0
EXCHANGE_S: Final = 5.0
STORE_ID_BYTES: Final = 8
# Shown to readers with any rights, so it has nothing of the error; the log has it.
NOT_ANSWERED: Final = "it did not answer in time, or with an error"

log = logging.getLogger(__name__)


class FoundLagHistory(NamedTuple):
    """Holds the history of a group, and which brokers did not answer, each with the reason."""

    history: GroupLagHistory
    # Since the newest sample; None without one.
    age_ms: int | None
    silent: Mapping[str, str]


class LagHistory:
    """Takes samples of watched groups, and exchanges them with the other brokers."""

    def __init__(
        self,
        figures: GroupMetrics,
        describe: Callable[[groups_pb2.DescribeGroupRequest], Awaitable[groups_pb2.GroupDescription]],
        peers: PeerChannels,
        registrations: Callable[[], Iterable[BrokerRegistration]],
        *,
        broker_id: str,
        interval_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`figures` are those of the groups that this broker coordinates, refreshed every `interval_ms`. `describe` raises
        UnknownGroup for a group of the cluster that is not there. `registrations` are those of all brokers."""
        self.interval_ms = interval_ms
        self._figures = figures
        self._describe = describe
        self._peers = peers
        self._registrations = registrations
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._samples: LagSamples | None = None
        self._exchanging = asyncio.Lock()
        self._exchanged_s = float("-inf")
        self._named: frozenset[str] = frozenset()
        self._silent: Mapping[str, str] = {}

    async def read(self, group: str) -> FoundLagHistory:
        """Returns the history of a group. Raises UnknownGroup. Callers that may not see every topic have sums over those listed.

        Without a coordinator, returns what this broker has of the group; raises NoCoordinator if it has nothing.
        """
        samples = self._begun()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S if group in samples else None):
                await self._describe(groups_pb2.DescribeGroupRequest(group=group, without_lags=True))
        except TimeoutError:
            pass  # the coordinator is silent; what is held here is shown
        except (NoCoordinator, NotCoordinator, Stopping, Unavailable):
            if group not in samples:
                raise
        await self._watch({group: 0.0})
        silent = await self._exchange(group)
        history = samples.history(group)
        if not may_see_every_topic():
            history = history.only(may_see_topic)
        age_ms = max(0, self._now_ms() - history.at_ms[-1]) if history.at_ms else None
        return FoundLagHistory(history, age_ms, silent)

    async def answer(self, request: groups_pb2.ListLagSamplesRequest) -> groups_pb2.ListLagSamplesResponse:
        """Watches the groups that another broker was asked for, and returns the samples of them that it lacks."""
        samples = self._begun()
        asked = request.groups[:GROUPS_MAX]
        await self._watch({each.group: each.requested_ms_ago / 1000 for each in asked})
        answer = groups_pb2.ListLagSamplesResponse(store_id=samples.store_id)
        yielder = LoopYielder()
        for each in asked:
            after = each.after if each.store_id == samples.store_id else 0
            answer.groups.append(samples.since(each.group, after))
            await yielder.step()
        return answer

    # ── samples ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begun(self) -> LagSamples:
        if self._samples is None:
            self._samples = LagSamples(secrets.token_hex(STORE_ID_BYTES))
            self._figures.subscribe(self._refreshed)
        return self._samples

    async def _watch(self, requested_ago_s: Mapping[str, float]) -> None:
        """Watches the groups. A new one has its first sample from the present figures."""
        samples, now_s = self._begun(), asyncio.get_running_loop().time()
        new = {group for group, ago_s in requested_ago_s.items() if samples.watch(group, requested_s=now_s - ago_s)}
        snapshot = self._figures.snapshot
        if new and self._now_ms() - snapshot.at_s * 1000 <= 2 * self.interval_ms:
            await self._take(snapshot, new)

    async def _refreshed(self, snapshot: GroupMetricsSnapshot) -> None:
        samples, now_s = self._begun(), asyncio.get_running_loop().time()
        samples.drop_old(now_s=now_s, now_ms=self._now_ms())
        await self._take(snapshot, samples.watched(now_s=now_s))

    async def _take(self, snapshot: GroupMetricsSnapshot, groups: Collection[str]) -> None:
        samples, now_s, at_ms = self._begun(), asyncio.get_running_loop().time(), round(snapshot.at_s * 1000)
        rows: dict[str, list[PartitionLag]] = {
            group: []
            for group in groups
            if group in snapshot.groups and group not in snapshot.partial and samples.is_due(group, now_s=now_s, at_ms=at_ms)
        }
        if not rows:
            return
        yielder = LoopYielder()
        for row in snapshot.partitions:
            if (its := rows.get(row.group)) is not None:
                its.append(row)
            await yielder.step()
        for group, its in rows.items():
            if samples.is_due(group, now_s=now_s, at_ms=at_ms):  # another task may have taken it, or made room
                samples.take(group, its, at_ms=at_ms)
            await yielder.step()

    # ── other brokers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _exchange(self, group: str) -> Mapping[str, str]:
        """Asks the other brokers for the samples of all watched groups; returns those that did not answer."""
        clock = asyncio.get_running_loop()
        async with self._exchanging:  # those that wait are often named by the next one
            if group in self._named and clock.time() < self._exchanged_s + EXCHANGE_S:
                return self._silent
            others = [each for each in self._registrations() if each.broker_id != self._broker_id]
            watched = self._begun().watched(now_s=clock.time())
            async with asyncio.TaskGroup() as tasks:  # without the context of one reader, since all are shown the answers
                asked = [tasks.create_task(self._asked(each, watched), context=Context()) for each in others]
            self._silent = {broker.broker_id: NOT_ANSWERED for broker, task in zip(others, asked, strict=True) if not task.result()}
            self._named, self._exchanged_s = frozenset(watched), clock.time()
            return self._silent

    async def _asked(self, broker: BrokerRegistration, watched: Mapping[str, float]) -> bool:
        """Takes in the samples of another broker. Returns whether it has answered."""
        samples = self._begun()
        request = groups_pb2.ListLagSamplesRequest()
        for group, ago_s in watched.items():
            store_id, after = samples.heard(group, broker.broker_id)
            request.groups.add(group=group, requested_ms_ago=round(1000 * ago_s), store_id=store_id, after=after)
        try:
            answer = await self._peers.call(broker, METHOD, request, groups_pb2.ListLagSamplesResponse, timeout_s=ASK_TIMEOUT_S)
        except TidelogError as error:
            log.info("no samples of lag broker=%s: %s", broker.broker_id, error)
            return False
        yielder = LoopYielder()
        for found in answer.groups:
            samples.merge(found, broker_id=broker.broker_id, store_id=answer.store_id)
            await yielder.step()
        return True

"""Who holds a lease gives it up before the store ends it, whatever the store and the network do. In virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.errors import OutcomeUnknown, Unavailable
from metadata.held_lease import HeldLease
from metadata.held_lease import clock as real_clock
from metadata.store import LeaseId, LeaseLost
from tests.simulation.virtual_loop import run, virtual_loop

TTL_S = 9.0


class Leases:
    """The part of a metadata store that leases need, with one lease. Its way there and back takes time, or fails."""

    def __init__(self) -> None:
        self.ends_at = 0.0
        self.way_there_s = self.way_back_s = 0.0
        self.down = False
        self.renewed_at: list[float] = []
        self.revoked = False
        self.suspended_s = 0.0
        """For how long the holder's machine has slept, which its event loop does not know of."""

    @property
    def now(self) -> float:
        return virtual_loop().time() + self.suspended_s

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        await asyncio.sleep(self.way_there_s)
        self.ends_at = self.now + ttl_s
        await asyncio.sleep(self.way_back_s)
        return LeaseId(7)

    async def keep_alive(self, lease: LeaseId) -> float:
        assert lease == 7
        if self.down:
            await asyncio.sleep(0.2)
            raise Unavailable("the store is down")
        await asyncio.sleep(self.way_there_s)
        if self.now >= self.ends_at:
            raise LeaseLost("it has ended")
        self.ends_at = self.now + TTL_S
        self.renewed_at.append(self.now)
        await asyncio.sleep(self.way_back_s)
        return TTL_S

    async def revoke_lease(self, lease: LeaseId) -> None:
        await asyncio.sleep(self.way_there_s)
        if self.down:
            raise OutcomeUnknown("the store is down")
        self.revoked = True

    def clock(self) -> float:
        return self.now

    async def take(self, ttl_s: float = TTL_S) -> HeldLease:
        return await HeldLease.take(self, ttl_s, clock=self.clock)  # type: ignore[arg-type]


async def kept_for(lease: HeldLease, seconds: float) -> None:
    """Runs the renewals for so long, or until the lease is lost."""
    async with asyncio.TaskGroup() as tasks:
        renewing = tasks.create_task(lease.run())
        await asyncio.wait([renewing], timeout=seconds)
        renewing.cancel()


def in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    run(asyncio.wait_for(test, timeout=7200))


def test_a_lease_is_renewed_three_times_in_its_time_to_live() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        await kept_for(lease, 3 * TTL_S + 1)
        assert store.renewed_at == [3.0 * n for n in range(1, 10)]
        assert lease.held

    in_virtual_time(test())


def test_a_lease_that_is_not_renewed_is_lost_before_the_store_ends_it() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.down = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lease.run())
            await lease.wait_lost()
            assert store.now == pytest.approx(0.9 * TTL_S)
            assert not lease.held
            assert lease.held_for_s == 0
        assert store.now < store.ends_at

    in_virtual_time(test())


def test_the_holder_need_not_run_to_know_that_its_lease_is_lost() -> None:
    async def test() -> None:
        lease = await Leases().take()
        await asyncio.sleep(8.0)
        assert lease.held
        await asyncio.sleep(0.2)
        assert not lease.held

    in_virtual_time(test())


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    async def test() -> None:
        store = Leases()
        store.way_back_s = 5.0
        lease = await store.take()
        assert lease.held_for_s == pytest.approx(0.9 * TTL_S - 5.0)

    in_virtual_time(test())


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.way_there_s = store.way_back_s = 1.0
        await kept_for(lease, 5.5)
        assert store.renewed_at == [4.0]
        assert lease.held_for_s == pytest.approx(3.0 + 0.9 * TTL_S - 5.5)

    in_virtual_time(test())


def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_lost() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.down = True
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(lease.run())
            await asyncio.sleep(7.0)
            store.down = False
            await asyncio.sleep(10.0)
            assert lease.held
            running.cancel()

    in_virtual_time(test())


def test_a_renewal_whose_answer_hangs_does_not_keep_the_holder_believing() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.way_back_s = 3600
        await kept_for(lease, 3600)
        assert not lease.held
        assert store.now == pytest.approx(0.9 * TTL_S)

    in_virtual_time(test())


@pytest.mark.parametrize("stopped_after_s", [2.0, 2.9], ids=["between renewals", "while one is on its way"])
def test_a_holder_that_was_stopped_wakes_without_its_lease(stopped_after_s: float) -> None:
    async def test() -> None:
        store = Leases()
        store.way_back_s = 0.2
        lease = await store.take()
        loop = virtual_loop()
        running = loop.create_task(lease.run(), context=loop.context_of("holder"))
        await asyncio.sleep(stopped_after_s)
        loop.freeze("holder")  # SIGSTOP; answers and timers pile up
        await asyncio.sleep(6.5)  # longer than the lease, and not as long as a renewal that came through would make it
        assert not lease.held
        loop.thaw("holder")
        await running
        assert not lease.held

    in_virtual_time(test())


def test_an_answer_that_comes_too_late_does_not_bring_a_lost_lease_back() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.way_back_s = 0.2
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lease.run())
            await asyncio.sleep(3.1)  # the renewal was sent at 3.0, and would hold until 11.1
            store.suspended_s = 7.0
            assert not lease.held
            await lease.wait_lost()
            assert store.renewed_at == [3.0]
            assert store.now < 11.0
            assert not lease.held

    in_virtual_time(test())


def test_a_lease_that_the_store_has_ended_is_lost_at_once() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        store.ends_at = 0.0
        await kept_for(lease, TTL_S)
        assert store.now == 3.0
        assert not lease.held

    in_virtual_time(test())


def test_a_released_lease_is_given_back_and_held_no_more() -> None:
    async def test() -> None:
        store = Leases()
        lease = await store.take()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lease.run())
            await asyncio.sleep(1.0)
            await lease.release()
            await lease.wait_lost()
        assert store.revoked
        assert not lease.held

    in_virtual_time(test())


def test_a_lease_that_cannot_be_given_back_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def test(way_there_s: float) -> None:
        store = Leases()
        lease = await store.take()
        store.down = True
        store.way_there_s = way_there_s
        await lease.release()
        assert store.now <= 3.0
        assert not lease.held

    for way_there_s in (0.0, 3600.0):  # refused, and without an answer
        with caplog.at_level(logging.WARNING):
            in_virtual_time(test(way_there_s))
        assert "it ends by itself within 9 s" in caplog.text
        caplog.clear()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4), st.booleans()), min_size=1, max_size=12))
def test_whatever_happens_on_the_way_nobody_believes_to_hold_what_has_ended(phases: list[tuple[float, float, bool]]) -> None:
    async def test() -> None:
        store = Leases()
        store.way_there_s, store.way_back_s, _ = phases[0]
        lease = await store.take()
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(lease.run())
            was_lost = False
            for store.way_there_s, store.way_back_s, store.down in phases:
                for _ in range(30):
                    await asyncio.sleep(0.1)
                    assert store.now < store.ends_at or not lease.held
                    assert not (was_lost and lease.held)
                    was_lost = not lease.held
            renewing.cancel()

    in_virtual_time(test())


def test_the_real_clock_goes_forward() -> None:
    assert real_clock() <= real_clock()

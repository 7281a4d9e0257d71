"""What a broker sees of the cluster is proven before it is acted on: by the metadata store, or by the other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf

import pytest

from gateway.groups.coordinator_lease import (
    ANSWER_S,
    FORMER_MAX,
    PROOF_S,
    REFRESH_S,
    ClusterSnapshot,
    CoordinatorLease,
    proven_by_others,
)
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import NoCoordinator, Unavailable
from metadata.model import Revision, SessionId
from tests.simulation.virtual_loop import run, virtual_loop


class Stage:
    """Broker b1, what it sees, what etcd holds, and what others report to it."""

    def __init__(self) -> None:
        self.brokers: Mapping[str, BrokerRegistration] = {}
        self.revisions: Mapping[str, Revision] = {}
        self.revision = Revision(0)
        self.etcd: Mapping[str, Revision] | None = None
        """None: it is silent."""
        self.others: dict[str, ClusterSnapshot] = {}
        """What those see that answer."""
        self.asked_etcd = 0
        self.on_the_way: Callable[[], None] = lambda: None
        """What happens while etcd's answer is on its way."""
        self.after_s: list[float] = []
        self._changed: list[Callable[[], None]] = []
        self.see(b1=1, b2=2)
        self.etcd = self.revisions
        self.is_needed = False
        self.view = CoordinatorLease(
            self, broker_id="b1", registered=self._registered, ask=self._ask, is_needed=lambda: self.is_needed
        )
        self.view.subscribe(self.after_s.append)

    def see(self, **revisions: int) -> None:
        self.brokers = {
            broker_id: BrokerRegistration(broker_id=broker_id, session=SessionId(at)) for broker_id, at in revisions.items()
        }
        self.revisions = {broker_id: Revision(at) for broker_id, at in revisions.items()}
        self.revision = Revision(max(self.revision, *revisions.values()))
        for changed in self._changed:
            changed()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._changed.append(changed)
        return lambda: self._changed.remove(changed)

    async def _registered(self) -> Mapping[str, Revision]:
        self.asked_etcd += 1
        answer = self.etcd
        await asyncio.sleep(0.001)
        self.on_the_way()
        if answer is None:
            await asyncio.sleep(3600.0)
            raise Unavailable("it is away")
        return answer

    async def _ask(self, broker: BrokerRegistration) -> ClusterSnapshot:
        await asyncio.sleep(0.001)
        if broker.broker_id not in self.others:
            raise Unavailable("it takes no connection")
        return self.others[broker.broker_id]

    def reported(self, *, proven_s_ago: float = inf, revision: int = 0, **revisions: int) -> ClusterSnapshot:
        by_id = {broker_id: Revision(at) for broker_id, at in revisions.items()}
        return ClusterSnapshot(by_id, Revision(revision or max(revisions.values())), proven_s_ago)


def until_the_view_ends(scenario: Callable[[Stage, asyncio.Task[None]], Awaitable[None]]) -> None:
    """`scenario` makes the task of the view end; from then on no proof succeeds."""

    async def main() -> None:
        stage = Stage()
        running = asyncio.ensure_future(stage.view.run())
        await asyncio.sleep(0)
        await scenario(stage, running)
        assert running.done()
        before_s = virtual_loop().time()
        await unsure(stage)
        assert virtual_loop().time() == before_s

    run(main())


def on_stage(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        running = asyncio.ensure_future(stage.view.run())
        await scenario(stage)
        running.cancel()
        await asyncio.wait((running,))

    run(main())


async def unsure(stage: Stage) -> None:
    with pytest.raises(NoCoordinator):
        await stage.view.verify()


def test_all_who_ask_within_a_second_share_one_look_at_the_store() -> None:
    async def scenario(stage: Stage) -> None:
        await asyncio.gather(*(stage.view.verify() for _ in range(100)))
        for _ in range(90):
            await asyncio.sleep(REFRESH_S / 100)
            await stage.view.verify()
        assert stage.asked_etcd == 1

    on_stage(scenario)


def test_a_caller_that_asks_after_a_second_does_not_wait_for_the_next_check() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.view.verify()
        await asyncio.sleep(REFRESH_S + 0.1)
        before_s = virtual_loop().time()
        await stage.view.verify()
        assert virtual_loop().time() == before_s
        await asyncio.sleep(0.1)
        assert stage.asked_etcd == 2

    on_stage(scenario)


def test_the_coordinator_lease_is_renewed_continuously_only_while_groups_need_it() -> None:
    async def scenario(stage: Stage) -> None:
        await asyncio.sleep(60)
        assert stage.asked_etcd == 0
        stage.is_needed = True
        await asyncio.sleep(60)
        assert 25 <= stage.asked_etcd <= 60
        assert max(stage.after_s[1:]) < PROOF_S

    on_stage(scenario)


def test_a_broker_has_no_proof_until_its_watch_reports_a_new_broker() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.view.verify()
        stage.etcd = {**stage.revisions, "b3": Revision(3)}
        stage.others["b2"] = stage.reported(b1=1, b2=2)  # it does not know, either: the store says otherwise
        await asyncio.sleep(PROOF_S)
        await unsure(stage)
        stage.see(b1=1, b2=2, b3=3)
        await stage.view.verify()

    on_stage(scenario)


def test_a_broker_that_hears_of_a_new_one_before_etcd_s_older_answer_comes_is_sure() -> None:
    async def scenario(stage: Stage) -> None:
        def registered() -> None:
            stage.see(b1=1, b2=2, b3=3)
            stage.etcd = stage.revisions

        stage.on_the_way = registered
        await stage.view.verify()
        assert stage.asked_etcd == 2

    on_stage(scenario)


def test_a_registration_with_another_revision_invalidates_the_proof() -> None:
    """It drained, and drains no more: meanwhile others had its groups."""

    async def scenario(stage: Stage) -> None:
        stage.etcd = {"b1": Revision(7), "b2": Revision(2)}
        await unsure(stage)

    on_stage(scenario)


def test_while_the_store_is_away_for_all_everyone_goes_on() -> None:
    async def scenario(stage: Stage) -> None:
        stage.is_needed = True
        await stage.view.verify()
        stage.etcd = None
        stage.others["b2"] = stage.reported(b1=1, b2=2)
        for _ in range(600):
            await asyncio.sleep(0.1)
            await stage.view.verify()
        assert max(stage.after_s[1:]) < PROOF_S

    on_stage(scenario)


def test_a_broker_that_is_cut_off_alone_is_sure_as_long_as_another_one_has_proven_the_same() -> None:
    async def scenario(stage: Stage) -> None:
        stage.see(b1=1, b2=2, b3=3)
        stage.etcd = None
        stage.others["b2"] = stage.reported(b1=1, b2=2, b3=3, proven_s_ago=0.5)  # b3 does not answer
        await stage.view.verify()
        stage.others["b2"] = stage.reported(b2=2, b3=3, revision=9, proven_s_ago=0.5)  # its lease has ended
        await asyncio.sleep(PROOF_S)
        await unsure(stage)

    on_stage(scenario)


def test_a_broker_that_hears_of_a_proof_that_is_too_old_checks_again() -> None:
    """As one does that stood still meanwhile."""

    async def scenario(stage: Stage) -> None:
        stage.see(b1=1, b2=2, b3=3)
        stage.etcd = None
        stage.others["b2"] = stage.reported(b1=1, b2=2, b3=3, proven_s_ago=PROOF_S - 0.0005)
        virtual_loop().call_later(ANSWER_S, lambda: setattr(stage, "etcd", stage.revisions))
        await stage.view.verify()
        assert stage.asked_etcd == 2

    on_stage(scenario)


def test_a_broker_that_reaches_neither_the_store_nor_the_others_is_not_sure_and_says_so_in_time() -> None:
    async def scenario(stage: Stage) -> None:
        stage.etcd = None
        before_s = virtual_loop().time()
        await unsure(stage)
        assert virtual_loop().time() - before_s < 2 * ANSWER_S
        stage.etcd = stage.revisions
        await asyncio.sleep(1.0)
        await stage.view.verify()

    on_stage(scenario)


def test_a_lone_broker_needs_no_proof_from_others_during_an_outage_of_the_store() -> None:
    async def scenario(stage: Stage) -> None:
        stage.see(b1=1)
        stage.others["b2"] = stage.reported(b1=1, b2=2)  # what was removed, and sees older things
        stage.etcd = None
        stage.revision = Revision(3)
        await stage.view.verify()

    on_stage(scenario)


def test_a_broker_that_was_registered_before_and_knows_more_is_believed() -> None:
    """It has started again, and its registration came to a store that is silent here."""

    async def scenario(stage: Stage) -> None:
        stage.see(b1=1, b2=2, b3=3)
        stage.see(b1=1, b2=2)
        stage.etcd = None
        stage.others["b2"] = stage.reported(b1=1, b2=2, revision=3)
        stage.others["b3"] = stage.reported(b3=9)
        await unsure(stage)

    on_stage(scenario)


def test_of_brokers_that_are_gone_only_so_many_are_remembered() -> None:
    async def scenario(stage: Stage) -> None:
        for number in range(FORMER_MAX + 20):
            stage.see(b1=1, **{f"n{number}": number})
        assert len(stage.view._former) <= FORMER_MAX

    on_stage(scenario)


def test_a_proof_by_another_one_holds_as_of_when_that_one_had_it() -> None:
    here = ClusterSnapshot({"b1": Revision(1), "b2": Revision(2), "b3": Revision(3)}, Revision(3), inf)
    same = here._replace(proven_s_ago=2.0)
    assert proven_by_others(100.0, here, [same, None], []) == 98.0
    assert proven_by_others(100.0, here, [same._replace(proven_s_ago=PROOF_S), None], []) is None
    assert proven_by_others(100.0, here, [same._replace(proven_s_ago=inf)] * 2, []) == 100.0
    assert proven_by_others(100.0, here, [None, None], []) is None


def test_subscribers_receive_each_proof_with_the_time_without_one_before_it() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.view.verify()
        stage.etcd = None
        await asyncio.sleep(20.0)
        await unsure(stage)
        stage.etcd = stage.revisions
        await asyncio.sleep(1.0)
        await stage.view.verify()
        assert stage.after_s[0] == inf
        assert 20.0 < stage.after_s[1] < 25.0

    on_stage(scenario)


def test_a_caller_that_waits_when_the_view_ends_before_its_first_check_is_not_sure_at_once() -> None:
    async def scenario(stage: Stage, running: asyncio.Task[None]) -> None:
        waiting = asyncio.ensure_future(unsure(stage))
        virtual_loop().call_soon(running.cancel)  # after the waiter's first step, before the view's next one
        await asyncio.wait((running,))
        assert stage.asked_etcd == 0
        async with asyncio.timeout(0.0):
            await waiting

    until_the_view_ends(scenario)


def test_a_caller_that_waits_when_the_view_ends_between_two_checks_is_not_sure_at_once() -> None:
    async def scenario(stage: Stage, running: asyncio.Task[None]) -> None:
        stage.etcd = {"b1": Revision(7)}
        await unsure(stage)
        waiting = asyncio.ensure_future(unsure(stage))  # in the pause before the next look
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait((running,))
        async with asyncio.timeout(0.0):
            await waiting

    until_the_view_ends(scenario)


def test_a_caller_that_waits_when_the_view_ends_in_a_check_is_not_sure_at_once() -> None:
    async def scenario(stage: Stage, running: asyncio.Task[None]) -> None:
        stage.etcd = None
        waiting = asyncio.ensure_future(unsure(stage))
        await asyncio.sleep(ANSWER_S / 2)
        running.cancel()
        await asyncio.wait((running,))
        async with asyncio.timeout(0.0):
            await waiting

    until_the_view_ends(scenario)


def test_a_failing_view_wakes_its_waiters_and_raises_the_error_to_its_owner() -> None:
    async def scenario(stage: Stage, running: asyncio.Task[None]) -> None:
        def fails(after_s: float) -> None:
            raise AssertionError("a bug of a subscriber's")

        stage.view.subscribe(fails)
        waiting = asyncio.ensure_future(stage.view.verify())
        await asyncio.wait((running,))
        with pytest.raises(AssertionError, match="a bug"):
            await running
        await waiting  # the proof itself was good

    until_the_view_ends(scenario)


def test_a_proof_is_not_acted_on_once_the_view_has_ended() -> None:
    async def scenario(stage: Stage, running: asyncio.Task[None]) -> None:
        await stage.view.verify()
        running.cancel()
        await asyncio.wait((running,))

    until_the_view_ends(scenario)

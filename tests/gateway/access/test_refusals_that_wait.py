"""A broker that has not heard of a new key or right asks the metadata store before it refuses, with one read for all that wait."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.access.authorization import acting, check_topic
from gateway.access.permissions import KAFKA_CALLS, RequiredAccess
from gateway.access.refusals import REFUSALS_S, SETTLE_S, settle, settle_topic
from gateway.kafka.access.named_resources import GROUPS, TOPICS, permits_named, settle_named
from metadata.access.acl import Acl
from metadata.access.scram import SHA_256
from metadata.errors import NotAuthorized, Unauthenticated, Unavailable
from metadata.store import view_proof
from metadata.store.view_proof import ANONYMOUS_APART_S, REQUESTED_APART_S
from tests.gateway.access.test_stale_views import AGE_S, World, on_stage

OPEN = RequiredAccess(open=True)
ADMIN_CALL = RequiredAccess(cluster="admin")
JUNK = "tlk_" + "0b" * 8 + "_" + "5e" * 32


def now_s() -> float:
    return asyncio.get_running_loop().time()


def lagging(at: World, *, by_s: float) -> None:
    """Delays what the broker's watches deliver."""
    at.store.reported.clear()
    asyncio.get_running_loop().call_later(by_s, at.store.reported.set)


def count_reads(at: World) -> list[float]:
    """Returns the times of the reads of the whole view, from now on."""
    reads: list[float] = []
    read = at.store.range

    async def counted(prefix: str, **terms: Any) -> Any:
        if "quotas" in prefix:
            reads.append(now_s())
        return await read(prefix, **terms)

    at.store.range = counted  # type: ignore[method-assign]  # a counting range in its place
    return reads


def test_a_key_that_another_broker_has_just_created_waits_for_the_watch_in_place_of_a_refusal() -> None:
    async def scenario(at: World) -> None:
        lagging(at, by_s=0.5)
        made = await at.records.create_key("billing")
        began_s = now_s()
        call = await at.begin(made.text.reveal())
        assert call.principal == "billing"
        assert 0.4 < now_s() - began_s <= ANONYMOUS_APART_S

    on_stage(scenario)


def test_a_right_that_another_broker_has_just_granted_waits_for_the_watch_in_place_of_a_refusal() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        call = await at.begin(key)
        lagging(at, by_s=0.5)
        await at.records.add_acl(Acl(principal="billing", operation="read", resource="topic", name="invoices"))
        with acting(call):
            await settle_topic("invoices")
            check_topic("invoices")

    on_stage(scenario)


def test_a_right_on_the_cluster_that_was_just_granted_begins_the_call() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        lagging(at, by_s=0.5)
        await at.records.add_acl(Acl(principal="billing", operation="admin", resource="cluster", name="cluster"))
        await at.begin(key, needs=ADMIN_CALL)
        await at.records.add_acl(Acl(principal="other", operation="admin", resource="cluster", name="cluster"))

    on_stage(scenario)


def test_a_user_of_scram_that_was_just_stored_is_challenged_as_an_unknown_one_and_connects_again() -> None:
    async def scenario(at: World) -> None:
        lagging(at, by_s=0.5)
        await at.scram_user("clerk")
        assert at.guard.scram("clerk", SHA_256.name) is None
        assert await at.guard.is_replaced(None, "clerk", SHA_256.name), "the client's proof was of the false challenge"
        identity = at.guard.scram("clerk", SHA_256.name)
        assert identity is not None
        lagging(at, by_s=0.5)
        await at.scram_user("clerk", b"another password")
        assert await at.guard.is_replaced(identity, "clerk", SHA_256.name)

    on_stage(scenario)


@pytest.mark.parametrize("user", ["clerk", "unknown"])
def test_a_refusal_of_scram_takes_as_long_for_an_unknown_user_as_for_a_known_one(user: str) -> None:
    async def scenario(at: World) -> None:
        await at.scram_user("clerk")
        await asyncio.sleep(AGE_S)
        began_s = now_s()
        identity = at.guard.scram(user, SHA_256.name)
        assert now_s() == began_s, "the challenge waits for nothing"
        proofs = at.cache._proof._proven
        assert not await at.guard.is_replaced(identity, user, SHA_256.name)
        assert at.cache._proof._proven > proofs, "the refusal waits for a proof"

    on_stage(scenario)


def test_anonymous_callers_leave_half_of_the_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_proof, "WAITING_MAX", 10)

    async def scenario(at: World) -> None:
        at.store.cut()
        proof = at.cache._proof
        waiting = [asyncio.ensure_future(proof.catch_up(1.0, anonymous=True)) for _ in range(8)]
        await asyncio.sleep(0)
        assert proof._waiting == proof._anonymous == 5
        known = asyncio.ensure_future(proof.catch_up(1.0))
        await asyncio.sleep(0)
        assert proof._waiting == 6
        assert await asyncio.gather(*waiting, known) == [False] * 9
        assert proof._waiting == proof._anonymous == 0

    on_stage(scenario)


def test_a_permitted_call_waits_for_nothing_and_neither_does_a_probe_with_an_unknown_key() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        at.store.cut()
        began_s = now_s()
        call = await at.begin(key)
        await settle(call, "topic", ("orders",))
        call.check("topic", "orders")
        assert (await at.begin(JUNK, needs=OPEN)).caller is None
        assert now_s() == began_s

    on_stage(scenario)


@pytest.mark.parametrize("answers", [True, False], ids=["the watch is silent", "the store is silent"])
def test_a_refusal_that_cannot_be_proven_in_time_is_retryable_and_is_in_no_audit_log(answers: bool) -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        call = await at.begin(key)
        at.store.cut(answers=answers)
        await at.records.add_acl(Acl(principal="billing", operation="read", resource="topic", name="invoices"))
        began_s = now_s()
        with pytest.raises(Unavailable, match="whether it has heard of all API keys and rights"):
            await at.begin(JUNK)
        assert now_s() - began_s == pytest.approx(SETTLE_S)
        await settle(call, "topic", ("invoices",))
        with pytest.raises(Unavailable, match="whether it has heard of all API keys and rights"):
            call.check("topic", "invoices")
        assert not call.was_refused
        call.check("topic", "orders")
        at.store.mend()
        await asyncio.sleep(AGE_S / 2)
        await settle(call, "topic", ("invoices", "secrets"))
        call.check("topic", "invoices")
        with pytest.raises(NotAuthorized):
            call.check("topic", "secrets")

    on_stage(scenario)


def test_a_right_that_is_granted_after_a_refusal_counts_at_once() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        for topic in (f"t{number}" for number in range(20)):
            call = await at.begin(key)
            await settle(call, "topic", (topic,))
            with pytest.raises(NotAuthorized):
                call.check("topic", topic)
            lagging(at, by_s=0.01)
            await at.records.add_acl(Acl(principal="billing", operation="read", resource="topic", name=topic))
            again = await at.begin(key)
            await settle(again, "topic", (topic,))
            again.check("topic", topic)

    on_stage(scenario)


def test_many_unknown_keys_share_a_few_reads_and_leave_nothing_behind() -> None:
    async def scenario(at: World) -> None:
        reads = count_reads(at)
        began_s = now_s()

        async def ask(number: int) -> None:
            await asyncio.sleep(number / 1000)
            with pytest.raises(Unauthenticated):
                await at.begin(f"tlk_{number:016x}_" + "5e" * 32)

        await asyncio.gather(*(ask(number) for number in range(view_proof.WAITING_MAX // 2)))
        took_s = now_s() - began_s
        assert took_s < 1.0 + 2 * ANONYMOUS_APART_S
        assert len(reads) <= took_s / ANONYMOUS_APART_S + 2
        assert at.guard._authentication._known == {}
        assert at.cache._proof._waiting == 0
        reads.clear()
        await asyncio.sleep(AGE_S)
        assert len(reads) <= view_proof.ATTEMPTS + 1, "nothing was left that asks for reads"

    on_stage(scenario)


def test_slow_reads_of_the_store_are_asked_for_less_often() -> None:
    async def scenario(at: World) -> None:
        at.store.slow_s = 0.05  # four ranges
        reads = count_reads(at)
        ends_s = now_s() + 8

        async def ask() -> None:
            while now_s() < ends_s:
                with pytest.raises((Unauthenticated, Unavailable)):
                    await at.begin(JUNK)

        await asyncio.gather(*(ask() for _ in range(10)))
        assert len(reads) <= 8 / (view_proof.REQUESTED_APART * 4 * at.store.slow_s) + 2

    on_stage(scenario)


def test_refusals_beyond_those_that_may_wait_are_answered_at_once_and_leave_no_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_proof, "WAITING_MAX", 10)

    async def scenario(at: World) -> None:
        at.store.slow_s = 3.0
        began_s, ended_s = now_s(), list[float]()

        async def ask() -> None:
            with pytest.raises(Unavailable):
                await at.begin(JUNK)
            ended_s.append(now_s() - began_s)

        asking = [asyncio.ensure_future(ask()) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert len(ended_s) == 45
        asking[-1].cancel()
        await asyncio.wait(asking)
        assert max(ended_s) <= SETTLE_S + 0.01
        assert at.cache._proof._waiting == 0
        at.store.slow_s = 0.0
        await asyncio.sleep(AGE_S)
        with pytest.raises(Unauthenticated):
            await at.begin(JUNK)

    on_stage(scenario)


def test_a_cancelled_refusal_does_not_stop_the_others() -> None:
    async def scenario(at: World) -> None:
        lagging(at, by_s=0.5)
        made = await at.records.create_key("billing")
        first, second = (asyncio.ensure_future(at.begin(made.text.reveal())) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).principal == "billing"

    on_stage(scenario)


def test_the_names_of_one_request_share_a_proof() -> None:
    async def scenario(at: World) -> None:
        _, key = await at.key()
        call = await at.begin(key)
        began_s = now_s()
        for number in range(1_000):
            await settle(call, "topic", (f"t{number}",))
        assert now_s() - began_s <= REQUESTED_APART_S + 0.01
        assert call.settled_until_s <= now_s() + REFUSALS_S

    on_stage(scenario)


# ── Kafka ──


def test_each_kafka_call_that_needs_a_right_on_a_topic_or_group_lists_what_it_names() -> None:
    # A JoinGroup and the like name their group alone, DeleteGroups needs `read` of the topics that it forgets.
    without_topics = {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DeleteGroups", "ConsumerGroupDescribe"}
    assert {name for name, needs in KAFKA_CALLS.items() if needs.topic is not None} - without_topics == set(TOPICS)
    assert {name for name, needs in KAFKA_CALLS.items() if needs.group is not None} == set(GROUPS)


def test_a_kafka_request_waits_for_the_rights_on_all_that_it_names() -> None:
    from gateway.kafka.protocol.client_messages import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

    async def scenario(at: World) -> None:
        _, key = await at.key()
        topics = [OffsetFetchRequestTopics(name="", topic_id=bytes(15) + b"\1"), OffsetFetchRequestTopics(name="orders")]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], topics=None)
        call = await at.begin(key, needs=KAFKA_CALLS["OffsetFetch"])
        terms: tuple[Any, ...] = (call, "OffsetFetch", request, lambda topic_id: "invoices")
        assert not permits_named(*terms)
        lagging(at, by_s=0.5)
        for kind, name in (("group", "g"), ("topic", "invoices")):
            await at.records.add_acl(Acl(principal="billing", operation="read", resource=cast(Any, kind), name=name))
        await settle_named(*terms)
        assert permits_named(*terms)

    on_stage(scenario)

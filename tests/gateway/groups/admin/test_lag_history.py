"""The lag of a group over the last hour: begun by the first request, the same at each broker, kept where coordinators move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop

from gateway.broker.broker import Broker, wall_clock_ms
from gateway.groups.admin import lag_history, lag_samples
from gateway.groups.admin.lag_samples import GroupLagHistory
from gateway.proto import groups_pb2
from metadata.errors import TidelogError, Unavailable, UnknownGroup
from metadata.groups.model import NO_GENERATION, NO_INSTANCE, NO_MEMBER
from metadata.groups.offsets import CommittedOffset
from metadata.groups.settings import GroupSettings
from metadata.model import Partition, TopicPartition
from tests.gateway.http.groups.test_routes import produce
from tests.kit.gateway.access.guarded_broker import Guarded, bearer
from tests.kit.gateway.access.guarded_broker import serve as serve_guarded
from tests.kit.gateway.broker_cluster import Cluster, broker_cluster
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import NOW_MS, PATIENCE_S, SmallBroker, until

pytestmark = pytest.mark.slow

PATH = "/v1/groups/billing/lag-history"
INTERVAL_MS = 15_000


async def commit(client: Client, offset: int, *, topic: str = "orders", group: str = "billing") -> None:
    offsets = [{"topic": topic, "partition": 0, "offset": offset}]
    assert (await client.ask("POST", f"/v1/groups/{group}/offsets", json={"offsets": offsets})).status == 200


async def pass_an_interval(broker: SmallBroker) -> None:
    broker.passed_ms += INTERVAL_MS
    await broker.group_figures.refresh()


def test_nothing_is_sampled_before_the_first_request_and_then_at_each_refresh(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        await commit(client, 0)
        for _ in range(3):
            await pass_an_interval(broker)
        assert broker.lag_history._samples is None
        first = (await client.get(PATH)).json
        assert first["at_ms"] == [NOW_MS + 3 * INTERVAL_MS], "the present figures"
        assert (first["interval_ms"], first["age_ms"], first["silent_brokers"]) == (INTERVAL_MS, 0, {})
        await commit(client, 2)
        await pass_an_interval(broker)
        broker.passed_ms += 5_000
        found = (await client.get(PATH)).json
        assert found["at_ms"] == [NOW_MS + 3 * INTERVAL_MS, NOW_MS + 4 * INTERVAL_MS]
        assert found["lag_records"][0] - found["lag_records"][1] == 2
        assert [topic["topic"] for topic in found["topics"]] == ["orders"]
        assert found["topics"][0]["lag_records"] == found["lag_records"]
        assert found["age_ms"] == 5_000

    serve(tmp_path, scenario)


def test_sampling_ends_minutes_after_the_last_look_and_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await commit(client, 0)
        assert (await client.get(PATH)).json["at_ms"] == [], "no figures yet"
        await pass_an_interval(broker)
        monkeypatch.setattr(lag_samples, "WATCH_S", 0.0)
        await pass_an_interval(broker)
        monkeypatch.undo()
        found = (await client.get(PATH)).json
        assert found["at_ms"] == [NOW_MS + INTERVAL_MS]
        await pass_an_interval(broker)
        assert len((await client.get(PATH)).json["at_ms"]) == 2

    serve(tmp_path, scenario)


def test_a_group_that_is_not_there_has_no_history_and_is_not_watched(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        assert await client.refused(client.get(PATH)) == (404, "UNKNOWN_GROUP")
        assert await client.refused(client.get(f"{PATH}?limit=3")) == (400, "INVALID_ARGUMENT")
        assert (await client.ask("POST", PATH)).status == 405
        assert broker.lag_history._samples is None or "billing" not in broker.lag_history._samples
        await commit(client, 0)
        await pass_an_interval(broker)
        assert (await client.get(PATH)).json["lag_records"] == [0]
        assert (await client.ask("DELETE", "/v1/groups/billing")).status == 204
        assert (await client.get(PATH)).status == 404

    serve(tmp_path, scenario)


def test_a_group_with_a_partition_whose_end_is_unknown_has_no_sample(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        await produce(client, 9)
        await commit(client, 0)
        await client.get(PATH)
        await pass_an_interval(broker)
        await commit(client, 0, topic="single")
        single = TopicPartition(broker.topic_cache.get("single").id, Partition(0))
        broker.log.stop_leading(single)
        await pass_an_interval(broker)
        assert broker.group_figures.snapshot.partial == {"billing"}
        assert (await client.get(PATH)).json["at_ms"] == [NOW_MS + INTERVAL_MS]

    serve(tmp_path, scenario)


def test_the_history_has_the_rights_of_the_lag_itself(tmp_path: Path) -> None:
    async def scenario(broker: Guarded) -> None:
        for topic in ("orders", "salaries"):
            await broker.as_admin("POST", "/v1/topics", json={"name": topic, "partition_count": 1})
            await broker.as_admin("POST", f"/v1/topics/{topic}/records", json={"records": [{"value": 1}] * 5})
        offsets = [{"topic": topic, "partition": 0, "offset": 2} for topic in ("orders", "salaries")]
        await broker.as_admin("POST", "/v1/groups/billing/offsets", json={"offsets": offsets})
        await broker.allow("ann", "describe", "group", "billing")
        await broker.allow("ann", "describe", "topic", "orders")
        ann, bob = bearer(await broker.key("ann")), bearer(await broker.key("bob"))
        refused = await broker.http.ask("GET", PATH, headers=bob)
        assert (refused.status, refused.json["code"]) == (403, "PERMISSION_DENIED")
        assert (await broker.http.ask("GET", PATH, headers=ann)).json["lag_records"] == []
        await broker.broker._groups.figures.refresh()
        whole = await broker.as_admin("GET", PATH)
        assert (whole["lag_records"], [each["topic"] for each in whole["topics"]]) == ([6], ["orders", "salaries"])
        assert not whole["is_partial"]
        part = await broker.http.ask("GET", PATH, headers=ann)
        assert (part.json["lag_records"], [each["topic"] for each in part.json["topics"]]) == ([3], ["orders"])
        assert b"salaries" not in part.body
        assert part.json["is_partial"]
        await broker.allow("cleo", "describe", "group", "billing")
        await broker.allow("cleo", "describe", "topic", "*")
        every = (await broker.http.ask("GET", PATH, headers=bearer(await broker.key("cleo")))).json
        assert (every["lag_records"], every["is_partial"]) == ([6], False)
        described = (await broker.http.ask("GET", "/v1/groups/billing", headers=ann)).json
        assert described["lag_records"] == part.json["lag_records"][-1]

    # The figures are those of the test's own refresh, however long the set-up takes.
    serve_guarded(tmp_path, scenario, groups=GroupSettings(group_metrics_interval_ms=3_600_000))


# ── several brokers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def with_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    """Runs the scenario against three brokers that take samples in quick succession, of a group that has read a topic."""
    monkeypatch.setattr(lag_samples, "GAP_MIN_MS", 0)
    monkeypatch.setattr(lag_history, "EXCHANGE_S", 0.0)
    monkeypatch.setattr(lag_history, "ASK_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(lag_samples, "SAMPLES_MAX", 1_000_000)  # no sample makes room, however long the scenario takes

    async def run() -> None:
        groups = GroupSettings(group_metrics_interval_ms=50)
        async with asyncio.timeout(PATIENCE_S), broker_cluster(tmp_path, 3, groups=groups) as cluster:
            topic = await cluster.brokers[0].create_topic("orders", 1)
            at = TopicPartition(topic.id, Partition(0))
            await cluster.led(at)
            offsets = {at: CommittedOffset(offset=0, committed_at_ms=0)}
            await cluster.brokers[0].groups.commit("billing", NO_MEMBER, NO_INSTANCE, NO_GENERATION, offsets)
            await scenario(cluster)

    uvloop.run(run())


def has_samples(count: int, history: GroupLagHistory) -> bool:
    return len(history.at_ms) >= count


async def sampled(broker: Broker, is_enough: Callable[[GroupLagHistory], bool]) -> GroupLagHistory:
    while True:
        try:
            history = (await broker.lag_history.read("billing")).history
        except UnknownGroup:
            raise
        except TidelogError:  # between two coordinators
            history = GroupLagHistory()
        if is_enough(history):
            return history
        await asyncio.sleep(0.01)


def coordinator_id(broker: Broker) -> str:
    """Returns the coordinator of the group in the view of a broker; empty between two."""
    try:
        return broker.groups.coordinator("billing").broker_id
    except TidelogError:
        return ""


def coordinator_and_others(cluster: Cluster) -> tuple[Broker, list[Broker]]:
    found = coordinator_id(cluster.brokers[0])
    [coordinator] = [broker for broker in cluster.brokers if broker.broker_id == found]
    return coordinator, [broker for broker in cluster.brokers if broker is not coordinator]


def test_any_broker_shows_the_history_that_another_one_has_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        shown: set[int] = set()
        for broker in cluster.brokers * 2:
            history = await sampled(broker, partial(has_samples, len(shown) + 2))
            assert shown <= set(history.at_ms), "what the broker before has shown"
            assert history.topics[0].topic == "orders"
            shown = set(history.at_ms)

    with_three(tmp_path, monkeypatch, scenario)


def test_a_history_goes_on_when_its_coordinator_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, others = coordinator_and_others(cluster)
        before = await sampled(others[0], partial(has_samples, 3))
        await coordinator.drain(coordinator.broker_id, draining=True)
        await until(lambda: all(coordinator_id(each) not in {"", coordinator.broker_id} for each in cluster.brokers))
        moved_ms = wall_clock_ms()
        after = await sampled(others[1], lambda history: bool(history.at_ms) and history.at_ms[-1] > moved_ms)
        assert set(before.at_ms) <= set(after.at_ms)

        def has_later_sample(broker: Broker) -> bool:
            own = broker.lag_history._begun().history("billing")
            return bool(own.at_ms) and own.at_ms[-1] > moved_ms

        # The next coordinator watches the group as well.
        await until(lambda: any(has_later_sample(each) for each in others if each.broker_id == coordinator_id(others[1])))

    with_three(tmp_path, monkeypatch, scenario)


def test_a_history_outlives_its_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, others = coordinator_and_others(cluster)
        before = await sampled(others[0], partial(has_samples, 3))
        coordinator.stop()
        await until(lambda: coordinator.broker_id not in others[1].view.brokers.brokers)
        after = await sampled(
            others[1], lambda history: set(before.at_ms) <= set(history.at_ms) and history.at_ms[-1] > before.at_ms[-1] + 100
        )
        assert after.records[-1] == before.records[-1]

    with_three(tmp_path, monkeypatch, scenario)


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, others = coordinator_and_others(cluster)
        before = await sampled(others[0], partial(has_samples, 2))
        answer = coordinator.lag_history.answer

        async def silent(request: groups_pb2.ListLagSamplesRequest) -> groups_pb2.ListLagSamplesResponse:
            await asyncio.sleep(PATIENCE_S)
            return await answer(request)

        monkeypatch.setattr(coordinator.lag_history, "answer", silent)
        monkeypatch.setattr(lag_history, "ASK_TIMEOUT_S", 1.0)
        found = await others[0].lag_history.read("billing")
        while list(found.silent) != [coordinator.broker_id]:  # on a busy machine the other one is late at times, too
            found = await others[0].lag_history.read("billing")
        assert set(before.at_ms) <= set(found.history.at_ms)

    with_three(tmp_path, monkeypatch, scenario)


def test_a_history_that_is_held_is_shown_though_the_coordinator_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, others = coordinator_and_others(cluster)
        before = await sampled(others[0], partial(has_samples, 2))

        async def silent(_: groups_pb2.DescribeGroupRequest) -> groups_pb2.GroupDescription:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(others[0].lag_history, "_describe", silent)
        monkeypatch.setattr(lag_history, "ASK_TIMEOUT_S", 0.1)
        found = await others[0].lag_history.read("billing")
        assert set(before.at_ms) <= set(found.history.at_ms)

    with_three(tmp_path, monkeypatch, scenario)


def test_brokers_are_asked_for_samples_in_no_reader_s_name_and_their_errors_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader: ContextVar[str] = ContextVar("reader", default="")
    asked_by: list[str] = []

    async def scenario(cluster: Cluster) -> None:
        asking = cluster.brokers[0].lag_history
        await sampled(cluster.brokers[0], partial(has_samples, 1))

        async def fails(*_: object, **__: object) -> None:
            asked_by.append(reader.get())
            await asyncio.sleep(0)
            raise Unavailable("what only the first reader may know")

        monkeypatch.setattr(asking, "_peers", SimpleNamespace(call=fails))
        reader.set("ann")
        found = await asking.read("billing")
        assert asked_by == ["", ""]
        assert found.silent == {each.broker_id: lag_history.NOT_ANSWERED for each in cluster.brokers[1:]}

    with_three(tmp_path, monkeypatch, scenario)

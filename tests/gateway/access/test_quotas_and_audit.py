"""Quotas throttle one principal and no other; the audit log records refusals and changes."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from gateway.access.audit_log import LINES_MAX, AuditLine, AuditLog
from gateway.access.authorization import AuthorizedCall, CallOrigin
from gateway.access.permissions import GRPC_CALLS, HTTP_CALLS, KAFKA_CALLS, RequiredAccess
from gateway.access.quotas import METERS_MAX, PrincipalQuotas, StreamUsage
from gateway.grpc.calls import own_pace
from gateway.grpc.guard import _Metered
from gateway.proto import admin_pb2, log_pb2
from gateway.proto.status import from_status
from metadata.access.quota import Quota
from metadata.errors import InvalidArgument, NotAuthorized, Throttled
from tests.gateway.integration.test_both_listeners import append
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve
from tests.kit.metadata.stores import until
from tests.simulation.virtual_loop import run

WRITE = RequiredAccess(topic="write", bytes_in=True)
READ = RequiredAccess(topic="read", bytes_out=True)
HEARTBEAT = RequiredAccess(group="read")


class Held:
    def __init__(self, *quotas: Quota) -> None:
        self.held = {quota.principal: quota for quota in quotas}

    def quota(self, principal: str) -> Quota | None:
        return self.held.get(principal) or self.held.get("*")


def test_a_principal_over_its_quota_receives_the_time_to_retry() -> None:
    now_s = 0.0
    quotas = PrincipalQuotas(Held(Quota(principal="a", bytes_in_per_second=100, requests_per_second=2)), lambda: now_s)
    assert quotas.meter("b") is None
    meter = quotas.meter("a")
    assert meter is not None
    meter.begin(WRITE)
    meter.add_bytes_in(350)
    with pytest.raises(Throttled) as refused:
        meter.begin(WRITE)
    assert refused.value.retry_after_s == pytest.approx(2.5)
    assert "bytes_in_per_second" in refused.value.message
    now_s = 2.5
    for _ in range(3):
        meter.begin(WRITE)
    with pytest.raises(Throttled):
        meter.begin(WRITE)
    assert quotas.meter("a") is meter


def test_a_call_waits_only_for_the_limits_that_it_counts_for() -> None:
    quota = Quota(principal="a", bytes_in_per_second=100, bytes_out_per_second=100, requests_per_second=50)
    meter = PrincipalQuotas(Held(quota), lambda: 0.0).meter("a")
    assert meter is not None
    assert meter.charge(READ, bytes_in=1_000, bytes_out=8_000) == pytest.approx(79)
    assert meter.charge(WRITE, bytes_in=50, bytes_out=1_000) == 0
    assert meter.charge(HEARTBEAT, bytes_in=1_000, bytes_out=1_000) == 0
    meter.begin(HEARTBEAT)
    meter.begin(WRITE)
    with pytest.raises(Throttled) as refused:
        meter.begin(READ)
    assert "bytes_out_per_second" in refused.value.message
    for _ in range(50):
        meter.add_request()
    with pytest.raises(Throttled):
        meter.begin(HEARTBEAT)


def test_calls_that_write_and_read_records_count_bytes_and_no_others() -> None:
    rows: dict[str, RequiredAccess] = {f"Kafka {name}": needs for name, needs in KAFKA_CALLS.items()}
    rows |= {name.rpartition("/")[2]: needs for name, needs in GRPC_CALLS.items()}
    rows |= {f"{method} {path}": needs for (method, path), needs in HTTP_CALLS.items()}
    assert {name for name, needs in rows.items() if needs.bytes_in} == {
        "Kafka Produce",
        "Produce",
        "ProduceStream",
        "POST /v1/topics/{topic}/records",
    }
    assert {name for name, needs in rows.items() if needs.bytes_out} == {
        "Kafka Fetch",
        "Fetch",
        "Consume",
        "GET /v1/topics/{topic}/records",
        "GET /v1/topics/{topic}/partitions/{partition}/records",
        "GET /v1/groups/{group}/members/{member_id}/records",
    }


def test_a_quota_that_was_only_read_again_keeps_what_its_principal_owes() -> None:
    held = Held(Quota(principal="a", bytes_in_per_second=10))
    quotas = PrincipalQuotas(held, lambda: 0.0)
    meter = quotas.meter("a")
    held.held["a"] = Quota(principal="a", bytes_in_per_second=10)
    assert quotas.meter("a") is meter


def test_a_quota_that_changes_holds_at_once_and_few_principals_are_remembered() -> None:
    held = Held(Quota(principal="*", requests_per_second=1))
    quotas = PrincipalQuotas(held, lambda: 0.0)
    first = quotas.meter("first")
    for number in range(METERS_MAX):
        quotas.meter(str(number))
    assert quotas.meter("first") is not first
    held.held["first"] = Quota(principal="first", requests_per_second=50)
    changed = quotas.meter("first")
    assert changed is not None
    assert changed.quota.requests_per_second == 50


def test_a_stream_waits_for_as_long_as_it_owes_and_hears_of_a_new_quota() -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        held = Held()
        quotas = PrincipalQuotas(held, clock)
        flow = StreamUsage(lambda: quotas.meter("a"), WRITE)
        await flow.wait_to_send()
        began_s = clock()
        held.held["a"] = Quota(principal="a", bytes_in_per_second=10)
        flow.add_bytes_in(1_010)
        await flow.wait_to_receive()
        assert clock() == began_s
        await flow.wait_to_send()
        assert clock() - began_s == pytest.approx(100)
        flow.add_bytes_in(100_000)
        held.held["a"] = Quota(principal="a", bytes_in_per_second=1_000_000)
        began_s = clock()
        await flow.wait_to_send()
        assert clock() == began_s

    run(scenario())


def test_a_stream_that_paces_itself_writes_what_is_urgent_at_once() -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        quotas = PrincipalQuotas(Held(Quota(principal="a", bytes_out_per_second=10)), clock)
        written: list[bytes] = []

        async def write(message: bytes) -> None:
            written.append(message)

        context: Any = SimpleNamespace(write=write)
        assert own_pace(context) is None
        metered: Any = _Metered(context, StreamUsage(lambda: quotas.meter("a"), READ))
        wait = own_pace(metered)
        assert wait is not None
        await wait()
        for message in (b"x" * 103, b"revoked"):
            await metered.write(message)
        assert (written[1:], clock()) == ([b"revoked"], 0)
        await wait()
        assert clock() == pytest.approx(10)

    run(scenario())


@pytest.mark.slow
def test_both_listeners_throttle_only_the_principal_that_is_over_its_quota(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        for principal in ("greedy", "modest"):
            await at.allow(principal, "all", "topic", "orders")
        greedy, modest = await at.key("greedy"), await at.key("modest")
        await at.as_admin("POST", "/v1/quotas", json={"principal": "greedy", "bytes_in_per_second": 10, "bytes_out_per_second": 10})
        records: dict[str, Any] = {"json": {"records": [{"value": "x" * 2_000}]}}
        path = "/v1/topics/orders/records"
        assert (await at.http.ask("POST", path, headers=bearer(greedy), **records)).status == 200
        refused = await at.http.ask("POST", path, headers=bearer(greedy), **records)
        assert (refused.status, refused.json["code"]) == (429, "THROTTLED")
        assert 150 <= int(refused.headers["retry-after"]) <= 250
        with pytest.raises(Throttled) as throttled:
            await at.call("/tidelog.v1.Log/Produce", append("orders"), greedy)
        assert 100 < throttled.value.retry_after_s < 250
        assert (await at.http.ask("POST", path, headers=bearer(modest), **records)).status == 200
        await at.as_admin("DELETE", "/v1/quotas?principal=greedy")
        await at.call("/tidelog.v1.Log/Produce", append("orders"), greedy)
        await at.as_admin("POST", "/v1/quotas", json={"principal": "greedy", "bytes_out_per_second": 10})
        fetch = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="orders")])
        assert len(await at.call("/tidelog.v1.Log/Fetch", fetch, greedy)) > 2_000
        with pytest.raises(Throttled):
            await at.call("/tidelog.v1.Log/Fetch", fetch, greedy)

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_stream_over_its_quota_waits_in_place_of_an_error(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        await at.allow("greedy", "all", "topic", "orders")
        await at.as_admin("POST", "/v1/quotas", json={"principal": "greedy", "requests_per_second": 1})
        key = await at.key("greedy")
        stream: Any = at.channel.stream_stream("/tidelog.v1.Log/ProduceStream")(metadata=(("authorization", f"Bearer {key}"),))
        for _ in range(3):
            await stream.write(append("orders").SerializeToString())
        for _ in range(3):
            assert log_pb2.ProduceResponse.FromString(await stream.read()).results[0].placements
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_an_answer_on_a_stream_says_by_which_quota_the_next_message_waits(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        await at.allow("greedy", "all", "topic", "orders")
        await at.as_admin("POST", "/v1/quotas", json={"principal": "greedy", "bytes_in_per_second": 10})
        key = await at.key("greedy")
        stream: Any = at.channel.stream_stream("/tidelog.v1.Log/ProduceStream")(metadata=(("authorization", f"Bearer {key}"),))
        await stream.write(log_pb2.ProduceRequest().SerializeToString())
        assert not log_pb2.ProduceResponse.FromString(await stream.read()).HasField("throttled")
        await stream.write(append("orders").SerializeToString())
        answer = log_pb2.ProduceResponse.FromString(await stream.read())
        assert answer.results[0].placements
        throttled = from_status(answer.throttled)
        assert isinstance(throttled, Throttled)
        assert throttled.message == "greedy has used up its bytes_in_per_second of 10 at this broker"
        assert throttled.retry_after_s > 1
        stream.cancel()

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_changes_and_refusals_are_audited_with_principal_and_resource(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        assert stat.S_IMODE(at.audit_file.stat().st_mode) == 0o600
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        key = await at.key("billing")
        created = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="more", partition_count=1))
        with pytest.raises(NotAuthorized):
            await at.call("/tidelog.v1.Topics/CreateTopic", created, key)
        await at.call("/tidelog.v1.Topics/CreateTopic", created, ADMIN_KEY)
        await at.http.ask("POST", "/v1/topics", headers=bearer(ADMIN_KEY), json={"name": "orders"})
        request = {**bearer(key), "x-request-id": "mine-1"}
        await at.http.ask("DELETE", "/v1/topics/orders", headers=request)
        lines = [
            (line["outcome"], line.get("principal"), line["listener"], line["call"], line.get("resources"))
            for line in await at.audited()
        ]
        assert lines == [
            ("ok", "admin", "http", "POST /v1/topics", ["topic:orders"]),
            ("ok", "admin", "http", "POST /v1/keys", ["cluster:cluster", "principal:billing", f"key:{key.split('_')[1]}"]),
            ("PERMISSION_DENIED", "billing", "grpc", "/tidelog.v1.Topics/CreateTopic", ["topic:more"]),
            ("ok", "admin", "grpc", "/tidelog.v1.Topics/CreateTopic", ["topic:more"]),
            ("ALREADY_EXISTS", "admin", "http", "POST /v1/topics", ["topic:orders"]),
            ("PERMISSION_DENIED", "billing", "http", "DELETE /v1/topics/{topic}", ["topic:orders"]),
        ]
        last = (await at.audited())[-1]
        assert (last["request_id"], last["address"], last["broker"]) == ("mine-1", "127.0.0.1", "broker-1")
        assert last["credential"] == f"API key {key.split('_')[1]}"

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_changes_of_access_and_drains_are_audited_with_what_they_changed(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key_id = (await at.key("billing")).split("_")[1]
        await at.as_admin("DELETE", f"/v1/keys/{key_id}")
        acl_id = await at.allow("billing", "read", "topic", "orders-", pattern="prefix")
        await at.as_admin("DELETE", f"/v1/acls/{acl_id}")
        await at.http.ask("DELETE", f"/v1/acls/{acl_id}", headers=bearer(ADMIN_KEY))
        await at.as_admin("POST", "/v1/quotas", json={"principal": "billing", "requests_per_second": 9})
        await at.as_admin("DELETE", "/v1/quotas?principal=billing")
        await at.http.ask("POST", "/v1/brokers/broker-1/drain", headers=bearer(ADMIN_KEY))
        lines = await at.audited()
        assert all(each["resources"][0] == "cluster:cluster" for each in lines)
        acl = "acl:billing allow read topics with prefix:orders-"
        assert [each["resources"][1:] for each in lines] == [
            ["principal:billing", f"key:{key_id}"],
            [f"key:{key_id}", "principal:billing"],
            [acl],
            [acl],
            [f"acl:{acl_id}"],
            ["quota:billing"],
            ["quota:billing"],
            ["broker:broker-1"],
        ]

    serve(tmp_path, scenario)


def test_a_change_of_many_resources_says_how_many_it_does_not_list() -> None:
    admin: Any = SimpleNamespace(is_peer=False, check_counts=lambda: None, may=lambda *_: True)
    call = AuthorizedCall(admin, RequiredAccess(topic="admin", changes=True), CallOrigin("http", "", ""), refusal=lambda *_: None)
    for number in range(20):
        call.check("topic", f"t{number}")
    assert call.resources == tuple(f"topic:t{number}" for number in range(20))
    for number in range(37):
        call.check("topic", f"t{number}")
    assert call.resources[19:] == ("topic:t19", "+17 more")


def test_audit_lines_beyond_the_bound_are_dropped_counted_and_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        audit = AuditLog(str(tmp_path / "audit"), broker_id="b", now_ms=lambda: 0)
        for number in range(LINES_MAX + 7):
            audit.record(AuditLine(outcome="ok", principal="a", request_id=str(number)))
        assert audit.counts.dropped == 7
        writing = asyncio.ensure_future(audit.run())
        await until(lambda: not audit.waiting)
        audit.record(AuditLine(outcome="ok", request_id="last"))
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())
    lines = (tmp_path / "audit").read_text().splitlines()
    assert len(lines) == LINES_MAX + 2
    assert sum('"dropped":7' in line for line in lines) == 1
    assert '"last"' in lines[-1]


def test_an_audit_file_that_was_moved_away_is_created_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        audit = AuditLog(str(tmp_path / "audit"), broker_id="b", now_ms=lambda: 0)
        writing = asyncio.ensure_future(audit.run())
        for name in ("first", "second"):
            audit.record(AuditLine(outcome="ok", request_id=name))
            await until(lambda: not audit.waiting)
            (tmp_path / "audit").rename(tmp_path / name)
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())
    assert '"first"' in (tmp_path / "first").read_text()
    assert '"second"' in (tmp_path / "second").read_text()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("first", "second")] == [0o600] * 2


def test_a_folder_that_is_gone_costs_lines_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()

    async def scenario() -> None:
        audit = AuditLog(str(folder / "audit"), broker_id="b", now_ms=lambda: 0)
        writing = asyncio.ensure_future(audit.run())
        shutil.rmtree(folder)
        audit.record(AuditLine(outcome="ok", request_id="lost"))
        await until(lambda: audit.counts.dropped == 1)
        folder.mkdir()
        audit.record(AuditLine(outcome="ok", request_id="kept"))
        await until(lambda: audit.counts.written == 1)
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())
    assert '"kept"' in (folder / "audit").read_text()
    assert "audit log lines lost" in caplog.text


def test_a_full_disk_is_counted_as_lines_that_are_lost() -> None:
    async def scenario() -> None:
        audit = AuditLog("/dev/full", broker_id="b", now_ms=lambda: 0)
        writing = asyncio.ensure_future(audit.run())
        audit.record(AuditLine(outcome="ok"))
        await until(lambda: audit.counts.dropped == 1)
        assert audit.counts.written == 0
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())


def test_no_text_of_a_client_ends_the_log_or_makes_a_line_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        audit = AuditLog(str(tmp_path / "audit"), broker_id="b", now_ms=lambda: 0)
        writing = asyncio.ensure_future(audit.run())
        audit.record(AuditLine(outcome="ok", principal="half \ud800", resources=('topic:a"}\n{"outcome":"ok"\r\x00\x85',)))
        await until(lambda: not audit.waiting)
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())
    [line] = (tmp_path / "audit").read_text().split("\n")[:-1]
    assert json.loads(line)["principal"] == "half ?"


def test_audit_events_of_many_unauthenticated_clients_leave_room_for_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        audit = AuditLog(str(tmp_path / "audit"), broker_id="b", now_ms=lambda: 0)
        for _ in range(2 * LINES_MAX):
            audit.record(AuditLine(outcome="UNAUTHENTICATED"))
        assert audit.counts.dropped == 2 * LINES_MAX - LINES_MAX // 2
        audit.record(AuditLine(outcome="ok", principal="admin"))
        writing = asyncio.ensure_future(audit.run())
        await until(lambda: not audit.waiting)
        writing.cancel()
        await asyncio.wait([writing])

    asyncio.run(scenario())
    assert '"admin"' in (tmp_path / "audit").read_text()


@pytest.mark.slow
def test_validate_only_requests_are_audited_as_such(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        await at.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        await at.as_admin("POST", "/v1/keys?validate_only=true", json={"principal": "billing"})
        await at.as_admin("DELETE", "/v1/topics/orders?validate_only=true")
        deleted = log_pb2.DeleteRecordsRequest(topic="orders", before_offset=0, validate_only=True)
        await at.call("/tidelog.v1.Log/DeleteRecords", deleted, ADMIN_KEY)
        assert [line.get("validate_only", False) for line in await at.audited()] == [False, True, True, True]
        reported = (await at.http.get("/metrics", **bearer(ADMIN_KEY))).body.decode()
        assert 'tidelog_audit_lines_total{outcome="written"} 4.0' in reported
        assert 'tidelog_audit_lines_total{outcome="dropped"} 0.0' in reported

    serve(tmp_path, scenario)


@pytest.mark.slow
def test_a_probe_is_answered_whatever_its_principal_has_used(tmp_path: Path) -> None:
    async def scenario(at: Guarded) -> None:
        key = await at.key("greedy")
        await at.as_admin("POST", "/v1/quotas", json={"principal": "greedy", "requests_per_second": 1})
        while (await at.http.get("/v1/brokers", **bearer(key))).status != 429:
            pass
        assert (await at.http.get("/livez", **bearer(key))).status == 200

    serve(tmp_path, scenario)


def test_an_audit_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        AuditLog(str(tmp_path / "nowhere" / "audit"), broker_id="b", now_ms=lambda: 0)

"""ACLs, quotas and rights through Kafka's protocol, at a real broker with authentication, through real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.proto import groups_pb2
from tests.gateway.kafka.test_group_admin import committed, joined, with_brokers
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, bearer, serve
from tests.kit.gateway.broker_cluster import Cluster
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller, kafka_caller_as

pytestmark = pytest.mark.slow

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
DENY, ALLOW = 2, 3
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(2, 9)
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
FIELDS = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
Row = tuple[int, str, int, str, str, int, int]


def guarded(folder: Path, scenario: Callable[[Guarded], Awaitable[None]]) -> None:
    serve(folder, scenario, kafka="127.0.0.1:0")


def acl(
    kind: int,
    name: str,
    operation: int,
    *,
    pattern: int = LITERAL,
    principal: str = "User:billing",
    host: str = "*",
    permission: int = ALLOW,
) -> Row:
    return kind, name, pattern, principal, host, operation, permission


async def create(client: KafkaCaller, *rows: Row, version: int = 3) -> list[int]:
    answer = await client.ask("CreateAcls", version, creations=[dict(zip(FIELDS, row, strict=True)) for row in rows])
    return [each.error_code for each in answer.results]


def filtered(
    kind: int = ANY,
    name: str | None = None,
    pattern: int = ANY,
    principal: str | None = None,
    host: str | None = None,
    operation: int = ANY,
    permission: int = ANY,
) -> dict[str, Any]:
    return {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": principal,
        "host_filter": host,
        "operation": operation,
        "permission_type": permission,
    }


async def described(client: KafkaCaller, version: int = 3, **wanted: Any) -> set[Row]:
    answer = await client.ask("DescribeAcls", version, **filtered(**wanted))
    assert answer.error_code == 0
    return {
        (each.resource_type, each.resource_name, each.pattern_type, row.principal, row.host, row.operation, row.permission_type)
        for each in answer.resources
        for row in each.acls
    }


# ── ACLs ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_acls_that_are_described_can_be_created_again_and_make_the_same_bindings(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        rows = {
            acl(TOPIC, "orders", READ),
            acl(TOPIC, "orders-", WRITE, pattern=PREFIXED),
            acl(TOPIC, "*", DESCRIBE, principal="User:*"),
            acl(TOPIC, "secret", ALL, permission=DENY),
            acl(TOPIC, "orders", ALTER),
            acl(TOPIC, "team-", CREATE, pattern=PREFIXED),
            acl(GROUP, "g", READ),
            acl(GROUP, "g", DELETE),
            acl(CLUSTER, "kafka-cluster", ALTER),
            acl(CLUSTER, "kafka-cluster", CREATE),
            acl(CLUSTER, "kafka-cluster", IDEMPOTENT_WRITE),
        }
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            for version in (1, 2, 3):
                assert await create(client, *rows, version=version) == [0] * len(rows)
            bindings = (await cluster.as_admin("GET", "/v1/acls"))["acls"]
            assert len(bindings) == len(rows)
            found = await described(client, 1)
            assert found == await described(client, 3)
            assert found - rows == {
                acl(TOPIC, "*", DESCRIBE_CONFIGS, principal="User:*"),
                acl(TOPIC, "orders", DELETE),
                acl(TOPIC, "orders", ALTER_CONFIGS),
                acl(CLUSTER, "kafka-cluster", ALTER_CONFIGS),
            }
            assert rows < found
            assert await create(client, *found) == [0] * len(found)
            assert (await cluster.as_admin("GET", "/v1/acls"))["acls"] == bindings

    guarded(tmp_path, scenario)


def test_a_filter_finds_acls_by_each_of_its_fields(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        literal, prefixed = acl(TOPIC, "orders", READ), acl(TOPIC, "ord", READ, pattern=PREFIXED, principal="User:till")
        every, denied = acl(TOPIC, "*", WRITE), acl(GROUP, "orders", READ, permission=DENY)
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            await create(client, literal, prefixed, every, denied)
            assert await described(client) == {literal, prefixed, every, denied}
            assert await described(client, kind=GROUP) == {denied}
            assert await described(client, name="orders") == {literal, denied}
            assert await described(client, name="orders", pattern=LITERAL, kind=TOPIC) == {literal}
            assert await described(client, name="orders", pattern=MATCH, kind=TOPIC) == {literal, prefixed, every}
            assert await described(client, pattern=PREFIXED) == {prefixed}
            assert await described(client, principal="User:till") == {prefixed}
            assert await described(client, host="*", operation=WRITE) == {every}
            assert await described(client, host="10.0.0.1") == set()
            assert await described(client, permission=DENY) == {denied}
            assert await described(client, kind=TRANSACTIONAL_ID) == set()

    guarded(tmp_path, scenario)


def test_an_acl_that_stands_for_no_binding_is_refused_alone_and_says_why(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        wrong = [
            acl(TRANSACTIONAL_ID, "t", WRITE),
            acl(7, "billing", DESCRIBE),
            acl(TOPIC, "orders", READ, host="10.0.0.1"),
            acl(TOPIC, "orders", READ, principal="Group:billing"),
            acl(TOPIC, "orders", READ, pattern=MATCH),
            acl(TOPIC, "orders", READ, permission=ANY),
            acl(TOPIC, "orders", ANY),
            acl(TOPIC, "", READ),
            acl(GROUP, "g", WRITE),
            acl(CLUSTER, "other", ALTER),
            acl(GROUP, "g", CREATE),
            acl(CLUSTER, "kafka-cluster", CLUSTER_ACTION),
        ]
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            assert await create(client, *wrong, acl(TOPIC, "orders", READ)) == [42] * len(wrong) + [0]
            assert await described(client) == {acl(TOPIC, "orders", READ)}
            answer = await client.ask("CreateAcls", 3, creations=[dict(zip(FIELDS, wrong[0], strict=True))])
            assert answer.results[0].error_message.startswith("transactional ids have no ACLs")

    guarded(tmp_path, scenario)


def test_delete_acls_returns_every_operation_that_the_deleted_binding_implied(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            await create(client, acl(TOPIC, "orders", ALTER), acl(TOPIC, "orders", READ), acl(GROUP, "g", READ))
            filters = [
                filtered(kind=TOPIC, operation=DELETE),
                filtered(kind=TOPIC, name="nothing"),
                filtered(kind=TOPIC, operation=ALTER),
            ]
            answer = await client.ask("DeleteAcls", 3, filters=filters)
            assert [each.error_code for each in answer.filter_results] == [0, 0, 0]
            assert [sorted(row.operation for row in each.matching_acls) for each in answer.filter_results] == [
                [DELETE, ALTER, ALTER_CONFIGS],
                [],
                [],
            ]
            assert await described(client) == {acl(TOPIC, "orders", READ), acl(GROUP, "g", READ)}
            for version in (1, 2):
                await client.ask("DeleteAcls", version, filters=[filtered(kind=GROUP)])
            assert await described(client) == {acl(TOPIC, "orders", READ)}

    guarded(tmp_path, scenario)


def test_rights_that_kafka_acls_adds_for_a_producer_are_removed_by_the_same_filters_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        producer = [acl(TOPIC, "team-", operation, pattern=PREFIXED) for operation in (WRITE, DESCRIBE, CREATE)]
        everywhere = acl(CLUSTER, "kafka-cluster", CREATE)
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            await create(client, *producer, everywhere, acl(TOPIC, "team-", ALTER, pattern=PREFIXED))
            assert await described(client, operation=CREATE) == {producer[2], everywhere}
            for row in (*producer, everywhere):
                kind, name, pattern, principal, host, operation, permission = row
                asked = filtered(kind, name, pattern, principal, host, operation, permission)
                [result] = (await client.ask("DeleteAcls", 3, filters=[asked])).filter_results
                assert (result.error_code, operation in {gone.operation for gone in result.matching_acls}) == (0, True)
            left = {acl(TOPIC, "team-", operation, pattern=PREFIXED) for operation in (DELETE, ALTER, ALTER_CONFIGS)}
            assert await described(client) == left

    guarded(tmp_path, scenario)


def test_acls_are_in_force_when_the_call_returns_and_in_the_audit_log(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        key = await cluster.key("billing")
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as admin, kafka_caller_as(cluster.broker, key) as billing:
            asked = {"groups": ["g"]}
            assert (await billing.ask("DescribeGroups", 5, **asked)).groups[0].error_code == 30
            assert await create(admin, acl(GROUP, "g", DESCRIBE), acl(GROUP, "g", WRITE)) == [0, 42]
            assert (await billing.ask("DescribeGroups", 5, **asked)).groups[0].error_code == 0
            refused = await create(billing, acl(GROUP, "g", READ))
            assert refused == [31]
            answer = await billing.ask("DescribeAcls", 3, **filtered())
            assert answer.error_code == 31
            [result] = (await billing.ask("DeleteAcls", 3, filters=[filtered()])).filter_results
            assert (result.error_code, list(result.matching_acls)) == (31, [])
            reported = [
                (each["principal"], each["call"], each["outcome"])
                for each in await cluster.audited()
                if each["listener"] == "kafka"
            ]
            assert reported == [
                ("billing", "DescribeGroups", "PERMISSION_DENIED"),
                ("admin", "CreateAcls", "ok"),
                ("admin", "CreateAcls", "REJECTED"),
                ("billing", "CreateAcls", "PERMISSION_DENIED"),
                ("billing", "DescribeAcls", "PERMISSION_DENIED"),
                ("billing", "DeleteAcls", "PERMISSION_DENIED"),
            ]

    guarded(tmp_path, scenario)


def test_without_authentication_there_are_no_acls(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with kafka_caller(cluster.brokers[0]) as client:
            answer = await client.ask("DescribeAcls", 3, **filtered())
            assert (answer.error_code, answer.error_message) == (54, "this broker runs without authentication, and so without ACLs")
            assert await create(client, acl(TOPIC, "orders", READ)) == [54]
            answer = await client.ask("DeleteAcls", 3, filters=[filtered()])
            assert [each.error_code for each in answer.filter_results] == [54]

    with_brokers(tmp_path, scenario)


# ── rights to groups ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_that_the_caller_may_not_see_are_not_listed_nor_changed(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        key = await cluster.key("billing")
        await cluster.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        await cluster.allow("billing", "describe", "group", "seen")
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as admin, kafka_caller_as(cluster.broker, key) as billing:
            for group in ("seen", "hidden"):
                await committed(admin, group, "orders", 1)
            await joined(admin, "hidden-too")
            assert [each.group_id for each in (await billing.ask("ListGroups", 5)).groups] == ["seen"]
            answer = await billing.ask("DeleteGroups", 2, groups_names=["seen", "hidden"])
            assert [each.error_code for each in answer.results] == [30, 30]
            answer = await billing.ask("OffsetDelete", 0, group_id="seen", topics=[])
            assert answer.error_code == 30
            await cluster.allow("billing", "admin", "group", "seen")
            topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
            answer = await billing.ask("OffsetDelete", 0, group_id="seen", topics=topics)
            assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 29)
            answer = await billing.ask("DeleteGroups", 2, groups_names=["seen", "nothing"])
            assert [each.error_code for each in answer.results] == [0, 30]
            [group] = (await billing.ask("DescribeGroups", 6, groups=["seen"], include_authorized_operations=True)).groups
            assert (group.error_code, group.authorized_operations) == (69, 1 << DELETE | 1 << DESCRIBE)
            reported = [
                (each["call"], each["outcome"], each["resources"])
                for each in await cluster.audited()
                if each["principal"] == "billing"
            ]
            assert ("DeleteGroups", "ok", ["group:seen"]) in reported
            assert ("DeleteGroups", "PERMISSION_DENIED", ["group:nothing"]) in reported
            assert ("OffsetDelete", "PERMISSION_DENIED", ["topic:orders"]) in reported

    guarded(tmp_path, scenario)


def test_offsets_that_were_not_deleted_are_audited_as_such(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        await cluster.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as admin:
            await committed(admin, "seen", "orders", 1)
            for group, partition in (("nothing", 0), ("seen", 9), ("seen", 0)):
                topics = [{"name": "orders", "partitions": [{"partition_index": partition}]}]
                await admin.ask("OffsetDelete", 0, group_id=group, topics=topics)
        assert [(each["outcome"], each["resources"]) for each in await cluster.audited() if each["call"] == "OffsetDelete"] == [
            ("UNKNOWN_GROUP", ["group:nothing"]),
            ("UNKNOWN_PARTITION", ["group:seen", "topic:orders"]),
            ("ok", ["group:seen", "topic:orders"]),
        ]

    guarded(tmp_path, scenario)


def test_commits_by_hand_are_audited_and_those_of_members_are_not(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        for name in ("orders", "salaries"):
            await cluster.as_admin("POST", "/v1/topics", json={"name": name, "partition_count": 1})
        key = await cluster.key("billing")
        await cluster.allow("billing", "read", "group", "billing")
        await cluster.allow("billing", "read", "topic", "orders")
        path = "/v1/groups/billing/offsets"
        both = [{"topic": name, "partition": 0, "offset": 0} for name in ("orders", "salaries")]
        async with kafka_caller_as(cluster.broker, key) as client:
            await committed(client, "billing", "orders", 0)
            assert (await cluster.http.ask("POST", path, headers=bearer(key), json={"offsets": both})).status == 200
            asked = groups_pb2.OffsetCommitRequest(group="billing", generation=-1)
            asked.offsets.add(topic="salaries", offset=0)
            await cluster.call("/tidelog.v1.Groups/OffsetCommit", asked, key)
            asked.offsets[0].topic = "orders"
            await cluster.call("/tidelog.v1.Groups/OffsetCommit", asked, key)
            member = await joined(client, "billing")
            terms = {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation_id}
            topics = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
            answer = await client.ask("OffsetCommit", 8, group_id="billing", topics=topics, **terms)
            assert answer.topics[0].partitions[0].error_code == 0
            answer = await client.ask("OffsetCommit", 8, group_id="billing", topics=topics, generation_id_or_member_epoch=-1)
            assert answer.topics[0].partitions[0].error_code == 25, "the group has a member"
        grpc = "/tidelog.v1.Groups/OffsetCommit"
        http = "POST /v1/groups/{group}/offsets"
        changed = ["group:billing", "topic:orders"]
        assert [
            (each["call"], each["outcome"], each["resources"]) for each in await cluster.audited() if each["principal"] == "billing"
        ] == [
            ("OffsetCommit", "ok", changed),
            (http, "PERMISSION_DENIED", ["topic:salaries"]),
            (http, "ok", changed),
            (grpc, "PERMISSION_DENIED", ["topic:salaries"]),
            (grpc, "ok", changed),
            ("OffsetCommit", "UNKNOWN_MEMBER", changed),
        ]

    guarded(tmp_path, scenario)


# ── quotas ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def entry(name: str | None, *ops: tuple[str, float | None], kind: str = "user") -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name}],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


async def alter(client: KafkaCaller, *entries: dict[str, Any], version: int = 1, validate_only: bool = False) -> list[int]:
    answer = await client.ask("AlterClientQuotas", version, entries=list(entries), validate_only=validate_only)
    return [each.error_code for each in answer.entries]


async def quotas(client: KafkaCaller, *components: tuple[str, int, str | None], version: int = 1, strict: bool = False) -> Any:
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = await client.ask("DescribeClientQuotas", version, components=asked, strict=strict)
    if answer.error_code:
        return answer.error_code
    return {
        (each.entity[0].entity_type, each.entity[0].entity_name): {value.key: value.value for value in each.values}
        for each in answer.entries
    }


def test_quotas_of_users_and_of_their_default_are_altered_and_described(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            for version in (0, 1):
                done = await alter(
                    client,
                    entry("billing", ("producer_byte_rate", 1000.0), ("consumer_byte_rate", 2000.0)),
                    entry(None, ("consumer_byte_rate", 3000.0)),
                    version=version,
                )
                assert done == [0, 0]
            billing, default = ("user", "billing"), ("user", None)
            held = {billing: {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}, default: {"consumer_byte_rate": 3000.0}}
            assert await quotas(client) == held
            assert await quotas(client, ("user", 2, None), version=0, strict=True) == held
            assert await quotas(client, ("user", 0, "billing")) == {billing: held[billing]}
            assert await quotas(client, ("user", 1, None)) == {default: held[default]}
            assert await quotas(client, ("user", 0, "unknown")) == {}
            assert await quotas(client, ("client-id", 2, None)) == {}
            assert await quotas(client, ("colour", 2, None)) == 42
            assert await quotas(client, ("user", 2, None), ("user", 1, None)) == 42
            assert await quotas(client, ("user", 9, None)) == 42
            reported = (await cluster.as_admin("GET", "/v1/quotas"))["quotas"]
            assert {each["principal"]: each["bytes_out_per_second"] for each in reported} == {"*": 3000, "billing": 2000}

    guarded(tmp_path, scenario)


def test_a_limit_that_kafka_does_not_know_stays_where_the_others_change(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        await cluster.as_admin(
            "POST", "/v1/quotas", json={"principal": "billing", "requests_per_second": 5, "bytes_in_per_second": 9}
        )
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            assert await alter(client, entry("billing", ("producer_byte_rate", 7.0)), validate_only=True) == [0]
            assert await quotas(client) == {("user", "billing"): {"producer_byte_rate": 9.0}}
            assert await alter(client, entry("billing", ("producer_byte_rate", None))) == [0]
            assert await quotas(client) == {}
            [held] = (await cluster.as_admin("GET", "/v1/quotas"))["quotas"]
            assert (held["requests_per_second"], held["bytes_in_per_second"]) == (5, 0)
            await alter(client, entry("till", ("producer_byte_rate", 7.0)))
            assert await alter(
                client, entry("till", ("producer_byte_rate", None)), entry("till", ("consumer_byte_rate", None))
            ) == [0, 0]
            assert [each["principal"] for each in (await cluster.as_admin("GET", "/v1/quotas"))["quotas"]] == ["billing"]

    guarded(tmp_path, scenario)


def test_a_quota_that_does_not_exist_here_is_refused_alone(tmp_path: Path) -> None:
    async def scenario(cluster: Guarded) -> None:
        wrong = [
            entry("billing", ("request_percentage", 50.0)),
            entry("billing", ("controller_mutation_rate", 5.0)),
            entry("billing", ("producer_byte_rate", 0.5)),
            entry("billing", ("producer_byte_rate", float("inf"))),
            entry("billing", ("producer_byte_rate", -1.0)),
            entry("billing", ("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)),
            entry("app", ("producer_byte_rate", 1.0), kind="client-id"),
            entry("*", ("producer_byte_rate", 1.0)),
            {"entity": [], "ops": []},
        ]
        async with kafka_caller_as(cluster.broker, ADMIN_KEY) as client:
            assert await alter(client, *wrong, entry("till", ("producer_byte_rate", 1.0))) == [42] * len(wrong) + [0]
            assert await quotas(client) == {("user", "till"): {"producer_byte_rate": 1.0}}
        key = await cluster.key("billing")
        async with kafka_caller_as(cluster.broker, key) as billing:
            assert await alter(billing, entry("billing", ("producer_byte_rate", None))) == [31]
            assert await quotas(billing) == 31

    guarded(tmp_path, scenario)

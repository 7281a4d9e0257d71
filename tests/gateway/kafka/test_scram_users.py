"""SCRAM lets in holders of API keys and users of AlterUserScramCredentials; both are followed while they are connected."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.access.authentication import FAILURE_TEXT
from gateway.kafka.protocol.admin_messages import ScramCredentialDeletion, ScramCredentialUpsertion, UserName
from gateway.kafka.protocol.hot_messages import FetchPartition, FetchTopic
from metadata.access.scram import MECHANISMS, ScramMechanism
from tests.gateway.kafka.test_plain import SASL_AUTHENTICATION_FAILED, TOPIC_AUTHORIZATION_FAILED, logged_in, with_kafka
from tests.gateway.kafka.test_scram import client_final
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller

pytestmark = pytest.mark.slow
CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_SASL_MECHANISM = 31, 33
RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL = 91, 92, 93
SALT = bytes(range(24))


async def by_scram(client: KafkaCaller, mechanism: str, user: str, password: str) -> Any:
    """Returns the last answer of the exchange."""
    assert (await client.ask("SaslHandshake", 1, mechanism=mechanism)).error_code == 0
    first = f"n,,n={user},r=fyko".encode()
    challenge = await client.ask("SaslAuthenticate", 2, auth_bytes=first)
    assert challenge.error_code == 0
    final = client_final(MECHANISMS[mechanism], password.encode(), first, challenge.auth_bytes)
    return await client.ask("SaslAuthenticate", 2, auth_bytes=final)


def upsertion(user: str, mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredentialUpsertion:
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), SALT, iterations)
    return ScramCredentialUpsertion(name=user, mechanism=mechanism.number, iterations=iterations, salt=SALT, salted_password=salted)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_api_key_is_the_password_of_its_id(tmp_path: Path, mechanism: str) -> None:
    async def scenario(guarded: Guarded) -> None:
        key = await guarded.key("billing")
        key_id = key.split("_")[1]
        async with kafka_caller(guarded.broker) as client:
            assert (await by_scram(client, mechanism, key_id, key)).auth_bytes.startswith(b"v=")
            assert (await client.ask("Metadata", 12, topics=[])).brokers
        for user, password in ((key_id, key[:-1]), ("unknown", key), ("ad" * 8, ADMIN_KEY)):
            async with kafka_caller(guarded.broker) as client:
                answer = await by_scram(client, mechanism, user, password)
                assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, FAILURE_TEXT)
                assert await client.is_closed()
        await guarded.as_admin("DELETE", f"/v1/keys/{key_id}")
        async with kafka_caller(guarded.broker) as client:
            assert (await by_scram(client, mechanism, key_id, key)).error_code == SASL_AUTHENTICATION_FAILED

    with_kafka(tmp_path, scenario)


def test_users_are_made_described_changed_and_deleted(tmp_path: Path) -> None:
    sha_256, sha_512 = MECHANISMS["SCRAM-SHA-256"], MECHANISMS["SCRAM-SHA-512"]

    async def scenario(guarded: Guarded) -> None:
        async def alter(*upsertions: ScramCredentialUpsertion, deletions: Any = ()) -> list[int]:
            request = {"deletions": list(deletions), "upsertions": list(upsertions)}
            answer = await admin.ask("AlterUserScramCredentials", 0, **request)
            return [each.error_code for each in answer.results]

        async with kafka_caller(guarded.broker) as admin, kafka_caller(guarded.broker) as alice:
            await logged_in(admin, ADMIN_KEY)
            assert await alter(upsertion("alice", sha_256, "wonder", 8192), upsertion("bob", sha_512, "builder")) == [0, 0]
            assert (await by_scram(alice, "SCRAM-SHA-256", "alice", "wonder")).error_code == 0
            described = await admin.ask("DescribeUserScramCredentials", 0, users=None)
            assert [(each.user, [(i.mechanism, i.iterations) for i in each.credential_infos]) for each in described.results] == [
                ("alice", [(1, 8192)]),
                ("bob", [(2, 4096)]),
            ]
            named = await admin.ask("DescribeUserScramCredentials", 0, users=[UserName(name="eve"), UserName(name="bob")])
            assert [(each.user, each.error_code) for each in named.results] == [("eve", RESOURCE_NOT_FOUND), ("bob", 0)]

            assert await alter(upsertion("alice", sha_256, "x", 4095)) == [UNACCEPTABLE_CREDENTIAL]
            assert await alter(upsertion("alice", sha_256, "x", 16385)) == [UNACCEPTABLE_CREDENTIAL]
            assert await alter(upsertion("", sha_256, "x")) == [UNACCEPTABLE_CREDENTIAL]
            assert await alter(upsertion("alice", sha_256, "x"), upsertion("alice", sha_256, "y")) == [DUPLICATE_RESOURCE]
            unknown = ScramCredentialDeletion(name="alice", mechanism=9)
            assert await alter(deletions=[unknown]) == [UNSUPPORTED_SASL_MECHANISM]
            missing = ScramCredentialDeletion(name="alice", mechanism=2)
            assert await alter(upsertion("alice", sha_256, "new"), deletions=[missing]) == [RESOURCE_NOT_FOUND], "all or nothing"
            assert (await alice.ask("Metadata", 12, topics=[])).brokers

            assert await alter(deletions=[ScramCredentialDeletion(name="alice", mechanism=1)]) == [0]
            alice.send("Metadata", 12, topics=[])
            assert await alice.is_closed()
        lines = [line for line in await guarded.audited() if line["call"] == "AlterUserScramCredentials"]
        assert {(line["listener"], line["principal"]) for line in lines} == {("kafka", "admin")}
        refused = ["UNACCEPTABLE_CREDENTIAL"] * 3 + ["DUPLICATE_SCRAM_USER", "UNSUPPORTED_SASL_MECHANISM", "UNKNOWN_SCRAM_USER"]
        assert [line["outcome"] for line in lines] == ["ok", "ok", *refused, "ok"]

    with_kafka(tmp_path, scenario)


def test_only_administrators_change_and_describe_users(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            await logged_in(client, await guarded.key("billing"))
            made = upsertion("alice", MECHANISMS["SCRAM-SHA-256"], "wonder")
            answer = await client.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=[made])
            assert [each.error_code for each in answer.results] == [CLUSTER_AUTHORIZATION_FAILED]
            described = await client.ask("DescribeUserScramCredentials", 0, users=None)
            assert described.error_code == CLUSTER_AUTHORIZATION_FAILED

    with_kafka(tmp_path, scenario)


async def a_reader(guarded: Guarded, client: KafkaCaller) -> tuple[str, str]:
    """Begins a long poll of a minute. Returns the id of the reader's key, and of the ACL that lets it read."""
    await guarded.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
    key = await guarded.key("reader")
    acl_id = await guarded.allow("reader", "read", "topic", "orders")
    await logged_in(client, key)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [FetchTopic(topic="orders", partitions=[partition])]
    client.send("Fetch", 12, max_wait_ms=60_000, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=topics)
    guard = guarded.broker.guard
    assert guard is not None
    async with asyncio.timeout(60):
        while not guard.lasting:  # noqa: ASYNC110  # the guard has no event for what only a test looks at
            await asyncio.sleep(0.01)
    return key.split("_")[1], acl_id


def test_a_key_that_is_revoked_ends_its_long_polls_at_once(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            key_id, _ = await a_reader(guarded, client)
            await guarded.as_admin("DELETE", f"/v1/keys/{key_id}")
            assert await client.is_closed()

    with_kafka(tmp_path, scenario)


def test_a_long_poll_whose_right_was_taken_back_says_so_and_its_connection_goes_on(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            _, acl_id = await a_reader(guarded, client)
            await guarded.as_admin("DELETE", f"/v1/acls/{acl_id}")
            answer = await client.answer("Fetch", 12)
            assert answer.responses[0].partitions[0].error_code == TOPIC_AUTHORIZATION_FAILED
            assert (await client.ask("Metadata", 12, topics=[])).brokers

    with_kafka(tmp_path, scenario)


def test_requests_beyond_the_quota_hold_the_connection_back(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        key = await guarded.key("busy")
        await guarded.as_admin("POST", "/v1/quotas", json={"principal": "busy", "requests_per_second": 20})
        async with kafka_caller(guarded.broker) as client:
            await logged_in(client, key)
            began_s = asyncio.get_running_loop().time()
            waits_ms = [(await client.ask("Metadata", 12, topics=[])).throttle_time_ms for _ in range(40)]
            assert waits_ms[0] == 0
            assert max(waits_ms) > 0
            assert asyncio.get_running_loop().time() - began_s > 0.5

    with_kafka(tmp_path, scenario)

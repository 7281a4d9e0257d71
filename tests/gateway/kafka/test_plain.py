"""Clients authenticate with an API key as the password of SASL PLAIN, and nothing else gets through."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.access import authentication
from gateway.kafka.access.authentication import FAILURE_DELAY_S, FAILURE_TEXT
from gateway.kafka.protocol.hot_messages import MetadataRequestTopic
from gateway.settings import GatewaySettings
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, serve
from tests.kit.gateway.kafka_caller import KafkaCaller, kafka_caller

pytestmark = pytest.mark.slow
ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM, SASL_AUTHENTICATION_FAILED = 34, 33, 58
TOPIC_AUTHORIZATION_FAILED = 29


def with_kafka(folder: Path, scenario: Callable[[Guarded], Awaitable[None]], **settings: Any) -> None:
    serve(folder, scenario, kafka="127.0.0.1:0", gateway=GatewaySettings(**settings))


def plain(password: str, username: str = "app", authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{username}\0{password}".encode()


async def logged_in(client: KafkaCaller, password: str, version: int = 2) -> Any:
    handshake = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    assert handshake.error_code == 0
    return await client.ask("SaslAuthenticate", version, auth_bytes=plain(password))


def test_a_key_lets_its_client_in_and_the_handshake_lists_the_mechanisms(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        key = await guarded.key("billing")
        async with kafka_caller(guarded.broker) as client:
            assert (await client.ask("ApiVersions", 3, client_software_name="t", client_software_version="1")).error_code == 0
            handshake = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
            assert "PLAIN" in handshake.mechanisms
            answer = await client.ask("SaslAuthenticate", 2, auth_bytes=plain(key))
            assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
            assert (await client.ask("Metadata", 12, topics=[])).brokers

    with_kafka(tmp_path, scenario)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_version_of_authenticate_works_with_the_id_of_the_key_as_username(tmp_path: Path, version: int) -> None:
    async def scenario(guarded: Guarded) -> None:
        _, key_id, secret = (await guarded.key("billing")).split("_")
        async with kafka_caller(guarded.broker) as client:
            await client.ask("SaslHandshake", 1, mechanism="PLAIN")
            answer = await client.ask("SaslAuthenticate", version, auth_bytes=plain(secret, username=key_id))
            assert answer.error_code == 0

    with_kafka(tmp_path, scenario)


def test_bare_tokens_follow_a_handshake_of_version_0(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            await client.ask("SaslHandshake", 0, mechanism="PLAIN")
            client.send_frame(plain(ADMIN_KEY))
            assert await client.receive_frame() == b""
            assert (await client.ask("Metadata", 12, topics=[])).brokers

    with_kafka(tmp_path, scenario)


def test_a_wrong_bare_token_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            await client.ask("SaslHandshake", 0, mechanism="PLAIN")
            client.send_frame(plain("wrong"))
            assert await client.is_closed()

    with_kafka(tmp_path, scenario)


def test_a_client_may_send_its_next_requests_before_the_answers(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            client.send("SaslHandshake", 1, mechanism="PLAIN")
            client.send("SaslAuthenticate", 2, auth_bytes=plain(ADMIN_KEY))
            client.send("Metadata", 12, topics=[])
            assert (await client.answer("SaslHandshake", 1)).error_code == 0
            assert (await client.answer("SaslAuthenticate", 2)).error_code == 0
            assert (await client.answer("Metadata", 12)).brokers

    with_kafka(tmp_path, scenario)


WRONG = {
    "another secret": plain("tlk_" + "ad" * 8 + "_" + "00" * 32),
    "an unknown key": plain("tlk_" + "00" * 8 + "_" + "00" * 32),
    "no key": plain("secret"),
    "no password": plain(""),
    "no username": plain(ADMIN_KEY, username=""),
    "another identity": plain(ADMIN_KEY, authorization_id="root"),
    "nothing": b"",
    "NULs": b"\0" * 100,
    "no UTF-8": b"\0\xff\xfe\0" + ADMIN_KEY.encode(),
    "a NUL behind the key": plain(ADMIN_KEY) + b"\0",
    "garbage": bytes(range(256)) * 8,
}


def test_whatever_is_wrong_has_the_same_answer_late_and_then_the_connection_ends(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        loop = asyncio.get_running_loop()
        for name, token in WRONG.items():
            async with kafka_caller(guarded.broker) as client:
                await client.ask("SaslHandshake", 1, mechanism="PLAIN")
                began_s = loop.time()
                answer = await client.ask("SaslAuthenticate", 2, auth_bytes=token)
                assert loop.time() - began_s >= FAILURE_DELAY_S * 0.95, name
                assert (answer.error_code, answer.error_message) == (SASL_AUTHENTICATION_FAILED, FAILURE_TEXT), name
                assert await client.is_closed(), name
        lines = [line for line in await guarded.audited() if line["call"] == "SaslAuthenticate"]
        assert len(lines) == len(WRONG)
        assert {(line["listener"], line["outcome"]) for line in lines} == {("kafka", "UNAUTHENTICATED")}
        assert not any("5e5e" in str(line) for line in lines), "a secret is in the audit log"

    with_kafka(tmp_path, scenario)


def test_failures_of_many_clients_wait_at_the_same_time(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async def fails() -> None:
            async with kafka_caller(guarded.broker) as client:
                assert (await logged_in(client, "wrong")).error_code == SASL_AUTHENTICATION_FAILED

        async with kafka_caller(guarded.broker) as other:
            await logged_in(other, ADMIN_KEY)
            began_s = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as clients:
                for _ in range(50):
                    clients.create_task(fails())
                assert (await other.ask("Metadata", 12, topics=[])).brokers
            assert asyncio.get_running_loop().time() - began_s < 50 * FAILURE_DELAY_S / 2

    with_kafka(tmp_path, scenario)


def test_any_other_request_before_authentication_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            client.send("Metadata", 12, topics=[])
            assert await client.is_closed()
        async with kafka_caller(guarded.broker) as client:
            await client.ask("SaslHandshake", 1, mechanism="PLAIN")
            client.send("Metadata", 12, topics=[])
            assert await client.is_closed()
        lines = await guarded.audited()
        assert [(line["listener"], line["outcome"]) for line in lines if line["call"] == "Metadata"] == 2 * [
            ("kafka", "UNAUTHENTICATED")
        ]

    with_kafka(tmp_path, scenario)


def test_messages_in_a_wrong_order_are_refused(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            answer = await client.ask("SaslAuthenticate", 2, auth_bytes=plain(ADMIN_KEY))
            assert answer.error_code == ILLEGAL_SASL_STATE
            assert await client.is_closed()
        async with kafka_caller(guarded.broker) as client:
            await client.ask("SaslHandshake", 1, mechanism="PLAIN")
            assert (await client.ask("SaslHandshake", 1, mechanism="PLAIN")).error_code == ILLEGAL_SASL_STATE
            assert await client.is_closed()

    with_kafka(tmp_path, scenario)


def test_an_unknown_mechanism_is_refused_with_the_list_of_those_there_are(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            answer = await client.ask("SaslHandshake", 1, mechanism="GSSAPI")
            assert answer.error_code == UNSUPPORTED_SASL_MECHANISM
            assert "PLAIN" in answer.mechanisms
            assert "OAUTHBEARER" not in answer.mechanisms, "there is no OpenID provider"

    with_kafka(tmp_path, scenario)


def test_a_long_frame_before_authentication_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        async with kafka_caller(guarded.broker) as client:
            client.send_bytes(struct.pack(">ihh", 1 << 20, 36, 2))
            assert await client.is_closed()

    with_kafka(tmp_path, scenario)


def test_a_client_authenticates_again_as_the_same_principal_only(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        first, second = await guarded.key("billing"), await guarded.key("billing")
        async with kafka_caller(guarded.broker) as client:
            for key in (first, second):
                assert (await logged_in(client, key)).error_code == 0
                assert (await client.ask("Metadata", 12, topics=[])).brokers
            answer = await logged_in(client, await guarded.key("shipping"))
            assert answer.error_code == SASL_AUTHENTICATION_FAILED
            assert await client.is_closed()

    with_kafka(tmp_path, scenario)


def test_a_session_has_an_end_and_requests_after_it_close_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s, now_s = 0.0, authentication._now_s
    monkeypatch.setattr(authentication, "_now_s", lambda: now_s() + passed_s)

    async def scenario(guarded: Guarded) -> None:
        nonlocal passed_s
        async with kafka_caller(guarded.broker) as client:
            assert (await logged_in(client, ADMIN_KEY)).session_lifetime_ms == 300_000
            assert (await client.ask("Metadata", 12, topics=[])).brokers
            passed_s += 301
            assert (await logged_in(client, ADMIN_KEY)).session_lifetime_ms == 300_000
            assert (await client.ask("Metadata", 12, topics=[])).brokers
            passed_s += 301
            client.send("Metadata", 12, topics=[])
            assert await client.is_closed()

    with_kafka(tmp_path, scenario, kafka_session_ms_max=300_000)


def test_a_key_that_was_revoked_ends_its_connection_at_the_next_request(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        key = await guarded.key("billing")
        async with kafka_caller(guarded.broker) as client:
            await logged_in(client, key)
            assert (await client.ask("Metadata", 12, topics=[])).brokers
            await guarded.as_admin("DELETE", f"/v1/keys/{key.split('_')[1]}")
            client.send("Metadata", 12, topics=[])
            assert await client.is_closed()
        [line] = [line for line in await guarded.audited() if line["call"] == "Metadata"]
        assert (line["listener"], line["principal"], line["outcome"]) == ("kafka", "billing", "UNAUTHENTICATED")

    with_kafka(tmp_path, scenario)


def test_rights_are_those_of_the_principal(tmp_path: Path) -> None:
    async def scenario(guarded: Guarded) -> None:
        await guarded.as_admin("POST", "/v1/topics", json={"name": "orders", "partition_count": 1})
        key = await guarded.key("billing")
        async with kafka_caller(guarded.broker) as client:
            await logged_in(client, key)
            topics = [_metadata_topic("orders")]
            [topic] = (await client.ask("Metadata", 12, topics=topics)).topics
            assert topic.error_code == TOPIC_AUTHORIZATION_FAILED
            await guarded.allow("billing", "describe", "topic", "orders")
            [topic] = (await client.ask("Metadata", 12, topics=topics)).topics
            assert topic.error_code == 0

    with_kafka(tmp_path, scenario)


def _metadata_topic(name: str) -> Any:
    return MetadataRequestTopic(name=name)

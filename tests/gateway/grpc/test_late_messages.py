"""Calls over gRPC whose message comes long after their head, or never. What held at the head is checked again, and a call
that never began is recorded as such."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.grpc.calls import Context, only_message
from gateway.grpc.limits import CallLimiter
from gateway.proto import admin_pb2
from tests.gateway.access.test_rights_that_end import revoke
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, Guarded, reported, serve
from tests.kit.metadata.stores import until

pytestmark = pytest.mark.slow

CREATE_KEY, LIST_KEYS, LIST_TOPICS = "/tidelog.v1.Access/CreateKey", "/tidelog.v1.Access/ListKeys", "/tidelog.v1.Topics/ListTopics"
NEW_KEY = admin_pb2.CreateKeyRequest(principal="ops").SerializeToString()


class Waiting:
    """How many calls have been let in, and wait for their message; how many of them have ended their wait."""

    begun = 0
    ended = 0


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    seen = Waiting()

    async def noted(context: Context) -> bytes:
        seen.begun += 1
        try:
            return await only_message(context)
        finally:
            seen.ended += 1

    monkeypatch.setattr("gateway.grpc.guard.only_message", noted)
    return seen


def head(at: Guarded, path: str, key: str) -> Any:
    """A call whose message has not come yet."""
    return at.channel.stream_stream(path)(metadata=(("authorization", f"Bearer {key}"),))


async def refusal(call: Any, message: bytes = b"") -> tuple[grpc.StatusCode, str]:
    """Sends the message, which is refused."""
    await call.write(message)
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    return refused.value.code(), reported(refused.value).message


async def operator(at: Guarded) -> tuple[str, str]:
    """A key of who may administer the cluster, and the ACL that says so."""
    acl_id = await at.allow("ops", "admin", "cluster", "cluster")
    return await at.key("ops"), acl_id


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def keys_of(at: Guarded, principal: str) -> int:
    listed = (await at.as_admin("GET", "/v1/keys"))["keys"]
    return sum(key["principal"] == principal for key in listed)


async def lines_of(at: Guarded, principal: str) -> list[tuple[str, str]]:
    return [(line["call"], line["outcome"]) for line in await at.audited() if line.get("principal") == principal]


def test_a_key_that_is_revoked_before_the_message_comes_does_nothing_more(tmp_path: Path, waiting: Waiting) -> None:
    async def scenario(at: Guarded) -> None:
        key, _ = await operator(at)
        calls = [head(at, path, key) for path in (CREATE_KEY, LIST_KEYS, LIST_TOPICS)]
        await until(lambda: waiting.begun == 3)
        await revoke(at, key)
        for call, message in zip(calls, (NEW_KEY, b"", b""), strict=True):
            code, said = await refusal(call, message)
            assert (code, "was revoked" in said) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert await keys_of(at, "ops") == 1
        refused = [(path, "UNAUTHENTICATED") for path in (CREATE_KEY, LIST_KEYS, LIST_TOPICS)]
        assert await lines_of(at, "ops") == refused, "each once"

    serve(tmp_path, scenario)


def test_a_right_that_is_taken_away_before_the_message_comes_is_none(tmp_path: Path, waiting: Waiting) -> None:
    async def scenario(at: Guarded) -> None:
        key, acl_id = await operator(at)
        calls = [head(at, path, key) for path in (CREATE_KEY, LIST_KEYS)]
        await until(lambda: waiting.begun == 2)
        await at.as_admin("DELETE", f"/v1/acls/{acl_id}")
        for call, message in zip(calls, (NEW_KEY, b""), strict=True):
            assert await refusal(call, message) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "ops has no right to admin the cluster",
            )
        assert await keys_of(at, "ops") == 1
        assert await lines_of(at, "ops") == [(path, "PERMISSION_DENIED") for path in (CREATE_KEY, LIST_KEYS)]

    serve(tmp_path, scenario)


def test_a_key_that_expires_before_the_message_comes_does_nothing_more(tmp_path: Path, waiting: Waiting) -> None:
    async def scenario(at: Guarded) -> None:
        await operator(at)
        made = 1
        while waiting.begun == 0:  # on a busy machine the key may expire before its call has begun
            expires_at_ms = now_ms() + 1_500
            key, made = await at.key("ops", expires_at_ms=expires_at_ms), made + 1
            call = head(at, CREATE_KEY, key)
            await until(lambda: now_ms() > expires_at_ms)  # noqa: B023  # of this turn
        code, said = await refusal(call, NEW_KEY)
        assert (code, "has expired" in said) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert await keys_of(at, "ops") == made

    serve(tmp_path, scenario)


def test_calls_whose_message_never_arrived_are_not_in_the_audit_log(tmp_path: Path, waiting: Waiting) -> None:
    """A client that hangs up before its message came, and a message that gRPC refuses by its length."""

    async def scenario(at: Guarded) -> None:
        hung_up = [head(at, CREATE_KEY, ADMIN_KEY) for _ in range(3)]
        await until(lambda: waiting.begun == 3)
        for call in hung_up:
            call.cancel()
        await until(lambda: waiting.ended == 3)
        too_long: Any = at.channel.unary_unary(CREATE_KEY)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await too_long(bytes(18 << 20), metadata=(("authorization", f"Bearer {ADMIN_KEY}"),))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await at.call(CREATE_KEY, admin_pb2.CreateKeyRequest(principal="ops"), ADMIN_KEY)
        assert await lines_of(at, "admin") == [(CREATE_KEY, "ok")]

    serve(tmp_path, scenario)


def test_silent_authenticated_calls_count_towards_the_call_limit_of_the_listener(
    tmp_path: Path, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[CallLimiter] = []

    def three(_: int, **more: Any) -> CallLimiter:
        pools.append(CallLimiter(3, **more))
        return pools[-1]

    monkeypatch.setattr("gateway.grpc.server.CallLimiter", three)

    def still_open() -> int:
        return sum(pool._open for pool in pools)

    async def scenario(at: Guarded) -> None:
        key = await at.key("powerless")
        silent = [head(at, LIST_TOPICS, key) for _ in range(3)]
        await until(lambda: waiting.begun == 3)
        one_more = head(at, LIST_TOPICS, key)
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "3 calls are open" in await one_more.details()
        assert await head(at, LIST_TOPICS, "tlk_wrong").code() is grpc.StatusCode.UNAUTHENTICATED, (
            "unauthenticated calls are not counted"
        )
        assert still_open() == 3
        silent[0].cancel()
        await silent[1].done_writing()
        assert await silent[1].code() is grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: still_open() == 1)
        await at.call(LIST_TOPICS, admin_pb2.ListTopicsRequest(), key)

    serve(tmp_path, scenario)

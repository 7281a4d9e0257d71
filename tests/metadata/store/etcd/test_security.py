"""TLS, certificates that are replaced, users and their tokens, against a real etcd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from metadata.errors import Denied, InvalidArgument, Unavailable
from metadata.model import Revision
from metadata.secret import Secret
from metadata.store.etcd.store import EtcdStore
from metadata.store.interface import Put, RevisionCompacted
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.etcd_server import SHARED, EtcdMember, in_thread, running_etcd, settings
from tests.kit.metadata.stores import PATIENCE_S, run, take, until

pytestmark = pytest.mark.slow

USER = {"etcd_user": "tidelog", "etcd_password": Secret("hunter2")}


@asynccontextmanager
async def opened(urls: str, **changed: object) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(settings(urls, **changed))
    try:
        yield store
    finally:
        await store.close()


def identity(certificates: Certificates) -> dict[str, object]:
    return {"etcd_ca": certificates.ca, "etcd_cert": certificates.client_cert, "etcd_key": certificates.client_key}


# TLS


def test_etcd_is_reached_over_tls_with_a_certificate_of_our_own_and_not_without(tmp_path: Path) -> None:
    async def test() -> None:
        certificates = make_certificates(tmp_path / "theirs")
        with running_etcd(tmp_path, certificates=certificates) as member:
            async with opened(member.url, **identity(certificates)) as store:
                written = await store.transact([], [Put("/a", b"1")])
                assert [batch.revision for batch in await take(store.watch("/a", written.revision), 1)] == [written.revision]
                lease = await store.grant_lease(60)
                assert await store.keep_alive(lease) == 60
            outsiders = make_certificates(tmp_path / "outsiders")
            for wrong in (
                {"etcd_ca": certificates.ca},
                {},
                identity(outsiders),
                identity(outsiders) | {"etcd_ca": certificates.ca},
            ):
                async with opened(member.url, etcd_deadline_ms=200, **wrong) as store:
                    with pytest.raises(Unavailable) as refused:
                        await store.transact([], [Put("/a", b"2")])
                    assert refused.value.nothing_was_written
                    assert member.url in str(refused.value)
            async with opened(member.url.replace("https", "http"), etcd_deadline_ms=200) as store:
                with pytest.raises(Unavailable):
                    await store.get("/a")

    run(test())


def test_a_client_that_does_not_trust_the_certificate_gets_a_hint_what_to_check(tmp_path: Path) -> None:
    async def test() -> None:
        certificates = make_certificates(tmp_path / "theirs")
        with running_etcd(tmp_path, certificates=certificates) as member:
            async with opened(member.url, etcd_deadline_ms=200, **identity(make_certificates(tmp_path / "ours"))) as store:
                async with asyncio.timeout(PATIENCE_S):
                    while True:
                        with pytest.raises(Unavailable) as refused:
                            await store.get("/a")
                        if "handshake failed" in str(refused.value):  # else it was not tried in time
                            break
                assert refused.value.hint.startswith("Check etcd_ca")

    run(test())


def test_certificates_may_be_replaced_while_the_broker_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        certificates = make_certificates(tmp_path / "pem")
        with running_etcd(tmp_path, certificates=certificates) as member:
            async with opened(member.url, **identity(certificates)) as store:
                first = (await store.transact([], [Put("/a", b"1")])).revision
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(take(store.watch("/a", first), 2))
                    await in_thread(member.end)
                    make_certificates(tmp_path / "pem")
                    certificates.ca.rename(tmp_path / "ca")  # not there for a moment
                    await until(lambda: "keeping the old ones" in caplog.text)
                    (tmp_path / "ca").rename(certificates.ca)
                    await in_thread(member.start)
                    second = (await store.transact([], [Put("/a", b"2")])).revision
                assert [batch.revision for batch in watching.result()] == [first, second]

    run(test())


@pytest.mark.parametrize(("content", "said"), [(None, "can't be read"), (b"not PEM", "is not PEM")])
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, content: bytes | None, said: str) -> None:
    async def test() -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=f"etcd_ca: .*{said}"):
            EtcdStore(settings("https://127.0.0.1:1", etcd_ca=path))

    run(test())


# Users


@contextmanager
def etcd_with_users(directory: Path) -> Iterator[EtcdMember]:
    """One that knows root, and a user who may do everything under /ours/."""
    with running_etcd(directory) as member:
        for command in (
            "user add root:rootpw",
            "role add root",
            "user grant-role root root",
            "user add tidelog:hunter2",
            "role add tidelog",
            "role grant-permission --prefix=true tidelog readwrite /ours/",
            "user grant-role tidelog tidelog",
            "auth enable",
        ):
            member.control(*command.split())
        yield member


def test_a_user_is_let_in_to_what_is_granted_and_no_further(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        with etcd_with_users(tmp_path) as member:
            async with opened(member.url, **USER) as store:
                await store.check("/ours/")
                written = (await store.transact([], [Put("/ours/a", b"1")])).revision
                assert [batch.revision for batch in await take(store.watch("/ours/", written), 1)] == [written]
                lease = await store.grant_lease(60)
                await store.transact([], [Put("/ours/b", b"", lease)])
                assert await store.keep_alive(lease) == 60
                await store.revoke_lease(lease)
                for refused in (store.get("/theirs/a"), store.transact([], [Put("/theirs/a", b"")])):
                    with pytest.raises(Denied, match="permission denied") as denied:
                        await refused
                    assert denied.value.hint.startswith("Correct etcd_user and etcd_password, or grant")
                with pytest.raises(Denied, match="permission denied"):
                    await take(store.watch("/theirs/", Revision(1)), 1)
            wrong = {"etcd_user": "tidelog", "etcd_password": Secret("hunter3")}
            async with opened(member.url, **wrong) as store:
                with pytest.raises(Denied, match="authentication failed") as denied:
                    await store.check("/ours/")
                assert "hunter3" not in f"{denied.value} {denied.value.hint} {denied.value.details}"
            async with opened(member.url) as store:
                with pytest.raises(Denied, match="user name is empty"):
                    await store.check("/ours/")

    run(test())
    assert "hunter" not in caplog.text


def test_a_user_who_may_write_to_a_prefix_only_may_compact_history(tmp_path: Path) -> None:
    """Which is that of all: etcd grants it to every client that it lets in."""

    async def test() -> None:
        with etcd_with_users(tmp_path) as member:
            async with opened(member.url, **USER) as store:
                first = (await store.transact([], [Put("/ours/a", b"1")])).revision
                last = (await store.transact([], [Put("/ours/a", b"2")])).revision
                await store.compact(last)
                with pytest.raises(RevisionCompacted):
                    await store.range("/ours/", revision=first)

    run(test())


def test_a_token_that_has_ended_is_replaced_under_requests_and_watches(tmp_path: Path) -> None:
    async def test() -> None:
        with etcd_with_users(tmp_path) as member:
            async with opened(member.url, **USER) as store:
                written = [(await store.transact([], [Put("/ours/a", b"1")])).revision]
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(take(store.watch("/ours/", written[0]), 4))
                    await until(lambda: len(store._client.streams) == 1)
                    for _ in range(2):
                        await in_thread(member.kill)  # etcd keeps tokens in memory
                        await in_thread(member.start)
                        answers = await asyncio.gather(*(store.get("/ours/a") for _ in range(20)))
                        assert None not in answers
                        written.append((await store.transact([], [Put("/ours/a", b"2")])).revision)
                    store._client._token = "ended.1"
                    written.append((await store.transact([], [Put("/ours/a", b"3")])).revision)
                assert [batch.revision for batch in watching.result()] == written
                store._client._token = "ended.2"
                assert len(await take(store.watch("/ours/", written[0]), 4)) == 4

    run(test())


def test_a_user_is_no_harm_where_etcd_asks_for_none_and_is_used_once_it_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(SHARED.member.url, **USER) as store:
            await store.check("/ours/")
        with etcd_with_users(tmp_path) as member:
            await in_thread(lambda: member.control("--user=root:rootpw", "auth", "disable"))
            async with opened(member.url, **USER) as store:
                await store.transact([], [Put("/theirs/a", b"1")])
                await in_thread(lambda: member.control("auth", "enable"))
                await store.transact([], [Put("/ours/a", b"1")])
                with pytest.raises(Denied):
                    await store.transact([], [Put("/theirs/a", b"2")])

    run(test())

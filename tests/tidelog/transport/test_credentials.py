"""Who a client is to the brokers, and which brokers it believes: over both listeners, and with clear errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

import tidelog
from gateway.access.settings import AccessSettings
from gateway.net.tls.settings import TlsSettings
from gateway.process.broker_process import run_broker as running_broker
from gateway.settings import BrokerSettings
from metadata.errors import Denied, InvalidArgument, NotAuthorized, Rejected, TidelogError, Unauthenticated, Unavailable
from metadata.secret import Secret
from tests.kit.certificates import Authority, make_certificates
from tests.kit.gateway.tls_brokers import TlsCluster, with_tls_cluster
from tests.kit.servers import free_port
from tests.kit.tidelog.producing import once_not_refused, quick
from tests.kit.tidelog.small_broker import SmallBroker, running
from tidelog.settings import ClientSettings, credentials_from, settings_from
from tidelog.transport import credentials
from tidelog.transport.addresses import Address, cluster_over_http
from tidelog.transport.credentials import Credentials

pytestmark = pytest.mark.slow

KEY = "tlk_abc_0123456789"


async def refused(url: str, **settings: Any) -> TidelogError:
    with pytest.raises(TidelogError) as raised:
        async with tidelog.connect(url, connect_timeout_ms=20_000.0, **settings):
            pass
    return raised.value


# ── TLS ──


def test_a_client_produces_and_consumes_over_tls_wherever_it_begins(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        for url in (f"https://{served.broker.http_address}", f"grpcs://{served.broker.grpc_address}"):
            async with tidelog.connect(url, **served.credentials()) as log:
                name = url.split(":")[0]
                await log.topics.create(name, partitions=4)
                for number in range(8):
                    await log.produce(name, number, partition=number % 4)
                assert len([record async for record in log.consume(name, until="end")]) == 8
                [member, *_] = (await log.cluster()).brokers
                assert await log.serves(member)

        def blocking() -> int:
            with tidelog.connect_sync(f"https://{served.broker.http_address}", **served.credentials()) as log:
                return len(list(log.consume("https", until="end")))

        assert await asyncio.to_thread(blocking) == 8

    with_tls_cluster(tmp_path, scenario, count=2)


def test_faults_of_tls_are_reported_with_their_cause_and_remedy_at_either_listener(tmp_path: Path) -> None:
    async def scenario(served: TlsCluster) -> None:
        outsiders = make_certificates(tmp_path / "outsiders")
        foreign = {"cert_file": outsiders.client_cert, "key_file": outsiders.client_key}
        ended = dict(zip(("cert_file", "key_file"), (tmp_path / "ended.pem", tmp_path / "ended-key.pem"), strict=True))
        for path, pem in zip(ended.values(), served.authority.sign("client", ended=True), strict=True):
            path.write_bytes(pem)
        whole = served.credentials()
        for scheme, address in (("https", served.broker.http_address), ("grpcs", served.broker.grpc_address)):
            url = f"{scheme}://{address}"
            for settings, cause, remedy in (
                ({}, "signed by an authority that is not known here", "ca_file"),
                (whole | {"ca_file": outsiders.ca}, "signed by an authority that is not known here", "ca_file"),
                ({"ca_file": served.files.ca, **foreign}, "does not take this client's certificate", "tls_client_ca_file"),
                ({"ca_file": served.files.ca, **ended}, "does not take this client's certificate", "has not ended"),
                (
                    whole | {"tls_server_name": "broker.example"},
                    "its certificate is not for broker.example; it holds 127.0.0.1",
                    "tls_server_name",
                ),
            ):
                error = await refused(url, **settings)
                assert isinstance(error, Unavailable)
                assert cause in error.message, error.message
                assert remedy in error.hint
            outsider = await refused(url, ca_file=served.files.ca)
            said = "requires a client certificate" if scheme == "https" else "wants a certificate of this client"
            assert said in outsider.message
            assert "cert_file" in outsider.hint
            plain = await refused(url.replace("s://", "://"))
            assert isinstance(plain, Rejected)
            assert plain.message.endswith("what answers there speaks TLS")
            assert plain.hint == f"Write {url}"
        await put(served, served.authority.sign("server", ended=True))
        for url in (f"https://{served.broker.http_address}", f"grpcs://{served.broker.grpc_address}"):
            assert "its certificate has ended" in (await refused(url, **whole)).message
        await put(served, served.authority.sign("server", hosts=("brokers.example", "10.0.0.7")))
        for url in (f"https://{served.broker.http_address}", f"grpcs://{served.broker.grpc_address}"):
            error = await refused(url, **whole)
            assert "is not for 127.0.0.1; it holds brokers.example, 10.0.0.7" in error.message
            async with tidelog.connect(url, **whole, tls_server_name="brokers.example") as log:
                await log.topics.list()

    with_tls_cluster(tmp_path, scenario)


async def put(served: TlsCluster, pair: tuple[bytes, bytes]) -> None:
    served.files.cert.write_bytes(pair[0])
    served.files.key.write_bytes(pair[1])
    assert served.broker.tls is not None
    assert await served.broker.tls.reload()


def test_a_broker_without_tls_is_reported_as_such_to_a_client_with_it() -> None:
    async def main() -> None:
        async with running(SmallBroker("b1")) as broker:
            for url in (f"grpcs://{broker.host_port}", f"https://{broker.host_port}"):
                error = await refused(url)
                assert "what answers there does not speak TLS" in error.message
                assert error.hint == "Write http:// or grpc:// in the address."

    asyncio.run(main())


def test_a_client_takes_up_new_files_for_its_next_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(served: TlsCluster) -> None:
        second = Authority("second authority")
        async with tidelog.connect(f"https://{served.broker.http_address}", **served.credentials()) as log:
            await log.topics.create("orders")
            await log.produce("orders", 1)
            channels = log._connection._channels
            before = set(channels._stubs.values())
            cert, key = second.sign("client")
            served.files.client_cert.write_bytes(cert)
            await log.offsets("orders")  # asks where the topic is, and there looks at the files: a pair that does not fit is none
            assert set(channels._stubs.values()) == before
            served.files.client_key.write_bytes(key)
            served.files.ca.write_bytes(served.authority.pem + second.pem)
            assert served.broker.tls is not None
            assert await served.broker.tls.reload()
            await log.offsets("orders")
            await log.produce("orders", 2)
            await log.offsets("orders")
            assert before.isdisjoint(channels._stubs.values())
            assert len([record async for record in log.consume("orders", until="end")]) == 2

    with_tls_cluster(tmp_path, scenario)


# ── API keys ──


class Endpoint:
    """Something that speaks HTTP, and notes the credentials that it receives."""

    def __init__(self, status: int = 200, location: str = "", body: bytes = b"{}") -> None:
        self.reported: list[str | None] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # as http.server calls it
                endpoint.reported.append(self.headers["Authorization"])
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Type", "application/problem+json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = Address("http", "127.0.0.1", self._server.server_port)

    @contextmanager
    def open(self) -> Iterator[Endpoint]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def ask(endpoint: Endpoint, settings: ClientSettings) -> TidelogError:
    with pytest.raises(TidelogError) as raised:
        asyncio.run(cluster_over_http(endpoint.address, Credentials(settings, tls=False), timeout_s=20))
    return raised.value


def test_a_key_goes_with_every_request_and_every_call() -> None:
    with Endpoint().open() as endpoint:
        ask(endpoint, ClientSettings(api_key=KEY))
        assert endpoint.reported == [f"Bearer {KEY}"]

    async def main() -> None:
        heard: list[object] = []

        class Hearing(grpc.aio.ServerInterceptor):
            async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
                heard.append(dict(details.invocation_metadata or ()).get("authorization"))
                return await continuation(details)

        small = SmallBroker("b1")
        small.interceptors.append(Hearing())
        async with running(small) as broker:
            async with tidelog.connect(broker.address, api_key=KEY) as log:
                broker.create_topic("orders", 1)
                await log.produce("orders", 1)
                assert len([record async for record in log.consume("orders", until="end")]) == 1
            assert len(heard) > 4
            assert set(heard) == {f"Bearer {KEY}"}

    asyncio.run(main())


def test_a_key_is_not_sent_in_plain_text_beyond_this_machine() -> None:
    for url in ("http://tidelog.example:8080", "grpc://10.0.0.7:9090"):
        error = asyncio.run(refused(url, api_key=KEY))
        assert isinstance(error, Denied)
        assert "the API key is not sent to" in error.message
        assert "https://" in error.hint
        assert KEY not in error.message
    reported = Credentials(settings_from({"api_key": KEY, "allow_plaintext_api_key": True}), tls=False)
    reported.check_way("tidelog.example")
    Credentials(settings_from({"api_key": KEY}), tls=True).check_way("tidelog.example")
    for host in ("localhost", "127.0.0.1", "[::1]"):
        Credentials(settings_from({"api_key": KEY}), tls=False).check_way(host)


def test_a_broker_that_the_key_is_not_sent_to_fails_its_own_records_alone() -> None:
    async def main() -> None:
        near, far = SmallBroker("near"), SmallBroker("far")
        far.join(near)
        far.advertised = "192.0.2.1:9090"
        near.create_topic("orders", 2)
        near.move("orders", 1, "far")
        async with running(near), running(far), tidelog.connect(near.address, **quick(api_key=KEY)) as log:
            for n in range(2):
                with pytest.raises(Denied, match=r"the API key is not sent to 192\.0\.2\.1"):
                    await log.produce("orders", 1, partition=1)
                assert (await log.produce("orders", 1, partition=0)).offset == n
            near.move("orders", 1, "near")
            assert (await once_not_refused(lambda: log.produce("orders", 1, partition=1), Denied)).offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("with_one_that_is_away", [False, True])
def test_a_client_denied_at_every_address_gets_not_authorized_and_not_unavailable(with_one_that_is_away: bool) -> None:
    def denied(method: str) -> None:
        raise NotAuthorized("the key is revoked")

    async def main() -> None:
        near, far = SmallBroker("near"), SmallBroker("far")
        far.join(near)
        near.before_call = far.before_call = denied
        async with running(near), running(far):
            away = [f"grpc://127.0.0.1:{free_port()}"] if with_one_that_is_away else []
            with pytest.raises(NotAuthorized, match="the key is revoked"):
                async with tidelog.connect(*away, near.address, far.address, api_key=KEY):
                    pass

    asyncio.run(main())


def test_a_key_does_not_follow_a_redirect() -> None:
    with Endpoint().open() as elsewhere, Endpoint(302, str(elsewhere.address)).open() as endpoint:
        assert "302" in ask(endpoint, ClientSettings(api_key=KEY)).message
        assert endpoint.reported == [f"Bearer {KEY}"]
        assert elsewhere.reported == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_over_http_keeps_the_detail_and_hint_of_the_broker(status: int) -> None:
    body = b'{"code": "UNAUTHENTICATED", "detail": "the API key was revoked", "hint": "Ask for another."}'
    with Endpoint(status, body=body).open() as endpoint:
        error = ask(endpoint, ClientSettings(api_key=KEY))
        assert isinstance(error, Unauthenticated if status == 401 else NotAuthorized)
        assert error.message.endswith("the API key was revoked")
        assert error.hint == "Ask for another."


def test_a_broker_with_authentication_accepts_a_key_over_tls_at_either_listener(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")
    key = tmp_path / "key"
    key.write_text(f"tlk_{'0' * 16}_{'a' * 64}\n")
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        http="127.0.0.1:0",
        grpc="127.0.0.1:0",
        tls=TlsSettings(tls_cert_file=made.cert, tls_key_file=made.key),
        access=AccessSettings(authentication=True, admin_key_file=key, audit_log="off"),
    )

    async def main() -> None:
        async with running_broker(settings) as broker:
            for url in (f"https://{broker.http_address}", f"grpcs://{broker.grpc_address}"):
                async with tidelog.connect(url, ca_file=made.ca, api_key_file=key) as log:
                    topic = url.split(":")[0]
                    await log.topics.create(topic)
                    await log.produce(topic, 1)
                    assert len([record async for record in log.consume(topic, until="end")]) == 1
                assert isinstance(await refused(url, ca_file=made.ca), Unauthenticated)
                wrong = await refused(url, ca_file=made.ca, api_key=f"tlk_{'0' * 16}_{'b' * 64}")
                assert isinstance(wrong, Unauthenticated)

    uvloop.run(main())


def test_a_file_of_a_key_is_read_again_and_may_be_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "KEY_READ_AGAIN_S", 0.0)
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    shown = Credentials(ClientSettings(api_key_file=path), tls=False)
    assert shown.authorization() == f"Bearer {KEY}"
    path.write_text("tlk_new_1\n")
    assert shown.authorization() == "Bearer tlk_new_1"
    path.unlink()
    assert shown.authorization() == "Bearer tlk_new_1"
    with pytest.raises(InvalidArgument, match="can't be read"):
        Credentials(ClientSettings(api_key_file=path), tls=False)
    path.write_text("  \n")
    with pytest.raises(InvalidArgument, match="holds no key"):
        Credentials(ClientSettings(api_key_file=path), tls=False)


def test_a_key_shows_nowhere() -> None:
    settings = settings_from({"api_key": KEY})
    assert isinstance(settings.api_key, Secret)
    assert KEY not in repr(settings)
    with pytest.raises(InvalidArgument) as raised:
        settings_from({"api_key": f"{KEY}\n"})
    assert KEY not in str(raised.value)


# ── what goes together, and what the environment says ──


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_key": KEY, "api_key_file": "key"}, "api_key and api_key_file are both set"),
        ({"cert_file": "c.pem"}, "key_file is not set"),
        ({"key_file": "k.pem"}, "cert_file is not set"),
    ],
)
def test_credentials_that_do_not_go_together_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        settings_from(changes)


def test_files_of_tls_with_an_address_of_none_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="ca_file is set, and the address is not of TLS"):
        tidelog.connect("http://localhost:8080", ca_file=tmp_path / "ca.pem")
    with pytest.raises(InvalidArgument, match="can't be read"):
        tidelog.connect("https://localhost:8080", ca_file=tmp_path / "ca.pem")


def test_the_environment_says_what_the_program_does_not() -> None:
    environ = {
        "TIDELOG_API_KEY": KEY,
        "TIDELOG_CA_FILE": "ca.pem",
        "TIDELOG_CERT_FILE": "c.pem",
        "TIDELOG_KEY_FILE": "k.pem",
        "TIDELOG_TLS_SERVER_NAME": "",
    }
    assert credentials_from(environ, {}, tls=False) == {"api_key": KEY}
    files = {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem"}
    assert credentials_from(environ, {}, tls=True) == {"api_key": KEY, **files}
    given: Any = {"api_key_file": "key", "cert_file": "mine.pem", "key_file": "mine-key.pem"}
    assert credentials_from(environ, given, tls=True) == {"ca_file": "ca.pem"}

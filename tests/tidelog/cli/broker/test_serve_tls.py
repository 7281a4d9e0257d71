"""`tidelog serve` and `tidelog dev` with TLS, and without where they should have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.access.settings import AccessSettings
from gateway.net.tls.settings import TlsSettings
from gateway.settings import BrokerSettings
from tests.kit.certificates import make_certificates
from tests.kit.forked_tidelog import ForkedBroker
from tidelog.cli.broker.serve import reached_here, welcome_credentials
from tidelog.cli.main import run


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDELOG_URL", "TIDELOG_API_KEY", "TIDELOG_CA_FILE", "TIDELOG_CERT_FILE", "TIDELOG_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_broker_refuses_open_listeners_without_tls_or_authentication(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_certificates(tmp_path)
    base = [command, "--data-dir", str(tmp_path / "data"), "--http", "0.0.0.0:0"]
    assert run(base) == 2
    reported = capsys.readouterr().err
    assert "http on 0.0.0.0:0) without TLS" in reported
    assert "--insecure-listeners true" in reported
    assert run([*base, "--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key)]) == 2
    assert "without authentication" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("no_variables")
def test_a_wrong_certificate_is_refused_before_anything_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_certificates(tmp_path)
    made.key.write_bytes(made.client_key.read_bytes())
    flags = ["--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key)]
    assert (
        run(
            [
                "dev",
                "--data-dir",
                str(tmp_path / "data"),
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--kafka",
                "127.0.0.1:0",
                *flags,
            ]
        )
        == 2
    )
    assert f"{made.key} is not the key of the certificate" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("0.0.0.0:8080", "localhost:8080"), ("[::]:8081", "localhost:8081"), ("10.0.0.7:8080", "10.0.0.7:8080")],
)
def test_commands_are_shown_with_an_address_that_this_machine_can_ask(listens: str, reached: str) -> None:
    assert reached_here(listens) == reached


def test_the_welcome_names_what_a_client_needs_to_be_let_in(tmp_path: Path) -> None:
    def welcome(*, tls: dict[str, Any] | None = None, **access: Any) -> tuple[str, str]:
        pair: dict[str, Any] = {"tls_cert_file": Path("b.pem"), "tls_key_file": Path("b-key.pem")} if tls is not None else {}
        settings = BrokerSettings(data_dir=tmp_path, tls=TlsSettings(**pair, **(tls or {})), access=AccessSettings(**access))
        return welcome_credentials(settings)

    assert welcome() == ("", "")
    assert welcome(tls={}) == (" --ca-file ca.pem", " --cacert ca.pem")
    admin = welcome(tls={"tls_peer_ca_file": Path("our ca.pem")}, authentication=True, admin_key_file=Path("admin.key"))
    assert admin == (
        " --ca-file 'our ca.pem' --api-key-file admin.key",
        " --cacert 'our ca.pem' -H \"Authorization: Bearer $(cat admin.key)\"",
    )
    required = {"tls_client_auth": "required", "tls_client_ca_file": Path("ca.pem")}
    assert welcome(tls=required, authentication=True) == (
        " --ca-file ca.pem --cert-file client.pem --key-file client-key.pem",
        " --cacert ca.pem --cert client.pem --key client-key.pem",
    )
    assert welcome(authentication=True)[0] == " --api-key-file api.key"


@pytest.mark.slow
@pytest.mark.usefixtures("no_variables")
def test_commands_talk_to_a_broker_with_tls_by_flags_and_by_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_certificates(tmp_path / "certificates")
    monkeypatch.setenv("TIDELOG_CONFIG", str(tmp_path / "contexts.toml"))
    flags = ["--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key), "--tls-client-ca-file", str(made.ca)]
    with ForkedBroker(tmp_path, flags=[*flags, "--tls-client-auth", "required"], command="serve") as broker:
        broker.start()
        url = f"https://{broker.http_address}"
        shown = ["--ca-file", str(made.ca), "--cert-file", str(made.client_cert), "--key-file", str(made.client_key)]
        assert run(["topic", "create", "orders", "--url", url, *shown]) == 0
        assert run(["topic", "list", "--url", url]) == 1
        assert "--ca-file" in capsys.readouterr().err
        assert run(["topic", "list", "--url", url, "--ca-file", str(made.ca)]) == 1
        assert "--cert-file" in capsys.readouterr().err
        assert run(["context", "add", "prod", "--url", url, *shown]) == 0
        capsys.readouterr()
        assert run(["topic", "list", "-o", "json"]) == 0
        assert [topic["name"] for topic in json.loads(capsys.readouterr().out)] == ["orders"]
        assert run(["doctor", "--url", url, *shown, "-o", "json"]) == 0
        checks = {found["check"]: found for found in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["TLS"]["status"] == "warning", "it ends within the hour"
        assert checks["broker"]["status"] == "ok"
        broker.stop()

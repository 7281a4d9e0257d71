"""`tidelog doctor --kafka` follows a listener to the addresses that it advertises, and says plainly what is wrong."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.net.tls.settings import TlsSettings
from metadata.diagnosis import Diagnosis
from tests.kit.certificates import make_certificates
from tests.kit.gateway.access.guarded_broker import guarded
from tests.kit.gateway.small_broker import PATIENCE_S
from tidelog.cli.doctor.kafka import check_kafka

pytestmark = pytest.mark.slow


def diagnose(folder: Path, *, http: bool = False, tls: TlsSettings | None = None, authentication: bool = False) -> list[Diagnosis]:
    """Returns what the doctor finds at the listener of a broker."""

    async def scenario() -> list[Diagnosis]:
        async with guarded(folder, kafka="127.0.0.1:0", tls=tls, authentication=authentication, audit_log="off") as one:
            listener = one.broker.kafka_listeners[0]
            return await asyncio.to_thread(check_kafka, one.broker.http_address if http else f"{listener.host}:{listener.port}")

    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_listener_and_what_it_advertises_answer(tmp_path: Path) -> None:
    listener, advertised = diagnose(tmp_path)
    assert (listener.status, advertised.status) == ("ok", "ok")
    assert "plain text, and advertises 1 broker" in listener.detail
    assert "node 0 advertises 127.0.0.1:" in advertised.detail


def test_authentication_is_named(tmp_path: Path) -> None:
    [found] = diagnose(tmp_path, authentication=True)
    assert found.status == "warning"
    assert "needs authentication" in found.detail
    assert "SASL_PLAINTEXT" in found.remedy


def test_tls_is_found_and_spoken(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "certificates")
    listener, advertised = diagnose(tmp_path, tls=TlsSettings(tls_cert_file=files.cert, tls_key_file=files.key))
    assert (listener.status, advertised.status) == ("ok", "ok")
    assert "over TLS" in listener.detail


def test_another_protocol_is_named(tmp_path: Path) -> None:
    [found] = diagnose(tmp_path, http=True)
    assert found.status == "failed"
    assert "speaks HTTP" in found.detail


def test_an_address_without_a_listener_and_a_text_that_is_no_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it is bound, and does not listen
        [found] = check_kafka(f"127.0.0.1:{unused.getsockname()[1]}")
    assert found.status == "failed"
    assert "no connection" in found.detail
    assert check_kafka("broker")[0].status == "failed"

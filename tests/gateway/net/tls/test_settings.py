"""Which settings of TLS go together, and when a broker may listen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.net.tls.settings import TlsSettings, check_listeners, is_loopback
from metadata.errors import InvalidArgument

CERT, KEY, CA = Path("cert.pem"), Path("key.pem"), Path("ca.pem")
PAIR = {"tls_cert_file": CERT, "tls_key_file": KEY}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tls_cert_file": CERT}, "tls_key_file is not set"),
        ({"tls_key_file": KEY}, "tls_cert_file is not set"),
        ({"tls_client_ca_file": CA}, "tls_client_ca_file is set, and tls_cert_file is not"),
        ({"tls_peer_ca_file": CA}, "tls_peer_ca_file is set"),
        ({"tls_peer_name": "brokers.example"}, "tls_peer_name is set"),
        (PAIR | {"tls_client_auth": "required"}, "tls_client_ca_file is not set"),
        (PAIR | {"tls_client_auth": "on"}, "tls_client_auth is 'on'"),
        (PAIR | {"tls_reload_ms": 0.0}, "tls_reload_ms is 0.0"),
        (PAIR | {"tls_reload_ms": float("nan")}, "tls_reload_ms is nan"),
    ],
    ids=repr,
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        TlsSettings(**given)


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "127.8.9.1:1", "localhost:80", "[::1]:8080"])
def test_loopback_is_what_only_this_machine_reaches(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "10.0.0.7:8080", "broker-1:8080", "localhost.example:80"])
def test_everything_else_is_beyond(address: str) -> None:
    assert not is_loopback(address)


def check(tls: TlsSettings, *, http: str = "0.0.0.0:8080", grpc: str = "127.0.0.1:9090", authentication: bool = False) -> None:
    check_listeners(tls, http=http, grpc=grpc, authentication=authentication)


def test_beyond_loopback_a_broker_needs_tls_and_authentication() -> None:
    plain, with_tls = TlsSettings(), TlsSettings(tls_cert_file=CERT, tls_key_file=KEY)
    with pytest.raises(InvalidArgument, match=r"http on 0\.0\.0\.0:8080\) without TLS .* and without authentication") as refused:
        check(plain)
    assert "--insecure-listeners true" in refused.value.hint
    with pytest.raises(InvalidArgument, match="without TLS"):
        check(plain, authentication=True)
    with pytest.raises(InvalidArgument, match="without authentication"):
        check(with_tls)
    with pytest.raises(InvalidArgument, match=r"grpc on \[::\]:9090"):
        check(with_tls, http="127.0.0.1:8080", grpc="[::]:9090")
    check(with_tls, authentication=True)


def test_a_kafka_listener_beyond_loopback_needs_tls_and_authentication_as_well() -> None:
    def check_kafka(tls: TlsSettings, address: str, *, authentication: bool) -> None:
        kafka = {"inside": "127.0.0.1:9092", "outside": address}
        check_listeners(tls, http="127.0.0.1:1", grpc="127.0.0.1:2", authentication=authentication, kafka=kafka)

    with_tls = TlsSettings(tls_cert_file=CERT, tls_key_file=KEY)
    with pytest.raises(InvalidArgument, match=r"the Kafka listener outside on 0\.0\.0\.0:9093\) without TLS"):
        check_kafka(TlsSettings(), "0.0.0.0:9093", authentication=True)
    with pytest.raises(InvalidArgument, match="without authentication"):
        check_kafka(with_tls, "0.0.0.0:9093", authentication=False)
    check_kafka(with_tls, "0.0.0.0:9093", authentication=True)
    check_kafka(TlsSettings(), "127.0.0.1:9093", authentication=True)


def test_certificates_of_clients_are_authentication_as_well() -> None:
    check(TlsSettings(tls_cert_file=CERT, tls_key_file=KEY, tls_client_ca_file=CA, tls_client_auth="required"))
    with pytest.raises(InvalidArgument, match="without authentication"):
        check(TlsSettings(tls_cert_file=CERT, tls_key_file=KEY, tls_client_ca_file=CA, tls_client_auth="optional"))


def test_a_broker_with_insecure_listeners_allowed_listens_anywhere() -> None:
    check(TlsSettings(insecure_listeners=True), grpc="[::]:9090")


def test_on_loopback_nothing_is_needed() -> None:
    check(TlsSettings(), http="127.0.0.1:8080")

"""The pods with TLS and access, from Secrets as they would be mounted: others learn nothing, the kubelet's probes succeed, and
what the chart itself runs in them (preStop, `helm test`) is let in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.deploy.chart import NAME, NAMESPACE, merged, render
from tests.deploy.rendered_pod import RenderedPod, on_free_ports
from tests.kit.certificates import Authority
from tests.kit.etcd_server import running_etcd
from tests.kit.servers import S3Server

pytestmark = pytest.mark.slow
ADMIN_KEY = f"tlk_{'0' * 16}_{'ab' * 32}"
SERVICE = f"{NAME}.{NAMESPACE}.svc"


def secrets(s3: S3Server) -> dict[str, dict[str, str]]:
    authority = Authority()
    certificate, key = authority.sign("broker", hosts=(SERVICE,))
    return {
        "s3-keys": {"access-key-id": s3.access_key, "secret-access-key": s3.secret_key},
        "tidelog-tls": {"tls.crt": certificate.decode(), "tls.key": key.decode(), "ca.crt": authority.pem.decode()},
        "tidelog-admin": {"api-key": ADMIN_KEY},
    }


@pytest.fixture
def values(moto: S3Server, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with running_etcd(tmp_path) as etcd:
        yield {
            "bucket": f"s3://{moto.make_bucket()}/secured",
            "etcd": {"endpoints": [etcd.url]},
            "s3": {"endpoint": moto.endpoint_url, "region": "us-east-1", "existingSecret": "s3-keys"},
            "tls": {"enabled": True, "existingSecret": "tidelog-tls"},
            "auth": {"enabled": True, "adminKeySecret": "tidelog-admin"},
        }


@pytest.mark.parametrize("client_auth", ["off", "required"])
def test_secured_pods_admit_the_kubelet_and_the_charts_own_commands_and_no_other_clients(
    moto: S3Server, tmp_path: Path, values: dict[str, Any], client_auth: str
) -> None:
    held = secrets(moto)

    def pod(number: int) -> RenderedPod:
        own = {"tls": {"clientAuth": client_auth}} | on_free_ports()
        return RenderedPod(render(merged(values, own)), NAME, tmp_path, name=f"logs-{number}", secrets=held)

    with pod(0) as old, pod(1) as new:
        for each in (old, new):
            each.start()
        for each in (old, new):
            each.await_ready()
            assert each.probe("livenessProbe")
        status, body = old.get("/v1/brokers", scheme="https")
        assert status == 401
        assert b"logs-1" not in body
        if client_auth == "off":
            _kafka_clients(old, held, tmp_path)
        _helm_test(values | {"tls": values["tls"] | {"clientAuth": client_auth}}, old, tmp_path, held)
        assert old.stop() == 0, old.log
        done = new.run(["tidelog", "cluster", "brokers", "-o", "json"], timeout_s=60)
        assert "logs-1" in done.stdout, done.stderr
        assert "logs-0" not in done.stdout
        assert ADMIN_KEY[-64:] not in old.log + new.log


def _kafka_clients(broker: RenderedPod, held: dict[str, dict[str, str]], directory: Path) -> None:
    """Kafka clients with a key learn at which name of the certificate to connect; others learn nothing."""
    ca = directory / "ca.crt"
    ca.write_text(held["tidelog-tls"]["ca.crt"], encoding="ascii")
    where = {
        "bootstrap.servers": f"127.0.0.1:{broker.port('kafka')}",
        "ssl.ca.location": str(ca),
        "ssl.endpoint.identification.algorithm": "none",  # there is no DNS of Kubernetes here
    }
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "admin"}
    known = AdminClient({**where, **sasl, "sasl.password": ADMIN_KEY})
    brokers = known.list_topics(timeout=60).brokers.values()
    assert {f"{each.host}:{each.port}" for each in brokers} == {f"{SERVICE}:9092"}
    for outsider in ({**sasl, "sasl.password": f"tlk_{'0' * 16}_{'cd' * 32}"}, {"security.protocol": "SSL"}):
        with pytest.raises(KafkaException):
            AdminClient({**where, **outsider}).list_topics(timeout=3)


def _helm_test(values: dict[str, Any], broker: RenderedPod, directory: Path, held: dict[str, dict[str, str]]) -> None:
    url = {"TIDELOG_URL": f"https://127.0.0.1:{broker.port('http')}"}  # there is no DNS of Kubernetes here
    with RenderedPod(render(values), f"{NAME}-test", directory, name="logs-test", secrets=held, overrides=url) as test:
        test.start()
        assert test.wait() == 0, test.log

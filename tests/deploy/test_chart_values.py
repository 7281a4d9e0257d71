"""What the chart refuses, and what it says then: every refusal names the value, and most of them what to write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.settings import _known_settings as known_settings
from tests.deploy.chart import CHART, LEAST, refusal, render
from tests.deploy.test_chart_objects import CASES


def per_broker(**external: object) -> dict[str, Any]:
    return {"broker": {"workload": "StatefulSet"}, "kafka": {"external": {"access": "perBroker", **external}}}


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({}, "--set bucket=s3://my-bucket/tidelog"),
        ({"bucket": "s3://b"}, "--set etcd.enabled=true"),
        ({"etcd": {"enabled": True}}, "bucket is not set"),
        ({"bucket": "s3://b", "dev": {"enabled": True}}, "dev.enabled=false"),
        ({"etcd": LEAST["etcd"], "dev": {"enabled": True}}, "dev.enabled=false"),
    ],
)
def test_a_value_that_is_missing_is_named_with_what_to_write(values: dict[str, Any], reported: str) -> None:
    assert reported in refusal(values, with_least=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"etcd": {"enabled": True}}, "etcd.endpoints names another one"),
        ({"etcd": {"username": "tidelog"}}, "etcd.existingSecret"),
        ({"etcd": {"tls": {"existingSecret": "s", "certKey": "tls.crt"}}}, "etcd.tls.keyKey"),
        ({"tls": {"enabled": True}}, "kubectl create secret tls"),
        ({"tls": {"clientAuth": "required"}}, "tls.enabled is off"),
        ({"tls": {"enabled": True, "existingSecret": "s", "clientAuth": "required", "caKey": ""}}, "tls.clientCaSecret"),
        ({"auth": {"enabled": True}}, "kubectl create secret generic"),
        ({"auth": {"enabled": True, "adminKeySecret": "s"}}, "tls.enabled"),
        ({"auth": {"oidc": {"issuer": "https://login.example.com"}}}, "auth.oidc.audience"),
        ({"autoscaling": {"enabled": True, "minReplicas": 20}}, "autoscaling.maxReplicas"),
        ({"ingress": {"enabled": True}}, "ingress.hosts"),
        ({"ingress": {"grpc": {"enabled": True}}}, "ingress.grpc.hosts"),
        ({"broker": {"rack": {"name": "a", "fromZoneLabel": True}}}, "broker.rack.name"),
        ({"broker": {"terminationGracePeriodSeconds": 30}}, "broker.preStop.drainSeconds"),
        ({"kafka": {"enabled": False, "external": {"access": "forward", "host": "k"}}}, "kafka.enabled is off"),
        ({"kafka": {"external": {"access": "forward"}}}, "--set kafka.external.host=kafka.example.com"),
        ({"kafka": {"external": {"access": "forward", "host": "k-{ordinal}"}}}, "kafka.external.access=perBroker"),
        ({"kafka": {"external": {"access": "forward", "type": "NodePort", "host": "k"}}}, "kafka.external.nodePort"),
        ({"kafka": {"external": {"access": "perBroker", "host": "k-{ordinal}"}}}, "broker.workload=StatefulSet"),
        (per_broker(host=""), "kafka.external.host is not set"),
        (per_broker(host="k"), "kafka.external.advertisedPort"),
        (per_broker(type="NodePort", host="k"), "kafka.external.nodePort"),
        (per_broker(type="NodePort", nodePort=65_534), "3 brokers have the ports from 65534 on"),
        (per_broker(host="k", advertisedPort=65_534), "end behind 65535"),
        (per_broker(type="NodePort", nodePort=65_000) | {"autoscaling": {"enabled": True, "maxReplicas": 999}}, "999 brokers"),
        ({"broker": {"ports": {"kafka": 9090}}}, "broker.ports names one port twice"),
        ({"settings": {"kafka": "0.0.0.0:9092"}}, "settings.kafka is set by the chart: use kafka and broker.ports."),
        ({"settings": {"advertise_kafka": "k:9092"}}, "use kafka.route and kafka.external"),
        ({"settings": {"bucket": "s3://other"}}, "settings.bucket is set by the chart: use bucket."),
        ({"settings": {"tls_key_file": "/k"}}, "use tls.existingSecret"),
        ({"settings": {"memory_bytes_max": "4GiB"}}, "use broker.resources.limits.memory"),
    ],
)
def test_values_that_make_no_sense_together_are_refused(values: dict[str, Any], reported: str) -> None:
    assert reported in refusal(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"buckett": "s3://b"}, "buckett"),
        ({"bucket": "my-bucket"}, "bucket"),
        ({"bucket": "s3:///prefix"}, "bucket"),
        ({"etcd": {"endpoints": ["etcd:2379"]}}, "etcd/endpoints/0"),
        ({"etcd": {"endpoints": "http://etcd:2379"}}, "etcd/endpoints"),
        ({"etcd": {"replicas": 2}}, "etcd/replicas"),
        ({"settings": {"linger-ms": 5}}, "linger-ms"),
        ({"settings": {"linger_ms": [5]}}, "settings/linger_ms"),
        ({"broker": {"replicas": -1}}, "broker/replicas"),
        ({"broker": {"replica": 3}}, "replica"),
        ({"broker": {"ports": {"http": 0}}}, "broker/ports/http"),
        ({"broker": {"resources": {"requests": {"cpu": "lots"}}}}, "requests/cpu"),
        ({"broker": {"probes": {"liveness": {"periodSeconds": 0}}}}, "periodSeconds"),
        ({"tls": {"clientAuth": True}}, "tls/clientAuth"),
        ({"auth": {"adminPrincipals": ["a,b"]}}, "adminPrincipals"),
        ({"logging": {"level": "loud"}}, "logging/level"),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"service": {"type": "ExternalName"}}, "service/type"),
        ({"s3": {"existingSecret": "Not_A_Name"}}, "s3/existingSecret"),
        ({"s3": {"accessKey": "AKIA"}}, "accessKey"),
        ({"image": {"digest": "sha256:abc"}}, "image/digest"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets/0"),
        ({"broker": {"workload": "DaemonSet"}}, "broker/workload"),
        ({"broker": {"ports": {"kafkaExternal": 70_000}}}, "kafkaExternal"),
        ({"kafka": {"route": "sideways"}}, "kafka/route"),
        ({"kafka": {"external": {"access": "both"}}}, "kafka/external/access"),
        ({"kafka": {"external": {"host": "kafka.example.com:9092"}}}, "kafka/external/host"),
        ({"kafka": {"external": {"host": "$(id)"}}}, "kafka/external/host"),
        ({"kafka": {"external": {"host": "kafka-{number}"}}}, "kafka/external/host"),
        ({"kafka": {"external": {"nodePort": "31094"}}}, "kafka/external/nodePort"),
        ({"kafka": {"external": {"externalTrafficPolicy": "Near"}}}, "externalTrafficPolicy"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"test": {"records": 0}}, "test/records"),
    ],
)
def test_the_schema_refuses_what_is_misspelt_or_out_of_bounds(values: dict[str, Any], reported: str) -> None:
    said = refusal(values)
    assert "don't meet the specifications of the schema" in said
    assert reported in said


def test_settings_of_the_chart_s_own_are_settings() -> None:
    """Which are refused under `settings` since another value sets them."""
    text = (CHART / "templates" / "_checks.tpl").read_text(encoding="utf-8")
    table = text.partition('{{- define "tidelog.ownSettings" -}}')[2].partition("{{- end -}}")[0]
    own = yaml.safe_load(table)
    assert own.keys() >= {"kafka", "advertise_kafka"}
    assert own.keys() <= known_settings().keys()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_setting_that_is_rendered_is_one_of_the_broker(case: str) -> None:
    values = CASES[case]
    clients = {"URL", "API_KEY_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE", "TLS_SERVER_NAME"}
    made = render(values, with_least="dev" not in values)
    for owner, pod in made.pods:
        given = {each["name"].removeprefix("TIDELOG_") for each in pod["containers"][0]["env"] if "TIDELOG_" in each["name"]}
        assert {name.lower() for name in given - clients} <= known_settings().keys(), owner


def test_large_numbers_are_not_written_as_powers_of_ten() -> None:
    settings = {"tail_cache_bytes_max": 16_777_216_000, "linger_ms": 250, "dirty_ratio_min": 0.25, "compact": True, "region": "eu"}
    del settings["region"]
    variables = render({"settings": settings}).variables()
    assert variables["TIDELOG_TAIL_CACHE_BYTES_MAX"] == "16777216000"
    assert variables["TIDELOG_LINGER_MS"] == "250"
    assert variables["TIDELOG_DIRTY_RATIO_MIN"] == "0.25"
    assert variables["TIDELOG_COMPACT"] == "true"


def test_every_value_has_a_description_and_every_description_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        target: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
        return target | node

    def compare(given: Any, node: dict[str, Any], path: str) -> Iterator[str]:
        node = resolved(node)
        if "description" not in node:
            yield f"{path} has no description"
        if "properties" in node and isinstance(given, dict):
            yield from (f"{path}.{name} is not in the schema" for name in given.keys() - node["properties"].keys())
            for name, inner in node["properties"].items():
                if name in given:
                    yield from compare(given[name], inner, f"{path}.{name}")
                elif "description" not in resolved(inner):
                    yield f"{path}.{name} has no description"
            if node.get("additionalProperties") is not False:
                yield f"{path} takes misspelt names"

    assert list(compare(values, schema | {"description": ""}, "")) == []

"""Where the chart lets Kafka clients in: listeners advertise what clients reach, and a Service stands behind each address."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.listener_config import ListenerConfig, Route, check_advertised, parse_listeners
from tests.deploy.chart import NAME, NAMESPACE, Rendered, merged, render
from tests.deploy.test_chart_objects import AUTH, CASES, DEV, TLS, rendered

SERVICE = f"{NAME}.{NAMESPACE}.svc"
STATEFUL = {"broker": {"workload": "StatefulSet"}}
# Addresses of the pod, and of its node.
POD_IP, HOST_IP = "10.1.2.3", "192.0.2.7"


def listeners(made: Rendered, ordinal: int = 0) -> dict[str, ListenerConfig]:
    """Returns the listeners of this broker, by name, as it reads them from its command and its variables."""
    variables, pod = made.variables(), f"{NAME}-{ordinal}"
    advertised = variables.get("TIDELOG_ADVERTISE_KAFKA", "")
    if made.container()["command"][0] == "sh":
        script = made.container()["command"][2]
        (line,) = (line for line in script.splitlines() if line.startswith("export"))
        own = line.partition("$TIDELOG_ADVERTISE_KAFKA")[2].rstrip('"').replace("$ordinal", str(ordinal))
        address, sum_, terms = own.partition("$((")
        advertised += address + (str(sum(map(int, terms.rstrip(")").split(" + ")))) if sum_ else "")
    values = {"$(POD_IP)": POD_IP, "$(TIDELOG_BROKER_ID)": pod, "$(HOST_IP)": HOST_IP, "$HOST_IP": HOST_IP}
    for name, value in values.items():
        advertised = advertised.replace(name, value)
    found = parse_listeners(variables.get("TIDELOG_KAFKA", ""), advertised)
    check_advertised(found)
    return {listener.name: listener for listener in found}


def test_clients_inside_reach_each_leader_at_its_pod() -> None:
    assert listeners(render()) == {"internal": ListenerConfig("internal", "0.0.0.0:9092", f"{POD_IP}:9092", Route.DIRECT)}
    ports = {each["name"]: (each["port"], each["targetPort"]) for each in render().one("Service")["spec"]["ports"]}
    assert ports["kafka"] == (9092, "kafka")


@pytest.mark.parametrize(
    ("values", "advertised", "route"),
    [
        ({}, f"{POD_IP}:9092", Route.DIRECT),
        (TLS, f"{SERVICE}:9092", Route.FORWARD),
        (TLS | {"service": {"kafkaPort": 9192}}, f"{SERVICE}:9192", Route.FORWARD),
        (TLS | {"kafka": {"route": "direct"}}, f"{POD_IP}:9092", Route.DIRECT),
        ({"kafka": {"route": "forward"}}, f"{SERVICE}:9092", Route.FORWARD),
        (STATEFUL, f"{NAME}-2.{NAME}-pods.{NAMESPACE}.svc:9092", Route.DIRECT),
        (TLS | STATEFUL, f"{NAME}-2.{NAME}-pods.{NAMESPACE}.svc:9092", Route.DIRECT),
        (DEV, f"{SERVICE}:9092", Route.FORWARD),
        (DEV | STATEFUL, f"{SERVICE}:9092", Route.FORWARD),
    ],
)
def test_the_internal_listener_advertises_a_name_that_its_certificate_can_hold(
    values: dict[str, Any], advertised: str, route: Route
) -> None:
    found = listeners(render(values, with_least="dev" not in values), ordinal=2)["internal"]
    assert (found.advertised, found.route) == (advertised, route)


def test_the_names_of_pods_hold_while_they_are_not_ready() -> None:
    made = render(STATEFUL)
    service = made.one("Service", f"{NAME}-pods")["spec"]
    assert made.one("StatefulSet")["spec"]["serviceName"] == f"{NAME}-pods"
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in made.one("Service", f"{NAME}-headless")["spec"]


def test_one_load_balancer_serves_for_all_brokers_which_forward() -> None:
    made = rendered("Kafka, one load balancer")
    external = listeners(made)["external"]
    assert (external.address, external.advertised, external.route) == ("0.0.0.0:9094", "kafka.example.com:9094", Route.FORWARD)
    service = made.one("Service", f"{NAME}-kafka")
    assert service["spec"]["selector"] == made.one("Service")["spec"]["selector"]
    assert service["spec"]["ports"] == [{"name": "kafka", "port": 9094, "targetPort": "kafka-external", "protocol": "TCP"}]
    assert service["spec"]["loadBalancerClass"] == "internal"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert service["spec"]["externalTrafficPolicy"] == "Local"


def test_an_address_outside_may_have_another_port_than_the_service() -> None:
    values = {"kafka": {"external": {"access": "forward", "host": "k", "port": 9095, "advertisedPort": 443}}}
    assert listeners(render(values))["external"].advertised == "k:443"
    assert render(values).one("Service", f"{NAME}-kafka")["spec"]["ports"][0]["port"] == 9095


@pytest.mark.parametrize(
    ("case", "advertised"),
    [
        (
            "Kafka, a load balancer for each broker",
            ["kafka-0.example.com:9094", "kafka-1.example.com:9094", "kafka-2.example.com:9094"],
        ),
        ("Kafka, a node's port for each broker", [f"{HOST_IP}:{31_094 + ordinal}" for ordinal in range(5)]),
        ("Kafka behind a proxy, TLS and access", [f"[2001:db8::1]:{40_000 + ordinal}" for ordinal in range(3)]),
    ],
)
def test_each_broker_has_an_address_outside_and_a_service_of_its_own(case: str, advertised: list[str]) -> None:
    made = rendered(case)
    assert [listeners(made, ordinal)["external"].advertised for ordinal in range(len(advertised))] == advertised
    assert {listeners(made, ordinal)["external"].route for ordinal in range(len(advertised))} == {Route.DIRECT}
    services = [each for each in made.objects if each["metadata"]["name"].startswith(f"{NAME}-kafka-")]
    assert [each["metadata"]["name"] for each in services] == [f"{NAME}-kafka-{ordinal}" for ordinal in range(len(advertised))]
    for ordinal, service in enumerate(services):
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"{NAME}-{ordinal}"
        assert service["spec"]["publishNotReadyAddresses"] is True
        if service["spec"]["type"] == "NodePort":
            assert advertised[ordinal].endswith(f":{service['spec']['ports'][0]['nodePort']}")
        for value in (service["metadata"].get("annotations") or {}).values():
            assert value == f"kafka-{ordinal}.example.com"


@pytest.mark.slow
@pytest.mark.parametrize("ordinal", [0, 12])
def test_the_shell_of_the_pod_makes_the_same_address_of_its_name(ordinal: int, tmp_path: Path) -> None:
    stand_in = tmp_path / "tidelog"
    stand_in.write_text('#!/bin/sh\necho "$@ $TIDELOG_ADVERTISE_KAFKA"\n')
    stand_in.chmod(0o755)
    for case in ("Kafka, a load balancer for each broker", "Kafka, a node's port for each broker"):
        made = rendered(case)
        variables = {"TIDELOG_BROKER_ID": f"{NAME}-{ordinal}", "TIDELOG_ADVERTISE_KAFKA": "internal=a:1", "HOST_IP": HOST_IP}
        path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        ran = subprocess.run(made.container()["command"], env=variables | path, capture_output=True, text=True, check=True)
        assert ran.stdout == f"serve internal=a:1,external={listeners(made, ordinal)['external'].advertised}\n"


def test_the_policy_admits_the_same_clients_at_each_listener() -> None:
    def ports(values: dict[str, Any]) -> list[str]:
        (rule,) = render(values).one("NetworkPolicy")["spec"]["ingress"]
        return [port["port"] for port in rule["ports"]]

    assert ports({}) == ["http", "grpc", "kafka"]
    assert ports({"kafka": {"enabled": False}}) == ["http", "grpc"]
    assert ports(CASES["Kafka, one load balancer"]) == ["http", "grpc", "kafka", "kafka-external"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, f"Kafka                   {SERVICE}:9092"),
        (CASES["Kafka, one load balancer"], "Kafka, from outside     kafka.example.com:9094"),
        (CASES["Kafka, one load balancer"], "networkPolicy.clients names none"),
        (CASES["Kafka, a load balancer for each broker"], "kafka-0.example.com:9094, and so on for each broker"),
        (CASES["Kafka, a load balancer for each broker"], f"rollout status statefulset/{NAME}"),
        (CASES["Kafka, a node's port for each broker"], "Kafka, from outside     NODE:31094, and so on"),
        (TLS | AUTH, f"check that the certificate holds the name to which they connect:\n  {SERVICE}\n"),
        (merged(TLS, {"kafka": {"route": "direct"}}), "set kafka.route=forward, or"),
        (
            merged(TLS, CASES["Kafka, a load balancer for each broker"]),
            f"and *.{NAME}-pods.{NAMESPACE}.svc\n  kafka-N.example.com for each broker",
        ),
    ],
)
def test_the_notes_say_where_kafka_clients_connect_and_what_a_certificate_must_hold(values: dict[str, Any], said: str) -> None:
    assert said in render(values).notes


def test_without_kafka_nothing_speaks_of_it() -> None:
    made = rendered("Kafka, off")
    assert "Kafka" not in made.notes
    assert not [name for name in made.variables() if "KAFKA" in name]
    assert "kafka" not in {port["name"] for each in made.objects if each["kind"] == "Service" for port in each["spec"]["ports"]}

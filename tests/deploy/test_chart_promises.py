"""What an operator may rely on, whatever the values: pods without privileges, probes of the right listener, a stop in order,
and listeners that only the named peers may reach."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.listener_config import parse_listeners
from gateway.settings import load_settings
from tests.deploy.chart import NAME, Object, Rendered, merged, render
from tests.deploy.rendered_pod import quantity_bytes
from tests.deploy.test_chart_objects import AUTH, CASES, TLS, pods_of, rendered

BROKERS = [case for case in CASES if "dev" not in CASES[case]]
TRIALS = [case for case in CASES if "dev" in CASES[case]]


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_a_privilege(case: str) -> None:
    """What the Pod Security Standard calls restricted, and a root that can't be written to."""
    for _, pod in rendered(case).pods:
        of_pod = pod["securityContext"]
        assert of_pod["runAsNonRoot"] is True
        assert of_pod["runAsUser"] > 0
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        own = pod["containers"][0]["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not own.keys() & {"privileged", "runAsUser"}


@pytest.mark.parametrize("case", CASES)
def test_every_container_asks_for_memory_and_is_bounded_in_it(case: str) -> None:
    for _, pod in rendered(case).pods:
        resources = pod["containers"][0]["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in resources["limits"]


@pytest.mark.parametrize("case", CASES)
def test_a_process_may_take_the_memory_of_its_container(case: str) -> None:
    """One number: who raises the limit gives the process more, too."""
    for owner, pod in rendered(case).pods:
        given = [each for each in pod["containers"][0].get("env", []) if each["name"] == "TIDELOG_MEMORY_BYTES_MAX"]
        if pod["containers"][0]["command"][0] != "etcd" and pod["containers"][0].get("ports"):  # not `helm test`
            (variable,) = given
            assert variable["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory"}}, owner


@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_every_container_is_enough_for_its_parts(case: str) -> None:
    for owner, pod in rendered(case).pods:
        container = pod["containers"][0]
        if any(each["name"] == "TIDELOG_MEMORY_BYTES_MAX" for each in container.get("env", [])):
            settings = load_settings(
                {"data_dir": ".", "memory_bytes_max": quantity_bytes(container["resources"]["limits"]["memory"])}, {}
            )
            settings.check_memory(serves="compact" not in container["command"])
            assert settings.memory_bytes_max >= 1 << 30, owner


def test_without_a_limit_the_default_of_the_process_holds() -> None:
    made = render({"broker": {"resources": {"limits": {"memory": None}}}})
    assert "TIDELOG_MEMORY_BYTES_MAX" not in {each["name"] for each in made.container()["env"]}


@pytest.mark.parametrize("case", CASES)
def test_no_secret_stands_in_a_manifest(case: str) -> None:
    for _, pod in rendered(case).pods:
        for variable in pod["containers"][0].get("env", []):
            if variable["name"] in {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}:
                assert "secretKeyRef" in variable["valueFrom"]
            assert variable["name"] not in {"TIDELOG_ETCD_PASSWORD", "TIDELOG_API_KEY"}


@pytest.mark.parametrize("case", CASES)
def test_the_probes_of_a_broker_ask_its_http_listener(case: str) -> None:
    container = rendered(case).container()
    scheme = "HTTPS" if CASES[case].get("tls") else "HTTP"
    for probe, path in (("startupProbe", "/startupz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http", "scheme": scheme}


def test_a_broker_is_not_killed_for_being_slow_to_start_or_to_answer_once() -> None:
    container = render().container()
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


@pytest.mark.parametrize("case", CASES)
def test_ports_of_probes_services_and_policies_are_ports_of_the_containers(case: str) -> None:
    made = rendered(case)
    ports = {
        owner: {each["name"]: each["containerPort"] for each in pod["containers"][0].get("ports", [])} for owner, pod in made.pods
    }
    for each in made.objects:
        owner = pods_of(each["metadata"]["name"])
        if each["kind"] == "Service":
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports[owner].keys()
        if each["kind"] == "NetworkPolicy":
            admitted = {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]}
            assert admitted <= ports[owner].keys()
            assert admitted >= ports[owner].keys() - {"metrics" if "etcd" in owner else ""}
        if each["kind"] == "Ingress":
            (service,) = {
                path["backend"]["service"]["port"]["name"] for rule in each["spec"]["rules"] for path in rule["http"]["paths"]
            }
            assert service in ports[NAME]
        if each["kind"] == "ServiceMonitor":
            services = [one for one in made.objects if one["kind"] == "Service" and _selects(each, one)]
            assert [one["metadata"]["name"] for one in services] == [owner]
            assert {endpoint["port"] for endpoint in each["spec"]["endpoints"]} <= {
                port["name"] for port in services[0]["spec"]["ports"]
            }


def _selects(monitor: Object, service: Object) -> bool:
    return bool(monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items())


@pytest.mark.parametrize("case", CASES)
def test_the_broker_listens_where_its_ports_are(case: str) -> None:
    made = rendered(case)
    ports = {each["name"]: each["containerPort"] for each in made.container()["ports"]}
    variables = made.variables()
    assert {"kafka", "kafka-external"} & ports.keys() == ({"kafka"} if "TIDELOG_KAFKA" in variables else set()) | (
        {"kafka-external"} if "external=" in variables.get("TIDELOG_KAFKA", "") else set()
    )
    for listener in parse_listeners(variables.get("TIDELOG_KAFKA", ""), ""):
        assert listener.address.endswith(f":{ports.pop('kafka' if listener.name == 'internal' else 'kafka-external')}")
    for endpoint, port in ports.items():
        assert variables[f"TIDELOG_{endpoint.upper()}"].endswith(f":{port}")
        if case in BROKERS:
            assert variables[f"TIDELOG_ADVERTISE_{endpoint.upper()}"].endswith(
                f"$(POD_IP)]:{port}" if "0.0.0.0" not in variables["TIDELOG_HTTP"] else f"$(POD_IP):{port}"
            )


@pytest.mark.parametrize("case", BROKERS)
def test_brokers_are_replaced_one_by_one_and_never_missed(case: str) -> None:
    if ("StatefulSet", NAME) in rendered(case).kinds():
        assert rendered(case).one("StatefulSet")["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
        return
    spec = rendered(case).one("Deployment")["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize("case", BROKERS)
def test_a_broker_that_stops_in_order_stays_within_its_grace(case: str) -> None:
    """preStop first, then what docs/guides/cluster.md says that SIGTERM may take."""
    assert _grace_s(rendered(case)) >= _stop_s(rendered(case))


@pytest.mark.parametrize(
    "values",
    [
        {"broker": {"preStop": {"drainSeconds": 120, "endpointSeconds": 30}}},
        {"broker": {"preStop": {"drainSeconds": 1, "endpointSeconds": 60}}},
        {"settings": {"drain_timeout_ms": 90_000, "put_deadline_ms": 60_500, "shutdown_grace_ms": 20_000}},
        {"broker": {"terminationGracePeriodSeconds": 600}},
    ],
)
def test_the_grace_follows_the_settings(values: dict[str, Any]) -> None:
    made = render(values)
    assert _grace_s(made) >= _stop_s(made)
    assert _grace_s(made) == 600 or _grace_s(made) <= _stop_s(made) + 2, "no longer than it must be"


def _grace_s(made: Rendered) -> int:
    grace: int = dict(made.pods)[NAME]["terminationGracePeriodSeconds"]
    return grace


def _stop_s(made: Rendered) -> float:
    _, _, script = made.container()["lifecycle"]["preStop"]["exec"]["command"]
    words = script.split()
    sleep_s, timeout_s = int(words[words.index("sleep") + 1]), int(words[words.index("timeout") + 1])
    given_s = int(words[words.index("--timeout") + 1])
    assert given_s < timeout_s
    names = ("TIDELOG_DRAIN_TIMEOUT_MS", "TIDELOG_PUT_DEADLINE_MS", "TIDELOG_SHUTDOWN_GRACE_MS")
    settings = load_settings({"data_dir": "."}, {name: value for name, value in made.variables().items() if name in names})
    at_most_ms = settings.registration.drain_timeout_ms + settings.segments.put_deadline_ms + settings.gateway.shutdown_grace_ms
    return max(sleep_s, timeout_s) + at_most_ms / 1000 + 2


@pytest.mark.parametrize("replicas", [1, 2, 3, 50])
def test_the_disruption_budget_always_lets_a_broker_go_and_always_leaves_the_others(replicas: int) -> None:
    budget = render({"broker": {"replicas": replicas}}).one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("members", [1, 3, 5])
def test_the_own_etcd_never_loses_its_majority_to_an_eviction(members: int) -> None:
    made = render({"etcd": {"enabled": True, "endpoints": [], "replicas": members}})
    assert made.one("PodDisruptionBudget", f"{NAME}-etcd")["spec"]["maxUnavailable"] == 1
    assert made.one("StatefulSet", f"{NAME}-etcd")["spec"]["replicas"] == members


def test_brokers_are_spread_over_zones_and_nodes() -> None:
    constraints = dict(render().pods)[NAME]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in constraints] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    selector = render().one("Deployment")["spec"]["selector"]
    assert all(each["labelSelector"] == selector for each in constraints)


def test_the_chart_admits_only_the_named_clients() -> None:
    (rule,) = render().one("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"][1:] == [{"podSelector": {}}], "the namespace's own pods, and none of another"
    (rule,) = render({"networkPolicy": {"allowNamespace": False}}).one("NetworkPolicy")["spec"]["ingress"]
    assert len(rule["from"]) == 1
    peer = {"namespaceSelector": {"matchLabels": {"team": "data"}}}
    (rule,) = render({"networkPolicy": {"clients": [peer]}}).one("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"][-1] == peer


def test_egress_that_is_limited_still_reaches_etcd_the_bucket_and_the_own_pods() -> None:
    values = {"networkPolicy": {"egress": {"enabled": True}}, "s3": {"endpoint": "http://minio.minio:9000"}}
    for name in (NAME, f"{NAME}-compactor"):
        policy = render(values).one("NetworkPolicy", name)["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        ports = {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}
        assert ports == {53, 443, 80, 2379, 9000}
        more = values | {
            "s3": {"endpoint": "https://minio.minio:9000/"},
            "tracing": {"otlpEndpoint": "http://otel-collector:4318"},
            "auth": {"oidc": {"issuer": "https://keycloak:8443/realms/x", "audience": "tidelog"}},
        }
        rules = render(more).one("NetworkPolicy", name)["spec"]["egress"]
        ports = {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]}
        assert ports == {53, 443, 80, 2379, 9000, 4318, 8443}
        assert any("to" in rule and "ports" not in rule for rule in policy["egress"])


@pytest.mark.parametrize(
    ("values", "insecure"),
    [
        ({}, True),
        (TLS, True),
        (TLS | AUTH, False),
        (merged(TLS, {"tls": {"clientAuth": "optional"}}), True),
        (merged(TLS, {"tls": {"clientAuth": "required"}}), False),
    ],
)
def test_listeners_are_called_insecure_only_where_they_are(values: dict[str, Any], insecure: bool) -> None:
    assert ("TIDELOG_INSECURE_LISTENERS" in render(values).variables()) is insecure


@pytest.mark.parametrize(
    ("tls", "checked_by"),
    [
        ({"clientAuth": "required", "clientCaSecret": "clients"}, "/etc/tidelog/tls/ca.crt"),
        ({"clientAuth": "required", "clientCaSecret": "clients", "caKey": ""}, "/etc/ssl/certs/ca-certificates.crt"),
        ({"clientAuth": "off", "caKey": ""}, None),
    ],
)
def test_brokers_never_check_each_other_by_the_authority_of_the_clients(tls: dict[str, Any], checked_by: str | None) -> None:
    assert render(merged(TLS, {"tls": tls})).variables().get("TIDELOG_TLS_PEER_CA_FILE") == checked_by


@pytest.mark.parametrize(("client_auth", "shown"), [("off", False), ("optional", False), ("required", True)])
def test_prestop_shows_the_brokers_certificate_only_where_one_is_required(client_auth: str, shown: bool) -> None:
    variables = render(merged(TLS, {"tls": {"clientAuth": client_auth, "clientCaSecret": "clients"}})).variables()
    assert ("TIDELOG_CERT_FILE" in variables) is shown


def test_certificates_are_mounted_so_that_new_ones_show() -> None:
    for mount in render(merged(TLS, {"tls": {"clientCaSecret": "clients"}})).container()["volumeMounts"]:
        assert "subPath" not in mount


def test_compactors_read_and_write_the_same_log_as_the_brokers() -> None:
    for case in BROKERS:
        made = rendered(case)
        if (compactor := f"{NAME}-compactor") in dict(made.pods):
            brokers, compactors = made.variables(), made.variables(compactor)
            for name in ("TIDELOG_BUCKET", "TIDELOG_ETCD", "TIDELOG_CLUSTER", "TIDELOG_REGION", "TIDELOG_ENDPOINT_URL"):
                assert compactors.get(name) == brokers.get(name)


def test_a_compactor_leaves_room_on_the_disk_that_it_was_given() -> None:
    compactor = render({"compactor": {"scratch": {"gibibytes": 8}}})
    (scratch,) = (volume for volume in dict(compactor.pods)[f"{NAME}-compactor"]["volumes"] if volume["name"] == "scratch")
    assert scratch["emptyDir"]["sizeLimit"] == "8Gi"
    size = compactor.variables(f"{NAME}-compactor")["TIDELOG_SCRATCH_BYTES_MAX"]
    used = load_settings({"data_dir": "."}, {"TIDELOG_SCRATCH_BYTES_MAX": size}).compaction.scratch_bytes_max
    assert used == 7 << 30


@pytest.mark.parametrize("case", TRIALS)
def test_a_trial_has_one_pod_that_nothing_shares_a_directory_with(case: str) -> None:
    spec = rendered(case).one("Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    assert rendered(case).container()["command"] == ["tidelog", "dev"]

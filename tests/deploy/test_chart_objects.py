"""What the chart makes of values: objects that Kubernetes takes, in three versions of it; and every switch does something."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import version
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.deploy.chart import CHART, KUBERNETES, LEAST, NAME, NAMESPACE, Rendered, faults, merged, render

TLS = {"tls": {"enabled": True, "existingSecret": "tidelog-tls"}}
AUTH = {"auth": {"enabled": True, "adminKeySecret": "tidelog-admin"}}
DEV: dict[str, Any] = {"dev": {"enabled": True}}
CASES: dict[str, dict[str, Any]] = {
    "a bucket and an etcd": {},
    "own etcd": {"etcd": {"enabled": True, "endpoints": []}},
    "own etcd of one member, on SSD": {
        "etcd": {
            "enabled": True,
            "endpoints": [],
            "replicas": 1,
            "storage": {"storageClassName": "ssd"},
            "affinity": {"nodeAffinity": {}},
        }
    },
    "etcd with a password and TLS": {
        "etcd": {
            "username": "tidelog",
            "existingSecret": "etcd-user",
            "tls": {"existingSecret": "etcd-tls", "certKey": "tls.crt", "keyKey": "tls.key"},
        }
    },
    "a store that is not AWS": {
        "s3": {"endpoint": "http://minio:9000", "region": "eu", "existingSecret": "keys", "sessionTokenKey": "session-token"}
    },
    "TLS": TLS,
    "TLS and access": TLS | AUTH,
    "certificates of clients": merged(
        TLS, {"tls": {"clientAuth": "required", "clientCaSecret": "clients-ca"}, "auth": {"tlsPrincipal": "subject"}}
    ),
    "TLS, tokens, and a key for Prometheus": merged(
        TLS | AUTH,
        {
            "auth": {
                "oidc": {"issuer": "https://login.example.com", "audience": "tidelog"},
                "adminPrincipals": ["ada", "grace"],
                "metricsOpen": False,
            },
            "metrics": {"serviceMonitor": {"enabled": True, "bearerTokenSecret": {"name": "prometheus", "key": "api-key"}}},
        },
    ),
    "everything that is watched": {
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Tidelog"}},
        },
        "tracing": {"otlpEndpoint": "http://otel:4318"},
    },
    "autoscaling": {"autoscaling": {"enabled": True, "bufferedBytes": {"enabled": True}}},
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": [{"host": "tidelog.example.com"}],
            "tls": [{"secretName": "tidelog-tls", "hosts": ["tidelog.example.com"]}],
            "grpc": {
                "enabled": True,
                "hosts": [{"host": "grpc.example.com", "path": "/"}],
                "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "GRPC"},
            },
        }
    },
    "a load balancer": {
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}, "loadBalancerSourceRanges": ["10.0.0.0/8"]},
        "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "egress": {"networkPolicy": {"egress": {"enabled": True, "extra": [{"ports": [{"port": 4318, "protocol": "TCP"}]}]}}},
    "nothing that can be left out": {
        "compactor": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "service": {"headless": {"enabled": False}},
    },
    "everything that pods can be given": {
        name: {
            "podLabels": {"team": "data"},
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "TIDELOG_LINGER_MS", "value": "50"}],
            "extraEnvFrom": [{"secretRef": {"name": "more"}}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "extraContainers": [{"name": "beside", "image": "beside:1"}],
            "initContainers": [{"name": "before", "image": "before:1"}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "logs", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "high",
            "topologySpreadConstraints": [],
        }
        for name in ("broker", "compactor")
    },
    "names, labels and images": {
        "nameOverride": "log",
        "fullnameOverride": NAME,
        "commonLabels": {"team": "data"},
        "commonAnnotations": {"owner": "ada"},
        "imagePullSecrets": [{"name": "registry"}],
        "image": {"repository": "registry.example.com/tidelog", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/tidelog"}},
    },
    "disks, racks and IPv6": {"broker": {"diskCache": {"gibibytes": 50}, "rack": {"fromZoneLabel": True}, "ipv6": True}},
    "settings": {"settings": {"linger_ms": 250, "tail_cache_bytes_max": 16_777_216_000, "dirty_ratio_min": 0.25, "compact": True}},
    "Kafka, off": {"kafka": {"enabled": False}},
    "Kafka, one load balancer": {
        "kafka": {
            "external": {
                "access": "forward",
                "host": "kafka.example.com",
                "loadBalancerClass": "internal",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
                "annotations": {"external-dns.alpha.kubernetes.io/hostname": "kafka.example.com"},
            }
        }
    },
    "Kafka, a load balancer for each broker": {
        "broker": {"workload": "StatefulSet", "diskCache": {"gibibytes": 50}},
        "kafka": {
            "external": {
                "access": "perBroker",
                "host": "kafka-{ordinal}.example.com",
                "annotations": {"external-dns.alpha.kubernetes.io/hostname": "kafka-{ordinal}.example.com"},
            }
        },
    },
    "Kafka, a node's port for each broker": {
        "broker": {"workload": "StatefulSet"},
        "autoscaling": {"enabled": True, "maxReplicas": 5},
        "kafka": {"external": {"access": "perBroker", "type": "NodePort", "nodePort": 31_094}},
    },
    "Kafka behind a proxy, TLS and access": merged(
        TLS | AUTH,
        {
            "broker": {"workload": "StatefulSet", "ipv6": True},
            "kafka": {"external": {"access": "perBroker", "type": "ClusterIP", "host": "[2001:db8::1]", "advertisedPort": 40_000}},
        },
    ),
    "a StatefulSet without Kafka": {"broker": {"workload": "StatefulSet"}, "kafka": {"enabled": False}},
    "a trial": DEV,
    "a trial with Kafka outside": DEV | {"kafka": {"external": {"access": "forward", "type": "NodePort", "nodePort": 31_094}}},
    "a trial with a volume, TLS and access": merged(
        DEV | TLS | AUTH, {"dev": {"persistence": {"enabled": True, "storageClassName": "ssd"}}}
    ),
}


@cache
def rendered(case: str) -> Rendered:
    values = CASES[case]
    return render(values, with_least="dev" not in values)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object(case: str) -> None:
    for each in rendered(case).objects:
        for of_kubernetes in KUBERNETES:
            assert faults(each, of_kubernetes) == [], f"{each['kind']} {each['metadata']['name']}, Kubernetes {of_kubernetes}"


def test_the_schemas_detect_a_fault() -> None:
    for each in rendered("everything that is watched").objects:
        for of_kubernetes in KUBERNETES:
            assert faults(each | {"spek": {}}, of_kubernetes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_helm_s_strict_lint_finds_nothing(case: str) -> None:
    values = CASES[case] if "dev" in CASES[case] else merged(LEAST, CASES[case])
    report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [message for message in report["messages"] if "icon" not in message["error"]] == []


@pytest.mark.parametrize("case", CASES)
def test_every_object_has_the_labels_of_its_release_and_its_namespace(case: str) -> None:
    for each in rendered(case).objects:
        assert each["metadata"]["namespace"] == NAMESPACE
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "logs"
        assert each["metadata"]["labels"].keys() >= CASES[case].get("commonLabels", {}).keys()
        assert (each["metadata"].get("annotations") or {}).keys() >= CASES[case].get("commonAnnotations", {}).keys()


def pods_of(service: str) -> str:
    """What starts the pods behind a Service of this name: some have several."""
    return re.sub(r"-(headless|pods|kafka(-\d+)?)$", "", service)


@pytest.mark.parametrize("case", CASES)
def test_a_selector_finds_the_pods_that_are_meant_and_no_others(case: str) -> None:
    made = rendered(case)
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in made.objects
        if each["kind"] in {"Deployment", "StatefulSet"}
    }
    for each in made.objects:
        name, spec = pods_of(each["metadata"]["name"]), each.get("spec", {})
        selector = {
            "Service": lambda spec: spec["selector"],
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(each["kind"])
        if selector is not None:
            chosen = {label: value for label, value in selector(spec).items() if label != "statefulset.kubernetes.io/pod-name"}
            assert [owner for owner, those in labels.items() if chosen.items() <= those.items()] == [name]


@pytest.mark.parametrize("case", CASES)
def test_every_volume_that_is_mounted_is_there(case: str) -> None:
    for each in rendered(case).objects:
        claims = [claim["metadata"]["name"] for claim in each.get("spec", {}).get("volumeClaimTemplates", [])]
        pod = each["spec"] if each["kind"] == "Pod" else each.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            there = [*claims, *(volume["name"] for volume in pod["volumes"])]
            mounted = [mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])]
            assert len(there) == len(set(there))
            assert set(mounted) == set(there)
            paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
            assert len(paths) == len(set(paths))


@pytest.mark.parametrize("case", CASES)
def test_no_variable_is_given_twice_but_to_override_it(case: str) -> None:
    for owner, pod in rendered(case).pods:
        names = [each["name"] for each in pod["containers"][0].get("env", [])]
        assert len(names) == len(set(names)), owner


def test_a_bucket_and_an_etcd_are_enough() -> None:
    assert render().kinds() == {
        ("Deployment", NAME),
        ("Deployment", f"{NAME}-compactor"),
        ("Service", NAME),
        ("Service", f"{NAME}-headless"),
        ("Service", f"{NAME}-compactor"),
        ("ServiceAccount", NAME),
        ("PodDisruptionBudget", NAME),
        ("NetworkPolicy", NAME),
        ("NetworkPolicy", f"{NAME}-compactor"),
        ("Pod", f"{NAME}-test"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("own etcd", {("StatefulSet", f"{NAME}-etcd"), ("Service", f"{NAME}-etcd"), ("PodDisruptionBudget", f"{NAME}-etcd")}),
        (
            "everything that is watched",
            {("ServiceMonitor", NAME), ("ServiceMonitor", f"{NAME}-compactor"), ("PrometheusRule", NAME)},
        ),
        ("everything that is watched", {("ConfigMap", f"{NAME}-dashboard")}),
        ("autoscaling", {("HorizontalPodAutoscaler", NAME)}),
        ("ingress", {("Ingress", NAME), ("Ingress", f"{NAME}-grpc")}),
        ("a trial with a volume, TLS and access", {("PersistentVolumeClaim", f"{NAME}-data")}),
        ("a StatefulSet without Kafka", {("StatefulSet", NAME), ("Service", f"{NAME}-pods")}),
        ("Kafka, one load balancer", {("Service", f"{NAME}-kafka")}),
        ("Kafka, a load balancer for each broker", {("Service", f"{NAME}-kafka-{ordinal}") for ordinal in range(3)}),
        ("Kafka, a node's port for each broker", {("Service", f"{NAME}-kafka-{ordinal}") for ordinal in range(5)}),
    ],
)
def test_a_switch_adds_what_it_is_for(case: str, kinds: set[tuple[str, str]]) -> None:
    assert rendered(case).kinds() >= kinds
    assert not render().kinds() & kinds


def test_an_object_that_is_switched_off_is_not_there() -> None:
    left = {("Deployment", NAME), ("Service", NAME), ("Pod", f"{NAME}-test")}
    assert rendered("nothing that can be left out").kinds() == left
    assert rendered("a trial").kinds() == left | {("ServiceAccount", NAME), ("NetworkPolicy", NAME)}


def test_the_chart_installs_the_version_that_it_lies_beside() -> None:
    assert render().container()["image"] == f"tidelog:{version('tidelog')}"


def test_autoscaling_alone_decides_on_the_number_of_brokers() -> None:
    assert "replicas" not in rendered("autoscaling").one("Deployment")["spec"]
    for case, kind in (("autoscaling", "Deployment"), ("Kafka, a node's port for each broker", "StatefulSet")):
        target = rendered(case).one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == (kind, NAME)
        assert "replicas" not in rendered(case).one(kind)["spec"]


def test_members_of_the_own_etcd_know_each_other_by_the_names_that_their_service_gives_them() -> None:
    made = rendered("own etcd")
    etcd = made.one("StatefulSet", f"{NAME}-etcd")
    assert etcd["spec"]["serviceName"] == made.one("Service", f"{NAME}-etcd")["metadata"]["name"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in made.container(f"{NAME}-etcd")["command"][1:])
    hosts = [f"{NAME}-etcd-{member}.{NAME}-etcd.{NAMESPACE}.svc" for member in range(3)]
    members = [f"{NAME}-etcd-{member}=http://{host}:2380" for member, host in enumerate(hosts)]
    assert flags["initial-cluster"] == ",".join(members)
    own = flags["initial-advertise-peer-urls"].replace("$(POD_NAME)", f"{NAME}-etcd-1")
    assert f"{NAME}-etcd-1={own}" == members[1]
    assert made.variables()["TIDELOG_ETCD"] == ",".join(f"http://{host}:2379" for host in hosts)


@pytest.mark.parametrize("case", CASES)
def test_the_notes_name_only_what_was_installed(case: str) -> None:
    notes = rendered(case).notes
    assert f"service/{NAME}" in notes
    assert ("etcd" in notes) is False
    assert ("tidelog doctor" in notes) is ("dev" not in CASES[case])
    warned = "may read and write everything" in notes or "unencrypted" in notes
    safe = CASES[case].get("tls", {}).get("enabled") and (
        CASES[case].get("auth", {}).get("enabled") or CASES[case]["tls"].get("clientAuth") == "required"
    )
    assert warned is not bool(safe)


def test_rules_and_dashboard_come_through_helm_as_they_are() -> None:
    made = rendered("everything that is watched")
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text(encoding="utf-8"))
    assert made.one("PrometheusRule")["spec"] == rules
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    assert json.loads(made.one("ConfigMap", f"{NAME}-dashboard")["data"]["tidelog.json"]) == dashboard

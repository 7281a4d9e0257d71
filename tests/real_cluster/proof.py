"""What an operator does with the chart, from the first install to the last uninstall, and what has to be so then.

Each step is a function of the cluster; its name says what it shows, and it returns figures worth telling. They run in this order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import yaml

from tests.deploy.chart import CHART, render
from tests.deploy.test_chart_objects import CASES
from tests.kit.certificates import Authority
from tests.real_cluster.cluster import BUCKET, ETCD_ENDPOINT, NODES, S3_ENDPOINT, S3_KEYS, Cluster
from tests.real_cluster.images import IMAGE
from tests.real_cluster.load import Load
from tests.real_cluster.pod_watch import PodWatch, watched
from tests.real_cluster.processes import PATIENCE_S, Failed

NAMESPACE, NAME = "streams", "tidelog"
DRY = "streams-dry"
AS_APPLIED = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
# Of which Kubernetes 1.34 warns with each headless Service, since it sets None itself.
HEADLESS = "spec.SessionAffinity is ignored for headless services"
ADMIN_KEY = f"tlk_{'0' * 16}_{'ab' * 32}"
# Of this machine there is less than the chart asks for.
SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
VALUES: dict[str, Any] = {
    "image": {"repository": IMAGE.partition(":")[0]},
    "bucket": f"s3://{BUCKET}/tidelog",
    "s3": {"endpoint": S3_ENDPOINT, "region": "us-east-1", "existingSecret": "tidelog-s3"},
    "etcd": {"endpoints": [ETCD_ENDPOINT]},
    "broker": {"resources": SMALL, "rack": {"fromZoneLabel": True}},
    "compactor": {"resources": SMALL, "scratch": {"gibibytes": 2}},
}
SECURED: dict[str, Any] = VALUES | {
    "tls": {"enabled": True, "existingSecret": "tidelog-tls"},
    "auth": {"enabled": True, "adminKeySecret": "tidelog-admin"},
}
OWN_ETCD: dict[str, Any] = VALUES | {
    "bucket": f"s3://{BUCKET}/own",
    "etcd": {"enabled": True, "resources": SMALL, "storage": {"size": "1Gi"}},
}
EVERY_KIND = "all,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,ingresses,pvc"


def steps() -> list[Callable[[Cluster], str]]:
    return [
        the_api_server_takes_every_object_of_the_chart,
        a_trial_serves_and_goes,
        an_install_serves_under_restricted_pod_security,
        brokers_are_replaced_one_by_one_without_client_errors,
        a_broker_that_is_killed_loses_nothing,
        a_node_is_drained_as_the_budget_permits,
        tls_and_access_are_switched_on,
        an_uninstall_leaves_what_was_not_the_chart_s,
        an_etcd_of_the_chart_s_own_serves_and_loses_a_member,
    ]


def the_api_server_takes_every_object_of_the_chart(cluster: Cluster) -> str:
    """It decodes strictly, sets its defaults and validates, as no schema does; and stores nothing."""
    for kind in ("ServiceMonitor", "PrometheusRule"):
        cluster.apply(_custom_resource(kind))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    cluster.kubectl("create", "namespace", DRY)
    cluster.kubectl("-n", DRY, "create", "serviceaccount", "logs-tidelog")  # pods are refused without theirs
    seen = 0
    for case, values in CASES.items():
        made = render(values, with_least="dev" not in values)
        for each in made.objects:
            each["metadata"]["namespace"] = DRY
        documents = yaml.safe_dump_all(made.objects)
        reported = cluster.run("kubectl", *AS_APPLIED, "--filename", "-", given=documents)
        warnings = [line for line in reported.stderr.splitlines() if HEADLESS not in line]
        if reported.returncode != 0 or warnings:
            raise Failed(f"{case}: {reported.stderr}")
        seen += len(made.objects)
    return f"{seen} objects of {len(CASES)} sets of values"


def _custom_resource(kind: str) -> dict[str, Any]:
    plural, group = f"{kind.lower()}s", "monitoring.coreos.com"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def a_trial_serves_and_goes(cluster: Cluster) -> str:
    _make_namespace(cluster, "trial")
    values = {"image": VALUES["image"], "dev": {"enabled": True, "resources": SMALL}}
    _install(cluster, "try", "trial", values)
    cluster.kubectl("-n", "trial", "rollout", "status", "deployment/try-tidelog")
    _helm_test(cluster, "try", "trial")
    cluster.helm("-n", "trial", "uninstall", "try", "--wait", "--cascade=foreground")
    _nothing_is_left(cluster, "trial")
    return ""


def an_install_serves_under_restricted_pod_security(cluster: Cluster) -> str:
    _make_namespace(cluster, NAMESPACE)
    keys = [f"--from-literal={name}={value}" for name, value in S3_KEYS.items()]
    cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", "tidelog-s3", *keys)
    began = time.monotonic()
    _install(cluster, NAME, NAMESPACE, VALUES)
    _rolled_out(cluster, NAMESPACE)
    served_s = time.monotonic() - began
    _helm_test(cluster)
    _exec(cluster, "tidelog", "cluster", "health")
    _exec(cluster, "tidelog", "doctor")
    zones = {_exec(cluster, "printenv", "TIDELOG_RACK", pod=pod).strip() for pod in _pods(cluster)}
    _expect(zones == {f"zone-{number}" for number in range(NODES)}, f"racks are {zones}")
    return f"served {served_s:.0f} s after helm install"


def brokers_are_replaced_one_by_one_without_client_errors(cluster: Cluster) -> str:
    before = set(_pods(cluster))
    with watched(cluster, NAMESPACE) as watch, Load(_url(cluster), cluster.directory, "restart") as load:
        for restart in ("rollout restart deployment/tidelog", "rollout restart deployment/tidelog deployment/tidelog-compactor"):
            cluster.kubectl("-n", NAMESPACE, *restart.split())
            _rolled_out(cluster, NAMESPACE)
            load.await_more()
    _expect(not before & set(_pods(cluster)), "brokers were not replaced")
    _ended_in_order(cluster, watch)
    return _reported(load)


def a_broker_that_is_killed_loses_nothing(cluster: Cluster) -> str:
    with Load(_url(cluster), cluster.directory, "kill") as load:
        cluster.kubectl("-n", NAMESPACE, "delete", "pod", _pods(cluster)[0], "--force", "--grace-period=0")
        load.await_more()
        _rolled_out(cluster, NAMESPACE)
        load.await_more()
    return _reported(load)


def a_node_is_drained_as_the_budget_permits(cluster: Cluster) -> str:
    name = _nodes_of_brokers(cluster)[0]
    with watched(cluster, NAMESPACE) as watch, Load(_url(cluster), cluster.directory, "drain") as load:
        cluster.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE_S:.0f}s")
        _expect(name not in _nodes_of_brokers(cluster), f"{name} still has brokers")
        load.await_more()
        cluster.kubectl("uncordon", name)
    _rolled_out(cluster, NAMESPACE)
    _ended_in_order(cluster, watch)
    return _reported(load)


def tls_and_access_are_switched_on(cluster: Cluster) -> str:
    authority = Authority()
    cert, key = authority.sign("broker", hosts=(f"{NAME}.{NAMESPACE}.svc",))
    held = {"tls.crt": cert.decode(), "tls.key": key.decode(), "ca.crt": authority.pem.decode()}
    for name, kind, data in (("tidelog-tls", "kubernetes.io/tls", held), ("tidelog-admin", "Opaque", {"api-key": ADMIN_KEY})):
        metadata = {"name": name, "namespace": NAMESPACE}
        cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "stringData": data})
    cluster.kubectl("-n", NAMESPACE, "scale", f"deployment/{NAME}", "--replicas=0")
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=broker", "--timeout=600s")
    _upgrade(cluster, SECURED)
    _helm_test(cluster)
    pod = _pods(cluster)[0]
    reported = cluster.run(
        "kubectl", "-n", NAMESPACE, "exec", pod, "--", "env", "-u", "TIDELOG_API_KEY_FILE", "tidelog", "topic", "list"
    )
    _expect(
        reported.returncode != 0 and "credential" in reported.stderr.lower(),
        f"an unauthenticated client got {reported.stdout}{reported.stderr}",
    )
    return ""


def an_uninstall_leaves_what_was_not_the_chart_s(cluster: Cluster) -> str:
    cluster.helm("-n", NAMESPACE, "uninstall", NAME, "--wait", "--cascade=foreground", "--timeout=10m")
    _nothing_is_left(cluster, NAMESPACE, "secret/tidelog-s3", "secret/tidelog-tls", "secret/tidelog-admin")
    return ""


def an_etcd_of_the_chart_s_own_serves_and_loses_a_member(cluster: Cluster) -> str:
    for number in range(3):
        directory = cluster.directory / f"volume-{number}"
        directory.mkdir()
        directory.chmod(0o777)  # fsGroup does not reach a directory of the node
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(directory)}}
        cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"}, "spec": spec})
    _install(cluster, NAME, NAMESPACE, OWN_ETCD)
    _rolled_out(cluster, NAMESPACE)
    _helm_test(cluster)
    with Load(_url(cluster), cluster.directory, "member") as load:
        cluster.kubectl("-n", NAMESPACE, "delete", "pod", "tidelog-etcd-0")
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", "statefulset/tidelog-etcd")
        load.await_more()
    cluster.helm("-n", NAMESPACE, "uninstall", NAME, "--wait", "--cascade=foreground", "--timeout=10m")
    return _reported(load)


def _make_namespace(cluster: Cluster, name: str) -> None:
    cluster.kubectl("create", "namespace", name)
    levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", name, *levels)


def _install(cluster: Cluster, release: str, namespace: str, values: dict[str, Any]) -> None:
    _helm_with(cluster, values, "install", release, "-n", namespace)


def _upgrade(cluster: Cluster, values: dict[str, Any]) -> None:
    _helm_with(cluster, values, "upgrade", NAME, "-n", NAMESPACE)
    _rolled_out(cluster, NAMESPACE)


def _helm_with(cluster: Cluster, values: dict[str, Any], verb: str, release: str, *more: str) -> None:
    reported = cluster.run("helm", verb, release, str(CHART), *more, "--values", "-", given=json.dumps(values))
    warnings = [line for line in reported.stderr.splitlines() if HEADLESS not in line]
    _expect(reported.returncode == 0 and not warnings, f"helm {verb}: {reported.stdout}{reported.stderr}")


def _rolled_out(cluster: Cluster, namespace: str) -> None:
    for name in (NAME, f"{NAME}-compactor"):
        cluster.kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", "--timeout=10m")


def _helm_test(cluster: Cluster, release: str = NAME, namespace: str = NAMESPACE) -> None:
    said = cluster.helm("-n", namespace, "test", release)
    _expect("Phase:          Succeeded" in said, said)


def _pods(cluster: Cluster) -> list[str]:
    """Brokers that are not on their way out."""
    return [each["metadata"]["name"] for each in _brokers(cluster)]


def _nodes_of_brokers(cluster: Cluster) -> list[str]:
    """Nodes of the brokers, the one with most of them first."""
    nodes = [each["spec"].get("nodeName", "") for each in _brokers(cluster)]
    return sorted(set(nodes), key=nodes.count, reverse=True)


def _brokers(cluster: Cluster) -> list[dict[str, Any]]:
    found = cluster.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=broker")
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def _exec(cluster: Cluster, *command: str, pod: str = f"deploy/{NAME}") -> str:
    return cluster.kubectl("-n", NAMESPACE, "exec", pod, "-c", "broker", "--", *command)


def _url(cluster: Cluster) -> str:
    """Of the Service, as this machine reaches it."""
    service = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "service", NAME, "--output", "json"))
    return f"http://{service['spec']['clusterIP']}:8080"


def _ended_in_order(cluster: Cluster, watch: PodWatch) -> None:
    """All that have ended since the watch began."""
    _expect(bool(watch.exit_codes) and not any(watch.exit_codes.values()), f"exit codes: {watch.exit_codes}")
    _expect(not any(watch.restarts.values()), f"containers were started again: {watch.restarts}")
    seen = {pod for pod, _ in watch.restarts}
    events = [each for each in cluster.items("events", "-n", NAMESPACE) if each["involvedObject"]["name"] in seen]
    wrong = [each["message"] for each in events if each["reason"] in {"FailedPreStopHook", "BackOff", "Failed"}]
    _expect(not wrong, f"events: {wrong}")


def _nothing_is_left(cluster: Cluster, namespace: str, *but: str) -> None:
    own = {"configmap/kube-root-ca.crt", "serviceaccount/default", *but}
    found = set(cluster.kubectl("-n", namespace, "get", EVERY_KIND, "--output", "name").split())
    _expect(found == own, f"left behind: {found - own}")


def _reported(load: Load) -> str:
    return f"{load.acknowledged} records, no client saw an error, the longest wait was {load.longest_wait_s:.1f} s"


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise Failed(otherwise)

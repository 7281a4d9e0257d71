"""The pods of the chart run as the manifest says, on a real etcd and a real S3 server: read-only, without privileges, with the
variables and files that they are given and no others. They answer the probes, and end in order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.deploy.chart import NAME, Rendered, merged, render
from tests.deploy.rendered_pod import PATIENCE_S, POLL_S, RenderedPod, mounts_are_permitted, on_free_ports
from tests.kit.etcd_server import running_etcd
from tests.kit.servers import S3Server, free_port, moto_server

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Surroundings:
    etcd_url: str
    s3: S3Server

    @property
    def secrets(self) -> dict[str, dict[str, str]]:
        return {"s3-keys": {"access-key-id": self.s3.access_key, "secret-access-key": self.s3.secret_key}}

    def values(self, cluster: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
        """Of a release of its own, with a bucket of its own."""
        least = {
            "bucket": f"s3://{self.s3.make_bucket()}/{cluster}",
            "clusterName": cluster,
            "etcd": {"endpoints": [self.etcd_url]},
            "s3": {"endpoint": self.s3.endpoint_url, "region": "us-east-1", "existingSecret": "s3-keys"},
        }
        return merged(least, more or {})


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd, moto_server() as s3:
        yield Surroundings(etcd.url, s3)


def rendered_on_free_ports(values: dict[str, Any]) -> Rendered:
    return render(merged(values, on_free_ports()), with_least=False)


def await_brokers(pod: RenderedPod, expected: dict[str, str]) -> None:
    """Returns when the pod knows of these brokers and no others, by id, with their gRPC addresses: it hears of a change later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        status, body = pod.get("/v1/brokers")
        reported = (
            {each["broker_id"]: each["grpc_address"] for each in json.loads(body)["brokers"]} if status == HTTPStatus.OK else {}
        )
        if reported == expected:
            return
        assert time.monotonic() < deadline_s, f"{status}: {body!r}"
        time.sleep(POLL_S)


@pytest.mark.parametrize("own_root", [True, False])
def test_a_broker_runs_as_the_manifest_says_answers_its_probes_and_ends_in_order(
    around: Surroundings, tmp_path: Path, own_root: bool
) -> None:
    if own_root and not mounts_are_permitted():
        pytest.skip("mounts are not permitted here; the same runs with the paths of volumes written into command and variables")
    values = around.values(f"broker-{own_root}".lower())
    with RenderedPod(
        rendered_on_free_ports(values), NAME, tmp_path, name="logs-0", secrets=around.secrets, own_root=own_root
    ) as pod:
        pod.start()
        pod.await_ready()
        assert pod.probe("livenessProbe")
        await_brokers(pod, {"logs-0": f"127.0.0.1:{pod.port('grpc')}"})
        if own_root:
            assert pod.run(["id", "-u"], timeout_s=60).stdout == "10001\n"
            assert pod.run(["touch", "/usr/new"], timeout_s=60).stderr.endswith("Read-only file system\n")
        _try_it(pod)
        with RenderedPod(
            rendered_on_free_ports(values), NAME, tmp_path, name="logs-1", secrets=around.secrets, own_root=own_root
        ) as next_one:
            next_one.start()
            next_one.await_ready()
            assert pod.stop() == 0
            await_brokers(next_one, {"logs-1": f"127.0.0.1:{next_one.port('grpc')}"})


def _try_it(pod: RenderedPod) -> None:
    """As the notes of the chart say, in the broker's own pod."""
    script = "tidelog topic create greetings && echo hello | tidelog produce greetings && tidelog consume greetings -o raw"
    done = pod.run(["sh", "-ec", script], timeout_s=120)
    assert done.stdout.splitlines()[-1] == "hello", done.stderr


def test_the_last_broker_ends_in_order_although_no_other_takes_over(around: Surroundings, tmp_path: Path) -> None:
    values = around.values("last")
    with RenderedPod(rendered_on_free_ports(values), NAME, tmp_path, name="logs-0", secrets=around.secrets) as pod:
        pod.start()
        pod.await_ready()
        assert pod.stop() == 0


def test_a_compactor_runs_as_the_manifest_says(around: Surroundings, tmp_path: Path) -> None:
    values = around.values("compactor", {"compactor": {"httpPort": free_port()}})
    made = rendered_on_free_ports(values)
    with RenderedPod(made, NAME, tmp_path, name="logs-0", secrets=around.secrets) as broker:
        broker.start()
        broker.await_ready()
        name = f"{NAME}-compactor"
        with RenderedPod(made, name, tmp_path, name="compactor-0", secrets=around.secrets) as compactor:
            compactor.start()
            compactor.await_ready()
            assert b"tidelog_compact" in compactor.get("/metrics")[1]
            assert compactor.stop() == 0


def test_kafka_clients_inside_and_outside_reach_a_broker_at_what_it_advertises(around: Surroundings, tmp_path: Path) -> None:
    outside = free_port()
    values = around.values(
        "kafka",
        {
            "broker": {"workload": "StatefulSet"},
            "kafka": {"external": {"access": "perBroker", "type": "NodePort", "nodePort": outside}},
            "settings": {"kafka_auto_create_topics": True},
        },
    )
    ports = merged(on_free_ports(), {"broker": {"ports": {"kafkaExternal": outside}}})  # as if the node sent its port there
    made = render(merged(values, ports), with_least=False)
    inside = f"internal=127.0.0.1:{made.container()['ports'][2]['containerPort']}"  # there is no DNS of Kubernetes here
    named = {"TIDELOG_ADVERTISE_KAFKA": inside}
    with RenderedPod(made, NAME, tmp_path, name=f"{NAME}-0", secrets=around.secrets, overrides=named) as pod:
        pod.start()
        pod.await_ready()
        for number, port in enumerate((pod.port("kafka"), pod.port("kafka-external"))):
            client = {"bootstrap.servers": f"127.0.0.1:{port}"}
            producer = Producer(client)
            producer.produce("greetings", b"hello")
            assert producer.flush(PATIENCE_S) == 0
            assert [str(each).rpartition("/")[0] for each in producer.list_topics(timeout=60).brokers.values()] == [
                f"127.0.0.1:{port}"
            ]
            consumer = Consumer(client | {"group.id": f"readers-{number}", "auto.offset.reset": "earliest"})
            consumer.subscribe(["greetings"])
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.value() == b"hello"
            consumer.close()
        assert pod.stop() == 0


def test_helm_test_writes_and_reads(around: Surroundings, tmp_path: Path) -> None:
    made = rendered_on_free_ports(around.values("test"))
    with RenderedPod(made, NAME, tmp_path, name="logs-0", secrets=around.secrets) as broker:
        broker.start()
        broker.await_ready()
        url = {"TIDELOG_URL": f"http://127.0.0.1:{broker.port('http')}"}  # there is no DNS of Kubernetes here
        with RenderedPod(made, f"{NAME}-test", tmp_path, name="logs-test", overrides=url) as test:
            test.start()
            assert test.wait() == 0, test.log
            assert "1000 records were written, and read back" in test.log


def test_a_trial_runs_with_nothing_around_it_and_keeps_what_its_volume_holds(tmp_path: Path) -> None:
    made = rendered_on_free_ports({"dev": {"enabled": True}})
    with RenderedPod(made, NAME, tmp_path, name="logs-0") as pod:
        pod.start()
        pod.await_ready()
        _try_it(pod)
        assert pod.stop() == 0
        pod.start()
        pod.await_ready()
        done = pod.run(["tidelog", "consume", "greetings", "-o", "raw"], timeout_s=60)
        assert done.stdout == "hello\n"
        assert pod.stop() == 0

"""A broker of a cluster has an address at which others reach it, or it does not start."""

from __future__ import annotations

import math

import pytest

from gateway.cluster.settings import ClusterSettings
from gateway.settings import load_settings
from metadata.errors import InvalidArgument

IN_A_CLUSTER = {"etcd": "http://a:2379", "bucket": "s3://b"}


@pytest.mark.parametrize("address", ["10.0.0.7:8080", "broker-0.brokers:8080", "[fd00::7]:8080", "localhost:1"])
def test_an_address_that_others_can_reach_is_taken(address: str) -> None:
    assert ClusterSettings(advertise_http=address).advertise_http == address


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:8080", "every interface"),
        ("[::]:8080", "every interface"),
        ("10.0.0.7", "not HOST:PORT"),
        (":8080", "not HOST:PORT"),
        ("10.0.0.7:0", "not HOST:PORT"),
        ("10.0.0.7:65536", "not HOST:PORT"),
        ("http://10.0.0.7:8080", "not HOST:PORT"),
        ("user@10.0.0.7:8080", "not HOST:PORT"),
        ("10.0.0.7 :8080", "not HOST:PORT"),
    ],
)
def test_an_advertised_address_that_clients_cannot_connect_to_is_refused(address: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"advertise_grpc is .*{said}"):
        ClusterSettings(advertise_grpc=address)


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
@pytest.mark.parametrize("listens", ["0.0.0.0:8080", "[::]:8080", "[0:0::0]:8080"])
def test_a_broker_that_listens_everywhere_must_say_where_others_reach_it(endpoint: str, listens: str) -> None:
    with pytest.raises(InvalidArgument, match=f"advertise_{endpoint} is not set: clients cannot connect") as refused:
        load_settings(IN_A_CLUSTER | {endpoint: listens}, {})
    assert f"--advertise-{endpoint} HOST:PORT" in refused.value.hint
    load_settings(IN_A_CLUSTER | {endpoint: listens, f"advertise_{endpoint}": "10.0.0.7:8080"}, {})
    load_settings({"data_dir": "d", endpoint: listens}, {})  # a broker that is alone is not looked for


@pytest.mark.parametrize(
    "name", ["session_timeout_ms", "release_timeout_ms", "drain_timeout_ms", "snapshot_interval_ms", "metadata_history_ms"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_are_above_zero_and_finite(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is {value}"):
        ClusterSettings(**{name: value})  # type: ignore[arg-type]  # floats only


def test_brokers_that_share_an_etcd_share_a_bucket() -> None:
    with pytest.raises(InvalidArgument, match="bucket is not set"):
        load_settings({"etcd": "http://a:2379"}, {})


def test_a_session_that_is_shorter_than_a_pause_may_be_is_allowed_and_doubted() -> None:
    assert ClusterSettings().doubt == ClusterSettings(session_timeout_ms=3_000).doubt == ""
    assert ClusterSettings(session_timeout_ms=2_500).doubt.startswith("session_timeout_ms is 2500, below 3,000: ")

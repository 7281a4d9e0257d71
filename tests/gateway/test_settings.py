"""Settings are read from flags, variables and a file, checked at the start, and unknown names are refused."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname

import pytest

from docs import settings_page
from gateway.settings import GatewaySettings, default_broker_id, load_settings
from metadata.cluster.broker_registry import check_broker_id
from metadata.errors import InvalidArgument
from tidelog.cli.broker.setting_list import setting_names, setting_rows


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.toml"
    file.write_text('linger_ms = 1\nsegment_bytes_max = "4MiB"\nput_timeout_ms = 77\ndata_dir = "x"\n')
    settings = load_settings(
        {"linger_ms": 3.0, "http": None},
        {"TIDELOG_LINGER_MS": "2", "TIDELOG_PUT_TIMEOUT_MS": "88", "PATH": "/bin"},
        file,
    )
    assert settings.segments.linger_ms == 3.0
    assert settings.segments.put_timeout_ms == 88
    assert settings.segments.segment_bytes_max == 4 << 20
    assert settings.http == "127.0.0.1:8080"


def test_variables_that_kubernetes_makes_of_a_service_called_tidelog_are_no_settings(tmp_path: Path) -> None:
    """Seen in a pod beside the chart's Service: `cluster restore` ended there, with "TIDELOG_SERVICE_HOST is not a setting"."""
    of_services = {
        "TIDELOG_SERVICE_HOST": "10.96.0.7",
        "TIDELOG_SERVICE_PORT": "8080",
        "TIDELOG_SERVICE_PORT_HTTP": "8080",
        "TIDELOG_PORT": "tcp://10.96.0.7:8080",
        "TIDELOG_PORT_8080_TCP": "tcp://10.96.0.7:8080",
        "TIDELOG_PORT_8080_TCP_PROTO": "tcp",
        "TIDELOG_PORT_8080_TCP_PORT": "8080",
        "TIDELOG_PORT_8080_TCP_ADDR": "10.96.0.7",
        "TIDELOG_OF_ADA_SERVICE_HOST": "10.96.0.8",
    }
    assert load_settings({"data_dir": tmp_path}, of_services) == load_settings({"data_dir": tmp_path}, {})


@pytest.mark.parametrize("name", ["TIDELOG_PORT", "TIDELOG_HTTP_PORT", "TIDELOG_GRPC_PORT"])
def test_port_variables_that_are_no_settings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is not a setting"):
        load_settings({"data_dir": tmp_path}, {name: "8081"})


def test_a_local_bucket_flushes_sooner_than_s3_unless_configured_otherwise(tmp_path: Path) -> None:
    assert load_settings({"data_dir": tmp_path}, {}).segments.linger_ms == 5
    assert load_settings({"data_dir": tmp_path, "bucket": "s3://b"}, {}).segments.linger_ms == 100
    assert load_settings({"data_dir": tmp_path, "linger_ms": 40.0}, {}).segments.linger_ms == 40


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({"lingr_ms": 3}, {}, "--lingr-ms is not a setting"),
        ({}, {"TIDELOG_LINGR_MS": "3"}, "TIDELOG_LINGR_MS is not a setting"),
        ({}, {"TIDELOG_LINGER_MS": "soon"}, "TIDELOG_LINGER_MS is 'soon', which is not a number"),
        ({}, {"TIDELOG_SEGMENT_BYTES_MAX": "8 parsecs"}, "which is not a whole number"),
        ({"linger_ms": -1.0}, {}, "linger_ms is -1.0"),
        ({"buffer_bytes_max": 1024}, {}, "below segment_bytes_max"),
        ({"message_bytes_max": 32 << 20}, {}, "above request_bytes_max"),
        ({"answer_bytes_max": "1MiB"}, {}, r"answer_bytes_max \(1048576\) has no room for two batches of message_bytes_max"),
        ({"answer_timeout_ms": 0}, {}, "answer_timeout_ms is 0"),
    ],
)
def test_a_wrong_setting_is_named_where_it_stood(flags: dict[str, object], environ: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        load_settings({"data_dir": "d"} | flags, environ)


def test_requests_that_wait_for_the_buffer_have_room_for_two() -> None:
    with pytest.raises(InvalidArgument, match=r"grpc_waiting_bytes_max \(32505856\) has no room for two requests"):
        GatewaySettings(grpc_waiting_bytes_max=31 << 20)


def test_an_etcd_is_named_with_its_user_and_the_password_shows_nowhere() -> None:
    flags = {"bucket": "s3://b", "etcd": "https://a:2379,https://b:2379", "etcd_user": "tidelog", "etcd_ca": "ca.pem"}
    settings = load_settings(flags, {"TIDELOG_ETCD_PASSWORD": "hunter2"})
    assert [address.url for address in settings.metadata.addresses] == ["https://a:2379", "https://b:2379"]
    assert settings.metadata.etcd_ca == Path("ca.pem")
    assert settings.metadata.etcd_password is not None
    assert settings.metadata.etcd_password.reveal() == "hunter2"
    assert "hunter2" not in repr(settings)


def test_a_broker_that_has_no_directory_can_keep_nothing_on_its_disk(tmp_path: Path) -> None:
    flags: dict[str, object] = {"bucket": "s3://b", "etcd": "http://a:2379", "disk_cache_bytes_max": "1GiB"}
    with pytest.raises(InvalidArgument, match="disk_cache_bytes_max is set, and data_dir is not"):
        load_settings(flags, {})
    settings = load_settings(flags | {"data_dir": str(tmp_path)}, {})
    assert settings.segments.disk_cache_bytes_max == 1 << 30


def test_the_password_of_an_etcd_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2 \n")
    flags = {"bucket": "s3://b", "etcd": "http://a:2379", "etcd_user": "tidelog", "etcd_password_file": str(file)}
    password = load_settings(flags, {}).metadata.etcd_password
    assert password is not None
    assert password.reveal() == "hunter2 "
    with pytest.raises(InvalidArgument, match="are both set"):
        load_settings(flags, {"TIDELOG_ETCD_PASSWORD": "hunter3"})


def test_brokers_that_share_an_etcd_are_named_by_host_and_port_unless_configured_otherwise(tmp_path: Path) -> None:
    shared: dict[str, object] = {"bucket": "s3://b", "etcd": "http://a:2379"}
    one, other = (load_settings(shared | {"http": f"127.0.0.1:{port}"}, {}).broker_id for port in (8081, 8082))
    assert (one, other) == (default_broker_id(gethostname(), ":8081", 1), default_broker_id(gethostname(), ":8082", 2))
    assert one != other
    assert load_settings(shared, {}).broker_id == default_broker_id(gethostname(), ":8080", 1)
    assert load_settings(shared | {"broker_id": "b1"}, {}).broker_id == "b1"
    assert load_settings({"data_dir": tmp_path}, {}).broker_id == "broker-1", "alone, it needs no other name"


@pytest.mark.parametrize(
    ("host", "http", "broker_id"),
    [
        ("tidelog-0", "0.0.0.0:8080", "tidelog-0-8080"),
        ("tidelog-0", "[::]:8080", "tidelog-0-8080"),
        ("tidelog-0", "127.0.0.1:0", "tidelog-0-pid77"),
        ("tidelog-0", "nonsense", "tidelog-0-pid77"),
        ("ein rechner/ö", "127.0.0.1:80", "ein-rechner--80"),
        ("", "127.0.0.1:80", "host-80"),
        ("h" * 255, "127.0.0.1:80", "h" * 200 + "-80"),
    ],
)
def test_a_broker_is_called_by_host_and_port_or_process_where_any_port_will_do(host: str, http: str, broker_id: str) -> None:
    assert check_broker_id(default_broker_id(host, http, 77)) == broker_id


@pytest.mark.parametrize(("held", "said"), [(None, "can't be read: No such file"), (b"\n", "is empty"), (b"\xff2", "not text")])
def test_a_password_file_that_holds_none_is_refused_and_not_shown(tmp_path: Path, held: bytes | None, said: str) -> None:
    file = tmp_path / "password"
    if held is not None:
        file.write_bytes(held)
    flags = {"bucket": "s3://b", "etcd": "http://a:2379", "etcd_user": "tidelog", "etcd_password_file": str(file)}
    with pytest.raises(InvalidArgument, match=said):
        load_settings(flags, {})


def test_a_client_secret_of_the_console_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    flags = {"data_dir": str(tmp_path), "console_oidc_client_secret_file": str(tmp_path / "none")}
    with pytest.raises(InvalidArgument, match=r"console_oidc_client_secret_file: .* can't be read"):
        load_settings(flags, {})


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(InvalidArgument) as refused:
        load_settings({"data_dir": "d", "liner_ms": 1}, {})
    assert refused.value.hint == "Did you mean linger_ms?"
    with pytest.raises(InvalidArgument, match="TIDELOG_LINGERMS is not a setting") as refused:
        load_settings({"data_dir": "d"}, {"TIDELOG_LINGERMS": "1"})
    assert refused.value.hint == "Did you mean TIDELOG_LINGER_MS?"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hot_pool_bytes_max", "tail_cache_bytes_max"),
        ("cold_pool_bytes_max", "read_cache_bytes_max"),
        ("cold_disk_bytes_max", "disk_cache_bytes_max"),
        ("catch_up_bytes_max", "history_read_bytes_max"),
        ("grpc_unread_s_max", "grpc_queue_timeout_ms"),
        ("stop_grace_ms", "shutdown_grace_ms"),
        ("bucket_patience_ms", "bucket_retry_ms"),
        ("etcd_deadline_s", "etcd_deadline_ms"),
        ("request_timeout_s", "s3_request_timeout_ms"),
        ("offsets_retention_minutes", "offsets_retention_ms"),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a setting") as refused:
        load_settings({"data_dir": "d"}, {f"TIDELOG_{old.upper()}": "1"})
    assert refused.value.hint == f"Did you mean TIDELOG_{new.upper()}?"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hedge_after_ms", "etcd_connect_timeout_ms", "grpc_stream_window", "commit_linger_ms"])
def test_a_constant_can_not_be_set(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--{name.replace('_', '-')} is a constant, not a setting") as refused:
        load_settings({"data_dir": "d", name: 1}, {})
    assert refused.value.hint == "Leave it out."
    assert name not in setting_names()
    assert f"`{name}`" not in settings_page.page()


def test_every_setting_is_described() -> None:
    assert [row["setting"] for row in setting_rows({}, {}) if not row["what_it_does"]] == []


def test_a_broker_needs_a_data_directory() -> None:
    with pytest.raises(InvalidArgument, match="data_dir is not set"):
        load_settings({}, {})


@pytest.mark.parametrize("body", ["linger_ms = ", "\xff"])
def test_a_settings_file_that_is_not_toml_is_refused(tmp_path: Path, body: str) -> None:
    file = tmp_path / "tidelog.toml"
    file.write_text(body, encoding="latin-1")
    with pytest.raises(InvalidArgument, match="is not TOML"):
        load_settings({}, {}, file)
    with pytest.raises(InvalidArgument, match="can't be read"):
        load_settings({}, {}, tmp_path / "missing.toml")

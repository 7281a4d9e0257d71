"""A broker as a child process, and the error when it does not start."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import tidelog
from metadata.errors import Unavailable
from tidelog.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.slow


def test_a_broker_that_was_stopped_leaves_nothing_open_and_starts_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for _ in range(2):
            broker.start()
            output = broker._process.stdout if broker._process else None
            broker.stop()
            assert output is not None
            assert output.closed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no other socket may bind what is kept")
def test_its_ports_stay_reserved_while_it_is_down_and_it_restarts_on_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.start()
        addresses = [broker.http_address, broker.grpc_address]
        broker.kill()
        for address in addresses:
            host, _, port = address.rpartition(":")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
        broker.start()
        assert [broker.http_address, broker.grpc_address] == addresses


def test_a_failed_start_is_reported_from_its_own_log_and_not_from_that_of_earlier_processes(tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text("words of an earlier process\n")
    with BrokerProcess(tmp_path, flags=["--lingerms", "5"]) as broker, pytest.raises(Unavailable) as refused:
        broker.start()
    assert "Did you mean '--linger-ms'?" in refused.value.message
    assert "earlier process" not in refused.value.message


def test_the_fixture_that_users_get_is_a_broker_that_may_be_killed_and_started_again(
    broker_of_users: BrokerProcess, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.pluginmanager.has_plugin("tidelog"), "it is installed with Tidelog"
    with tidelog.connect_sync(broker_of_users.http_url, retry_pause_ms_max=100) as log:
        log.topics.create("orders", partitions=1)
        log.produce("orders", "before")
        broker_of_users.kill()
        broker_of_users.start()
        log.produce("orders", "after")
        assert [record.text() for record in log.consume("orders", follow=False)] == ["before", "after"]

"""Provides the fixture `tidelog_broker` for tests of programs that use Tidelog: a broker for the test session.

    def test_orders_are_billed(tidelog_broker):
        with tidelog.connect_sync(tidelog_broker.http_url) as log:
            ...

It is a process of its own on free ports of the loopback, with an empty bucket in a temporary directory. It can be killed and
started again (`kill`, `start`), and keeps its addresses then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def tidelog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Runs a broker for the test session: `http_url` and `grpc_address` say where."""
    from tidelog.import_check import ALL, check_packages

    check_packages(*ALL)
    from tidelog.testing.broker_process import (
        BrokerProcess,  # here: pytest loads this module in every project that has Tidelog installed
    )

    with BrokerProcess(tmp_path_factory.mktemp("tidelog")) as broker:
        broker.start()
        yield broker
        broker.stop()

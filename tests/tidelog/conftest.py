"""A broker for all tests of a process; and the fixture that users get, whose broker is started, for the tests of that fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.forked_tidelog import ForkedBroker
from tidelog.testing.pytest_plugin import tidelog_broker as broker_of_users

__all__ = ["broker_of_users", "tidelog_broker"]


@pytest.fixture(scope="session")
def tidelog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("tidelog")) as broker:
        broker.start()
        yield broker
        broker.stop()

"""One cluster for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.three_brokers import ThreeBrokers, three_brokers


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running

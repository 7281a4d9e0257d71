"""Requests with bytes behind their last field, which Kafka takes, and so clients send."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kit.gateway.kafka_admin import KafkaAdmin, with_admin
from tests.kit.gateway.kafka_client import KEYS
from tests.kit.gateway.kafka_codec import INSTALLED

pytestmark = pytest.mark.slow
# As librdkafka 2.15 asks Metadata, version 13, for brokers alone: it leaves room for a length of four bytes, and fills in none.
BROKERS_ALONE = bytes.fromhex("0003 000d 00000002 0002 7264 00 00000000 01 00 00")


def test_bytes_behind_the_last_field_of_a_request_are_ignored(tmp_path: Path) -> None:
    async def scenario(admin: KafkaAdmin) -> None:
        admin.client.send_bytes(struct.pack(">i", len(BROKERS_ALONE)) + BROKERS_ALONE)
        correlation_id, answer = INSTALLED.decode_response(KEYS["Metadata"], await admin.client.receive_frame(), 13)
        assert correlation_id == 2
        assert len(answer.brokers) == 1

    with_admin(tmp_path, scenario)

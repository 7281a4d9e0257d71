"""Runs the broker whose metrics, routes and Kafka APIs the pages of docs/reference describe: one that compacts, without etcd."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.access.permissions import RequiredAccess
from gateway.broker.broker import Broker
from gateway.process.broker_process import run_broker
from gateway.settings import load_settings

ANY_PORT = "127.0.0.1:0"


@asynccontextmanager
async def described_broker() -> AsyncIterator[Broker]:
    """Yields a broker with all listeners, whose bucket and metadata are in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        given = {"data_dir": directory, "http": ANY_PORT, "grpc": ANY_PORT, "kafka": ANY_PORT, "compact": True}
        async with run_broker(load_settings(given, {})) as broker:
            yield broker


def shown_rights(access: RequiredAccess) -> str:
    """Returns the rights that a call requires, as a cell of a table."""
    if access.open:
        return "none: needs no authentication"
    if access.peer:
        return "brokers only"
    resources = {"topic": access.topic, "group": access.group, "cluster": access.cluster}
    return ", ".join(f"{resource}: `{operation}`" for resource, operation in resources.items() if operation) or "any principal"


def cell(text: str) -> str:
    """Returns a text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")

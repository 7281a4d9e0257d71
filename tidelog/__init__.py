"""The Python SDK of Tidelog: `connect` and `connect_sync`, what they take and what they return.

    async with tidelog.connect("http://localhost:8080") as log:
        ack = await log.produce("orders", {"id": 7}, key="c-7")
        async for record in log.consume("orders", follow=False):
            print(record.offset, record.json())

    client.py ─▶ producer/, consumer/, group/, admin/ ─▶ transport/ ─▶ brokers over gRPC      blocking/ wraps client.py

Invariants:
- Names are imported at first use, so `import tidelog` and the command line's `--help` cost nothing.
- Errors are those of `metadata/errors.py`, and say what the caller should do next.

The SDK must not import the gateway, except for the protocol in gateway/proto. The tools bucket/, cli/ and demo/ are not part of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tidelog.import_check import SDK, check_packages

# pytest loads the fixtures of this package in every project of a Python that has it, also in those that do not use it.
if "_pytest" not in sys.modules:
    check_packages(*SDK)

if TYPE_CHECKING:
    from metadata import errors
    from tidelog.blocking.client import BlockingClient, connect_sync
    from tidelog.client import Client, connect
    from tidelog.consumer.consumer import Consumer, TopicsConsumer
    from tidelog.group.consumer import GroupConsumer
    from tidelog.producer.producer import Delivery
    from tidelog.records import Ack, Message, Record
    from tidelog.settings import ClientSettings

__all__ = [
    "Ack",
    "BlockingClient",
    "Client",
    "ClientSettings",
    "Consumer",
    "Delivery",
    "GroupConsumer",
    "Message",
    "Record",
    "TopicsConsumer",
    "connect",
    "connect_sync",
    "errors",
]

_MODULE_OF = {
    "Ack": "tidelog.records",
    "BlockingClient": "tidelog.blocking.client",
    "Client": "tidelog.client",
    "ClientSettings": "tidelog.settings",
    "Consumer": "tidelog.consumer.consumer",
    "Delivery": "tidelog.producer.producer",
    "GroupConsumer": "tidelog.group.consumer",
    "Message": "tidelog.records",
    "Record": "tidelog.records",
    "TopicsConsumer": "tidelog.consumer.consumer",
    "connect": "tidelog.client",
    "connect_sync": "tidelog.blocking.client",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
    check_packages(*SDK)
    if name == "errors":
        return importlib.import_module("metadata.errors")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__

"""A broker that counts nothing for /metrics: what `python -m bench metrics` holds the real one against. Arguments: of `tidelog`."""

from __future__ import annotations

import sys
from typing import Any

import gateway.grpc.server
from gateway.http.app import HttpApp, ResponseWriter
from gateway.http.request import Receive, Scope, Send, request_id_of
from gateway.telemetry.traffic import ListenerTraffic
from metadata.measurements import CallMeter, Histogram
from segments.object_store.health import StoreHealth


def _nothing(*_: object, **__: object) -> None:
    return None


async def _respond(app: HttpApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app._respond(scope, receive, ResponseWriter(send, request_id_of(scope)))


def _as_it_is(handler: Any, *_: object) -> Any:
    return handler


def main() -> int:
    for kind, names in (
        (Histogram, ["observe"]),
        (CallMeter, ["ended"]),
        (StoreHealth, ["ended"]),
        (ListenerTraffic, ["produced", "fetched", "fetch_took", "refused"]),
    ):
        for name in names:
            setattr(kind, name, _nothing)
    endpoints: tuple[tuple[Any, str, Any], ...] = (
        (HttpApp, "__call__", _respond),
        (gateway.grpc.server, "observed", _as_it_is),
    )
    for endpoint, name, bare in endpoints:
        setattr(endpoint, name, bare)
    from tidelog.cli.main import run  # behind the changes: the gRPC listener takes `observed` by its name

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""Requests that are made of the OpenAPI document, right and wrong, against a real broker: none may be answered as a fault of ours.

    python -m tests.fuzz.fuzz_openapi --examples 500

Streams without an end are asked to end, and long polls not to wait, so that each request is one of milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import requests
from hypothesis import HealthCheck, Phase, given, settings

from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, bearer, guarded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its own dependencies
    import schemathesis

TIMEOUT_S: Final = 20.0
TOPIC: Final = "orders"


@contextmanager
def broker_in_a_thread(folder: Path) -> Iterator[str]:
    """The URL of a broker with authentication on."""
    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def broker() -> None:
        async with guarded(folder, audit_log="off") as at:
            await at.as_admin("POST", "/v1/topics", json={"name": TOPIC, "partition_count": 1})
            found.append(f"http://{at.broker.http_address}")
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(broker()))
    thread.start()
    try:
        assert ready.wait(60), "no broker"
        yield found[0]
    finally:
        stop.set()
        thread.join(60)


def fuzz(url: str, *, examples: int) -> tuple[int, list[str]]:
    """How many requests were sent, and those that were answered with a fault of the broker's."""
    document = requests.get(f"{url}/openapi.json", headers=bearer(ADMIN_KEY), timeout=TIMEOUT_S).json()
    schema: Any = schemathesis.openapi.from_dict(document)
    sent, faults = 0, list[str]()
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def answers_without_a_fault(case: Any) -> None:
                nonlocal sent
                _hurry(case, sent)
                sent += 1
                answer = case.call(base_url=url, session=session, headers=bearer(ADMIN_KEY), timeout=TIMEOUT_S)
                if answer.status_code >= 500:
                    faults.append(
                        f"{case.method} {case.formatted_path} {case.query}: {answer.status_code} {answer.content[:500]!r}"
                    )

            answers_without_a_fault()
    return sent, faults


def _hurry(case: Any, sent: int) -> None:
    """Half of the requests are about a topic that is there, and none waits for what may never come."""
    path = case.path_parameters
    if isinstance(path, dict) and "topic" in path and sent % 2:
        path["topic"] = TOPIC
        if "partition" in path and sent % 4 == 1:
            path["partition"] = 0
    if case.method.upper() == "GET" and case.path.endswith("/records") and isinstance(case.query, dict):
        case.query |= {"wait_ms": 0, "max_records": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="of each route")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder, broker_in_a_thread(Path(folder)) as url:
        sent, faults = fuzz(url, examples=asked.examples)
    print("\n".join(faults))
    print(f"{sent} requests, {len(faults)} answered with a fault of the broker's")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()

"""What calls of a remote service took and came to, by operation: of the object store, and of the metadata store. Pure.

Plain numbers, that who serves /metrics reads when it is asked. The operations are named at the start, and errors by their code in
the tree (errors.py), so that there are never more series than operations times codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from metadata.measurements import Histogram


class CallMeter:
    def __init__(self, operations: Iterable[str]) -> None:
        self.seconds = {operation: Histogram() for operation in operations}
        """Of calls that were answered, or failed; their counts are the requests."""
        self.errors = Counter[tuple[str, str]]()
        """By operation and code."""

    def ended(self, operation: str, seconds: float, error_code: str | None = None) -> None:
        self.seconds[operation].observe(seconds)
        if error_code is not None:
            self.errors[operation, error_code] += 1

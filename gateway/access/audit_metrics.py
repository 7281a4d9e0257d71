"""What Prometheus is told of the audit log."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.access.audit_log import AuditLog
from gateway.telemetry.metric_families import counters


class AuditCollector(Collector):
    def __init__(self, audit: AuditLog | None) -> None:
        """None: there is none, and nothing is counted."""
        self._audit = audit

    def collect(self) -> Iterable[Metric]:
        audit = self._audit
        written, dropped = (audit.written, audit.dropped) if audit is not None else (0, 0)
        yield counters(
            "tidelog_audit_lines",
            "Lines of the audit log; those dropped came faster than they could be written, or could not be.",
            ("outcome",),
            [(("written",), written), (("dropped",), dropped)],
        )

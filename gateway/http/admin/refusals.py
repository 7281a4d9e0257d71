"""Serves /v1/access/explain and /v1/access/audit: why this broker would refuse a call, and what it refused or changed lately."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import FastAPI, Query
from msgspec import Meta, Struct

from gateway.access.audit_log import RECENT_ANONYMOUS_MAX, RECENT_MAX, AuditLine
from gateway.access.explanation import AccessExplanation, AskedAccess, explain_unguarded, text_of
from gateway.access.guard import OK
from gateway.api import BrokerApi
from gateway.http.admin.access import AclAnswer, ScopeBody
from metadata.access.explanation import Finding

LINES_DEFAULT = 100


class FindingAnswer(Struct):
    """Describes one thing that decides about a call."""

    code: str
    refuses: bool
    text: Annotated[str, Meta(description="The finding as a sentence; with a colon at its end, the ACLs or scopes follow.")]
    acls: Annotated[list[AclAnswer], Meta(description="The ACLs that decide, at most 20.")]
    scopes: list[ScopeBody]


class QuotaStateAnswer(Struct):
    """Describes the quota of a principal at this broker."""

    bytes_in_per_second: int
    bytes_out_per_second: int
    requests_per_second: int
    wait_s: Annotated[float, Meta(description="How long the next request is throttled; 0: it is not.")]


class AccessExplanationAnswer(Struct):
    """Explains whether this broker allows a call, and why."""

    principal: str
    operation: str
    resource: str
    name: str
    allowed: bool
    refusal: Annotated[str, Meta(description="The code of the error that the call ends with; empty if it is allowed.")]
    findings: Annotated[list[FindingAnswer], Meta(description="All that decides, in the order of the checks.")]
    hint: Annotated[str, Meta(description="What would permit it; empty if it is allowed.")]
    quota: Annotated[QuotaStateAnswer | None, Meta(description="null: no quota limits the principal.")]


class AuditEntry(Struct):
    """Describes one line of the audit log; texts that do not apply are empty."""

    time: str
    outcome: str
    principal: str
    credential: str
    listener: str
    address: str
    call: str
    resources: list[str]
    request_id: str
    reason: str
    validate_only: bool
    forwarded_by: str


class AuditTailAnswer(Struct):
    """Lists the newest lines of the audit log that this broker holds in memory."""

    broker_id: Annotated[str, Meta(description="The broker whose lines these are. Other brokers have others.")]
    is_on: Annotated[bool, Meta(description="false: this broker keeps no audit log.")]
    lines_max: Annotated[int, Meta(description="The most lines that the broker holds.")]
    lines: Annotated[list[AuditEntry], Meta(description="Newest first.")]


def refusal_routes(app: FastAPI, broker: BrokerApi) -> None:
    """Adds the routes to the application."""

    @app.get("/v1/access/explain", tags=["access"])
    async def explain_access(
        operation: Annotated[str, Query(description="describe, read, write, create or admin.")],
        resource: Annotated[str, Query(description="topic, group or cluster.")],
        principal: Annotated[str, Query(description="May be left out with key_id.")] = "",
        name: Annotated[str, Query(description="The topic or the group; empty for the cluster.")] = "",
        key_id: Annotated[str, Query(description="The API key of the client. Empty: other credentials, which are valid.")] = "",
    ) -> AccessExplanationAnswer:
        """Explains what this broker would decide about a call of a principal. Nothing is looked up, changed or logged."""
        asked = AskedAccess(principal, operation, resource, name, key_id)
        guard = broker.guard
        return _explanation(explain_unguarded(asked) if guard is None else guard.explainer.explain(asked))

    @app.get("/v1/access/audit", tags=["access"])
    async def list_audited(
        limit: Annotated[int, Query(ge=1, le=RECENT_MAX + RECENT_ANONYMOUS_MAX)] = LINES_DEFAULT,
        principal: Annotated[str, Query(description="Only the lines of this principal.")] = "",
        refused: Annotated[bool, Query(description="Only calls that were not done.")] = False,
    ) -> AuditTailAnswer:
        """Lists what this broker refused, and what it changed, since it started: the newest lines of its audit log."""
        audit = broker.guard.audit if broker.guard is not None else None
        found = [
            line
            for line in (audit.recent() if audit is not None else ())
            if principal in {"", line.principal} and not (refused and line.outcome == OK)
        ]
        return AuditTailAnswer(
            broker_id=broker.broker_id,
            is_on=audit is not None,
            lines_max=RECENT_MAX + RECENT_ANONYMOUS_MAX,
            lines=[_entry(line) for line in found[:limit]],
        )


def _explanation(explained: AccessExplanation) -> AccessExplanationAnswer:
    state = explained.quota
    return AccessExplanationAnswer(
        principal=explained.principal,
        **explained.use._asdict(),
        allowed=explained.found.allowed,
        refusal=explained.refusal,
        findings=[_finding(finding) for finding in explained.found.findings],
        hint=explained.hint,
        quota=None
        if state is None
        else QuotaStateAnswer(
            state.quota.bytes_in_per_second, state.quota.bytes_out_per_second, state.quota.requests_per_second, state.wait_s
        ),
    )


def _finding(finding: Finding) -> FindingAnswer:
    return FindingAnswer(
        code=finding.code,
        refuses=finding.refuses,
        text=text_of(finding),
        acls=[msgspec.convert(acl, AclAnswer, from_attributes=True) for acl in finding.acls],
        scopes=[msgspec.convert(scope, ScopeBody, from_attributes=True) for scope in finding.scopes],
    )


def _entry(line: AuditLine) -> AuditEntry:
    return msgspec.convert(line, AuditEntry, from_attributes=True)

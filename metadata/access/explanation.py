"""Explains what decides whether a principal may do something: its API key, ACLs and the key's scopes. Pure.

    1  the API key    unknown, revoked or expired                      ─▶ refused: the client is not authenticated
    2  the ACLs       an administrator ─▶ allowed                      an ACL denies it ─▶ refused     none allows it ─▶ refused
    3  the scopes     the key is narrowed, and no scope allows it      ─▶ refused

Each step adds one finding, also after a refusal, so that the reader sees everything that has to change.
Invariant: `allowed` is what the authorizer of gateway/access decides from the same records. A hypothesis test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from metadata.access.acl import CLUSTER_NAME, CREATE_TOPIC, Acl, Scope, allows, covers, denies, rights_of_scopes
from metadata.access.api_key import ApiKey

# ACLs of one finding.
ACLS_MAX: Final = 20

FindingCode = Literal[
    "AUTHENTICATION_OFF",
    "KEY_ACTIVE",
    "KEY_UNKNOWN",
    "KEY_REVOKED",
    "KEY_EXPIRED",
    "ADMINISTRATOR",
    "ACL_ALLOWS",
    "ACL_DENIES",
    "NO_ACL_ALLOWS",
    "SCOPE_ALLOWS",
    "NO_SCOPE_ALLOWS",
]
REFUSALS: Final[frozenset[FindingCode]] = frozenset(
    {"KEY_UNKNOWN", "KEY_REVOKED", "KEY_EXPIRED", "ACL_DENIES", "NO_ACL_ALLOWS", "NO_SCOPE_ALLOWS"}
)


class Use(NamedTuple):
    """Names an operation on a resource, as a call needs it."""

    operation: str
    resource: str
    # CLUSTER_NAME for the cluster.
    name: str


class Finding(NamedTuple):
    """One thing that decides."""

    code: FindingCode
    # The ACLs that decide; of NO_ACL_ALLOWS those of the principal that cover the resource. At most ACLS_MAX.
    acls: Sequence[Acl] = ()
    # The scopes of the key, where they decide.
    scopes: Sequence[Scope] = ()

    @property
    def refuses(self) -> bool:
        return self.code in REFUSALS


class Explanation(NamedTuple):
    """Says whether a call is allowed, and why."""

    findings: Sequence[Finding]

    @property
    def allowed(self) -> bool:
        return not any(finding.refuses for finding in self.findings)

    def has(self, code: FindingCode) -> bool:
        return any(finding.code == code for finding in self.findings)


class UsedKey(NamedTuple):
    """The API key that the client shows: None where no key has this id."""

    key: ApiKey | None


def explain(use: Use, bindings: Collection[Acl] | None, *, used: UsedKey | None, now_ms: int) -> Explanation:
    """Explains a call of a principal. `bindings` are those that concern it; None: it is an administrator.

    `used` is None for other credentials than a stored API key.
    """
    findings = [_key_finding(used.key, now_ms)] if used is not None else []
    findings += [Finding("ADMINISTRATOR")] if bindings is None else explain_bindings(bindings, use)
    if used is not None and used.key is not None and used.key.scopes:
        is_within = rights_of_scopes(used.key.scopes).allow(*use)
        findings.append(Finding("SCOPE_ALLOWS" if is_within else "NO_SCOPE_ALLOWS", scopes=used.key.scopes))
    return Explanation(findings)


def _key_finding(key: ApiKey | None, now_ms: int) -> Finding:
    if key is None:
        return Finding("KEY_UNKNOWN")
    match key.state(now_ms):
        case "revoked":
            return Finding("KEY_REVOKED")
        case "expired":
            return Finding("KEY_EXPIRED")
        case _:
            return Finding("KEY_ACTIVE")


def explain_bindings(bindings: Collection[Acl], use: Use) -> list[Finding]:
    """Returns the bindings that decide, as `decide` of acl.py does: denials first, then allowances, then rights to the cluster."""
    denying = [acl for acl in bindings if denies(acl, *use)]
    allowing = [acl for acl in bindings if allows(acl, *use)]
    if not allowing and (use.operation, use.resource) == CREATE_TOPIC:
        on_cluster = Use("create", "cluster", CLUSTER_NAME)
        # A denial of the cluster's right takes that right away; it denies no topic.
        if not any(denies(acl, *on_cluster) for acl in bindings):
            allowing = [acl for acl in bindings if allows(acl, *on_cluster)]
    findings = [Finding("ACL_DENIES", denying[:ACLS_MAX])] if denying else []
    if not allowing:
        near = [acl for acl in bindings if acl.resource == use.resource and covers(acl, use.name) and acl not in denying]
        findings.append(Finding("NO_ACL_ALLOWS", near[:ACLS_MAX]))
    elif not denying:
        findings.append(Finding("ACL_ALLOWS", allowing[:ACLS_MAX]))
    return findings

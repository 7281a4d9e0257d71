"""Explains to administrators what this broker would decide about a call, and why. It changes nothing.

    principal, operation, resource, id of an API key
      ─▶ the keys and ACLs that this broker holds ─▶ metadata/access/explanation.py ─▶ findings, hint (denials.py), quota

Invariant: the explanation uses the records and the steps of the authorizer. While this broker could not decide about a call, as its
view of keys and ACLs is too old or an ACL is unreadable, it explains nothing either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gateway.access.authentication import Authenticator
from gateway.access.denials import Denial, not_authorized
from gateway.access.quotas import PrincipalQuotas, QuotaState
from metadata.access.acl import CLUSTER_NAME, EVERY_NAME, Acl, Scope, check_principal, check_scope
from metadata.access.api_key import ApiKey, check_key_id
from metadata.access.explanation import Explanation, Finding, FindingCode, Use, UsedKey, explain
from metadata.errors import InvalidArgument, NotAuthorized, Unauthenticated, Unavailable


class AccessRecords(Protocol):
    """Holds keys and ACLs, as AccessCache of metadata/access/cache.py does."""

    def stale_error(self) -> Unavailable | None: ...

    def key(self, key_id: str) -> ApiKey | None: ...

    def bindings(self, principal: str) -> list[Acl]: ...


class AskedAccess(NamedTuple):
    """Holds what is to be explained, as it was asked."""

    principal: str
    operation: str
    resource: str
    name: str = ""
    # The API key of the client; empty: other credentials, which are valid.
    key_id: str = ""


class AccessExplanation(NamedTuple):
    """Explains one call."""

    principal: str
    use: Use
    found: Explanation
    # The code of the error that the call ends with; empty if it is allowed.
    refusal: str
    # What would permit it; empty if it is allowed.
    hint: str
    quota: QuotaState | None


# The admin key belongs to this principal (authentication.py).
_ADMIN: Final = "admin"
_TEXTS: Final[dict[FindingCode, str]] = {
    "AUTHENTICATION_OFF": "Authentication is off at this broker: every client may do everything.",
    "KEY_ACTIVE": "The API key is active.",
    "KEY_UNKNOWN": "No API key has this id. The client is not authenticated.",
    "KEY_REVOKED": "The API key was revoked. The client is not authenticated.",
    "KEY_EXPIRED": "The API key has expired. The client is not authenticated.",
    "ADMINISTRATOR": "The settings of this broker make the principal an administrator, whatever the ACLs say.",
    "ACL_ALLOWS": "These ACLs allow it, and none denies it:",
    "ACL_DENIES": "These ACLs deny it, whatever others allow:",
    "NO_ACL_ALLOWS": "No ACL allows it to this principal.",
    "SCOPE_ALLOWS": "The API key is narrowed to these scopes, which hold it:",
    "NO_SCOPE_ALLOWS": "The API key is narrowed to these scopes, and none holds it:",
}


def text_of(finding: Finding) -> str:
    """Returns a finding as a sentence; a colon at its end announces its ACLs or scopes."""
    if finding.code == "NO_ACL_ALLOWS" and finding.acls:
        return "No ACL allows it to this principal. These cover the resource, and allow or deny something else:"
    return _TEXTS[finding.code]


NOT_GUARDED: Final = Explanation((Finding("AUTHENTICATION_OFF"),))


class AccessExplainer:
    """Explains calls by what this broker holds."""

    def __init__(
        self, records: AccessRecords, administrators: Authenticator, quotas: PrincipalQuotas, *, now_ms: Callable[[], int]
    ) -> None:
        self._records = records
        self._administrators = administrators
        self._quotas = quotas
        self._now_ms = now_ms

    def explain(self, asked: AskedAccess) -> AccessExplanation:
        """Explains a call. Raises InvalidArgument; Unavailable while this broker could not decide about it."""
        use = checked_use(asked)
        if (stale := self._records.stale_error()) is not None:
            raise stale
        is_admin_key = self._administrators.is_admin_key(asked.key_id)
        used = None
        if asked.key_id and not is_admin_key:
            used = UsedKey(self._records.key(check_key_id(asked.key_id)))
        principal = _principal(asked, _ADMIN if is_admin_key else used.key.principal if used is not None and used.key else "")
        is_admin = is_admin_key or self._administrators.is_admin(principal)
        bindings = None if is_admin else self._records.bindings(principal)
        found = explain(use, bindings, used=used, now_ms=self._now_ms())
        refusal, hint = _refusal(principal, use, found)
        return AccessExplanation(principal, use, found, refusal, hint, self._quotas.state(principal))


def explain_unguarded(asked: AskedAccess) -> AccessExplanation:
    """Explains a call at a broker without authentication. Raises InvalidArgument."""
    use = checked_use(asked)
    return AccessExplanation(_principal(asked, ""), use, NOT_GUARDED, "", "", None)


def checked_use(asked: AskedAccess) -> Use:
    """Returns the operation and the resource. Raises InvalidArgument for one that no call needs."""
    if asked.operation == "all":
        raise InvalidArgument("no call needs all operations at once", hint="Name one of them.", field="operation")
    if asked.resource == "cluster":
        check_scope(Scope(asked.operation, "cluster"))
        return Use(asked.operation, "cluster", CLUSTER_NAME)
    name = asked.name.strip()
    checked = check_scope(Scope(asked.operation, asked.resource, name))  # type: ignore[arg-type]  # it is checked there
    if name == EVERY_NAME:
        raise InvalidArgument(f"* is no name of one {asked.resource}", hint=f"Name one {asked.resource}.", field="name")
    return Use(checked.operation, checked.resource, checked.name)


def _principal(asked: AskedAccess, owner: str) -> str:
    """Returns the principal that is asked for, or the owner of the API key. Raises InvalidArgument where they differ."""
    principal = asked.principal.strip()
    if owner and principal and principal != owner:
        raise InvalidArgument(f"the API key belongs to {owner}, not to {principal[:60]}", hint="Leave one of the two out.")
    if not (principal or owner):
        raise InvalidArgument("the request names no principal", hint="Give principal, or the id of an API key.", field="principal")
    return check_principal(principal or owner)


def _refusal(principal: str, use: Use, found: Explanation) -> tuple[str, str]:
    """Returns the code of the error that the client receives, and what helps."""
    if found.allowed:
        return "", ""
    rights = Denial(no_right=found.has("NO_ACL_ALLOWS"), denied=found.has("ACL_DENIES"), narrowed=found.has("NO_SCOPE_ALLOWS"))
    hints = [not_authorized(principal, *use, rights).hint] if any(rights) else []
    if found.has("KEY_UNKNOWN") or found.has("KEY_REVOKED") or found.has("KEY_EXPIRED"):
        return Unauthenticated.code, ". ".join([f"Make a new key: tidelog key create {principal}", *hints])
    return NotAuthorized.code, hints[0]

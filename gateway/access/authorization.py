"""Decides whether the present call may use a topic, a group or the cluster, before anything is looked up. Pure.

    listener ─▶ authenticate ─▶ `begin` binds the call to its task ─▶ check_topic("orders") … where names are used ─▶ NotAuthorized

A context variable holds the AuthorizedCall, so that tasks inherit the call of the task that starts them. permissions.py says what a
call needs for the topics and groups that it names; code that resolves names only calls the checks below. Without a bound call every
check passes: authentication is off, or the broker acts for itself.

Invariants: every task that a call starts is held to the call's rights. A refusal depends on the name alone, so it does not reveal
whether the topic or group exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gateway.access.denials import Denial, not_authorized
from metadata.access.acl import CLUSTER_NAME, Rights
from metadata.access.api_key import ApiKey, check_counts
from metadata.access.scram import ScramUser
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from gateway.access.permissions import RequiredAccess

# Grants that a lasting call remembers; later ones are not checked again when ACLs change.
GRANTED_MAX: Final = 10_000
# Refusals of one call, and resources of one change, that the audit log lists.
REFUSALS_LOGGED_MAX: Final = 20
# Longer names of resources are cut. An ACL is named by its principal and its topic or group, which have 249 characters at most.
RESOURCE_CHARACTERS_MAX: Final = 600
# Resources of one change that are counted; the audit log has the number of those that it does not list.
RESOURCES_COUNTED_MAX: Final = 10_000


class PolicyView(Protocol):
    """Answers what this broker knows of keys and rights, as AccessCache of metadata/access/cache.py does."""

    version: int

    def stale_error(self) -> Unavailable | None: ...

    def key(self, key_id: str) -> ApiKey | None: ...

    def rights(self, principal: str) -> Rights: ...

    async def catch_up(self, timeout_s: float, *, anonymous: bool = False) -> bool:
        """Waits until all that was written before this call is known here. Returns False after `timeout_s`, or at once.

        `anonymous`: the caller has proven nothing yet, and waits longer.
        """
        ...


class CredentialView(PolicyView, Protocol):
    """Answers about SCRAM users as well, for authentication."""

    def scram_user(self, user: str) -> ScramUser | None: ...


class Principal:
    """Holds an authenticated principal and its cached rights; calls with equal credentials share one object."""

    __slots__ = (
        "_holds",
        "_is_local",
        "_key",
        "_lost",
        "_now_ms",
        "_rights",
        "_scopes",
        "_version",
        "_view",
        "credential",
        "expires_at_ms",
        "forwarded_by",
        "is_admin",
        "is_peer",
        "key_id",
        "principal",
    )

    def __init__(
        self,
        principal: str,
        view: PolicyView,
        now_ms: Callable[[], int],
        *,
        credential: str,
        is_admin: bool = False,
        is_peer: bool = False,
        is_stored: bool = False,
        forwarded_by: str = "",
        key: ApiKey | None = None,
        key_id: str = "",
        scopes: Rights | None = None,
        expires_at_ms: int = 0,
        holds: Callable[[], bool] | None = None,
        lost: str = "is signed with a key that its provider has removed",
    ) -> None:
        """`credential` names the kind of credential for the audit log. `forwarded_by` is the broker id of a peer. `key_id` names an
        API key that is not a record of this cluster's keys, or that another broker has checked.

        `is_stored` marks a credential that the metadata store holds, so that it may be revoked there; an API key always is one.
        `scopes` are the rights that the API key is narrowed to. `expires_at_ms` is 0 for credentials that never expire.
        `holds` returns False once the credential is revoked, and `lost` is the end of the error's sentence then.
        """
        self.principal = principal
        self.credential = credential
        self.is_admin = is_admin
        self.is_peer = is_peer
        self.forwarded_by = forwarded_by
        self.expires_at_ms = expires_at_ms
        self._view = view
        self._now_ms = now_ms
        self._key = key
        # The id of the API key; empty for other credentials.
        self.key_id = key.key_id if key is not None else key_id
        # Settings and files alone prove this principal, so a stale view of the metadata store does not matter.
        self._is_local = is_peer or (is_admin and key is None and not is_stored)
        self._holds = holds
        self._lost = lost
        self._scopes = scopes
        self._rights: Rights | None = None
        self._version = -1

    @property
    def view(self) -> PolicyView:
        """Returns the view of keys and rights that decides about this principal."""
        return self._view

    @property
    def is_narrowed(self) -> bool:
        """Returns whether the API key has scopes, which take away some of the principal's rights."""
        return self._scopes is not None

    def stale_error(self) -> Unavailable | None:
        """Returns the error of a broker whose view of keys and rights is too old to decide; None while it can."""
        return None if self._is_local else self._view.stale_error()

    def check_current(self) -> None:
        """Raises Unavailable while the view of keys and rights is too old."""
        stale = self.stale_error()
        if stale is not None:
            raise stale

    def check_counts(self) -> None:
        """Raises Unauthenticated once the credentials have expired or were revoked, and as check_current."""
        self.check_current()
        if self._key is not None:
            held = self._view.key(self._key.key_id)
            if held is not self._key:
                if held is not None:
                    check_counts(held, self._now_ms())
                if held != self._key:
                    raise Unauthenticated("the API key was changed or revoked", hint="Authenticate again.")
                self._key = held  # the watch has read all keys again, and this one is unchanged
        if self.expires_at_ms and self.expires_at_ms <= self._now_ms():
            raise Unauthenticated(f"the {self.credential} has expired", hint="Get a new one.")
        if self._holds is not None and not self._holds():
            raise Unauthenticated(f"the {self.credential} {self._lost}")

    def may(self, operation: str, resource: str, name: str) -> bool:
        """Returns whether the principal may do this. Raises Unavailable until ACLs were read, and while one can't be read."""
        if self.is_peer:
            return True
        if not self.is_admin:
            if self._rights is None or self._version != self._view.version:
                version = self._view.version
                self._rights = None  # if an ACL can't be read, each check is refused, not only the first one
                self._rights, self._version = self._view.rights(self.principal), version
            if not self._rights.allow(operation, resource, name):
                return False
        return self._scopes is None or self._scopes.allow(operation, resource, name)

    def may_every(self, operation: str, resource: str) -> bool:
        """Returns whether the principal may do this with any name. Raises as `may`."""
        if self.is_peer:
            return True
        if not self.is_admin and not self._view.rights(self.principal).allow_every(operation, resource):
            return False
        return self._scopes is None or self._scopes.allow_every(operation, resource)

    def refusal(self, operation: str, resource: str, name: str) -> NotAuthorized:
        """Returns the error for an operation that `may` refused, with a hint which change would permit it. Raises as `may`."""
        rights = None if self.is_admin else self._view.rights(self.principal)
        denial = Denial(
            no_right=rights is not None and not rights.grant(operation, resource, name),
            denied=rights is not None and rights.deny(operation, resource, name),
            narrowed=self._scopes is not None and not self._scopes.allow(operation, resource, name),
        )
        return not_authorized(self.principal, operation, resource, name, denial)


class CallOrigin(NamedTuple):
    """Identifies a call in the audit log: the listener, the route or method, the client's address, the request id."""

    listener: str
    action: str
    address: str
    request_id: str = ""


class AuthorizedCall:
    """Holds one call of a principal: the access it requires, what it was granted, and what the audit log needs.

    `is_in_doubt`: this broker may not have heard of all rights, so that refusals are retryable. `settled_until_s` is when that is
    to be asked again (refusals.py). `failure` is the code of the error that the call ended with. `validate_only` marks a change
    that is only checked. `granted` lists the rights that a lasting call used: the call ends when one is revoked. `changes` says
    whether the audit log records the call when it is permitted; `did_part`, that a part of it was done though another was refused.
    """

    __slots__ = (
        "_refused",
        "_resources",
        "caller",
        "changes",
        "did_part",
        "failure",
        "granted",
        "is_in_doubt",
        "needs",
        "origin",
        "refusal",
        "settled_until_s",
        "validate_only",
    )

    def __init__(
        self,
        caller: Principal | None,
        needs: RequiredAccess,
        origin: CallOrigin,
        *,
        refusal: Callable[[AuthorizedCall, str, str, str], None],
    ) -> None:
        """`caller` is None for an unauthenticated client, which only open calls permit.

        `refusal` receives each refused use: this call, the operation, the kind ("topic", "group", "cluster") and the name.
        """
        self.caller = caller
        self.needs = needs
        self.origin = origin
        self.refusal = refusal
        self.changes = needs.changes
        self.did_part = False
        self.failure = ""
        self.validate_only = False
        self.granted: set[tuple[str, str, str]] = set()
        self.is_in_doubt = False
        self.settled_until_s = 0.0
        self._resources: dict[str, None] = {}
        self._refused: set[tuple[str, str, str]] | None = None

    @property
    def principal(self) -> str:
        return self.caller.principal if self.caller is not None else ""

    @property
    def resources(self) -> tuple[str, ...]:
        """Returns what a change names, in order, as the audit log lists it: beyond REFUSALS_LOGGED_MAX the number of the others."""
        listed = tuple(islice(self._resources, REFUSALS_LOGGED_MAX))
        more = len(self._resources) - len(listed)
        return (*listed, f"+{more} more") if more else listed

    def part(self, needs: RequiredAccess | None = None) -> AuthorizedCall:
        """Returns a call of the same caller, for one of several changes that this call asks for.

        `needs`: the access that the change requires, if it is not that of this call.
        """
        part = AuthorizedCall(self.caller, needs or self.needs, self.origin, refusal=self.refusal)
        part.is_in_doubt, part.settled_until_s = self.is_in_doubt, self.settled_until_s
        return part

    def permits(self, kind: str, name: str) -> bool:
        """Returns whether `check` would pass, without any record of it. Raises as Principal.check_counts and Principal.may."""
        operation = self._operation(kind)
        if self.caller is None or operation is None:
            return False
        self.caller.check_counts()
        return self.caller.may(operation, kind, name)

    def _operation(self, kind: str) -> str | None:
        needs = self.needs
        return needs.topic if kind == "topic" else needs.group if kind == "group" else needs.cluster

    def check(self, kind: str, name: str) -> None:
        """Raises NotAuthorized unless the call may use this resource; Unavailable in its place while the rights are in doubt; and
        as Principal.check_counts."""
        needs = self.needs
        if self.caller is not None and self.caller.is_peer:  # the broker that received the call has checked it
            self.note_resource(kind, name)
            return
        operation = self._operation(kind)
        caller = self.caller
        if caller is None or operation is None:
            raise NotAuthorized(f"this call may not name a {kind}", resource=kind)
        caller.check_counts()
        self.note_resource(kind, name)
        if not caller.may(operation, kind, name):
            self._resources.pop(_named(kind, name), None)
            if self.is_in_doubt:
                raise rights_in_doubt()
            self._record_refusal(operation, kind, name)
            raise caller.refusal(operation, kind, name)
        if needs.lasts and len(self.granted) < GRANTED_MAX:
            self.granted.add((operation, kind, name))

    def note_resource(self, kind: str, name: str) -> None:
        """Notes for the audit log what a change is about."""
        if self.changes and len(self._resources) < RESOURCES_COUNTED_MAX:
            self._resources[_named(kind, name)] = None

    def may(self, operation: str, kind: str, name: str) -> bool:
        """Returns whether the caller may do this, without recording a refusal: lists leave out what it may not see."""
        return self.caller is not None and self.caller.may(operation, kind, name)

    def end_reason(self) -> TidelogError | None:
        """Returns the error that must end a lasting call; None while it may continue."""
        assert self.caller is not None
        stale = self.caller.stale_error()
        if stale is not None:
            return stale
        try:
            self.caller.check_counts()
            for operation, kind, name in self.granted:
                if not self.caller.may(operation, kind, name):
                    return self.caller.refusal(operation, kind, name)
        except TidelogError as error:  # Unavailable while an ACL can't be read, which may be a denial
            return error.with_traceback(None)
        return None

    def note_logged(self) -> None:
        """Notes that the audit log has the outcome of this call, so that its end adds no line."""
        if self._refused is None:
            self._refused = set()

    def _record_refusal(self, operation: str, kind: str, name: str) -> None:
        self._refused = self._refused or set()
        use = (operation, kind, name)
        if use not in self._refused and len(self._refused) < REFUSALS_LOGGED_MAX:
            self._refused.add(use)
            self.refusal(self, *use)

    @property
    def was_refused(self) -> bool:
        """Returns True if the audit log has a refusal of this call already."""
        return self._refused is not None


def rights_in_doubt() -> Unavailable:
    """Returns the error in place of a refusal by a view that was not proven in time (refusals.py)."""
    return Unavailable(
        "this broker cannot tell in time whether it has heard of all API keys and rights, so it neither allows nor refuses this",
        hint="Retry with back-off, or ask another broker.",
    )


def _named(kind: str, name: str) -> str:
    """Returns how the audit log names a resource."""
    return f"{kind}:{name}"[:RESOURCE_CHARACTERS_MAX]


_present: ContextVar[AuthorizedCall | None] = ContextVar("checked_call", default=None)


def begin(call: AuthorizedCall) -> None:
    """Binds the call to the rest of this task, and to tasks that it starts."""
    _present.set(call)


@contextmanager
def acting(call: AuthorizedCall | None) -> Iterator[None]:
    """Binds the call to the body; None, where authentication is off, permits everything."""
    token = _present.set(call)
    try:
        yield
    finally:
        _present.reset(token)


def present_call() -> AuthorizedCall | None:
    """Returns the call that is bound to this task; None where nothing limits it."""
    return _present.get()


def is_guarded() -> bool:
    """Returns True if the present call has a principal whose rights limit it."""
    return _present.get() is not None


def check_topic(name: str) -> None:
    """Raises NotAuthorized unless the present call has the right it requires on the topic."""
    call = _present.get()
    if call is not None:
        call.check("topic", name)


def topic_check() -> Callable[[str], None]:
    """Returns `check_topic` bound to the present call, for use from other tasks."""
    call = _present.get()
    return (lambda name: None) if call is None else (lambda name: call.check("topic", name))


def check_group(name: str) -> None:
    """Raises NotAuthorized unless the present call has the right it requires on the consumer group."""
    call = _present.get()
    if call is not None:
        call.check("group", name)


def check_cluster() -> None:
    """Raises NotAuthorized unless the present call has the right it requires on the cluster."""
    call = _present.get()
    if call is not None:
        call.check("cluster", CLUSTER_NAME)


def may_see_topic(name: str) -> bool:
    """Returns whether lists for the present call may contain the topic."""
    call = _present.get()
    return call is None or call.may("describe", "topic", name)


def may_see_every_topic() -> bool:
    """Returns whether the present call may describe any topic, whatever its name."""
    call = _present.get()
    return call is None or (call.caller is not None and call.caller.may_every("describe", "topic"))


def may_read_topic(name: str) -> bool:
    """Returns whether the present call may read the topic; answers leave out a topic that it may not."""
    call = _present.get()
    return call is None or call.may("read", "topic", name)


def may_see_group(name: str) -> bool:
    """Returns whether lists for the present call may contain the group."""
    call = _present.get()
    return call is None or call.may("describe", "group", name)


def may_suggest_topic(name: str) -> bool:
    """Returns whether an error of the present call may suggest the topic ("Did you mean").

    Errors of forwarded calls suggest none: this broker does not know the rights of the client.
    """
    call = _present.get()
    return call is None or (call.caller is not None and not call.caller.is_peer and call.may("describe", "topic", name))


def may_see_cluster() -> bool:
    """Returns whether the present call may describe the cluster; False while that is unknown, since probes ask."""
    call = _present.get()
    try:
        return call is None or call.may("describe", "cluster", CLUSTER_NAME)
    except TidelogError:
        return False


def present_principal() -> str:
    """Returns the principal of the present call; empty without authentication."""
    call = _present.get()
    return call.principal if call is not None else ""


def present_key_id() -> str:
    """Returns the id of the API key of the present call; empty for other credentials."""
    call = _present.get()
    return call.caller.key_id if call is not None and call.caller is not None else ""


def note_validate_only(validate_only: bool) -> None:
    """Notes for the audit log whether the present call only validates."""
    call = _present.get()
    if call is not None:
        call.validate_only = validate_only


def note_resource(kind: str, name: str) -> None:
    """Notes for the audit log what the present change is about, beside the topics, groups and the cluster that are checked."""
    call = _present.get()
    if call is not None:
        call.note_resource(kind, name)


def note_commit_by_hand(group: str) -> None:
    """Notes that the present call sets offsets of a group without being a member. The audit log records it, as it does a seek."""
    call = _present.get()
    if call is not None:
        call.changes = True
        call.note_resource("group", group)


def note_parts(errors: Iterable[TidelogError | None]) -> None:
    """Notes for the audit log how the parts of the present change ended, each with its own error or None.

    Refused parts have lines of their own. The line of the call has the first of the other errors.
    """
    call = _present.get()
    if call is not None and call.changes:
        codes = ["" if error is None else error.code for error in errors if not isinstance(error, NotAuthorized)]
        call.did_part = bool(codes)
        call.failure = next(filter(None, codes), "")


def note_failure(code: str) -> None:
    """Notes for the audit log the error code that the present call ends with."""
    call = _present.get()
    if call is not None:
        call.failure = code

"""Who makes the present call, and whether it may: asked wherever a call names a topic or a group, before anything is looked up.
Pure.

    listener ─▶ who is it? ─▶ `begin` notes the call in its task ─▶ check_topic("orders") … where the name is used ─▶ NotAuthorized

What a call needs of the topics and groups that it names is in permissions.py; so the places that resolve names need only ask. Each
call runs in a task of its own, and so the note is its own, too; tasks that it starts have it as well. Where nothing was noted,
authentication is off, or the broker asks for itself: everything is allowed.

Invariants: a call that was noted is held to it in every task that it starts; a topic or group that may not be used is refused by
its name alone, so that nobody learns whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from gateway.access.denials import Denial, not_authorized
from metadata.access.acl import CLUSTER_NAME, Rights
from metadata.access.api_key import ApiKey, check_counts
from metadata.access.scram import ScramUser
from metadata.errors import NotAuthorized, TidelogError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from gateway.access.permissions import RequiredAccess

GRANTED_MAX: Final = 10_000
# Refusals of one call that the audit log tells one by one.
REFUSALS_LOGGED_MAX: Final = 20


class PolicyView(Protocol):
    """What metadata/access/cache.py's AccessCache tells."""

    version: int

    def why_stale(self) -> Unavailable | None: ...

    def key(self, key_id: str) -> ApiKey | None: ...

    def rights(self, principal: str) -> Rights: ...


class CredentialView(PolicyView, Protocol):
    """The same, with what proves who a caller is."""

    def scram_user(self, user: str) -> ScramUser | None: ...


class Principal:
    """A principal, as its credentials have proved it: one object for all calls that show the same ones."""

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
        forwarded_by: str = "",
        key: ApiKey | None = None,
        scopes: Rights | None = None,
        expires_at_ms: int = 0,
        holds: Callable[[], bool] | None = None,
        lost: str = "is signed with a key that its provider has taken away",
    ) -> None:
        """`credential`: what was shown, in a word for the audit log. `forwarded_by`: the broker id of a peer. `scopes`: what its
        key is narrowed to. `holds`: whether what has proved a token still does. `lost`: what is said once it does not."""
        self.principal = principal
        self.credential = credential
        self.is_admin = is_admin
        self.is_peer = is_peer
        self.forwarded_by = forwarded_by
        self.expires_at_ms = expires_at_ms
        """0: never."""
        self._view = view
        self._now_ms = now_ms
        self._key = key
        self.key_id = key.key_id if key is not None else ""
        """Of the API key of the cluster that was shown; empty where it was something else."""
        self._is_local = is_peer or (is_admin and key is None)
        """Nothing about this caller comes from the metadata store: settings and files say who it is, and that it is an admin."""
        self._holds = holds
        self._lost = lost
        self._scopes = scopes
        self._rights: Rights | None = None
        self._version = -1

    def why_stale(self) -> Unavailable | None:
        """Why this broker cannot tell what the caller may do: its view of keys and rights is too old. None where it can."""
        return None if self._is_local else self._view.why_stale()

    def check_current(self) -> None:
        """Raises Unavailable while this broker cannot tell what the caller may do."""
        stale = self.why_stale()
        if stale is not None:
            raise stale

    def check_counts(self) -> None:
        """Unauthenticated once its credentials have expired, or were revoked; Unavailable while nobody can tell."""
        self.check_current()
        if self._key is not None:
            held = self._view.key(self._key.key_id)
            if held is not self._key:
                if held is not None:
                    check_counts(held, self._now_ms())
                if held != self._key:
                    raise Unauthenticated("the API key has changed, or was taken away", hint="Show it again.")
                self._key = held  # all keys were read again, as after a hole in the watch's history; this one is as it was
        if self.expires_at_ms and self.expires_at_ms <= self._now_ms():
            raise Unauthenticated(f"the {self.credential} has expired", hint="Get a new one.")
        if self._holds is not None and not self._holds():
            raise Unauthenticated(f"the {self.credential} {self._lost}")

    def may(self, operation: str, resource: str, name: str) -> bool:
        """Raises Unavailable while nobody can tell."""
        if self.is_peer:
            return True
        if not self.is_admin:
            if self._rights is None or self._version != self._view.version:
                self._version = self._view.version
                self._rights = self._view.rights(self.principal)
            if not self._rights.allow(operation, resource, name):
                return False
        return self._scopes is None or self._scopes.allow(operation, resource, name)

    def refusal(self, operation: str, resource: str, name: str) -> NotAuthorized:
        """Of what it may not, saying what would help. Raises as `may` does."""
        rights = None if self.is_admin else self._view.rights(self.principal)
        denial = Denial(
            no_right=rights is not None and not rights.grant(operation, resource, name),
            denied=rights is not None and rights.deny(operation, resource, name),
            narrowed=self._scopes is not None and not self._scopes.allow(operation, resource, name),
        )
        return not_authorized(self.principal, operation, resource, name, denial)


class AuthorizedCall:
    """One call of a caller: what it needs, and what it was granted."""

    __slots__ = (
        "_refused",
        "action",
        "address",
        "caller",
        "failure",
        "granted",
        "listener",
        "needs",
        "refusal",
        "request_id",
        "resources",
        "validate_only",
    )

    def __init__(
        self,
        caller: Principal | None,
        needs: RequiredAccess,
        *,
        listener: str,
        action: str,
        address: str,
        refusal: Callable[[AuthorizedCall, str, str, str], None],
        request_id: str = "",
    ) -> None:
        """`caller`: None is a stranger at a call that is open to all. `refusal` is told of what is refused: operation, kind,
        name."""
        self.caller = caller
        self.needs = needs
        self.listener = listener
        self.action = action
        self.address = address
        self.request_id = request_id
        self.refusal = refusal
        self.failure = ""
        """The code of the error that it has ended with."""
        self.validate_only = False
        """It changes nothing, as it was asked to."""
        self.granted: set[tuple[str, str, str]] = set()
        """Of a call that lasts: it ends when one of these is taken back."""
        self.resources: dict[str, None] = {}
        """Of a call that changes something: what it names, in order."""
        self._refused: set[tuple[str, str, str]] | None = None

    @property
    def principal(self) -> str:
        return self.caller.principal if self.caller is not None else ""

    def part(self) -> AuthorizedCall:
        """Returns a call of the same caller, for one of several changes that this call asks for."""
        return AuthorizedCall(
            self.caller,
            self.needs,
            listener=self.listener,
            action=self.action,
            address=self.address,
            refusal=self.refusal,
            request_id=self.request_id,
        )

    def check(self, kind: str, name: str) -> None:
        """Unauthenticated, NotAuthorized unless the call may name this."""
        needs = self.needs
        if self.caller is not None and self.caller.is_peer:  # it was checked where it came in
            self._note_resource(kind, name)
            return
        operation = needs.topic if kind == "topic" else needs.group if kind == "group" else needs.cluster
        caller = self.caller
        if caller is None or operation is None:
            raise NotAuthorized(f"this call is for no {kind}", resource=kind)
        caller.check_counts()
        self._note_resource(kind, name)
        if not caller.may(operation, kind, name):
            self._record_refusal(operation, kind, name)
            raise caller.refusal(operation, kind, name)
        if needs.lasts and len(self.granted) < GRANTED_MAX:
            self.granted.add((operation, kind, name))

    def _note_resource(self, kind: str, name: str) -> None:
        if self.needs.changes and len(self.resources) < REFUSALS_LOGGED_MAX:
            self.resources[f"{kind}:{name[:249]}"] = None

    def may(self, operation: str, kind: str, name: str) -> bool:
        """Whether it may, without a refusal: for what is left out of a list."""
        return self.caller is not None and self.caller.may(operation, kind, name)

    def end_reason(self) -> TidelogError | None:
        """Why a call that lasts may go on no longer."""
        assert self.caller is not None
        stale = self.caller.why_stale()
        if stale is not None:
            return stale
        try:
            self.caller.check_counts()
            for operation, kind, name in self.granted:
                if not self.caller.may(operation, kind, name):
                    return self.caller.refusal(operation, kind, name)
        except Unauthenticated as error:
            return error.with_traceback(None)
        except TidelogError:
            return None  # nobody can tell at the moment
        return None

    def note_logged(self) -> None:
        """The audit log has heard why it was refused."""
        if self._refused is None:
            self._refused = set()

    def _record_refusal(self, operation: str, kind: str, name: str) -> None:
        self._refused = self._refused or set()
        asked = (operation, kind, name)
        if asked not in self._refused and len(self._refused) < REFUSALS_LOGGED_MAX:
            self._refused.add(asked)
            self.refusal(self, *asked)

    @property
    def was_refused(self) -> bool:
        """The audit log knows of it already."""
        return self._refused is not None


_present: ContextVar[AuthorizedCall | None] = ContextVar("checked_call", default=None)


def begin(call: AuthorizedCall) -> None:
    """For the rest of this task, and those that it starts."""
    _present.set(call)


@contextmanager
def acting(call: AuthorizedCall | None) -> Iterator[None]:
    """Holds the body to what the call may do. None: to nothing, where authentication is off."""
    token = _present.set(call)
    try:
        yield
    finally:
        _present.reset(token)


def present_call() -> AuthorizedCall | None:
    return _present.get()


def is_guarded() -> bool:
    """Whether the present call is held to what somebody may do."""
    return _present.get() is not None


def check_topic(name: str) -> None:
    """NotAuthorized unless the present call may do to the topic what it is for."""
    call = _present.get()
    if call is not None:
        call.check("topic", name)


def topic_check() -> Callable[[str], None]:
    """`check_topic` for the present call, to be asked from other tasks."""
    call = _present.get()
    return (lambda name: None) if call is None else (lambda name: call.check("topic", name))


def check_group(name: str) -> None:
    """The same of a consumer group."""
    call = _present.get()
    if call is not None:
        call.check("group", name)


def check_cluster() -> None:
    """Raises NotAuthorized unless the present call may do to the cluster what it is for."""
    call = _present.get()
    if call is not None:
        call.check("cluster", CLUSTER_NAME)


def may_see_topic(name: str) -> bool:
    """Whether the present call may be told of it in a list."""
    call = _present.get()
    return call is None or call.may("describe", "topic", name)


def may_read_topic(name: str) -> bool:
    """Whether the present call may read it: what it may not is left out without a word."""
    call = _present.get()
    return call is None or call.may("read", "topic", name)


def may_see_group(name: str) -> bool:
    call = _present.get()
    return call is None or call.may("describe", "group", name)


def may_suggest_topic(name: str) -> bool:
    """Whether the present call may be told of it as what it may have meant. Not what another broker forwards: nobody here knows
    what its client may see."""
    call = _present.get()
    return call is None or (call.caller is not None and not call.caller.is_peer and call.may("describe", "topic", name))


def may_see_cluster() -> bool:
    """Also where nobody can tell at the moment, not: probes ask."""
    call = _present.get()
    try:
        return call is None or call.may("describe", "cluster", CLUSTER_NAME)
    except TidelogError:
        return False


def present_principal() -> str:
    """Empty where nobody was asked who it is."""
    call = _present.get()
    return call.principal if call is not None else ""


def present_key_id() -> str:
    """The id of the API key that the present call has shown; empty where it has shown none."""
    call = _present.get()
    return call.caller.key_id if call is not None and call.caller is not None else ""


def note_validate_only(validate_only: bool) -> None:  # as every call names it
    """Whether the present call was asked to change nothing."""
    call = _present.get()
    if call is not None:
        call.validate_only = validate_only


def note_failure(code: str) -> None:
    """The present call ends with this error."""
    call = _present.get()
    if call is not None:
        call.failure = code

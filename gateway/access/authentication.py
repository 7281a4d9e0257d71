"""Finds the principal of a call from the credentials it carries; calls with equal credentials share one Principal.

    Authorization: Bearer tlk_…  ┐                            ┌ the admin key (a file), or an API key of the cluster
    Authorization: Basic id:key  ├─▶ cached? ─▶ Principal     ├ a token of the OpenID provider (oidc.py)
    Authorization: Bearer JWT    ┘      └ no ─▶ verify as ────┴ neither: Unauthenticated
    no header ─▶ the client certificate (net/tls/client_subject.py), or Unauthenticated

A cached Principal is checked at each call: a changed or revoked key is another object in the access cache, and a token expires.
Invariants: at most REMEMBERED_MAX credentials are cached, and only valid ones. Credentials never appear in errors or logs.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gateway.access.authorization import CredentialView, Principal, rights_in_doubt
from gateway.access.refusals import is_current
from gateway.access.settings import AccessSettings
from metadata.access.acl import check_principal, rights_of_scopes
from metadata.access.api_key import ApiKey, Credential, check_counts, check_credential, parse_basic, parse_key
from metadata.access.scram import ScramCredential, ScramUser, find_credential
from metadata.errors import InvalidArgument, TidelogError, Unauthenticated

log = logging.getLogger("tidelog")

if TYPE_CHECKING:
    from gateway.access.oidc import OidcVerifier

# Bounds of the cached credentials and certificate names.
REMEMBERED_MAX: Final = 10_000
CERTIFICATES_MAX: Final = 10_000
# The principal of the admin key.
ADMIN: Final = "admin"
# A longer `authorization` value is refused.
CREDENTIALS_CHARACTERS_MAX: Final = 14 << 10


class Subject(Protocol):
    """Names the subject of a client certificate, as ClientSubject of net/tls/client_subject.py does."""

    @property
    def subject(self) -> str: ...
    @property
    def common_name(self) -> str: ...


class ScramIdentity(NamedTuple):
    """Holds a SCRAM user: the credential that checks its proof, and its principal after a valid proof."""

    credential: ScramCredential
    # Raises Unauthenticated once the credential is revoked or has expired.
    principal: Callable[[], Principal]


class Authenticator:
    """Verifies credentials and caches the principals that they prove."""

    def __init__(
        self,
        settings: AccessSettings,
        view: CredentialView,
        *,
        now_ms: Callable[[], int],
        admin_key: Credential | None = None,
        tokens: OidcVerifier | None = None,
    ) -> None:
        self._settings = settings
        self._admins = settings.admins
        self._view = view
        self._now_ms = now_ms
        self._admin_key = admin_key
        self._tokens = tokens
        self._known: dict[str | bytes, Principal] = {}
        self._certified: dict[str, Principal] = {}

    @property
    def accepts_tokens(self) -> bool:
        """Returns True if an OpenID provider is configured."""
        return self._tokens is not None

    @property
    def oidc_issuer(self) -> str:
        """Returns the URL of the OpenID provider; empty without one."""
        return self._settings.oidc_issuer

    async def run(self) -> None:
        """Follows the keys of the OpenID provider until cancelled; returns at once without a provider."""
        if self._tokens is not None:
            await self._tokens.run()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls `changed` when the provider's keys change, so that tokens signed with them may be invalid."""
        if self._tokens is not None:
            self._tokens.subscribe(changed)

    def known(self, shown: str | bytes) -> Principal | None:
        """Returns the cached principal of these credentials if they are still valid, else None."""
        caller = self._known.get(shown)
        if caller is None:
            return None
        try:
            caller.check_counts()
        except Unauthenticated:
            del self._known[shown]
            return None
        return caller

    async def caller(self, shown: str | bytes, subject: Subject | None, *, waits: bool = True) -> Principal:
        """Returns the principal of an `authorization` value, or of the certificate where that is empty.

        An API key that this broker does not accept is refused only by a view of keys that is proven to be current: it may have been
        created a moment ago. `waits` False: by the present view.

        Raises Unauthenticated; Unavailable while the view of keys is too old, or is not proven in time, or the OpenID provider
        cannot be reached.
        """
        if not shown:
            certified = self.certified(subject)
            certified.check_current()
            return certified
        caller = self.known(shown)
        if caller is None:
            caller = await self._prove(shown, waits=waits)
            caller.check_current()
            if len(self._known) >= REMEMBERED_MAX:
                del self._known[next(iter(self._known))]
            self._known[shown] = caller
        return caller

    async def _prove(self, shown: str | bytes, *, waits: bool) -> Principal:
        text = shown if isinstance(shown, str) else shown.decode("latin-1")
        if len(text) > CREDENTIALS_CHARACTERS_MAX:
            raise Unauthenticated("the credentials are too long")
        scheme, _, rest = text.partition(" ")  # no other whitespace: one credential must not be cached under many texts
        credential = None
        match scheme.lower():
            case "bearer":
                credential = parse_key(rest)
                if credential is None and self._tokens is not None and not rest.startswith("tlk_"):
                    found = await self._tokens.verify(rest)
                    return self._caller(found.principal, "token", expires_at_ms=found.expires_at_ms, holds=found.holds)
            case "basic":
                credential = parse_basic(rest)
        if credential is None:
            raise Unauthenticated("the credentials are neither an API key nor an accepted token")
        try:
            return self._key_holder(credential)
        except Unauthenticated:
            if not waits:
                raise
        await self.catch_up()
        return self._key_holder(credential)

    async def catch_up(self) -> None:
        """Waits until this broker knows all keys and users that are stored now. Raises Unavailable if that takes long."""
        if not await is_current(self._view, anonymous=True):
            raise rights_in_doubt()

    def _key_holder(self, shown: Credential) -> Principal:
        if self._admin_key is not None and shown.key_id == self._admin_key.key_id and shown.secret == self._admin_key.secret:
            return Principal(ADMIN, self._view, self._now_ms, credential="admin key", is_admin=True, key_id=shown.key_id)
        stale = self._view.stale_error()
        if stale is not None:  # an unknown key may have been created since
            raise stale
        return self._key_principal(check_credential(self._view.key(shown.key_id), shown, self._now_ms()))

    def scram(self, user: str, mechanism: str) -> ScramIdentity | None:
        """Returns the SCRAM credential of an API key, by its id, or of a user; None where this broker's view has none.

        Raises Unavailable while the view of keys is too old.
        """
        if (stale := self._view.stale_error()) is not None:
            raise stale
        key = self._view.key(user)
        if key is not None:
            found = find_credential(key.scram, mechanism)
            return ScramIdentity(found, partial(self._scram_key, key)) if found is not None else None
        record = self._view.scram_user(user)
        found = find_credential(record.credentials, mechanism) if record is not None else None
        return ScramIdentity(found, partial(self._scram_user, record)) if record is not None and found is not None else None

    def _scram_key(self, key: ApiKey) -> Principal:
        check_counts(key, self._now_ms())
        return self._key_principal(key)

    def _scram_user(self, record: ScramUser) -> Principal:
        return Principal(
            record.user,
            self._view,
            self._now_ms,
            credential="SCRAM credential",
            is_admin=record.user in self._admins,
            is_stored=True,
            holds=lambda: self._view.scram_user(record.user) == record,
            lost="was changed or deleted",
        )

    def _key_principal(self, key: ApiKey) -> Principal:
        scopes = rights_of_scopes(key.scopes) if key.scopes else None
        return Principal(
            key.principal,
            self._view,
            self._now_ms,
            credential=f"API key {key.key_id}",
            is_admin=key.principal in self._admins,
            key=key,
            scopes=scopes,
            expires_at_ms=key.expires_at_ms,
        )

    def is_admin(self, principal: str) -> bool:
        """Returns whether the settings make this principal an administrator."""
        return principal in self._admins

    def is_admin_key(self, key_id: str) -> bool:
        """Returns whether this is the id of the admin key of this broker's settings."""
        return self._admin_key is not None and key_id == self._admin_key.key_id

    def named(self, principal: str, key_id: str) -> Principal | None:
        """Returns a principal that was authenticated by the API key of this id, or without one; None for an unknown key.

        Raises Unavailable before the keys were read.
        """
        if not key_id:
            return self._caller(principal, "former call")
        if self._admin_key is not None and self.is_admin_key(key_id):
            return self._key_holder(self._admin_key)
        key = self._view.key(key_id)
        return None if key is None else self._key_principal(key)

    def certified(self, subject: Subject | None) -> Principal:
        """Returns the principal that a client certificate names. Raises Unauthenticated without one."""
        if subject is None:
            raise Unauthenticated("the call carries no credentials")
        name = subject.common_name if self._settings.tls_principal == "cn" else subject.subject
        caller = self._certified.get(name)
        if caller is None:
            try:
                check_principal(name)
            except TidelogError:
                raise Unauthenticated("the name in the client certificate cannot be a principal") from None
            if len(self._certified) >= CERTIFICATES_MAX:
                self._certified.clear()
            caller = self._certified[name] = self._caller(name, "certificate")
        return caller

    def _caller(
        self, principal: str, credential: str, *, expires_at_ms: int = 0, holds: Callable[[], bool] | None = None
    ) -> Principal:
        return Principal(
            principal,
            self._view,
            self._now_ms,
            credential=credential,
            is_admin=principal in self._admins,
            expires_at_ms=expires_at_ms,
            holds=holds,
        )


def read_admin_key(path: Path) -> Credential:
    """Reads the admin's API key. Raises InvalidArgument, without the content, where the file is unreadable or holds no key."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InvalidArgument(f"admin_key_file: {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidArgument(f"admin_key_file: {path} holds no API key") from None
    credential = parse_key(text)
    if credential is None:
        raise InvalidArgument(
            f"admin_key_file: {path} holds no API key", hint="Make one: tidelog key generate > FILE; it is tlk_ID_SECRET."
        )
    if path.stat().st_mode & stat.S_IROTH:
        log.warning(
            "admin key file is readable by all users path=%s: each of them is an administrator; run chmod o-rwx on it",
            path,
        )
    return credential

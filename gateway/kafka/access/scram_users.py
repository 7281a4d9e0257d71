"""Answers DescribeUserScramCredentials and AlterUserScramCredentials: users with passwords of their own choice, for SCRAM.

The client salts the password, so the broker never sees it. A user is the principal of the same name.

Source: KIP-554
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gateway.access.authorization import check_cluster, note_failure
from gateway.api import BrokerApi
from gateway.kafka.admin.single_change import one_change
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, KafkaRejected, admin_code, cut_text
from gateway.kafka.protocol.admin_messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from metadata.access.acl import check_principal
from metadata.access.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NUMBERS,
    MECHANISMS,
    SALT_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
    ScramUser,
    credential_of_salted,
    find_credential,
)
from metadata.errors import InvalidArgument, TidelogError

_Change = ScramCredentialDeletion | ScramCredentialUpsertion
# Most users of one request.
CHANGES_MAX: Final = 1_000


class UnknownScramUser(KafkaRejected):
    """A user, or a credential of it, does not exist."""

    code = "UNKNOWN_SCRAM_USER"
    kafka_code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateScramUser(KafkaRejected):
    """A request names the same thing twice."""

    code = "DUPLICATE_SCRAM_USER"
    kafka_code = ErrorCode.DUPLICATE_RESOURCE


class UnacceptableCredential(KafkaRejected):
    """A credential can't be stored as it is."""

    code = "UNACCEPTABLE_CREDENTIAL"
    kafka_code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class UnsupportedMechanism(KafkaRejected):
    """A mechanism has a number that this broker does not know."""

    code = "UNSUPPORTED_SASL_MECHANISM"
    kafka_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class KafkaScramUsers:
    """Describes and changes the SCRAM users of the cluster."""

    def __init__(self, broker: BrokerApi) -> None:
        self._access = broker.access
        self._guard = broker.guard

    async def describe(self, call: KafkaCall, request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
        """Answers with the mechanisms and iterations of users; of all users if the request names none."""
        try:
            check_cluster()
            users = {user.user: user for user in await self._access.scram_users()}
        except TidelogError as error:
            return DescribeUserScramCredentialsResponse(
                error_code=admin_code(error), error_message=cut_text(error.message), results=[]
            )
        counts = Counter(each.name for each in request.users) if request.users else Counter(users.keys())
        results = [_described(name, users.get(name), is_twice=count > 1) for name, count in counts.items()]
        return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None, results=results)

    async def alter(self, call: KafkaCall, request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
        """Changes credentials, all of a user or none."""
        changes: dict[str, list[_Change]] = {}
        every: tuple[_Change, ...] = (*request.deletions, *request.upsertions)
        for change in every:
            changes.setdefault(change.name, []).append(change)
        try:
            check_cluster()
            if len(changes) > CHANGES_MAX:
                with one_change(self._guard, call):
                    raise InvalidArgument(f"the request names {len(changes)} users; at most {CHANGES_MAX} are taken")
        except TidelogError as error:
            note_failure(error.code)
            return AlterUserScramCredentialsResponse(results=[_not_altered(name, error) for name in changes])
        results = [await self._alter_user(call, name, each) for name, each in changes.items()]
        return AlterUserScramCredentialsResponse(results=results)

    async def _alter_user(self, call: KafkaCall, name: str, changes: list[_Change]) -> AlterUserScramCredentialsResult:
        try:
            with one_change(self._guard, call):
                check_cluster()
                _check_name(name)
                mechanisms = [_mechanism(each.mechanism) for each in changes]
                if len(set(mechanisms)) < len(mechanisms):
                    raise DuplicateScramUser("a mechanism of the user is changed twice")
                await self._access.alter_scram_user(name, lambda held: _changed(held, changes))
        except TidelogError as error:
            return _not_altered(name, error)
        return AlterUserScramCredentialsResult(user=name, error_code=ErrorCode.NONE, error_message=None)


def _not_altered(name: str, error: TidelogError) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=name, error_code=admin_code(error), error_message=cut_text(error.message))


def _check_name(name: str) -> None:
    try:
        check_principal(name)
    except InvalidArgument as error:
        raise UnacceptableCredential(error.message) from None


def _mechanism(number: int) -> ScramMechanism:
    mechanism = MECHANISM_NUMBERS.get(number)
    if mechanism is None:
        raise UnsupportedMechanism(f"there is no SCRAM mechanism {number}")
    return mechanism


def _changed(held: ScramUser, changes: Iterable[_Change]) -> ScramUser:
    """Returns the record of the user after all changes. Raises KafkaRejected."""
    credentials = {each.mechanism: each for each in held.credentials}
    for change in changes:
        mechanism = _mechanism(change.mechanism)
        if isinstance(change, ScramCredentialUpsertion):
            credentials[mechanism.name] = _credential(mechanism, change)
        elif credentials.pop(mechanism.name, None) is None:
            raise UnknownScramUser("the user has no such credential")
    return ScramUser(user=held.user, credentials=tuple(credentials[name] for name in MECHANISMS if name in credentials))


def _credential(mechanism: ScramMechanism, upsertion: ScramCredentialUpsertion) -> ScramCredential:
    if not ITERATIONS_MIN <= upsertion.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(f"the iterations are {upsertion.iterations}; {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken")
    salt, salted_password = bytes(upsertion.salt), bytes(upsertion.salted_password)
    if not 0 < len(salt) <= SALT_BYTES_MAX or len(salted_password) != mechanism.digest_bytes:
        raise UnacceptableCredential("the salt or the salted password has a wrong length")
    return credential_of_salted(mechanism, salted_password, salt, upsertion.iterations)


def _described(name: str, user: ScramUser | None, *, is_twice: bool) -> DescribeUserScramCredentialsResult:
    error: KafkaRejected | None = None
    if is_twice:
        error = DuplicateScramUser("the request names the user twice")
    elif user is None:
        error = UnknownScramUser("there is no such SCRAM user")
    if error is not None or user is None:
        assert error is not None
        return DescribeUserScramCredentialsResult(
            user=name, error_code=error.kafka_code, error_message=cut_text(error.message), credential_infos=[]
        )
    found = [
        CredentialInfo(mechanism=mechanism.number, iterations=credential.iterations)
        for mechanism in MECHANISMS.values()
        if (credential := find_credential(user.credentials, mechanism.name)) is not None
    ]
    return DescribeUserScramCredentialsResult(user=name, error_code=ErrorCode.NONE, error_message=None, credential_infos=found)

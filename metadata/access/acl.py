"""Defines ACLs: bindings of principals to operations on resources, and the decision over them. Pure.

    principal   a name, or * for everyone who has shown who it is
    operation   describe · read · write · create · admin · all
                read, write and admin allow describe with them; admin includes create; all includes all of them
    resource    topic NAME · group NAME · cluster              literal, or prefix; the literal * is every name
    effect      allow · deny

A call is allowed where a binding allows it and none denies it. Without any binding only the administrators of the broker's
settings may do anything (deny by default). `create` on the cluster allows to create every topic whose own bindings do not deny it.

Kafka's operations map onto these, so that its ACLs can be carried over (KIP-11, KIP-290):

    Describe, DescribeConfigs               describe
    Read                                    read           of a group: to be its member, to commit, to fetch its offsets
    Write, IdempotentWrite                  write          a producer id needs no right of its own
    Create                                  create         of a topic; of the cluster: every topic
    Delete, Alter, AlterConfigs             admin          of a topic: also to delete records; of a group: to seek and to delete
    ClusterAction                           none           brokers know each other by the cluster's own secret
    All                                     all
    TransactionalId, DelegationToken        none

The value of /{cluster}/acls/{acl_id}, JSON in UTF-8, one binding:

    {"format_version":1,"principal":"billing","effect":"allow","operation":"read","resource":"topic","name":"orders",
     "pattern":"literal"}

The id of a binding is the digest of its fields. A newer version may store bindings, and scopes of API keys, of operations that this
one does not know. Such an allowance and such a scope allow nothing. Such a denial denies every operation on what it covers, since
the operation may be a part of any other.

Invariants: adding the same binding twice changes nothing. A binding that is not understood as a whole never allows anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Final, Literal, get_args

import msgspec

from metadata.errors import Corrupt, InvalidArgument, TidelogError
from metadata.plain_names import why_not_plain
from metadata.store.interface import KeyValue

Operation = Literal["describe", "read", "write", "create", "admin", "all"]
ResourceKind = Literal["topic", "group", "cluster"]
Pattern = Literal["literal", "prefix"]
Effect = Literal["allow", "deny"]

OPERATIONS: Final = frozenset(get_args(Operation))
# Bound on the name of an operation that a newer version has stored.
OPERATION_CHARACTERS_MAX: Final = 60
FORMAT_VERSION: Final = 1
EVERYONE: Final = "*"
EVERY_NAME: Final = "*"
# The name of the cluster as a resource.
CLUSTER_NAME: Final = "cluster"
PRINCIPAL_CHARACTERS_MAX: Final = 249
NAME_CHARACTERS_MAX: Final = 249
# Bound on the bindings of one cluster: every broker holds them all.
ACLS_MAX: Final = 10_000
ACL_ID_DIGITS: Final = 16
# Bound on the decisions that one `Rights` caches.
REMEMBERED_MAX: Final = 4_096
# The operation and the resource of a call that creates a topic.
CREATE_TOPIC: Final = ("create", "topic")
# Maps the operation that a call needs to those of a binding that allow it. `create` does not allow `describe`, as in Kafka.
_ALLOWS: Final[dict[str, frozenset[str]]] = {
    "describe": frozenset({"describe", "read", "write", "admin", "all"}),
    "read": frozenset({"read", "all"}),
    "write": frozenset({"write", "all"}),
    "create": frozenset({"create", "admin", "all"}),
    "admin": frozenset({"admin", "all"}),
}
# Maps the operation that a call needs to those of a binding that deny it. To deny read, write or admin does not deny `describe`.
_DENIES: Final[dict[str, frozenset[str]]] = {
    "describe": frozenset({"describe", "all"}),
    "read": frozenset({"read", "all"}),
    "write": frozenset({"write", "all"}),
    "create": frozenset({"create", "admin", "all"}),
    "admin": frozenset({"admin", "all"}),
}


class Scope(msgspec.Struct, frozen=True):
    """Narrows an API key to one operation on a resource."""

    # One of OPERATIONS, or one that only a newer version knows.
    operation: str
    resource: ResourceKind
    name: str = EVERY_NAME
    pattern: Pattern = "literal"


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """Allows or denies one principal an operation on a resource."""

    principal: str
    # One of OPERATIONS, or one that only a newer version knows.
    operation: str
    resource: ResourceKind
    name: str = EVERY_NAME
    pattern: Pattern = "literal"
    effect: Effect = "allow"
    format_version: int = FORMAT_VERSION

    @property
    def acl_id(self) -> str:
        said = "\0".join((self.principal, self.effect, self.operation, self.resource, self.name, self.pattern))
        return hashlib.sha256(said.encode()).hexdigest()[:ACL_ID_DIGITS]


def check_principal(name: str) -> str:
    """Returns the name; raises InvalidArgument for `*` and for names that are empty, too long or not printable."""
    if not 1 <= len(name) <= PRINCIPAL_CHARACTERS_MAX or not name.isprintable() or name != name.strip() or name == EVERYONE:
        raise InvalidArgument(
            f"{name[:60]!r} is no name of a principal{_because(name)}",
            hint=f"Use 1 to {PRINCIPAL_CHARACTERS_MAX} printable characters, no space at either end, and not *.",
            field="principal",
        )
    return name


def _because(name: str) -> str:
    why = why_not_plain(name)
    return f": {why}" if why is not None else ""


def check_acl(acl: Acl) -> Acl:
    """Returns the binding as it is stored. Raises InvalidArgument."""
    return _checked_acl(acl, check_scope)


def _checked_acl(acl: Acl, check: Callable[[Scope], Scope]) -> Acl:
    if acl.principal != EVERYONE:
        check_principal(acl.principal)
    if acl.effect not in get_args(Effect):
        raise InvalidArgument(f"{acl.effect[:60]!r} is no effect", hint="Use allow or deny.", field="effect")
    checked = check(Scope(acl.operation, acl.resource, acl.name, acl.pattern))
    return msgspec.structs.replace(acl, name=checked.name, pattern=checked.pattern)


def check_scope(scope: Scope) -> Scope:
    """Returns the scope; one of the cluster gets the cluster's name. Raises InvalidArgument."""
    _check_choice(scope.operation, Operation, "operation")
    if scope.operation == "create" and scope.resource == "group":
        raise InvalidArgument(
            "create is no right to a group", hint="Allow read: the first member creates the group.", field="operation"
        )
    return _checked_resource(scope)


def check_stored_scope(scope: Scope) -> Scope:
    """Returns the scope as check_scope; its operation may be one that only a newer version knows. Raises InvalidArgument."""
    if not 1 <= len(scope.operation) <= OPERATION_CHARACTERS_MAX or not scope.operation.isprintable():
        raise InvalidArgument(f"{scope.operation[:60]!r} is no operation", field="operation")
    return _checked_resource(scope)


def _check_choice(value: str, of: object, field: str) -> None:
    if value not in get_args(of):
        raise InvalidArgument(f"{value[:60]!r} is no {field}", hint=f"Use {', '.join(get_args(of))}.", field=field)


def _checked_resource(scope: Scope) -> Scope:
    _check_choice(scope.resource, ResourceKind, "resource")
    _check_choice(scope.pattern, Pattern, "pattern")
    if scope.resource == "cluster":
        if scope.name not in {EVERY_NAME, CLUSTER_NAME, ""} or scope.pattern != "literal":
            raise InvalidArgument("there is one cluster: it has no name here", hint="Leave the name out.", field="name")
        return msgspec.structs.replace(scope, name=CLUSTER_NAME)
    if not 1 <= len(scope.name) <= NAME_CHARACTERS_MAX or not scope.name.isprintable():
        raise InvalidArgument(
            f"{scope.name[:60]!r} is no name of a {scope.resource}, and no beginning of one{_because(scope.name)}",
            hint="Use * for every name, or a beginning with the pattern prefix.",
            field="name",
        )
    return scope


class Rights:
    """Decides what one principal may do by a fixed set of bindings, and caches its decisions. Make a new one after changes."""

    __slots__ = ("_allowed", "_named", "_wide")

    def __init__(self, bindings: Iterable[Acl]) -> None:
        """Indexes the bindings by name, so that listing all topics does not scan all of them. They must concern the caller."""
        self._named: dict[tuple[str, str], list[Acl]] = {}
        # Bindings that cover many names, by resource.
        self._wide: dict[str, list[Acl]] = {}
        for acl in bindings:
            if acl.pattern == "literal" and acl.name != EVERY_NAME:
                self._named.setdefault((acl.resource, acl.name), []).append(acl)
            else:
                self._wide.setdefault(acl.resource, []).append(acl)
        self._allowed: dict[tuple[str, str, str], bool] = {}

    @property
    def remembered(self) -> int:
        return len(self._allowed)

    def allow(self, operation: str, resource: str, name: str) -> bool:
        asked = (operation, resource, name)
        allowed = self._allowed.get(asked)
        if allowed is None:
            if len(name) > NAME_CHARACTERS_MAX:  # nothing has such a name, and to remember it would cost what a client likes
                return self._decide(operation, resource, name)
            if len(self._allowed) >= REMEMBERED_MAX:
                self._allowed.clear()
            allowed = self._allowed[asked] = self._decide(operation, resource, name)
        return allowed

    def allow_every(self, operation: str, resource: str) -> bool:
        """Returns whether the operation is allowed for any name: a binding of all names allows it, and none denies it."""
        wide = self._wide.get(resource, ())
        if not any(acl.pattern == "literal" and allows(acl, operation, resource, EVERY_NAME) for acl in wide):
            return False
        named = (acl for (kind, _), bindings in self._named.items() if kind == resource for acl in bindings)
        return not any(denies(acl, operation, resource, acl.name) for acl in chain(wide, named))

    def deny(self, operation: str, resource: str, name: str) -> bool:
        """Returns whether a binding of the resource denies the operation, regardless of any that allow it."""
        return any(denies(acl, operation, resource, name) for acl in self._bindings(resource, name))

    def grant(self, operation: str, resource: str, name: str) -> bool:
        """Returns whether a binding allows the operation, regardless of any of the resource that deny it."""
        if any(allows(acl, operation, resource, name) for acl in self._bindings(resource, name)):
            return True
        return (operation, resource) == CREATE_TOPIC and self.allow("create", "cluster", CLUSTER_NAME)

    def _decide(self, operation: str, resource: str, name: str) -> bool:
        bindings = [*self._bindings(resource, name)]
        if (operation, resource) == CREATE_TOPIC:
            bindings += self._bindings("cluster", CLUSTER_NAME)
        return decide(bindings, operation, resource, name)

    def _bindings(self, resource: str, name: str) -> Iterable[Acl]:
        return chain(self._wide.get(resource, ()), self._named.get((resource, name), ()))


def rights_of_scopes(scopes: Iterable[Scope]) -> Rights:
    """Returns the rights of a key that is narrowed to these scopes."""
    return Rights(
        Acl(principal=EVERYONE, operation=scope.operation, resource=scope.resource, name=scope.name, pattern=scope.pattern)
        for scope in scopes
    )


def decide(bindings: Collection[Acl], operation: str, resource: str, name: str) -> bool:
    """Returns whether a binding allows the operation and none denies it. All bindings must concern the caller.

    A topic may also be created by a right to the cluster. As in Kafka, a denial of `create` on the cluster takes away that right
    alone: topics' own bindings still allow. Unlike in Kafka, a topic's own denial outweighs a right to the cluster.
    """
    allowed = False
    for acl in bindings:
        if denies(acl, operation, resource, name):
            return False
        allowed = allowed or allows(acl, operation, resource, name)
    if not allowed and (operation, resource) == CREATE_TOPIC:
        return decide(bindings, "create", "cluster", CLUSTER_NAME)
    return allowed


def allows(acl: Acl, operation: str, resource: str, name: str) -> bool:
    """Returns whether this binding allows the operation, regardless of others."""
    return acl.effect == "allow" and acl.operation in _ALLOWS[operation] and acl.resource == resource and covers(acl, name)


def denies(acl: Acl, operation: str, resource: str, name: str) -> bool:
    """Returns whether this binding denies the operation."""
    is_concerned = acl.operation in _DENIES[operation] or acl.operation not in OPERATIONS
    return acl.effect == "deny" and is_concerned and acl.resource == resource and covers(acl, name)


def covers(acl: Acl, name: str) -> bool:
    """Returns whether the name is one that the binding is about; the resource is not compared."""
    if acl.pattern == "prefix":
        return name.startswith(acl.name)
    return acl.name in {name, EVERY_NAME}


_decoder = msgspec.json.Decoder(Acl)


def encode_acl(acl: Acl) -> bytes:
    return msgspec.json.encode(acl)


def decode_acl(kept: KeyValue) -> Acl:
    """Decodes a stored binding. Raises Corrupt, naming the key, where the value is not what this module writes.

    The operation may be one that only a newer version knows. A binding of a newer format version is Corrupt too: a denial that is
    only half understood would allow.
    """
    try:
        acl = _checked_acl(_decoder.decode(kept.value), check_stored_scope)
        if not kept.key.endswith(f"/{acl.acl_id}") or acl.format_version > FORMAT_VERSION:
            raise InvalidArgument("it is another's, or of a newer version")
    except (msgspec.DecodeError, UnicodeDecodeError, TidelogError) as error:
        raise Corrupt(f"the ACL at {kept.key} can't be read: {error}", key=kept.key) from error
    return acl

"""Serves /v1/keys, /v1/acls and /v1/quotas, with which administrators of the cluster manage access."""

from __future__ import annotations

import time
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from fastapi import FastAPI, Path, Query, Response
from msgspec import Meta, Struct, field

from gateway.api import BrokerApi
from gateway.http.problem_details import error_members
from gateway.http.struct_body import Body
from metadata.access.acl import Acl, Effect, Operation, Pattern, ResourceKind, Scope
from metadata.access.api_key import ApiKey
from metadata.access.quota import RATE_MAX, Quota
from metadata.errors import TidelogError

ValidateOnly = Annotated[bool, Query(description="Check everything, change nothing.")]
PageSize = Annotated[int, Query(ge=0, le=1000, description="0: 100.")]
Principal = Annotated[str, Meta(description="A name; in ACLs and quotas * stands for every principal.")]
Rate = Annotated[int, Meta(ge=0, le=RATE_MAX, description="Limit at each broker. 0: no limit.")]
# Strings that metadata/access/acl.py validates, as for gRPC; the OpenAPI document lists the choices.
OperationName = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Operation))})]
ResourceName = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(ResourceKind))})]
PatternName = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Pattern))})]
EffectName = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Effect))})]
_NO_STORE = {"cache-control": "no-store"}


class ScopeBody(Body):
    """Describes one right that an API key keeps."""

    operation: OperationName
    resource: ResourceName
    name: Annotated[str, Meta(description="*: every name.")] = "*"
    pattern: PatternName = "literal"


class NewKey(Body):
    """Describes an API key to create."""

    example = '{"principal":"billing","expires_at_ms":0,"scopes":[]}'

    principal: Principal
    description: str = ""
    expires_at_ms: Annotated[int, Meta(ge=0, le=2**53 - 1, description="Milliseconds since 1970; 0: never.")] = 0
    scopes: Annotated[list[ScopeBody], Meta(description="The rights of the principal that the key keeps. None: all.")] = field(
        default_factory=list
    )


class KeyAnswer(Struct):
    """Describes an API key, without its secret."""

    key_id: str
    principal: str
    description: str
    state: Annotated[str, Meta(description="active, revoked, expired.")]
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    revoked_at_ms: int
    scopes: list[ScopeBody]


class CreatedKeyAnswer(KeyAnswer):
    """Describes a created API key, with its secret."""

    text: Annotated[
        str,
        Meta(description="The credential, for Authorization: Bearer tlk_… Only this answer has it. Empty with validate_only."),
    ]


_KeyAnswer = TypeVar("_KeyAnswer", bound=KeyAnswer)


class KeysAnswer(Struct):
    """Lists a page of API keys."""

    keys: list[KeyAnswer]
    next_page_token: Annotated[str, Meta(description="Empty on the last page.")]
    errors: Annotated[list[dict[str, Any]], Meta(description="The errors of keys that are unreadable.")]


class NewAcl(Body):
    """Describes an ACL to create."""

    example = '{"principal":"billing","operation":"read","resource":"topic","name":"orders"}'

    principal: Principal
    operation: OperationName
    resource: ResourceName
    name: Annotated[str, Meta(description="*: every name. Leave it out for the cluster.")] = "*"
    pattern: PatternName = "literal"
    effect: EffectName = "allow"


class AclAnswer(Struct):
    """Describes an ACL."""

    acl_id: Annotated[str, Meta(description="Derived from its content.")]
    principal: str
    effect: str
    operation: str
    resource: str
    name: str
    pattern: str


class AclsAnswer(Struct):
    """Lists a page of ACLs."""

    acls: list[AclAnswer]
    next_page_token: str
    errors: list[dict[str, Any]]


class QuotaBody(Body):
    """Describes the quota of a principal."""

    example = '{"principal":"billing","bytes_in_per_second":1048576}'

    principal: Principal
    bytes_in_per_second: Rate = 0
    bytes_out_per_second: Rate = 0
    requests_per_second: Rate = 0


class QuotasAnswer(Struct):
    """Lists a page of quotas."""

    quotas: list[QuotaBody]
    next_page_token: str
    errors: list[dict[str, Any]]


def access_routes(app: FastAPI, broker: BrokerApi) -> None:
    """Adds the routes to the application."""
    _key_routes(app, broker)
    _acl_routes(app, broker)
    _quota_routes(app, broker)


def _key_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.get("/v1/keys", tags=["access"])
    async def list_keys(page_size: PageSize = 0, page_token: str = "") -> KeysAnswer:
        """Lists API keys, without their secrets, which brokers do not store."""
        page = await broker.access.list_keys(page_size=page_size, page_token=page_token)
        return KeysAnswer(
            keys=[_key(key) for key in page.records],
            next_page_token=page.next_page_token,
            errors=_errors(page.errors),
        )

    @app.post("/v1/keys", tags=["access"], status_code=201)
    async def create_key(new: NewKey, response: Response, validate_only: ValidateOnly = False) -> CreatedKeyAnswer:
        made = await broker.access.create_key(
            new.principal,
            expires_at_ms=new.expires_at_ms,
            scopes=[Scope(*msgspec.structs.astuple(scope)) for scope in new.scopes],
            description=new.description,
            validate_only=validate_only,
        )
        response.headers.update(_NO_STORE)
        if validate_only:
            response.status_code = 200
        return _key_as(CreatedKeyAnswer, made.key, text=made.text.reveal())

    @app.delete("/v1/keys/{key_id}", tags=["access"])
    async def revoke_key(
        key_id: Annotated[str, Path(description="16 hex digits: the middle of tlk_ID_SECRET.")], validate_only: ValidateOnly = False
    ) -> KeyAnswer:
        """Revokes the key at once; lists contain it for 30 days."""
        return _key(await broker.access.revoke_key(key_id, validate_only=validate_only))


def _acl_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.get("/v1/acls", tags=["access"])
    async def list_acls(page_size: PageSize = 0, page_token: str = "") -> AclsAnswer:
        page = await broker.access.list_acls(page_size=page_size, page_token=page_token)
        acls = [_acl(acl) for acl in page.records]
        return AclsAnswer(acls=acls, next_page_token=page.next_page_token, errors=_errors(page.errors))

    @app.post("/v1/acls", tags=["access"])
    async def create_acl(new: NewAcl, validate_only: ValidateOnly = False) -> AclAnswer:
        """Creates the ACL, or returns the existing one that is equal."""
        return _acl(await broker.access.add_acl(Acl(**msgspec.structs.asdict(new)), validate_only=validate_only))

    @app.delete("/v1/acls/{acl_id}", tags=["access"])
    async def delete_acl(acl_id: str, validate_only: ValidateOnly = False) -> AclAnswer:
        return _acl(await broker.access.remove_acl(acl_id, validate_only=validate_only))


def _quota_routes(app: FastAPI, broker: BrokerApi) -> None:
    @app.get("/v1/quotas", tags=["access"])
    async def list_quotas(page_size: PageSize = 0, page_token: str = "") -> QuotasAnswer:
        page = await broker.access.list_quotas(page_size=page_size, page_token=page_token)
        quotas = [_quota(quota) for quota in page.records]
        return QuotasAnswer(quotas=quotas, next_page_token=page.next_page_token, errors=_errors(page.errors))

    @app.post("/v1/quotas", tags=["access"])
    async def set_quota(new: QuotaBody, validate_only: ValidateOnly = False) -> QuotaBody:
        """Sets the quota, in place of the one that the principal had."""
        return _quota(await broker.access.set_quota(Quota(**msgspec.structs.asdict(new)), validate_only=validate_only))

    @app.delete("/v1/quotas", tags=["access"])
    async def delete_quota(
        principal: Annotated[str, Query(description="The principal; * is the quota of all principals without their own.")],
        validate_only: ValidateOnly = False,
    ) -> QuotaBody:
        return _quota(await broker.access.remove_quota(principal, validate_only=validate_only))


def _key(key: ApiKey) -> KeyAnswer:
    return _key_as(KeyAnswer, key)


def _key_as(kind: type[_KeyAnswer], key: ApiKey, **more: str) -> _KeyAnswer:
    facts = msgspec.structs.asdict(key) | {"state": key.state(time.time_ns() // 1_000_000), **more}
    return msgspec.convert(facts, kind, from_attributes=True)


def _acl(acl: Acl) -> AclAnswer:
    return msgspec.convert(acl, AclAnswer, from_attributes=True)


def _quota(quota: Quota) -> QuotaBody:
    return msgspec.convert(quota, QuotaBody, from_attributes=True)


def _errors(errors: tuple[TidelogError, ...]) -> list[dict[str, Any]]:
    return [dict(error_members(error)) for error in errors]

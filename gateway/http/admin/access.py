"""/v1/keys, /v1/acls, /v1/quotas: who may do what, and how much of it, for administrators of the cluster."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.api import Broker
from gateway.http.problem_details import error_members
from metadata.access.acl import Acl, Effect, Operation, Pattern, ResourceKind, Scope
from metadata.access.api_key import ApiKey
from metadata.access.quota import RATE_MAX, Quota
from metadata.errors import TidelogError

ValidateOnly = Annotated[bool, Query(description="Check everything, change nothing.")]
PageSize = Annotated[int, Query(ge=0, le=1000, description="0: 100.")]
Principal = Annotated[str, Field(description="A name; in ACLs and quotas * stands for everybody.")]
Rate = Annotated[int, Field(ge=0, le=RATE_MAX, description="Of one broker. 0: no limit.")]
_NO_STORE = {"cache-control": "no-store"}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _example(body: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class ScopeBody(Strict):
    operation: Operation
    resource: ResourceKind
    name: str = Field(default="*", description="*: every name.")
    pattern: Pattern = "literal"


class NewKey(Strict):
    model_config = _example({"principal": "billing", "expires_at_ms": 0, "scopes": []})

    principal: Principal
    description: str = ""
    expires_at_ms: int = Field(default=0, ge=0, lt=2**53, description="Milliseconds since 1970; 0: never.")
    scopes: list[ScopeBody] = Field(default_factory=list, description="What its principal may do with it, as far as it may at all.")


class KeyAnswer(BaseModel):
    key_id: str
    principal: str
    description: str
    state: str = Field(description="active, revoked, expired.")
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    revoked_at_ms: int
    scopes: list[ScopeBody]


class CreatedKeyAnswer(KeyAnswer):
    text: str = Field(
        description="What its holder shows: Authorization: Bearer tlk_… It is told this once. Empty with validate_only."
    )


class KeysAnswer(BaseModel):
    keys: list[KeyAnswer]
    next_page_token: str = Field(description="Empty on the last page.")
    errors: list[dict[str, Any]] = Field(description="Of those that can't be read.")


class NewAcl(Strict):
    model_config = _example({"principal": "billing", "operation": "read", "resource": "topic", "name": "orders"})

    principal: Principal
    operation: Operation
    resource: ResourceKind
    name: str = Field(default="*", description="*: every name. Of the cluster, leave it out.")
    pattern: Pattern = "literal"
    effect: Effect = "allow"


class AclAnswer(BaseModel):
    acl_id: str = Field(description="From what it says.")
    principal: str
    effect: str
    operation: str
    resource: str
    name: str
    pattern: str


class AclsAnswer(BaseModel):
    acls: list[AclAnswer]
    next_page_token: str
    errors: list[dict[str, Any]]


class QuotaBody(Strict):
    model_config = _example({"principal": "billing", "bytes_in_per_second": 1_048_576})

    principal: Principal
    bytes_in_per_second: Rate = 0
    bytes_out_per_second: Rate = 0
    requests_per_second: Rate = 0


class QuotasAnswer(BaseModel):
    quotas: list[QuotaBody]
    next_page_token: str
    errors: list[dict[str, Any]]


def access_routes(app: FastAPI, broker: Broker) -> None:
    _key_routes(app, broker)
    _acl_routes(app, broker)
    _quota_routes(app, broker)


def _key_routes(app: FastAPI, broker: Broker) -> None:
    @app.get("/v1/keys", tags=["access"])
    async def list_keys(page_size: PageSize = 0, page_token: str = "") -> KeysAnswer:
        """Without their secrets, which nobody has but their holders."""
        page = await broker.access.list_keys(page_size=page_size, page_token=page_token)
        return KeysAnswer(
            keys=[KeyAnswer(**_key(key)) for key in page.records],
            next_page_token=page.next_page_token,
            errors=_errors(page.errors),
        )

    @app.post("/v1/keys", tags=["access"], status_code=201)
    async def create_key(new: NewKey, response: Response, validate_only: ValidateOnly = False) -> CreatedKeyAnswer:
        made = await broker.access.create_key(
            new.principal,
            expires_at_ms=new.expires_at_ms,
            scopes=[Scope(scope.operation, scope.resource, scope.name, scope.pattern) for scope in new.scopes],
            description=new.description,
            validate_only=validate_only,
        )
        response.headers.update(_NO_STORE)
        if validate_only:
            response.status_code = 200
        return CreatedKeyAnswer(**_key(made.key), text=made.text.reveal())

    @app.delete("/v1/keys/{key_id}", tags=["access"])
    async def revoke_key(
        key_id: Annotated[str, Path(description="16 hex digits: the middle of tlk_ID_SECRET.")], validate_only: ValidateOnly = False
    ) -> KeyAnswer:
        """The key counts for nothing from then on; it is listed for 30 days."""
        return KeyAnswer(**_key(await broker.access.revoke_key(key_id, validate_only=validate_only)))


def _acl_routes(app: FastAPI, broker: Broker) -> None:
    @app.get("/v1/acls", tags=["access"])
    async def list_acls(page_size: PageSize = 0, page_token: str = "") -> AclsAnswer:
        page = await broker.access.list_acls(page_size=page_size, page_token=page_token)
        acls = [_acl(acl) for acl in page.records]
        return AclsAnswer(acls=acls, next_page_token=page.next_page_token, errors=_errors(page.errors))

    @app.post("/v1/acls", tags=["access"])
    async def create_acl(new: NewAcl, validate_only: ValidateOnly = False) -> AclAnswer:
        """One that is there already is answered as it is."""
        return _acl(await broker.access.add_acl(Acl(**new.model_dump()), validate_only=validate_only))

    @app.delete("/v1/acls/{acl_id}", tags=["access"])
    async def delete_acl(acl_id: str, validate_only: ValidateOnly = False) -> AclAnswer:
        return _acl(await broker.access.remove_acl(acl_id, validate_only=validate_only))


def _quota_routes(app: FastAPI, broker: Broker) -> None:
    @app.get("/v1/quotas", tags=["access"])
    async def list_quotas(page_size: PageSize = 0, page_token: str = "") -> QuotasAnswer:
        page = await broker.access.list_quotas(page_size=page_size, page_token=page_token)
        quotas = [_quota(quota) for quota in page.records]
        return QuotasAnswer(quotas=quotas, next_page_token=page.next_page_token, errors=_errors(page.errors))

    @app.post("/v1/quotas", tags=["access"])
    async def set_quota(new: QuotaBody, validate_only: ValidateOnly = False) -> QuotaBody:
        """In place of the one that the principal had."""
        return _quota(await broker.access.set_quota(Quota(**new.model_dump()), validate_only=validate_only))

    @app.delete("/v1/quotas", tags=["access"])
    async def delete_quota(
        principal: Annotated[str, Query(description="Whose; * is the one of everybody else.")], validate_only: ValidateOnly = False
    ) -> QuotaBody:
        return _quota(await broker.access.remove_quota(principal, validate_only=validate_only))


def _key(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "principal": key.principal,
        "description": key.description,
        "state": key.state(time.time_ns() // 1_000_000),
        "created_at_ms": key.created_at_ms,
        "created_by": key.created_by,
        "expires_at_ms": key.expires_at_ms,
        "revoked_at_ms": key.revoked_at_ms,
        "scopes": [
            {"operation": scope.operation, "resource": scope.resource, "name": scope.name, "pattern": scope.pattern}
            for scope in key.scopes
        ],
    }


def _acl(acl: Acl) -> AclAnswer:
    return AclAnswer(
        acl_id=acl.acl_id,
        principal=acl.principal,
        effect=acl.effect,
        operation=acl.operation,
        resource=acl.resource,
        name=acl.name,
        pattern=acl.pattern,
    )


def _quota(quota: Quota) -> QuotaBody:
    return QuotaBody(
        principal=quota.principal,
        bytes_in_per_second=quota.bytes_in_per_second,
        bytes_out_per_second=quota.bytes_out_per_second,
        requests_per_second=quota.requests_per_second,
    )


def _errors(errors: tuple[TidelogError, ...]) -> list[dict[str, Any]]:
    return [dict(error_members(error)) for error in errors]

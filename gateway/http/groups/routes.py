"""Routes requests about consumer groups from clients without an SDK: any broker serves them, and keeps nothing for a member.

    /v1/groups                                      GET                lists groups                          ┐
    /v1/groups/{g}                                  GET DELETE         state and lag; deletes the group      │ admin.py
    /v1/groups/{g}/lag-history                      GET                lag over the last hour                │
    /v1/groups/{g}/seek                             POST               moves committed offsets               ┘
    /v1/groups/{g}/members                          POST               joins, and waits for the assignment   ┐
    /v1/groups/{g}/members/{m}                      DELETE             leaves                                │ members.py
    /v1/groups/{g}/members/{m}/heartbeat            POST               keeps the session                     ┘
    /v1/groups/{g}/members/{m}/records              GET                reads                                   records.py
    /v1/groups/{g}/members/{m}/offsets              POST               commits as a member                   ┐ offsets.py
    /v1/groups/{g}/offsets                          GET POST DELETE    lists, commits by hand, deletes       ┘

Names of groups and members are percent-encoded in the path, and may hold slashes (%2F). Invariant: the refusal of a member names
the next request to make, with its path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from gateway.access.authorization import check_group
from gateway.api import BrokerApi
from gateway.concurrency.shutdown import InterruptibleWaits
from gateway.error_codes import MethodNotAllowed
from gateway.http.groups.admin import HttpGroupAdmin
from gateway.http.groups.members import HttpGroupMembers
from gateway.http.groups.offsets import HttpGroupOffsets
from gateway.http.groups.records import HttpGroupRecords
from gateway.http.groups.request import GroupRequest
from gateway.http.request import Request
from gateway.records.response_budget import ResponseBudget
from metadata.errors import NoCoordinator, NotCoordinator, UnknownMember
from metadata.groups.model import MemberId, check_group_name

# Member ids are shorter: a client id and a UUID.
MEMBER_ID_CHARACTERS_MAX: Final = 600

Handler = Callable[[GroupRequest], Awaitable[None]]


class HttpGroups:
    """Passes each request to the handler of its path and method."""

    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, budget: ResponseBudget) -> None:
        self._admin = HttpGroupAdmin(broker)
        self._members = HttpGroupMembers(broker, waits)
        self._offsets = HttpGroupOffsets(broker)
        self._records = HttpGroupRecords(broker, waits, budget, self._offsets)

    def routes(self, path: Sequence[str]) -> Mapping[str, Handler]:
        """Returns the handlers of a path below /v1/groups by method; empty if there is no such path."""
        match path:
            case []:
                return {"GET": self._admin.list_groups}
            case [_]:
                return {"GET": self._admin.describe, "DELETE": self._admin.delete}
            case [_, "members"]:
                return {"POST": self._members.join}
            case [_, "offsets"]:
                return {"GET": self._offsets.list_offsets, "POST": self._offsets.commit_by_hand, "DELETE": self._offsets.delete}
            case [_, "lag-history"]:
                return {"GET": self._admin.lag_history}
            case [_, "seek"]:
                return {"POST": self._admin.seek}
            case [_, "members", _]:
                return {"DELETE": self._members.leave}
            case [_, "members", _, "records"]:
                return {"GET": self._records.read}
            case [_, "members", _, "offsets"]:
                return {"POST": self._offsets.commit}
            case [_, "members", _, "heartbeat"]:
                return {"POST": self._members.heartbeat}
            case _:
                return {}

    async def answer(self, request: Request, path: Sequence[str], body: bytes, client_host: str) -> None:
        """Answers a request whose path has routes."""
        routes = self.routes(path)
        handler = routes.get(request.method)
        if handler is None:
            allow = ", ".join(routes)
            raise MethodNotAllowed(f"{request.method} is not supported here", hint=f"Supported: {allow}.", allow=allow)
        group = check_group_name(path[0]) if path else ""
        if group:
            check_group(group)
        member_id = path[2] if len(path) > 2 else ""
        if len(member_id) > MEMBER_ID_CHARACTERS_MAX:
            raise UnknownMember("the member id is too long to be one")
        try:
            await handler(GroupRequest(request, group, MemberId(member_id), body, client_host))
        except (NotCoordinator, NoCoordinator) as error:
            error.hint = "Retry with back-off, at any broker: each forwards to the present coordinator of the group."
            raise

"""Consumer groups for clients that have nothing but HTTP: any broker answers any request, and nothing is kept for a member here.

    /v1/groups                                      GET                which there are                       ┐
    /v1/groups/{g}                                  GET DELETE         how it is, how far behind; away       │ admin.py
    /v1/groups/{g}/seek                             POST               moves its offsets                     ┘
    /v1/groups/{g}/members                          POST               joins: waits for all of them          ┐
    /v1/groups/{g}/members/{m}                      DELETE             leaves                                │ members.py
    /v1/groups/{g}/members/{m}/heartbeat            POST               lives on                              ┘
    /v1/groups/{g}/members/{m}/records              GET                reads                                   records.py
    /v1/groups/{g}/members/{m}/offsets              POST               commits                               ┐ offsets.py
    /v1/groups/{g}/offsets                          GET POST DELETE    what is committed; by hand; away      ┘

Names of groups and members are percent-encoded in the path, and may hold slashes (%2F). Invariant: what a member is refused with
says what to do next, with the path to do it at.
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

# Longer than any that is given: a name and a UUID.
MEMBER_ID_CHARACTERS_MAX: Final = 600

Handler = Callable[[GroupRequest], Awaitable[None]]


class HttpGroups:
    def __init__(self, broker: BrokerApi, waits: InterruptibleWaits, budget: ResponseBudget) -> None:
        self._admin = HttpGroupAdmin(broker)
        self._members = HttpGroupMembers(broker, waits)
        self._offsets = HttpGroupOffsets(broker)
        self._records = HttpGroupRecords(broker, waits, budget, self._offsets)

    def routes(self, path: Sequence[str]) -> Mapping[str, Handler]:
        """What the path below /v1/groups answers, by method. None where there is no such path."""
        match path:
            case []:
                return {"GET": self._admin.list_groups}
            case [_]:
                return {"GET": self._admin.describe, "DELETE": self._admin.delete}
            case [_, "members"]:
                return {"POST": self._members.join}
            case [_, "offsets"]:
                return {"GET": self._offsets.list_offsets, "POST": self._offsets.commit_by_hand, "DELETE": self._offsets.delete}
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
        """To a path that has routes."""
        routes = self.routes(path)
        handler = routes.get(request.method)
        if handler is None:
            allow = ", ".join(routes)
            raise MethodNotAllowed(f"{request.method} is not possible here", hint=f"Possible: {allow}.", allow=allow)
        group = check_group_name(path[0]) if path else ""
        if group:
            check_group(group)
        member_id = path[2] if len(path) > 2 else ""
        if len(member_id) > MEMBER_ID_CHARACTERS_MAX:
            raise UnknownMember("no member has an id of so many characters")
        try:
            await handler(GroupRequest(request, group, MemberId(member_id), body, client_host))
        except (NotCoordinator, NoCoordinator) as error:
            error.hint = "Retry with back-off, at any broker: each asks whoever coordinates the group then."
            raise

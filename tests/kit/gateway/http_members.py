"""Members of groups that have nothing but HTTP, for tests: any base URL at each request, and no state but the answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from yarl import URL

from tests.kit.gateway.http_client import Answer, Client

TopicPartitionName = tuple[str, int]


class HttpMember:
    """What a shell script would remember: id, generation, cursor."""

    def __init__(self, client: Client, group: str, *, bases: tuple[str, ...] = ("",), **joins: Any) -> None:
        """`bases`: brokers that are asked in turn. `joins`: members of the body to join with, but for its id."""
        self.client = client
        self.path = f"/v1/groups/{quote(group, safe='')}"
        self.joins = {"topics": ["orders"], **joins}
        self.member_id = ""
        self.generation = -1
        self.cursor = ""
        self.assignment: list[TopicPartitionName] = []
        self.records: list[dict[str, Any]] = []
        self._bases = list(bases)

    @property
    def member_path(self) -> str:
        return f"{self.path}/members/{quote(self.member_id, safe='')}"

    async def ask(self, method: str, path: str, **arguments: Any) -> Answer:
        self._bases.append(base := self._bases.pop(0))
        return await self.client.ask(method, URL(base + path, encoded=True), **arguments)

    async def join(self) -> Answer:
        body = self.joins | ({"member_id": self.member_id} if self.member_id else {})
        answer = await self.ask("POST", f"{self.path}/members", json=body)
        if answer.status == 201:
            reported = answer.json
            self.member_id, self.generation, self.cursor = reported["member_id"], reported["generation"], ""
            self.assignment = [(of["topic"], partition) for of in reported["assignment"] for partition in of["partitions"]]
        return answer

    async def read(self, **query: Any) -> Answer:
        asked = {"generation": self.generation, "cursor": self.cursor, **query}
        text = "&".join(f"{name}={value}" for name, value in asked.items() if value != "")
        answer = await self.ask("GET", f"{self.member_path}/records?{text}")
        if answer.status == 200:
            self.cursor = answer.json["cursor"]
            self.records += answer.json["records"]
        return answer

    async def commit(self, **body: Any) -> Answer:
        asked = body or {"cursor": self.cursor}
        return await self.ask("POST", f"{self.member_path}/offsets", json={"generation": self.generation, **asked})

    async def heartbeat(self, **body: Any) -> Answer:
        return await self.ask("POST", f"{self.member_path}/heartbeat", json={"generation": self.generation, **body})

    async def leave(self) -> Answer:
        return await self.ask("DELETE", self.member_path)

    @property
    def values(self) -> list[Any]:
        return [record["value"] for record in self.records]

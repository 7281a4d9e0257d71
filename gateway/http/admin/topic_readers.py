"""Serves /v1/topics/{topic}/groups: the consumer groups that read a topic, with their lag in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path
from msgspec import Meta, Struct

from gateway.api import BrokerApi
from gateway.http.admin.access import PageSize
from gateway.topics.describe import described_topic


class TopicReaderAnswer(Struct):
    """Describes a group that reads a topic."""

    group: str
    state: str
    members: Annotated[int, Meta(description="Members that own a partition of the topic.")]
    partitions: Annotated[int, Meta(description="Partitions of the topic that the group owns, or has committed an offset of.")]
    lag_records: Annotated[int | None, Meta(description="Summed over these partitions; null: unknown at the moment.")]


class TopicReadersAnswer(Struct):
    """Lists a page of groups that read a topic."""

    groups: list[TopicReaderAnswer]
    scanned: Annotated[int, Meta(description="How many groups of the cluster this page looked at, at most 500.")]
    next_page_token: Annotated[str, Meta(description="Empty on the last page; a page may be short, or empty, before that.")]


def topic_reader_routes(app: FastAPI, broker: BrokerApi) -> None:
    """Adds the route to the application."""

    @app.get("/v1/topics/{topic}/groups", tags=["topics"])
    async def list_topic_groups(
        topic: Annotated[str, Path(description="1 to 249 of the characters a-z A-Z 0-9 . _ -")],
        page_size: PageSize = 0,
        page_token: str = "",
    ) -> TopicReadersAnswer:
        """Lists the groups with members that own a partition of the topic, or with a committed offset of it."""
        found = await described_topic(broker, topic)
        page = await broker.group_operations.readers.page(found, page_size=page_size, page_token=page_token)
        groups = [TopicReaderAnswer(**reader._asdict()) for reader in page.readers]
        return TopicReadersAnswer(groups=groups, scanned=page.scanned, next_page_token=page.next_page_token)

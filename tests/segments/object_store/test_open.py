"""Which URL opens which store, and which is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from metadata.errors import Denied, InvalidArgument
from segments.object_store.conditional_put_check import check_conditional_put
from segments.object_store.interface import ObjectStore
from segments.object_store.memory import MemoryObjectStore
from segments.object_store.open import open_store
from segments.object_store.timeout import TimeoutObjectStore


async def opened_and_closed(url: str, *, make_directory: bool = False) -> ObjectStore:
    store = await open_store(url, make_directory=make_directory)
    await store.close()
    return store


@pytest.mark.parametrize("form", ["{}", "file://{}", "FILE://{}", "file://localhost{}", "{}/"])
def test_a_path_or_a_file_url_is_a_directory(tmp_path: Path, form: str) -> None:
    store = asyncio.run(opened_and_closed(form.format(tmp_path)))
    assert isinstance(store, TimeoutObjectStore)
    assert store.url == tmp_path.as_uri()


def test_a_relative_path_is_shown_as_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert asyncio.run(opened_and_closed("data")).url == (tmp_path / "data").as_uri()


def test_a_path_with_spaces_is_written_with_escapes_in_a_url(tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    assert (
        asyncio.run(opened_and_closed(f"file://{tmp_path}/two%20words")).url
        == asyncio.run(opened_and_closed(f"{tmp_path}/two words")).url
    )


def test_a_missing_directory_is_made_only_where_that_was_asked_for(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/new"
    with pytest.raises(Denied):
        asyncio.run(open_store(url))
    asyncio.run(opened_and_closed(url, make_directory=True))
    assert (tmp_path / "new").is_dir()


def test_memory_is_a_new_store_each_time() -> None:
    first, second = asyncio.run(open_store("memory://")), asyncio.run(open_store("memory://"))
    assert isinstance(first, MemoryObjectStore)
    assert first is not second


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=false", "s3://bucket/a"),
    ],
)
def test_an_s3_url_is_a_bucket_and_a_prefix(url: str, shown: str) -> None:
    assert asyncio.run(opened_and_closed(url)).url == shown


@pytest.mark.slow
def test_a_bucket_url_says_all_that_is_needed_to_reach_a_server(moto_bucket: str) -> None:
    async def proving() -> None:
        store = await open_store(moto_bucket)
        await check_conditional_put(store, "proof/0")
        await store.close()

    asyncio.run(proving())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gs://bucket",
        "http://127.0.0.1:9000/bucket",
        "://",
        "s3:/bucket/prefix",
        "s3:bucket",
        "file:/var/lib/tidelog",
        "s3://",
        "s3://Upper/x",
        "s3://bucket//x",
        "s3://bucket/../x",
        "s3://bucket/x#fragment",
        "s3://bucket?regoin=x",
        "s3://bucket?path_style=yes",
        "s3://bucket?endpoint=nonsense",
        "s3://bucket?region=",
        "file://",
        "file://other-host/data",
        "file:///data?x=1",
        "memory://named",
        "data\nnext line",
        "\0",
    ],
)
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        asyncio.run(open_store(url))


@pytest.mark.parametrize("url", ["s3://KEYID:hidden@bucket/x", "s3://bucket?endpoint=http://KEYID:hidden@127.0.0.1:1"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument, match="credentials") as refused:
        asyncio.run(open_store(url))
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hunter2@bucket/prefix",
        "s3://bucket/prefix?endpoint=http%3A%2F%2FKEY%3Ahunter2%40127.0.0.1%3A9000",
        "s3://bucket/prefix?endpoint=http://127.0.0.1:9000?token=hunter2",
        "s3://bucket/prefix?secret_key=hunter2",
        "s3://bucket/prefix?region=http://KEY:hunter2@host",
        "s3://bucket/prefix#hunter2",
        "s3:/KEY:hunter2@bucket",
        "file://KEY:hunter2@host/dir",
        "s3://KEY:hunter2@bucket/\n",
    ],
)
def test_a_refusal_of_a_url_shows_none_of_its_credentials(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        asyncio.run(opened_and_closed(url))
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"

"""No credential of a URL is shown, wherever it stands and however often it is encoded."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metadata.shown_url import DECODED_MAX, shown_url

MARK = "hunter2SECRET"
texts = st.text(st.characters(codec="utf-8"), max_size=12)
# Characters that URLs give a meaning, around a mark that no message may hold.
secrets = st.builds(
    lambda before, after: before + MARK + after, st.text("ab1:/?#&=%+@,.-", max_size=4), st.text("ab1+.-", max_size=4)
)
names = st.from_regex(r"[a-z][a-z0-9.-]{2,12}", fullmatch=True)
regions = st.sampled_from(["us-east-1", "eu-central-1"])


def encoded(text: str, times: int) -> str:
    for _ in range(times):
        text = quote(text, safe="")
    return text


def holds(text: str) -> bool:
    for _ in range(DECODED_MAX + 4):
        if MARK in text:
            return True
        text = unquote(text)
    return False


@given(st.sampled_from(["s3://", "http://", "https://", "S3://", "s3:/", "s3:", ""]), secrets, names, texts)
@example("", f"#{MARK}", "bucket", "")
@example("", f"/1/{MARK}", "bucket", "")
@example("s3://", f"?{MARK}", "bucket", "")
@example("s3://", f"?a={MARK}", "bucket", "")
@example("s3://", f"/{MARK}", "bucket", "x")
def test_no_password_before_an_at_sign_is_shown(scheme: str, secret: str, bucket: str, rest: str) -> None:
    shown = shown_url(f"{scheme}key:{secret}@{bucket}/{rest.replace('@', '')}")
    assert not holds(shown)


@given(names, secrets, st.integers(0, DECODED_MAX + 3))
def test_no_password_of_an_endpoint_within_is_shown(bucket: str, secret: str, times: int) -> None:
    endpoint = f"http://key:{quote(secret, safe='')}@127.0.0.1:9000"
    assert not holds(shown_url(f"s3://{bucket}/prefix?endpoint={encoded(endpoint, times)}&region=us-east-1"))
    assert not holds(shown_url(f"s3://{bucket}/prefix?region={encoded(endpoint, times)}"))


@given(names, texts.filter(lambda name: name not in {"endpoint", "region", "path_style"}), secrets, st.integers(0, 3))
@example("bucket", "@", MARK, 0)
def test_no_value_of_another_parameter_is_shown(bucket: str, name: str, secret: str, times: int) -> None:
    name = quote(name.replace(MARK, ""), safe="")
    if name in {"endpoint", "region", "path_style"}:
        return
    value = encoded(secret, times + 1)
    assert not holds(shown_url(f"s3://{bucket}/p?{name}={value}"))
    assert not holds(shown_url(f"s3://{bucket}/p?{value}"))
    assert not holds(shown_url(f"s3://{bucket}/p?endpoint={encoded(f'http://h:1?{name}={value}', times)}"))
    assert not holds(shown_url(f"s3://{bucket}/p#{value}"))


@given(names, st.from_regex(r"[A-Za-z0-9._@/+-]{0,30}", fullmatch=True), names, st.integers(1, 65_535), regions)
def test_a_url_without_credentials_is_shown_as_it_is(bucket: str, prefix: str, host: str, port: int, region: str) -> None:
    endpoint = f"http://{host}:{port}"
    for url in (
        f"s3://{bucket}/{prefix}",
        f"s3://{bucket}/{prefix}?endpoint={endpoint}&region={region}&path_style=true",
        f"s3://{bucket}?endpoint={quote(endpoint, safe='')}",
        f"file:///{prefix}",
        f"/{prefix}",
        endpoint,
        f"http://[::1]:{port},{endpoint}",
        "memory://",
        "",
    ):
        assert shown_url(url) == url


@given(texts | st.builds("{}://{}:{}@{}?{}={}#{}".format, texts, texts, secrets, texts, texts, secrets, texts))
def test_a_shown_url_is_shown_again_the_same_way(text: str) -> None:
    once = shown_url(text)
    assert shown_url(once) == once


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "s3://KEY:SECRET@b/p?endpoint=http%3A%2F%2FU%3AP%40host%3A9000&region=eu-west-1&token=T",
            "s3://***@b/p?endpoint=http://***@host:9000&region=eu-west-1&token=***",
        ),
        ("s3://b?endpoint=http://U:P@host:9000", "s3://b?endpoint=http://***@host:9000"),
        ("s3://b?endpoint=http://host?X-Amz-Signature=abc", "s3://b?endpoint=http://host?X-Amz-Signature=***"),
        ("http://u:p@a:2379,http://u:q@b:2379", "http://***@a:2379,http://***@b:2379"),
        ("s3://KEY:SECRET", "s3://KEY:***"),
        ("KEY:SECRET@bucket", "***@bucket"),
        ("file://u:p@host/dir", "file://***@host/dir"),
        (str(Path("/data/team@home:1")), "/data/team@home:1"),
    ],
)
def test_examples(url: str, shown: str) -> None:
    assert shown_url(url) == shown

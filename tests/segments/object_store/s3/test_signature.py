"""Signatures are those that botocore makes of the same request."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import patch
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from segments.object_store.s3.signature import S3Credentials, signed_headers

HOST = "bucket.example.com:9000"
words = st.text("abcXYZ019/+=_-", min_size=1, max_size=30)
values = st.text("abc XYZ019*=,;", min_size=1, max_size=30).map(str.strip).filter(bool)
keys = st.text("abcXYZ019._=-,/", min_size=1, max_size=60)
times = st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31))  # noqa: DTZ001  # in UTC, below


@given(
    st.sampled_from(["GET", "PUT"]),
    keys,
    st.dictionaries(st.sampled_from(["range", "if-none-match", "x-amz-checksum-crc32c", "x-amz-meta-a"]), values),
    st.builds(S3Credentials, words, words, st.none() | words),
    times,
)
def test_the_headers_are_those_of_botocore(
    method: str, key: str, headers: dict[str, str], credentials: S3Credentials, naive: datetime
) -> None:
    now, path = naive.replace(tzinfo=UTC), quote(f"/{key}", safe="/-._~")
    context = {"client_config": SimpleNamespace(s3={"payload_signing_enabled": False})}
    request = AWSRequest(method, f"http://{HOST}{path}", headers=dict(headers))
    request.context.update(context)
    botocores = Credentials(credentials.access_key, credentials.secret_key, credentials.token)
    with patch("botocore.auth.get_current_datetime", lambda: now.replace(tzinfo=None)):
        S3SigV4Auth(botocores, "s3", "eu-central-1").add_auth(request)
    signed = signed_headers(method, path, {"host": HOST, **headers}, region="eu-central-1", credentials=credentials, now=now)
    expected = {name.lower(): value for name, value in request.headers.items()}
    assert signed == {"host": HOST, **expected}


def test_credentials_are_not_shown() -> None:
    assert "secret" not in repr(S3Credentials("access", "secret", "secret token"))

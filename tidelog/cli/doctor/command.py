"""`tidelog doctor`: everything that a broker needs, tried out one by one, each with a remedy where it fails."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app.contexts import UrlOption, cluster_access
from tidelog.cli.app.credential_options import given_credentials
from tidelog.cli.app.errors import UNHEALTHY
from tidelog.cli.app.output import Output, OutputOption, say, show_one, show_rows

if TYPE_CHECKING:
    from metadata.diagnosis import Diagnosis

_STYLES = {"ok": "green", "warning": "bold yellow", "failed": "bold red", "skipped": "dim"}


def doctor(
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY.", show_default=False)
    ] = "",
    data_dir: Annotated[
        str, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.", show_default=False)
    ] = "",
    etcd: Annotated[
        str, typer.Option("--etcd", metavar="URLS", help="http://HOST:2379,… of a cluster's etcd.", show_default=False)
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="A TOML file of settings.", show_default=False)
    ] = None,
    url: UrlOption = "",
    kafka: Annotated[
        str, typer.Option("--kafka", metavar="HOST:PORT", help="A Kafka listener, and all that it advertises.", show_default=False)
    ] = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Checks the installation, the data directory, the bucket and its create-only PUTs, the clock, each member of an etcd; and a
    running broker with --url: its TLS, and whether it takes the credentials; a Kafka listener with --kafka.

    For an s3:// bucket it prints the least IAM policy that a broker needs. Exit code 3 when a check fails.
    """
    import uvloop

    from tidelog.cli.doctor.checks import diagnose, least_iam_policy

    flags = {"bucket": bucket or None, "data_dir": data_dir or None, "etcd": etcd or None}
    access = cluster_access(url, os.environ, given_credentials())
    credentials = access.credentials if url else None
    checks: list[Diagnosis] = uvloop.run(diagnose(flags, os.environ, config, url=url, credentials=credentials))
    if kafka:
        from tidelog.cli.doctor.kafka import check_kafka

        checks += check_kafka(kafka)
    policy = least_iam_policy(bucket or os.environ.get("TIDELOG_BUCKET", ""))
    if output is Output.TABLE:
        show_rows(
            [{"check": found.check, "status": found.status, "found": _finding(found)} for found in checks], output, styles=_STYLES
        )
        if policy is not None:
            sys.stdout.write("\nThe least IAM policy for this bucket:\n")
            show_one(policy, Output.JSON)
    else:
        rows = [{"check": found.check, "status": found.status, "detail": found.detail, "remedy": found.remedy} for found in checks]
        show_one({"checks": rows, "iam_policy": policy}, output)
    count: Counter[str] = Counter(found.status for found in checks)
    say(_verdict(count))
    return UNHEALTHY if count["failed"] else 0


def _finding(found: Diagnosis) -> str:
    return f"{found.detail}\n→ {found.remedy}" if found.remedy else found.detail


def _verdict(count: Counter[str]) -> str:
    """Sums up in one line: failed checks, warnings, and skipped checks."""
    if count["failed"]:
        verdict = f"{count['failed']} of {count.total()} checks failed"
    elif count["warning"]:
        verdict = f"{count['warning']} of {count.total()} checks found something odd"
    else:
        verdict = "all is well"
    return verdict + (f"; skipped: {count['skipped']}" if count["skipped"] else "")

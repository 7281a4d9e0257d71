"""`tidelog doctor`: everything that a broker needs, tried out one by one, each with a remedy where it fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.contexts import UrlOption
from tidelog.cli.failure import UNHEALTHY
from tidelog.cli.output import Output, OutputOption, say, show_one, show_rows


def doctor(
    bucket: Annotated[str, typer.Option("--bucket", help="s3://BUCKET/PREFIX or file:///DIRECTORY.", show_default=False)] = "",
    data_dir: Annotated[str, typer.Option("--data-dir", help="Data directory of the broker.", show_default=False)] = "",
    config: Annotated[Path | None, typer.Option("--settings", help="A TOML file of settings.", show_default=False)] = None,
    url: UrlOption = "",
    output: OutputOption = Output.TABLE,
) -> int:
    """Checks the installation, the data directory, the bucket and its create-only PUTs, the clock; and a running broker with --url.

    For an s3:// bucket it prints the least IAM policy that a broker needs. Exit code 3 when a check fails.
    """
    import uvloop

    from tidelog.cli.doctor_checks import Diagnosis, diagnose, least_iam_policy

    flags = {"bucket": bucket or None, "data_dir": data_dir or None}
    checks: list[Diagnosis] = uvloop.run(diagnose(flags, os.environ, config, url=url))
    rows = [{"check": found.check, "status": found.status, "detail": found.detail, "remedy": found.remedy} for found in checks]
    policy = least_iam_policy(bucket or os.environ.get("TIDELOG_BUCKET", ""))
    if output is Output.TABLE:
        show_rows(rows, output)
        if policy is not None:
            sys.stdout.write("\nThe least IAM policy for this bucket:\n")
            show_one(policy, Output.JSON)
    else:
        show_one({"checks": rows, "iam_policy": policy}, output)
    failed = [found for found in checks if found.status == "failed"]
    say(f"{len(failed)} of {len(checks)} checks failed" if failed else "all is well")
    return UNHEALTHY if failed else 0

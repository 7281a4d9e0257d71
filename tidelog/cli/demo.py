"""Runs `tidelog demo`: real rows, both listeners, a broker killed in the middle, and every row compared.

tidelog/demo/run.py tells the steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    rows: Annotated[
        int | None,
        typer.Option("--rows", "-n", min=1_000, help="Number of rows. Default: all 336,776.", show_default=False),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="An empty directory for the broker. Default: a temporary one.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the broker's files.")] = False,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Read the bucket with Spark in the end.")] = True,
    chart: Annotated[Path, typer.Option("--chart", metavar="FILE", help="File of the chart that is made with Spark.")] = Path(
        "tidelog-demo-delays.png"
    ),
) -> None:
    """Shows what Tidelog promises: 336,776 flights over HTTP and gRPC, kill -9 in the middle, and not one lost or doubled.

    It brings its own broker. Then Spark reads the bucket, with no broker running: most of the one to three minutes that all of
    it takes, and longer where the machine is slow. --no-spark leaves that out.
    """
    from tidelog.demo.run import run_demo

    run_demo(rows, data_dir=data_dir, keep=keep, spark=spark, chart=chart)

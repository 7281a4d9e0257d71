"""`tidelog cluster restore`: rebuilds lost metadata from the bucket. The brokers must be stopped.

Shown and asked first on a terminal: it seals all sessions, so brokers that still run end. A dry run, which is what is shown before,
writes nothing, on this machine neither, save its name into the LOCK of a data directory that a broker has used.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument, NotFound
from metadata.shown_url import shown_url
from tidelog.cli.app.client_command import YesOption, require_confirmation
from tidelog.cli.app.errors import FAILED, UNHEALTHY
from tidelog.cli.app.output import Output, OutputOption, say, show_one, show_rows

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings
    from tidelog.bucket.restore import Restored
    from tidelog.bucket.restore_evidence import Advance


BucketOption = Annotated[
    str,
    typer.Option(
        "--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY. [default: TIDELOG_BUCKET]", show_default=False
    ),
]
EtcdOption = Annotated[
    str,
    typer.Option(
        "--etcd", metavar="URLS", help="http://HOST:2379,… of the empty etcd. [default: TIDELOG_ETCD]", show_default=False
    ),
]
DataDirOption = Annotated[
    str, typer.Option("--data-dir", metavar="DIR", help="Of a single broker, which has no etcd.", show_default=False)
]
ClusterOption = Annotated[
    str,
    typer.Option("--cluster", metavar="NAME", help="Name of the cluster in the metadata. [default: tidelog]", show_default=False),
]


def restore(
    bucket: BucketOption = "",
    etcd: EtcdOption = "",
    data_dir: DataDirOption = "",
    cluster: ClusterOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be restored; seal and write nothing.")] = False,
    despite_damage: Annotated[
        bool,
        typer.Option("--despite-damage", help="Give up the records of segments or manifests that are missing, and their offsets."),
    ] = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Rebuilds the metadata of a cluster from its bucket, into an empty etcd (or data directory). Stop all brokers first.

    On a terminal it shows what it has found and asks before it seals or writes anything; elsewhere it needs --yes.

    Topics, partitions and the ends of logs come from the bucket itself. Groups, committed offsets, API keys, ACLs and
    quotas come from the newest snapshot, so what was changed since then is lost. SCRAM users are in no snapshot: create them again.
    An interrupted restore goes on when it is run again. Exit code 3 when something is damaged.

    \b
    tidelog cluster restore --bucket s3://my-bucket/p --etcd http://etcd-0:2379
    tidelog cluster restore --data-dir ./tidelog-data
    """
    settings = _settings(bucket, etcd, data_dir, cluster)
    into = settings.metadata.etcd or str(settings.data_dir)
    if not yes and not dry_run:
        require_confirmation(f"restoring the metadata in {into}")
        plan = _restore(settings, dry_run=True, despite_damage=despite_damage)
        is_refused = bool(plan.lost) and not despite_damage
        if output is Output.TABLE or is_refused:  # else what is printed is one document: of what was done
            _show(plan, output, dry_run=True)
        if is_refused:
            say(_conclusion(plan, dry_run=True))
            return UNHEALTHY
        say(_from_snapshot(plan))
        if not typer.confirm(f"{_what_it_does(plan, shown_url(settings.bucket_url), into)} Restore it?", err=True):
            say("nothing was sealed or written")
            return FAILED
    restored = _restore(settings, dry_run=dry_run, despite_damage=despite_damage)
    _show(restored, output, dry_run=dry_run)
    say(_conclusion(restored, dry_run=dry_run))
    return UNHEALTHY if restored.damage else 0


def _what_it_does(plan: Restored, bucket_url: str, into: str) -> str:
    topics, sessions = len(plan.plan.topics), plan.found.sealed_now
    return (
        f"Cluster {plan.cluster_id} with {topics} topic{'s' if topics != 1 else ''} will be written from {bucket_url} to {into}, "
        f"and {sessions} open session{'s' if sessions != 1 else ''} sealed. Brokers that were not stopped end by that."
    )


def _show(restored: Restored, output: Output, *, dry_run: bool) -> None:
    summary = _summary(restored, dry_run=dry_run)
    topics = [
        {
            "topic": found.topic.name,
            "topic_id": found.topic.id,
            "partitions": found.topic.partition_count,
            "records": found.records,
            "known_from": found.source,
        }
        for found in restored.plan.topics
    ]
    findings = [{"severity": found.severity, "where": found.where, "what": found.what} for found in restored.findings]
    if output is Output.TABLE:
        show_one(summary, output)
        for rows in (topics, findings):
            if rows:
                sys.stdout.write("\n")
                show_rows(rows, output)
    else:
        show_one(summary | {"topics": topics, "findings": findings}, output)
    sys.stdout.flush()


def _summary(restored: Restored, *, dry_run: bool) -> dict[str, Any]:
    plan, found = restored.plan, restored.found
    snapshot = found.evidence.snapshot
    return {
        "cluster_id": restored.cluster_id,
        "restored": restored.written,
        "dry_run": dry_run,
        "sessions": len(found.evidence.sessions),
        "sessions_sealed": 0 if dry_run else found.sealed_now,
        "sessions_open": found.sealed_now if dry_run else 0,
        "segments": found.evidence.footers.segments,
        "topics_restored" if restored.written else "topics_found": len(plan.topics),
        "partitions": plan.partitions,
        "records": plan.records,
        "snapshot_revision": snapshot.header.revision if snapshot is not None else None,
        "snapshot_taken_at": _utc(snapshot.header.taken_at_ms) if snapshot is not None else None,
        "keys_from_snapshot": plan.copied,
        "leader_epoch_max": plan.leader_epoch_max,
        "next_session": plan.next_session,
        "offsets_set_back": plan.offsets_set_back,
    }


def _conclusion(restored: Restored, *, dry_run: bool) -> str:
    if restored.written:
        return f"{_from_snapshot(restored)}\nthe metadata are restored; start the brokers" + (
            "; look at the damage first" if restored.damage else ""
        )
    if restored.found.damaged:
        return (
            f"nothing was written to the metadata: {len(restored.found.damaged)} segments can't be read. Restore them from a "
            "version or a backup of the bucket, or give their records up with --despite-damage"
        )
    if restored.lost:
        return (
            "nothing was written to the metadata: manifests are missing on the bucket. Do what the findings say, or give the "
            "records up with --despite-damage"
        )
    assert dry_run, "what is sound is written"
    return f"{_from_snapshot(restored)}\nnothing was sealed or written: this was a dry run"


def _from_snapshot(restored: Restored) -> str:
    """Describes what came from the snapshot, and the snapshot's age."""
    kept = "groups, committed offsets, keys, ACLs and quotas"
    snapshot = restored.found.evidence.snapshot
    if snapshot is None:
        return f"there is no snapshot: {kept} are lost; records and topics are not"
    return f"{kept} are those of {_utc(snapshot.header.taken_at_ms)}: what was changed since is lost, records and topics are not"


def _utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def _settings(bucket: str, etcd: str, data_dir: str, cluster: str) -> BrokerSettings:
    """Raises InvalidArgument, NotFound."""
    from gateway.settings import load_settings
    from metadata.store.keys import KeyLayout

    with_etcd = bool(etcd or os.environ.get("TIDELOG_ETCD"))
    directory = data_dir or ("" if with_etcd else os.environ.get("TIDELOG_DATA_DIR", ""))
    if with_etcd and data_dir:
        raise InvalidArgument("both --etcd and --data-dir are named", hint="Metadata lie in one of them: name that one.")
    if not with_etcd and not directory:
        raise InvalidArgument(
            "no metadata store is named", hint="Give --etcd http://HOST:2379, or --data-dir DIR of a broker on this machine."
        )
    if with_etcd and not bucket and "TIDELOG_BUCKET" not in os.environ:
        raise InvalidArgument("no bucket is named", hint="Give --bucket s3://BUCKET/PREFIX.")
    flags = {"bucket": bucket or None, "etcd": etcd or None, "cluster": cluster or None, "data_dir": directory or "."}
    settings = load_settings(flags, os.environ)
    KeyLayout(settings.cluster)  # refuses what is no name
    if not settings.bucket and not (settings.data_dir / "bucket").is_dir():
        raise NotFound(
            f"{settings.data_dir} holds no bucket",
            hint="Name the --data-dir of a broker whose bucket is a directory in it, or the --bucket as well.",
        )
    return settings


def _restore(settings: BrokerSettings, *, dry_run: bool, despite_damage: bool) -> Restored:
    import uvloop

    from metadata.store.data_directory import DataDirectory
    from metadata.store.keys import KeyLayout
    from metadata.store.open import open_metadata
    from segments.object_store.open import open_store
    from tidelog.bucket.restore import restore_cluster

    layout = KeyLayout(settings.cluster)
    metadata_path, is_used = settings.data_dir / "metadata.sqlite", (settings.data_dir / "LOCK").exists()
    if dry_run and not metadata_path.exists():
        metadata_path = Path(":memory:")  # as empty, and nothing is made

    async def run() -> Restored:
        store = await open_store(settings.bucket_url, settings.s3)
        try:
            async with open_metadata(settings.metadata, metadata_path, prefix=layout.root) as metadata:
                with _progress() as advance:
                    return await restore_cluster(
                        store,
                        metadata,
                        layout,
                        now_ms=lambda: time.time_ns() // 1_000_000,
                        dry_run=dry_run,
                        despite_damage=despite_damage,
                        advance=advance,
                    )
        finally:
            await store.close()

    # Refused while a broker uses the directory.
    held = nullcontext() if settings.metadata.etcd or (dry_run and not is_used) else DataDirectory(settings.data_dir)
    with held:
        return uvloop.run(run())


@contextmanager
def _progress() -> Iterator[Advance]:
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=of)
            progress.update(tasks[what], completed=done, total=of)

        yield advance

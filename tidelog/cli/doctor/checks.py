"""Runs the checks of `tidelog doctor`. Each returns a diagnosis; none raises. They leave nothing on the bucket or the disk.

installation   Python, versions of what matters, whether the column kernel is compiled
data directory it can be locked and written, and SQLite works there
etcd           as etcd.py has it, where one is named
bucket         it can be reached and listed, and honours create-only PUTs; the clock agrees with the store's
credentials    as checks.py has it, where a file with a key is named
TLS            as tls.py has it, at --url
cluster        a broker answers at --url, and takes the credentials; its gRPC listener does, and all brokers and partitions are well

A check that fails for a reason reported before is skipped: one cause, one remedy.

What `tidelog doctor --url` finds of the file with the API key that is named: it can be read, holds a key, and is its owner's.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import secrets
import sqlite3
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from metadata.diagnosis import Diagnosis, failed
from metadata.errors import Corrupt, TidelogError
from metadata.shown_url import shown_url
from tidelog.cli.doctor.etcd import check_etcd
from tidelog.settings import SettingChanges, settings_from
from tidelog.transport.credentials import Credentials

if TYPE_CHECKING:
    from gateway.settings import BrokerSettings
    from segments.object_store.interface import ObjectStore
    from tidelog.cli.cluster_health import ClusterHealth
    from tidelog.settings import SettingChanges

# S3 refuses requests whose clock is off by 15 minutes, and compactors delete nothing from 5 minutes on
# (segments/object_store/clock_reading.py); timestamps of records suffer long before.
CLOCK_SKEW_S_MAX = 60.0
DISTRIBUTIONS = ("tidelog", "grpcio", "protobuf", "pyarrow", "msgspec", "uvloop", "aiobotocore")


CLOCK_TIMEOUT_S = 5.0
# Most faults in a diagnosis; `tidelog cluster health` lists the rest.
FAULTS_MAX = 5
# Where only a bucket is named, the settings need a data directory all the same; it is not looked at.
_UNNAMED = Path("(no data directory is named)")
# The same for an etcd alone.
_NO_BUCKET = "(no bucket is named)"


async def diagnose(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None,
    *,
    url: str,
    credentials: SettingChanges | None = None,
) -> list[Diagnosis]:
    """Runs all checks that apply: those of data directory and bucket where one is named, that of a broker where `url` is given,
    with these credentials."""
    found = [check_versions(), check_kernel()]
    settings = _settings(flags, environ, config)
    if isinstance(settings, Diagnosis):
        found.append(settings)
    elif settings is None:
        found.append(
            Diagnosis("bucket", "skipped", "no bucket and no data directory is named", "Add --bucket URL or --data-dir DIR.")
        )
    elif settings.metadata.etcd:
        named = settings.bucket != _NO_BUCKET
        found += await check_bucket(settings) if named else [Diagnosis("bucket", "skipped", "none is named", "Add --bucket URL.")]
        found += await check_etcd(settings, bucket_named=named)
    elif settings.data_dir == _UNNAMED:
        found += await check_bucket(settings)
    else:
        found.append(check_data_directory(settings.data_dir))
        if found[-1].status == "failed" and not settings.bucket:
            found.append(Diagnosis("bucket", "skipped", "it lies in the data directory"))
        else:
            found += await check_bucket(settings)
    if url:
        found += await check_cluster_at(url, credentials or {})
    return found


def _settings(flags: Mapping[str, object], environ: Mapping[str, str], config: Path | None) -> BrokerSettings | Diagnosis | None:
    from gateway.settings import load_settings

    def is_named(setting: str) -> bool:
        return bool(flags.get(setting) or environ.get(f"TIDELOG_{setting.upper()}"))

    if not any(map(is_named, ("data_dir", "bucket", "etcd"))) and config is None:
        return None
    chosen = dict(flags)
    if is_named("etcd") and not is_named("bucket") and config is None:
        chosen["bucket"] = _NO_BUCKET
    if not flags.get("data_dir") and "TIDELOG_DATA_DIR" not in environ and config is None:
        chosen["data_dir"] = _UNNAMED
    try:
        return load_settings(chosen, environ, config)
    except TidelogError as error:
        return failed("settings", error)


def check_versions() -> Diagnosis:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS)
    return Diagnosis("versions", "ok", f"Python {platform.python_version()}, {versions}")


def check_kernel() -> Diagnosis:
    from segments.records import batch_kernel

    if batch_kernel.COMPILED:
        return Diagnosis("column kernel", "ok", "compiled")
    remedy = "Install a C compiler and reinstall tidelog."
    return Diagnosis("column kernel", "warning", "not compiled: records are encoded and decoded many times slower", remedy)


def check_data_directory(data_dir: Path) -> Diagnosis:
    """Checks the data directory. A missing one passes if it can be made; one in use is not checked further."""
    from metadata.store.data_directory import DataDirectory

    name = "data directory"
    if not data_dir.exists():
        parent = next(path for path in data_dir.absolute().parents if path.exists())
        return Diagnosis(name, "ok", f"{data_dir} does not exist yet; the broker makes it in {parent}")
    if not any(data_dir.iterdir()):
        return _try_sqlite(name, data_dir)
    try:
        with DataDirectory(data_dir):
            return _try_sqlite(name, data_dir)
    except TidelogError as error:
        if "in use by" in error.message:
            return Diagnosis(name, "ok", error.message)
        return failed(name, error)


def _try_sqlite(name: str, data_dir: Path) -> Diagnosis:
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=data_dir) as scratch:
            database = sqlite3.connect(Path(scratch) / "scratch.sqlite")
            try:
                mode = database.execute("pragma journal_mode = wal").fetchone()[0]
                database.execute("create table proof (x)")
                database.commit()
            finally:
                database.close()
    except (OSError, sqlite3.Error) as error:
        return Diagnosis(name, "failed", f"SQLite can't write in {data_dir}: {error}", "Make it writable, on a local disk.")
    return Diagnosis(name, "ok", f"{data_dir} can be written; SQLite {sqlite3.sqlite_version}, journal mode {mode}")


async def check_bucket(settings: BrokerSettings) -> list[Diagnosis]:
    from segments.bucket.listing_check import check_listing
    from segments.object_store.open import open_store

    url = settings.bucket_url
    if not settings.bucket and not _exists(settings.data_dir / "bucket"):
        return [Diagnosis("bucket", "ok", f"{shown_url(url)} does not exist yet; the broker makes it")]
    try:
        store = await open_store(url, settings.s3)
    except TidelogError as error:
        return [failed("bucket", error)]
    try:
        listing = await check_listing(store)
        found = [listing, await check_create_only(store) if listing.status == "ok" else await _create_only_besides(store, listing)]
    finally:
        await store.close()
    if url.startswith("s3://"):
        found.append(await asyncio.to_thread(check_clock, settings))
    return found


async def _create_only_besides(store: ObjectStore, listing: Diagnosis) -> Diagnosis:
    """Checks creation even if listing failed: a user may lack only the right to list."""
    proof = await check_create_only(store)
    if proof.status == "failed" and proof.remedy == listing.remedy:
        return Diagnosis(proof.check, "skipped", "it fails for the same reason as the bucket")
    return proof


def _exists(path: Path) -> bool:
    return path.exists()


async def check_create_only(store: ObjectStore) -> Diagnosis:
    from segments.bucket.layout import proof_key
    from segments.object_store.conditional_put_check import check_conditional_put

    try:
        await check_conditional_put(store, proof_key(secrets.token_hex(16)))
    except TidelogError as error:
        return failed("create-only PUT", error)
    return Diagnosis("create-only PUT", "ok", "of two creates of one key, the second was refused")


def check_clock(settings: BrokerSettings) -> Diagnosis:
    """Checks our clock against the Date of the store's answer, which is at most half a round trip off.

    Asked without a signature: a refusal has a Date as well, and signed requests are refused when the clock is wrong.
    """
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    parts = urlsplit(settings.bucket_url)
    asked = dict(parse_qsl(parts.query))
    config = Config(
        signature_version=UNSIGNED,
        connect_timeout=CLOCK_TIMEOUT_S,
        read_timeout=CLOCK_TIMEOUT_S,
        retries={"total_max_attempts": 1},
    )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=asked.get("endpoint", settings.s3.endpoint_url),
            region_name=asked.get("region", settings.s3.region),
            config=config,
        )
        try:
            before_s = time.time()
            answer = client.head_bucket(Bucket=parts.netloc)
        except ClientError as error:
            answer = error.response
        finally:
            client.close()
        after_s = time.time()
        skew_s = skew(answer["ResponseMetadata"]["HTTPHeaders"].get("date", ""), before_s=before_s, after_s=after_s)
    except (BotoCoreError, ValueError) as error:
        return Diagnosis("clock", "skipped", f"the store's time is not known: {error}")
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        return Diagnosis(
            "clock", "failed", f"this machine is {skew_s:+.0f} s off the store's clock", "Synchronise it (chrony, ntpd)."
        )
    return Diagnosis("clock", "ok", f"within {abs(skew_s):.0f} s of the store's")


def skew(date: str, *, before_s: float, after_s: float) -> float:
    """Returns how far our clock is ahead of an HTTP Date, in seconds; a Date has whole seconds. Raises ValueError for no Date."""
    from segments.object_store.clock_reading import difference_ms
    from segments.object_store.store_clock import http_date_ms

    return difference_ms(http_date_ms(date), before_ms=round(1000 * before_s), after_ms=round(1000 * after_s)) / 1000


async def check_cluster_at(url: str, credentials: SettingChanges) -> list[Diagnosis]:
    from tidelog.cli.cluster_health import check_cluster
    from tidelog.cli.doctor.tls import check_tls
    from tidelog.client import connect

    keys = await asyncio.to_thread(check_credentials, credentials)
    if any(found.status == "failed" for found in keys):
        return [*keys, Diagnosis("broker", "skipped", "it is not asked without the credentials that are named")]
    tls = keys + await check_tls(url, credentials)
    if any(found.status == "failed" for found in tls):
        return [*tls, Diagnosis("broker", "skipped", "there is no connection to it")]
    try:
        settings: SettingChanges = {"request_timeout_ms": 5_000, **credentials}
        async with connect(url, **settings) as log:
            cluster = await log.cluster()
            health = await check_cluster(log)
    except TidelogError as error:
        return [*tls, failed("broker", error)]
    brokers = ", ".join(f"{broker.broker_id} {'(draining)' if broker.draining else ''}".strip() for broker in cluster.brokers)
    return [
        *tls,
        Diagnosis("broker", "ok", f"{url}: cluster {cluster.cluster_id}, version {cluster.version}, brokers {brokers}"),
        judge_cluster(health),
    ]


def judge_cluster(health: ClusterHealth) -> Diagnosis:
    """Judges brokers and partitions: the first few faults, and the remedy for the worst."""
    if not health.faults:
        topics = f"{health.topics} topic{'s' if health.topics != 1 else ''}"
        return Diagnosis("partitions", "ok", f"all {health.partitions} partitions of {topics} are served")
    detail = "; ".join(health.faults[:FAULTS_MAX]) + ("; …" if len(health.faults) > FAULTS_MAX else "")
    remedy = "`tidelog cluster health --url URL` tells all of it."
    if any(partition.code == Corrupt.code for partition in health.unserved):
        remedy = f"Restore what is damaged from a backup, and restart the brokers that refuse it. {remedy}"
    return Diagnosis("partitions", "failed", detail, remedy)


def least_iam_policy(bucket_url: str) -> dict[str, Any] | None:
    """Returns the least IAM policy for a broker on an s3:// bucket; None for other buckets. Only garbage collection deletes."""
    if not bucket_url.startswith("s3://"):
        return None
    parts = urlsplit(bucket_url)
    bucket = parts.netloc.rpartition("@")[2]  # what stands before it would be credentials, which a broker refuses
    prefix = parts.path.strip("/")
    objects = f"arn:aws:s3:::{bucket}/{prefix}/*" if prefix else f"arn:aws:s3:::{bucket}/*"
    listing: dict[str, Any] = {
        "Sid": "TidelogList",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": f"arn:aws:s3:::{bucket}",
    }
    if prefix:  # without ListBucket a missing key reads as 403
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{prefix}/*"]}}
    access = {
        "Sid": "TidelogObjects",
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        "Resource": objects,
    }
    return {"Version": "2012-10-17", "Statement": [listing, access]}


_CHECK = "credentials"


def check_credentials(credentials: SettingChanges) -> list[Diagnosis]:
    """Checks the key file, if one is named. Never prints its content."""
    path = credentials.get("api_key_file")
    if not path:
        return []
    try:
        Credentials(settings_from({"api_key_file": path}), tls=False)
        others = Path(path).stat().st_mode & stat.S_IROTH
    except TidelogError as error:
        return [failed(_CHECK, error)]
    except OSError as error:
        return [Diagnosis(_CHECK, "failed", f"{path}: {error.strerror}", "Name a file that stays.")]
    if others:
        return [Diagnosis(_CHECK, "warning", f"{path}: every user of this machine may read the key", f"chmod o-rwx {path}")]
    return [Diagnosis(_CHECK, "ok", f"{path} holds a key")]

"""Holds the connection to one member of an etcd cluster, and its stubs.

The certificates are read again for each new connection, so that short-lived ones can be replaced while the broker runs.
Limits of a connection: a message as long as ANSWER_BYTES_MAX, and for each stream WINDOW_BYTES that its reader has not taken yet.
A connection on which a ping stays unanswered for KEEPALIVE_TIMEOUT_S is dropped, and the next request makes a new one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from metadata.errors import InvalidArgument
from metadata.store.etcd.proto import etcd_pb2, etcd_pb2_grpc
from metadata.store.etcd.settings import EtcdAddress, EtcdSettings

ANSWER_BYTES_MAX = 16 << 20
WINDOW_BYTES = 1 << 20
# Pings on a connection with open calls. etcd closes connections that ping more often than every 5 s.
KEEPALIVE_S = 6
KEEPALIVE_TIMEOUT_S = 3

_OPTIONS = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # store/transaction_limits.py bounds what is sent
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else windows grow to 16 MiB on a fast network
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # a client's back-off is its own
    ("grpc.enable_retries", 0),  # whether a request may be sent again is decided in errors.py
    ("grpc.enable_http_proxy", 0),
)
log = logging.getLogger(__name__)
_Pem = tuple[bytes | None, bytes | None, bytes | None]


class EtcdMember:
    """Connects to one member of etcd."""

    def __init__(self, address: EtcdAddress, settings: EtcdSettings) -> None:
        """Connects lazily. Raises InvalidArgument where a certificate can't be read."""
        self.url = address.url
        # Whether the member has identified itself over this connection as one of our cluster.
        self.met = False
        # Whether it has failed since, so that a failure is logged once.
        self.left = False
        self._address = address
        self._settings = settings
        self._pem = _read(settings) if address.tls else (None, None, None)
        self._complaint = ""  # the last error of the certificates, logged once
        self._retired: grpc.aio.Channel | None = None
        self._connect()

    @property
    def connected(self) -> bool:
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    def welcome(self) -> None:
        self.met, self.left = True, False

    async def renew_certificates(self) -> None:
        """Connects again where the certificate files have changed."""
        if not self._address.tls:
            return
        try:
            pem = _read(self._settings)
        except InvalidArgument as error:  # just being replaced, or gone: the old ones may still be valid
            if self._complaint != error.message:
                log.warning("reading certificates failed etcd=%s: %s; keeping the old ones", self.url, error)
            self._complaint = error.message
            return
        if pem == self._pem:
            return
        if self._retired is not None:
            await self._retired.close()
        self._retired, self._pem = self._channel, pem  # not closed yet: tries of other requests may still wait on it
        self._connect()

    async def close(self) -> None:
        for channel in (self._channel, self._retired):
            if channel is not None:
                await channel.close()

    def _connect(self) -> None:
        options = (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", round(self._settings.etcd_connect_timeout_ms)))
        if self._address.tls:
            ca, key, cert = self._pem
            credentials = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
            self._channel = grpc.aio.secure_channel(self._address.target, credentials, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(self._address.target, options=options)
        self.kv: Any = etcd_pb2_grpc.KVStub(self._channel)  # type: ignore[no-untyped-call]
        # KV.Txn, of a request that is encoded already.
        self.transact: Any = self._channel.unary_unary(
            "/etcdserverpb.KV/Txn", request_serializer=None, response_deserializer=etcd_pb2.TxnResponse.FromString
        )
        self.watch: Any = etcd_pb2_grpc.WatchStub(self._channel)  # type: ignore[no-untyped-call]
        self.lease: Any = etcd_pb2_grpc.LeaseStub(self._channel)  # type: ignore[no-untyped-call]
        self.auth: Any = etcd_pb2_grpc.AuthStub(self._channel)  # type: ignore[no-untyped-call]
        self.maintenance: Any = etcd_pb2_grpc.MaintenanceStub(self._channel)  # type: ignore[no-untyped-call]


def _read(settings: EtcdSettings) -> _Pem:
    return _pem("etcd_ca", settings.etcd_ca), _pem("etcd_key", settings.etcd_key), _pem("etcd_cert", settings.etcd_cert)


def _pem(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{name}: {path} can't be read ({error.strerror})", hint="Name a PEM file.") from error
    if b"-----BEGIN" not in text:
        raise InvalidArgument(f"{name}: {path} is not PEM", hint="It begins with -----BEGIN.")
    return text

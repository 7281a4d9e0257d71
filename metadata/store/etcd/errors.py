"""Maps errors of etcd and of the network: was anything written, and may another member do better? Pure.

    etcd, or gRPC, says                             transaction        read, lease, watch    then
    ──────────────────────────────────────────────  ─────────────────  ────────────────────  ──────────────
    no connection (asked before anything is sent)   Unavailable        Unavailable           another member
    no leader, learner, not capable, not leader     Unavailable        Unavailable           another member
    leader changed, timed out, server stopped       OutcomeUnknown     Unavailable           another member
    no answer in time, connection lost, cancelled,
    and whatever this table does not know           OutcomeUnknown     Unavailable           another member
    too many requests                               Throttled          Throttled             -
    database space exceeded                         OutcomeUnknown     Unavailable           -
    invalid or old token, no user named             Denied             Denied                a new token, once
    permission denied, wrong password               Denied             Denied                -
    lease not found                                 LeaseLost          LeaseLost             -
    revision compacted                                                 HistoryGone           -
    an answer larger than we take                                      AnswerTooLarge        -
    request too large                               TooLarge           TooLarge              -
    future revision, other invalid arguments        InvalidArgument    InvalidArgument       -
    corrupt cluster                                 Corrupt            Corrupt               -
    no such method (not an etcd)                    Rejected           Rejected              another member

"Another member" goes for a transaction only where nothing was written: the caller looks up an unknown outcome. Space exceeded is
an unknown outcome, since a member that runs out of space while it applies a transaction keeps the transaction and
answers with the same error (etcd's quotaApplierV3). Sources: etcd's api/v3rpc/rpctypes/error.go and server/etcdserver.

Invariant: a transaction is called Unavailable only where etcd refused it before it proposed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metadata.errors import (
    Corrupt,
    Denied,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    Throttled,
    TooLarge,
    Unavailable,
)
from metadata.store.interface import LeaseLost

Then = Literal["raise", "ask another member", "take a new token"]

_NOT_TAKEN = (
    "etcdserver: no leader",
    "etcdserver: rpc not supported for learner",
    "etcdserver: not capable",
    "etcdserver: not leader",
)
_TOKEN = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
_SPACE = (
    "etcd is out of space: compact and defragment it, or raise its --quota-backend-bytes, then disarm the alarm "
    "(etcdctl alarm disarm)."
)
_CREDENTIALS = "Correct etcd_user and etcd_password, or grant the user's role readwrite on the cluster's prefix."
_CERTIFICATES = "Check etcd_ca, etcd_cert and etcd_key, and that etcd's certificate names this address."
_READ_BACK = "Read back whether it happened before you send it again."


class HistoryGone(Exception):
    """Reports that the revision was compacted; here etcd does not say where its history begins."""


class AnswerTooLarge(Exception):
    """Reports an answer above the limit of a message: ask for fewer keys."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes the failure of one try at one member."""

    # What the caller gets, unless `then` helps.
    error: Exception
    then: Then
    # Whether later requests should go to another member.
    leaves: bool
    # In a few words, for people.
    cause: str
    # Whether there was no answer at all.
    silent: bool = False


def failure(code: str, details: str, *, doing: str, url: str, writes: bool) -> Failure:
    """Maps a status of gRPC.

    `code` is its name, such as UNAVAILABLE; `doing` a verb and its object for people; `writes` whether the request, once sent, may
    have changed the store.
    """
    silent = code == "DEADLINE_EXCEEDED"
    cause = "no answer in time" if silent else _cause(code, details)
    what = f"can't {doing} at etcd {url}: {cause}"

    def failed(error: Exception, then: Then = "raise", *, leaves: bool = False) -> Failure:
        return Failure(error, then, leaves or then == "ask another member", cause, silent)

    if any(said in details for said in _TOKEN) or code == "UNAUTHENTICATED":
        return failed(Denied(what, hint=_CREDENTIALS, endpoint=url), "take a new token")
    if "larger than max" in details:
        if details.startswith("grpc: "):  # etcd's own gRPC, before it has read the request
            return failed(TooLarge(what, hint="Split it.", endpoint=url))
        if not writes:
            return failed(AnswerTooLarge(what))
    if any(said in details for said in _NOT_TAKEN):
        return failed(Unavailable(what, hint=_hint(details), endpoint=url), "ask another member")
    if "etcdserver: too many requests" in details:
        return failed(Throttled(what, endpoint=url))
    if "etcdserver: mvcc: database space exceeded" in details:
        if writes:
            return failed(OutcomeUnknown(f"{what}; it may have happened or not", hint=f"{_READ_BACK} {_SPACE}", endpoint=url))
        return failed(Unavailable(what, hint=_SPACE, endpoint=url))
    if "etcdserver: requested lease not found" in details:
        return failed(LeaseLost(f"{what}; the lease has ended"))
    if "required revision has been compacted" in details:
        return failed(HistoryGone(what))
    if "etcdserver: request is too large" in details:
        return failed(TooLarge(what, hint="Split it.", endpoint=url))
    if code == "PERMISSION_DENIED" or "authentication failed" in details or "permission denied" in details:
        return failed(Denied(what, hint=_CREDENTIALS, endpoint=url))
    if code in {"INVALID_ARGUMENT", "OUT_OF_RANGE"}:
        return failed(InvalidArgument(what, endpoint=url))
    if code in {"FAILED_PRECONDITION", "NOT_FOUND", "ALREADY_EXISTS"}:
        return failed(Rejected(what, endpoint=url))
    if code == "UNIMPLEMENTED":
        return failed(Rejected(what, hint="Is this an etcd of version 3.4 or later?", endpoint=url), "ask another member")
    if code == "DATA_LOSS":
        return failed(Corrupt(what, hint="Restore etcd from a backup; records on the bucket are not touched.", key=url))
    if writes:
        return failed(OutcomeUnknown(f"{what}; it may have happened or not", hint=_READ_BACK, endpoint=url), leaves=True)
    return failed(Unavailable(what, hint=_hint(details), endpoint=url), "ask another member")


def _cause(code: str, details: str) -> str:
    said = details.rpartition("desc = ")[2].removeprefix("etcdserver: ").strip()
    return said or code.lower().replace("_", " ")


def _hint(details: str) -> str:
    lowered = details.lower()
    if "ssl" in lowered or "certificate" in lowered or "handshake" in lowered:
        return _CERTIFICATES
    if "no leader" in lowered:
        return "Most of etcd's members are down or cut off: bring them back."
    return "Check that etcd runs there and can be reached."

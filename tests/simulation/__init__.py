"""Worlds of brokers, clients, metadata and bucket in one process, under a virtual clock. A seed repeats a world to the byte.

The log:

- `world.py`, `clients.py`, `broken_rules.py`, `test_simulation.py`: the world, its brokers and clients; which rules can be
  broken
- `history_checker.py`: the judge of histories
- `compactors.py`, `compactor_process.py`: compactors in half of the worlds, with seconds in place of hours; their faults
- `archive_store.py`: the bucket, which keeps every object for the judge and checks each delete
- `remembered_codecs.py`: a cache of decoded objects, a quarter of the time of such a world
- `world.py`, `bucket_reader.py`: the judge of the bucket: it reads as all segments that existed (equivalent), and every named
  object exists (reachable)
- `policies.py`, `record_deleter.py`, `broken_policies.py`: topics with retention, key compaction and DeleteRecords
- `policy_model.py`, `policy_judge.py`, `policy_evidence.py`: the judge of policies: nothing goes but what a policy or a request
  lets go (kept), and DeleteRecords holds (deleted)

The policy model trusts neither a manifest's cause nor a clock. It judges retention by what producers sent and by the bytes on
the bucket, and key compaction by all committed keys. A reader may skip an offset only after a manifest without it has landed.
These worlds cost five to ten seconds. Not judged: that data which may go does go in time; `test_simulation.py` counts that some
does.

Routes:

    client ──▶ [handlers of HTTP, gRPC, Kafka ─▶ keyed requests ─▶ ClusterLog ─▶ Forwarding, PeerReader] ─▶ [the leader's]

Clients call the listeners of a random broker, and all code between the listener and the log runs in two or three brokers; only
sockets are left out. Calls between brokers are late or lost. Brokers learn of topics later than of partitions. Topics grow, and
one is created again, while clients repeat requests.

- `routed_broker.py`, `listener_calls.py`: a broker with its listeners and its calls to others
- `route_clients.py`: clients: keyed, with sequences, without idempotence
- `route_streams.py`: streams: `Consume`, and server-sent events
- `kafka_line.py`, `kafka_clients.py`, `kafka_readers.py`: Kafka clients, in two fifths of the worlds: a connection without a
  socket, idempotent producers (up to five batches ahead, same sequence after an error), a consumer with fetch sessions
  (KIP-227, KIP-320)
- `route_load.py`: topics that change, and which clients there are
- `route_blows.py`: faults: lags, links between brokers, growth during requests
- `route_access.py`: credentials, in a third of the worlds: keys and ACLs that change, guests that use revoked ones
- `clone_world.py`: every fifth world: two copies of the metadata write to one bucket
- `route_broken_rules.py`, `test_route_simulation.py`: rules that can be broken, and the world that shows each
- `history_checker.py`, `access_judge.py`: the judges: once, attentive, the invariants of the log; authorized

The judge *authorized* knows when each change of rights was acknowledged, and when it reached each broker (`access_max_age_ms`
is 400 to 1,600):

- No broker serves a request that begins later than `access_max_age_ms` after the revocation, or after it reached that broker. A
  stream delivers at most for a tenth of a second longer, or once when a stopped process wakes.
- A leader appends nothing of a key whose revocation reached it before the request began.
- No broker denies a valid key and right, and each serves again after the faults.

Not judged: groups, quotas, expiring keys, denying ACLs, forwarded reads at the leader, Kafka clients with revoked keys,
durations, and segments beyond a seal.

Consumer groups:

    GroupMember ── wire ──▶ GroupCoordinator ── wire ──▶ etcd's model          the real member, coordinator, view and registration
       └ a reader of offsets that grow: hands out, commits, gives up          three brokers, one or two groups of up to 8 members

In two fifths of the groups, members speak Kafka's protocol to the handlers of `gateway/kafka` (`kafka_groups.py`,
`kafka_members.py`). In half of these, some or all members use the classic protocol; in the other half all use KIP-848, as
Java's consumer does. No two members may commit one partition in one generation or epoch. In a quarter of the worlds there are
no faults, and each offset must come exactly once; in another only members fail; in the others coordinators and etcd too.
`group_judge.py` has the rules, `group_blows.py` the faults. A member that was replaced under its instance id is not judged
until its session ends.

Of the first 20 seeds with `--trouble 30`, so many showed a broken rule (before some groups had Kafka members):

- a new coordinator does not write its record: 2, committed
- commits are not guarded by the record: 4, committed
- a commit of unknown outcome is followed by others under the same compare: 3, committed
- an old generation commits: 6, committed
- the barrier opens early: 20, owned
- heartbeats of any generation are accepted: 3, generation
- members are answered before the record is stored: 20, generation
- a cooperative member keeps what moves: 4, owned
- a member has no clock of its own: 2, owned
- sessions never end: 5, unowned
- partitions are given up uncommitted: 4, delivered

With Kafka members these show in the first ten worlds: a coordinator accepts commits of removed KIP-848 members (committed); a
KIP-848 member is assigned what others have not given up (owned); an OffsetCommit answer hides an error (committed); an
OffsetFetch answer leaves out an offset (committed).
"""

"""The benchmarks: each figure beside its target, each floor measured in the same run. `make bench` runs them all.

What makes the figures honest:

- The broker is a real one: `tidelog dev` in a process of its own, with its defaults, on a directory of the disk that is
  measured (`/var/tmp`, since `/tmp` may be memory; `--directory` for another).
- Clients run in another process, send requests that were encoded before the clock ran, and read no more of an answer than
  whether it succeeded. A batch that is refused ends the benchmark; what HTTP acknowledged is counted in the log afterwards.
- The floor (`floor.py`) is a socket, a buffer and a file with fsync, under uvloop: files as large as segments, flushed by
  the same rule, as many in flight, the same batches, connections and window. It checks nothing and keeps nothing but bytes.
- The floor of a call (`grpc_floor.py`) is gRPC's own server for Python, which looks at nothing: as many processes as
  brokers, the same client at the same pace.
- Members of groups (`groups_client.py`) are raw calls, sent by the clock whether those before were answered or not, and a
  wait counts from when the call was due; how late the client itself was, and what client, brokers, etcd and all others took
  of the cores, is reported beside it. As many join at once as are answered in time (`groups_joining.py`); what was refused is
  counted by its reason. For `groups-rebalance` they are whole members with connections of their own (`groups_members.py`).
- etcd alone is the same etcd once the brokers are gone: as many clients, each with one transaction under way, of as many
  offsets as the brokers' had.
- Side by side: what is compared runs in turn, A B A B, in the same run; a ratio is the median of the ratios of neighbours,
  and the first pair only warms up.
- A rate counts what was acknowledged, from the first byte sent to the last acknowledgement.
- Clusters are real ones: `tidelog serve` in processes of their own, with their defaults, an etcd that syncs to the same
  disk, and a bucket on it. Only `failover` and `three-brokers` have brokers flush as they do on S3 (`cluster.py`), so that a
  session has as many segments as there.
- From outside: leaders and their times come from etcd's watch (`cluster.py`), what is read of the bucket from the kernel
  (`bucket_reads.py`; how many bytes: `broker.py`), what etcd is asked by its own counters (`etcd_server.py`), when a record was
  acknowledged by the SDK of a producer (`sdk_client.py`). All times are of one monotonic clock.
- Waits are those of whole batches, from the send of their first record on, and none is left out.
- Nothing here is a test of the suite: a figure depends on the machine.
"""

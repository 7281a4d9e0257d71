"""Three broker processes, a real etcd and a real S3 server under injected faults, while clients write and read. The clients judge.

- `run.py`, `cluster.py`: the order of a run; the processes, which are started again when they end by themselves
- `tests/kit/tcp_proxy.py`: links that refuse, stall, lose one direction, slow down, reset, or answer 503
- `nemesis.py`: the faults, drawn from the seed by two hands, each kind once a round
- `workload.py`, `http_workload.py`, `kafka_workload.py`: producers and readers: SDK, plain HTTP, Kafka clients
  (confluent-kafka)
- `topic_workload.py`: a topic that is created, grown, deleted and created again; keyed requests that are repeated
- `group_members.py`, `group_http_members.py`, `group_kafka_members.py`: three groups of members that come and go: SDK, HTTP,
  Kafka
- `history.py`: the answers that clients received, as NDJSON
- `history_checker.py`, `group_checker.py`: the judges, with their rules in docstrings

Producers use acks=all: SDK with and without keys; HTTP with an Idempotency-Key (also over several leaders), with a producer id,
and without idempotence; two idempotent Kafka clients, with lz4. Readers: Kafka, SDK (one that stays, one that reconnects), HTTP
polls, server-sent events, NDJSON. Group members leave, or are dropped without a word; Kafka members stop polling instead. Every
offset must be processed, and nothing may be lost between commits; repeats are counted.

Faults: kill -9 of one and two brokers, SIGSTOP within and past the lease, SIGTERM (must end with exit code 0), a drain by
command, a broker cut off from etcd, from the bucket, or both (reset, stalled, one direction), slow links, repeated resets, etcd
killed or frozen, a storm of 503. Stalled PUTs arrive after the link heals.

Within 90 seconds after the last fault all brokers serve, producers have answers, readers reach the end, and groups have
committed all. Then the run reads every partition through the brokers, drains them, and reads the bucket alone; `tidelog bucket
verify --deep` must agree. Exit code 1 means a broken promise; history and logs are kept.

`make chaos-proof` takes one to three minutes for each rule, with up to three seeds. Found in 18 s, for groups in 24 s (seed 5):

- acknowledged before the commit: lost-write 9, inconsistent-offsets 9
- takeover without a seal: lost-write 3, inconsistent-offsets 3
- an unknown outcome is reported as a failure: refused-write 10
- repeats are forgotten at a takeover: unexpected 3 (a producer that goes on is not known)
- each tenth batch is acknowledged and not written: lost-write 326, inconsistent-offsets 326, unseen 1
- each tenth batch is written twice: duplicate 108, reordered 96
- answers to readers lack their first batch: poll-skip 126
- nothing behind offset 50 is shown: unseen 1,728
- readers receive an old high watermark: watermark-went-back 15, uncommitted-read 13
- each tenth commit of a group is acknowledged and not written: commit-went-back 7
- each tenth answer about a group's commits is too high: commit-went-back 66, commit-beyond 20

A broker alone cannot cause nonmonotonic-poll and int-poll-skip. Written histories prove these rules
(`test_history_checker.py`), and all rules of groups (`test_group_checker.py`).
"""

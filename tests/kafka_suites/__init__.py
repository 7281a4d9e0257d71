"""Acceptance suites for the Kafka listener: programs that other projects wrote, run against one bootstrap address.

    __main__ ─▶ suites (registry) ─▶ one module per suite ─▶ Result ─▶ report ─▶ exit code
       │                                  │
       │                                  └─▶ lists/SUITE.txt: which tests run, which are omitted, and why
       └─▶ a target: `--bootstrap`, `reference_broker` (Apache Kafka) or `tidelog_cluster`

Every suite comes from a package registry, pinned by version and hash, and lies in the user's cache (`cache.py`). Nothing that is
downloaded is committed. A suite knows its target by the bootstrap address alone; so each is verified against Apache Kafka first.

- `java-clients`: Apache Kafka's ClientCompatibilityTest, console, verifiable and measuring clients; the verifiable ones also
  while each broker is killed
- `java-tools`: kafka-topics, -configs, -consumer-groups, -acls, -delete-records, -get-offsets, -log-dirs, -broker-api-versions,
  -cluster
- `python-probes`: confluent-kafka, aiokafka and kafka-python: each codec, groups, administration
- `kafkajs`: KafkaJS, which writes, reads and commits
- `librdkafka`: its own test suite, built with RapidJSON, without curl, GSSAPI and zstd
- `kgo`: the tests of franz-go's client
- `kafka-python`: its integration tests
- `streams`: BrokerCompatibilityTest of Kafka Streams, at least once
- `connect`: Connect in distributed mode with files, before and after a restart; MirrorMaker 2 to and from Apache Kafka
- `apicurio`: Apicurio Registry on topics of the broker, with confluent-kafka's Avro producer and consumer
- `spark`: Spark's own `format("kafka")`: batch, stream and sink, with all flights of the demo; rows equal to those of
  `format("tidelog")`
- `differential`: the same requests to both brokers, in every version that both know; the decoded answers are compared

Tests that need credentials, ACLs, TLS or a broker without automatic topics run at another broker, which the suite starts
(`secured.py`). Programs without credentials reach it through a sidecar with a certificate. The chaos checkers judge the
verifiable clients' history. Spark's jobs run on PySpark 4.2, the newest for which Maven has the Kafka source.

`lists/SUITE.txt` says whether each test runs in the gate, in the proof, only against Tidelog, or never and why. A list only
grows. `differences.txt` holds answers that differ from Apache Kafka on purpose. Every listed test passes on Apache Kafka 4.3.1,
except those marked `tidelog` or `omit`. librdkafka's quick mode (-Q) is not used, since it empties many tests; a test that ran
nothing counts as skipped.
"""

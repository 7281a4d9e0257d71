"""Apache Kafka's command line tools, each for what an administrator uses it for; what they print is checked."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace

from tests.kafka_suites.java import jars, tool
from tests.kafka_suites.python_probes import eventually, expect, new_topic
from tests.kafka_suites.secured import ADMIN, CLIENT, secured_broker
from tests.kafka_suites.target import Suite, Target, runner

MAINS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "all-groups": "org.apache.kafka.tools.GroupsCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "offsets": "org.apache.kafka.tools.GetOffsetShell",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
RECORDS = 20
# Without one of these no client of the last ten years works.
APIS = ("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "ApiVersions")


def ask(target: Target, name: str, *arguments: str, stdin: str = "", expect_failure: bool = False) -> str:
    return tool(
        MAINS[name], "--bootstrap-server", target.bootstrap, *arguments, stdin=stdin, expect_failure=expect_failure, timeout_s=90
    )


def written_topic(target: Target) -> str:
    """Creates a topic of one partition with some records."""
    topic = new_topic(target, 1)
    ask(target, "console-producer", "--topic", topic, stdin="".join(f"line {n}\n" for n in range(RECORDS)))
    return topic


def topics(target: Target) -> None:
    topic = f"tools-{uuid.uuid4().hex}"
    ask(target, "topics", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=86400000")
    said = ask(target, "topics", "--create", "--topic", topic, expect_failure=True)
    expect("already exists" in said, True)
    ask(target, "topics", "--alter", "--topic", topic, "--partitions", "3")
    described = ask(target, "topics", "--describe", "--topic", topic)
    expect("PartitionCount: 3" in described and "retention.ms=86400000" in described, True)
    expect(len(re.findall(r"Partition: \d+", described)), 3)
    expect(topic in ask(target, "topics", "--list").split(), True)
    ask(target, "topics", "--delete", "--topic", topic)
    eventually(lambda: topic in ask(target, "topics", "--list").split(), False)


def configs(target: Target) -> None:
    topic = new_topic(target)
    where = ["--entity-type", "topics", "--entity-name", topic]
    ask(target, "configs", "--alter", *where, "--add-config", "retention.ms=86400000,cleanup.policy=compact")

    def settings() -> tuple[bool, bool]:
        described = ask(target, "configs", "--describe", *where)
        return "retention.ms=86400000" in described, "cleanup.policy=compact" in described

    eventually(settings, (True, True))
    ask(target, "configs", "--alter", *where, "--delete-config", "cleanup.policy")
    eventually(settings, (True, False))
    said = ask(target, "configs", "--alter", *where, "--add-config", "retention.ms=soon", expect_failure=True)
    expect("retention.ms" in said, True)
    expect("max.message.bytes" in ask(target, "configs", "--describe", "--all", *where), True)


def consumer_groups(target: Target) -> None:
    topic, group = written_topic(target), f"tools-{uuid.uuid4().hex}"
    wanted = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "60000"]
    expect(len(ask(target, "console-consumer", *wanted).splitlines()), RECORDS)
    expect(group in ask(target, "groups", "--list").split(), True)
    expect(group in ask(target, "all-groups", "--list"), True)
    described = ask(target, "groups", "--describe", "--group", group)
    found = re.search(rf"{topic}\s+0\s+(\d+)\s+(\d+)\s+(\d+)", described)
    expect(found and found.groups(), (str(RECORDS), str(RECORDS), "0"))
    expect("Empty" in ask(target, "groups", "--describe", "--state", "--group", group), True)
    ask(target, "groups", "--reset-offsets", "--to-offset", "5", "--topic", topic, "--group", group, "--execute")
    expect(re.search(rf"{topic}\s+0\s+5\s", ask(target, "groups", "--describe", "--group", group)) is not None, True)
    ask(target, "groups", "--delete-offsets", "--topic", topic, "--group", group)
    ask(target, "groups", "--delete", "--group", group)
    expect(group in ask(target, "groups", "--list").split(), False)


def acls(target: Target) -> None:
    """An administrator who authenticates denies a user to read, and later removes the rule. The user is refused meanwhile.

    The rights of a producer, and the right to create every topic, are listed as they were added, and removed by the same options.
    """
    with secured_broker(target) as secured:
        login = target.directory / "admin.properties"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        lines = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="{ADMIN}" password="{secured.api_key}";',
        }
        login.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        where = replace(target, bootstrap=secured.addresses["sasl"])
        topic = new_topic(replace(target, bootstrap=secured.addresses["admin"]))

        def ask_acls(*arguments: str) -> str:
            return ask(where, "acls", "--command-config", str(login), *arguments)

        rule = ["--deny-principal", f"User:{CLIENT}", "--operation", "Read", "--topic", topic]
        expect(secured.read_error(topic), None)
        ask_acls("--add", *rule)
        described = ask_acls("--list", "--topic", topic)
        expect(f"User:{CLIENT}" in described and "READ" in described and "DENY" in described, True)
        eventually(lambda: secured.read_error(topic), "TOPIC_AUTHORIZATION_FAILED")
        ask_acls("--remove", "--force", *rule)
        expect(f"User:{CLIENT}" in ask_acls("--list", "--topic", topic), False)
        eventually(lambda: secured.read_error(topic), None)

        def operations(*resource: str) -> set[str]:
            return set(re.findall(r"operation=(\w+)", ask_acls("--list", "--principal", "User:producer", *resource)))

        prefix = ["--topic", f"{topic}-", "--resource-pattern-type", "prefixed"]
        producer = ["--producer", "--allow-principal", "User:producer", *prefix]
        ask_acls("--add", *producer)
        expect(operations(*prefix) - {"DESCRIBE_CONFIGS"}, {"WRITE", "DESCRIBE", "CREATE"})
        ask_acls("--remove", "--force", *producer)
        expect(operations(*prefix), set())
        if target.on_kafka:
            return  # its first ACL of the cluster would refuse the administrator all others
        everywhere = ["--allow-principal", "User:producer", "--operation", "Create", "--cluster"]
        ask_acls("--add", *everywhere)
        expect(operations("--cluster"), {"CREATE"})
        ask_acls("--remove", "--force", *everywhere)
        expect(operations("--cluster"), set())


def delete_records(target: Target) -> None:
    topic = written_topic(target)
    order = target.directory / "delete.json"
    order.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 7}], "version": 1}), encoding="utf-8")
    said = ask(target, "delete-records", "--offset-json-file", str(order))
    expect("low_watermark: 7" in said, True)
    expect(ask(target, "offsets", "--topic", topic, "--time", "earliest").strip(), f"{topic}:0:7")


def get_offsets(target: Target) -> None:
    topic = written_topic(target)
    expect(ask(target, "offsets", "--topic", topic).strip(), f"{topic}:0:{RECORDS}")
    expect(ask(target, "offsets", "--topic", topic, "--time", "earliest").strip(), f"{topic}:0:0")
    expect(ask(target, "offsets", "--topic", topic, "--time", "0").strip(), f"{topic}:0:0")


def log_dirs(target: Target) -> None:
    topic = written_topic(target)
    said = ask(target, "log-dirs", "--describe", "--topic-list", topic)
    described = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    partitions = [each["partition"] for broker in described["brokers"] for log in broker["logDirs"] for each in log["partitions"]]
    expect(f"{topic}-0" in partitions, True)


def api_versions(target: Target) -> None:
    said = ask(target, "api-versions")
    expect([api for api in APIS if f"{api}(" not in said], [])
    expect(said.count("rack: "), target.brokers)


def cluster_id(target: Target) -> None:
    said = tool(MAINS["cluster"], "cluster-id", "--bootstrap-server", target.bootstrap)
    expect(re.search(r"Cluster ID: \S+", said) is not None, True)


TOOLS: dict[str, Callable[[Target], None]] = {
    "kafka-topics": topics,
    "kafka-configs": configs,
    "kafka-consumer-groups": consumer_groups,
    "kafka-acls": acls,
    "kafka-delete-records": delete_records,
    "kafka-get-offsets": get_offsets,
    "kafka-log-dirs": log_dirs,
    "kafka-broker-api-versions": api_versions,
    "kafka-cluster": cluster_id,
}
SUITE = Suite(jars, runner(TOOLS))

"""Extracts every configuration key of Apache's nodes, with type and default.

    cd tests/config
    python extract_upstream_keys.py GIT_DIR [REVISION] > upstream_keys.json

Java sets a property `x` by calling `setX` (MixAll.properties2Object). So the keys are the setters
that take an int, long, double, boolean or String. The default is the initial value of the field. A
field without a setter cannot be set, but Apache prints it with the others, so it is listed too
("setter": false). Defaults that depend on the machine or the environment are marked as such.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

CLASSES = {
    "BrokerConfig": "common/src/main/java/org/apache/rocketmq/common/BrokerConfig.java",
    "BrokerIdentity": "common/src/main/java/org/apache/rocketmq/common/BrokerIdentity.java",
    "MessageStoreConfig": "store/src/main/java/org/apache/rocketmq/store/config/MessageStoreConfig.java",
    "NamesrvConfig": "common/src/main/java/org/apache/rocketmq/common/namesrv/NamesrvConfig.java",
    "NettyServerConfig": "remoting/src/main/java/org/apache/rocketmq/remoting/netty/NettyServerConfig.java",
    "NettyClientConfig": "remoting/src/main/java/org/apache/rocketmq/remoting/netty/NettyClientConfig.java",
    "AuthConfig": "auth/src/main/java/org/apache/rocketmq/auth/config/AuthConfig.java",
    "ControllerConfig": "common/src/main/java/org/apache/rocketmq/common/ControllerConfig.java",
    "JraftConfig": "common/src/main/java/org/apache/rocketmq/common/JraftConfig.java",
}

# Values of the constants in initial values; they are defined elsewhere in the Java source.
CONSTANTS = {
    "PermName.PERM_READ": "4",
    "PermName.PERM_WRITE": "2",
    "TopicValidator.RMQ_SYS_TRACE_TOPIC": '"RMQ_SYS_TRACE_TOPIC"',
    "MixAll.DEFAULT_TRACE_REGION_ID": '"DefaultRegion"',
    "MixAll.MASTER_ID": "0",
    "DEFAULT_CLUSTER_NAME": '"DefaultCluster"',
    "BatchConsumeQueue.CQ_STORE_UNIT_SIZE": "46",
    "ConsumeQueue.CQ_STORE_UNIT_SIZE": "20",
    "StoreType.DEFAULT.getStoreType()": '"default"',
    "StoreType.DEFAULT_ROCKSDB.getStoreType()": '"defaultRocksDB"',
    "CompressionType.ZSTD_COMPRESSION.getLibraryName()": '"zstd"',
    "CompressionType.LZ4_COMPRESSION.getLibraryName()": '"lz4"',
    "ConfigManagerVersion.V1.getVersion()": '"v1"',
    "SizeUnit.GB": "1073741824",
    "Integer.MAX_VALUE": "2147483647",
    "Byte.MAX_VALUE": "127",
    "TimeUnit.MINUTES.toMillis(3)": "180000",
    "DLEDGER_CONTROLLER": '"DLedger"',
    "NettySystemConfig.socketSndbufSize": "0",
    "NettySystemConfig.socketRcvbufSize": "0",
    "NettySystemConfig.socketBacklog": "1024",
    "NettySystemConfig.writeBufferHighWaterMark": "0",
    "NettySystemConfig.writeBufferLowWaterMark": "0",
    "NettySystemConfig.clientWorkerSize": "4",
    "NettySystemConfig.CLIENT_ONEWAY_SEMAPHORE_VALUE": "65535",
    "NettySystemConfig.CLIENT_ASYNC_SEMAPHORE_VALUE": "65535",
    "NettySystemConfig.connectTimeoutMillis": "3000",
    "NettySystemConfig.clientChannelMaxIdleTimeSeconds": "120",
    "NettySystemConfig.clientCloseSocketIfTimeout": "true",
}
SIMPLE = ("int", "long", "double", "float", "boolean", "String")
MACHINE = ("PROCESSOR_NUMBER", "availableProcessors")
ENVIRONMENT = ("getProperty", "getenv", "getLocalAddress", "defaultBrokerName", "ROCKETMQ_HOME_DIR")


def initial_value(expression: str | None, kind: str) -> object:
    if expression is None or expression == "null":
        return None
    if any(word in expression for word in MACHINE):
        return {"depends on": "machine"}
    if any(word in expression for word in ENVIRONMENT):
        return {"depends on": "environment"}
    for name in sorted(CONSTANTS, key=len, reverse=True):
        expression = expression.replace(name, CONSTANTS[name])
    if re.fullmatch(r"\w+\.[A-Z_]+", expression):  # a constant of an enum
        return expression.partition(".")[2]
    text = re.sub(r"(?<=\d)L\b", "", expression)
    value = eval(text, {"__builtins__": {}}, {"true": True, "false": False})
    return int(value) if isinstance(value, float) and kind != "double" else value


def keys_of(source: str) -> dict[str, dict[str, object]]:
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    source = re.sub(r"(?m)(^|\s)//.*$", "", source)
    fields = {}
    pattern = r'(?:private|protected)\s+(?:volatile\s+)?(\w+)\s+(\w+)\s*(?:=\s*((?:"[^"]*"|[^;"])*))?;'
    for kind, name, expression in re.findall(pattern, source):
        fields[name] = (kind, " ".join(expression.split()) or None)
    keys: dict[str, dict[str, object]] = {}
    for suffix, kind in re.findall(r"public\s+void\s+set(\w+)\(\s*(?:final\s+)?(\w+)\s+\w+\s*\)", source):
        if kind not in SIMPLE:
            continue
        key = suffix[0].lower() + suffix[1:]
        candidates = (key, suffix, "is" + suffix, "is" + suffix[0].upper() + suffix[1:])
        name = next((c for c in candidates if c in fields), None)
        if name is None:
            name = next((f for f in fields if f.lower() == key.lower()), None)
        if name is None:
            raise SystemExit(f"no field for {key}")
        field_kind, expression = fields[name]
        row: dict[str, object] = {"type": field_kind}
        if name != key:
            row["field"] = name
        row["default"] = initial_value(expression, field_kind)
        if kind == "String" or field_kind in SIMPLE:  # ignores an enum's second setter, by number
            keys[key] = row
    known = set(keys) | {row["field"] for row in keys.values() if "field" in row}
    for name, (kind, expression) in fields.items():
        if name not in known and kind in SIMPLE:
            keys[name] = {"type": kind, "default": initial_value(expression, kind), "setter": False}
    return dict(sorted(keys.items()))


def main() -> None:
    git_dir, revision = sys.argv[1], (sys.argv[2:] or ["HEAD"])[0]

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", git_dir, *args], check=True, capture_output=True, text=True).stdout

    found: dict[str, object] = {"revision": git("rev-parse", revision).strip()}
    for name, path in CLASSES.items():
        found[name] = keys_of(git("show", f"{revision}:{path}"))
    print(json.dumps(found, indent=1, sort_keys=False))


if __name__ == "__main__":
    main()

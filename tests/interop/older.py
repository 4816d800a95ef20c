"""The driver's sources with the names of RocketMQ 4.9.

Between 4.9 and 5.0 the classes of the protocol moved from the common module to the remoting module; what a check does with
them is the same. Rather than keep two copies of the checks, the older driver is compiled from a copy with the older names.
A check that needs an API 4.9 does not have stands in a file of its own, named in `NEWER_ONLY`.
"""

import re
import shutil
from pathlib import Path

#: files with checks, and whole sources, that only the newer line can compile
NEWER_ONLY = ("FilterChecks.java", "Mqadmin.java", "NewerChecks.java", "StoreDump.java")

_MOVED = (
    ("getMqClientFactory()", "getmQClientFactory()"),
    ("deleteTopicInNameServer(names, cluster, scene.topic)", "deleteTopicInNameServer(names, scene.topic, cluster)"),
    ("org.apache.rocketmq.remoting.protocol.admin.", "org.apache.rocketmq.common.admin."),
    ("org.apache.rocketmq.remoting.protocol.subscription.", "org.apache.rocketmq.common.subscription."),
    ("org.apache.rocketmq.remoting.protocol.body.", "org.apache.rocketmq.common.protocol.body."),
    ("org.apache.rocketmq.remoting.protocol.heartbeat.", "org.apache.rocketmq.common.protocol.heartbeat."),
    ("org.apache.rocketmq.remoting.protocol.route.", "org.apache.rocketmq.common.protocol.route."),
    ("org.apache.rocketmq.remoting.protocol.ResponseCode", "org.apache.rocketmq.common.protocol.ResponseCode"),
)


def write_sources(driver: Path, to: Path) -> None:
    """Copies the sources of `driver` to `to`, which is emptied first."""
    shutil.rmtree(to, ignore_errors=True)
    classes = "|".join(name.removesuffix(".java") for name in NEWER_ONLY)
    sources = driver / "src" / "main" / "java"
    for source in sorted((sources / "rmqkit" / "interop").glob("*.java")):
        if source.name in NEWER_ONLY:
            continue
        text = source.read_text(encoding="utf-8")
        for newer, older in _MOVED:
            text = text.replace(newer, older)
        text = re.sub(rf"^ *(?:{classes})\.register\(\);\n", "", text, flags=re.MULTILINE)
        target = to / source.relative_to(sources)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

"""Translates the driver's sources to the class names of RocketMQ 4.9.

Between 4.9 and 5.0 the protocol's classes moved from the common module to the remoting module. The
checks use them in the same way. So the older driver is compiled from a copy with the older names,
instead of keeping two copies of the checks. A check that needs an API missing in 4.9 is in a
separate file, listed in `NEWER_ONLY`.
"""

import re
import shutil
from pathlib import Path

#: source files that only the newer release can compile
NEWER_ONLY = (
    "BatchChecks.java",
    "FilterChecks.java",
    "Mqadmin.java",
    "NewerChecks.java",
    "PopChecks.java",
    "StoreDump.java",
    "TimerChecks.java",
)

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
    """Write the translated sources of `driver` to folder `to`, which is emptied first."""
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

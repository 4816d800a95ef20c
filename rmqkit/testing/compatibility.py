"""The compatibility page: every request code of RocketMQ's 5.x line and who answers it here, made from the handler tables.

    python -m rmqkit.testing.compatibility > docs/compatibility.md

A test compares the page with what this prints, so it cannot fall behind. A code that no table has is answered with
REQUEST_CODE_NOT_SUPPORTED (3), whatever its header says.
"""

from rmqkit.broker.node import HANDLERS as BROKER
from rmqkit.broker.node import NOT_ON_VIP
from rmqkit.client.peer_calls import PEER_CALLS as CLIENT
from rmqkit.nameserver.handlers import HANDLERS as NAMESERVER
from rmqkit.wire.codes import RequestCode

#: codes that Apache's Java client 5.5.0 sends in `make interop`
TRIED_WITH_JAVA = frozenset(
    (11, 12, 14, 15, 17, 29, 30, 31, 33, 34, 35, 38, 40, 105, 106, 202, 310, 320, 351)
)  # fmt: skip

HEAD = """# Compatibility: request codes

Made from the handler tables by `python -m rmqkit.testing.compatibility`; a test holds the two together. A code without
an answer here gets REQUEST_CODE_NOT_SUPPORTED (3). "Java" marks codes that Apache's Java client 5.5.0 uses against this
cluster in `make interop`. The port P−2 of a broker answers all of the broker's codes but {vip}.

| code | name | answered by | tried with |
|---|---|---|---|"""


def page() -> str:
    """The whole page as markdown."""
    vip = " and ".join(f"{code.name} ({int(code)})" for code in NOT_ON_VIP)
    lines = [HEAD.format(vip=vip)]
    for code in sorted(RequestCode):
        tables = (("broker", BROKER), ("name server", NAMESERVER), ("client", CLIENT))
        who = [name for name, table in tables if int(code) in table.rows]
        tried = "Java" if int(code) in TRIED_WITH_JAVA and who else ""
        lines.append(f"| {int(code)} | {code.name} | {', '.join(who) or '–'} | {tried} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")

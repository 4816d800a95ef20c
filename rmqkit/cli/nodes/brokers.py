"""`rmqkit broker status`, `broker ha`, `wipe-write-perm` and `add-write-perm`.

They are registered beside `broker run`. A broker answers GET_BROKER_RUNTIME_INFO (28) with a table
of texts under Apache's names. By default the output has the most important facts in words; `--all`
and `--json` have the whole table.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, ask_each, brokers_of, check_brokers, end_with, node_named
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.complete import nodes
from rmqkit.cli.errors import Failed
from rmqkit.cli.times import show_time

if TYPE_CHECKING:
    from rmqkit.wire.bodies import HARuntimeInfo

Node = Annotated[
    str | None,
    typer.Argument(
        metavar="BROKER", help="Name, name:id or address of a broker; by default every broker.", autocompletion=nodes
    ),
]
Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.", autocompletion=nodes)]

Facts = dict[str, str]


def status(
    node: Node = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show every fact, under the broker's own names.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show what a broker reports: start time, rates, size of its log, disk usage, clients."""
    node = node_named(node, namesrv)
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        found, failed = ask_each(brokers_of(admin, node), admin.broker_runtime)
    if node and failed:
        raise failed[node]
    if json:
        output.document({**found, **{name: {"error": str(error)} for name, error in failed.items()}})
    else:
        for number, (name, facts) in enumerate(found.items()):
            print(f"{chr(10) if number else ''}# {name}")
            lines = sorted(facts.items()) if everything else readable(facts)
            width = max((len(key) for key, _value in lines), default=0)
            for key, value in lines:
                print(f"{key:{width}}  {value}")
    end_with(found, failed, "no answer")


def ha(node: Node = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show the state of replication, like mqadmin's haStatus.

    A master shows its slaves, a slave shows its progress. If a slave is not in sync, `rmqkit
    cluster status` and `rmqkit explain BROKER` give the reason.
    """
    node = node_named(node, namesrv)
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        found = {name: admin.ha_status(name) for name in brokers_of(admin, node)}
    if json:
        output.document({name: ha_fields(info) for name, info in found.items()})
        return
    for number, (name, info) in enumerate(found.items()):
        print(f"{chr(10) if number else ''}# {name}")
        fields = ha_fields(info)
        slaves = fields.pop("slaves", [])
        for key, value in fields.items():
            print(f"{key.replace('_', ' '):18}  {value}")
        if slaves:
            output.table(tuple(slaves[0]), [tuple(slave.values()) for slave in slaves])


def ha_fields(info: "HARuntimeInfo") -> dict[str, Any]:
    """Return the replication state of a master or a slave as JSON has it."""
    if info.master:
        return {
            "role": "master",
            "log_end": info.master_commit_log_max_offset,
            "slaves_in_sync": info.in_sync_slave_nums,
            "slaves": [
                {
                    "address": each.addr,
                    "acknowledged": each.slave_ack_offset,
                    "behind": each.diff,
                    "in_sync": each.in_sync,
                    "sent_up_to": each.transfer_from_where,
                    "bytes_a_second": each.transferred_byte_in_second,
                }
                for each in info.ha_connection_info
            ],
        }
    client = info.ha_client_runtime_info
    return {
        "role": "slave",
        "master": client.master_addr,
        "log_end": client.max_offset,
        "master_log_end": client.master_flush_offset,
        "last_read": show_time(client.last_read_timestamp),
        "last_report": show_time(client.last_write_timestamp),
        "bytes_a_second": client.transferred_byte_in_second,
    }


def readable(facts: Facts) -> list[tuple[str, str]]:
    """Return (name, text) of the facts that the broker reports, in words."""
    rows = [
        ("version", facts.get("brokerVersionDesc", "")),
        ("running since", _since(facts)),
        ("active", {"true": "yes", "false": "no: it accepts no messages now"}.get(facts.get("brokerActive", ""), "")),
        ("in, a second", _rates(facts.get("putTps", ""))),
        ("out, a second", _rates(facts.get("getTransferredTps", ""))),
        ("in, today", _today(facts, "msgPutTotal")),
        ("out, today", _today(facts, "msgGetTotal")),
        ("commit log", _log(facts)),
        (
            "consume queues",
            f"{output.size_text(_number(facts['dispatchBehindBytes']))} behind" if "dispatchBehindBytes" in facts else "",
        ),
        ("oldest message", show_time(_number(facts.get("earliestMessageTimeStamp", "0")))),
        ("disk", _disk(facts)),
        ("clients", _clients(facts)),
        ("sends waiting", _queue(facts, "send")),
        ("pulls waiting", _queue(facts, "pull")),
        ("delay levels", delay_text(facts)),
    ]
    return [(name, text) for name, text in rows if text]


def _since(facts: Facts) -> str:
    boot_ms = _number(facts.get("bootTimestamp", "0"))
    passed = facts.get("runtime", "").strip("[] ")
    return f"{show_time(boot_ms)} ({passed})" if boot_ms else ""


def _rates(text: str) -> str:
    """Return the averages over 10 s, 1 min and 10 min.

    Some releases have three numbers of each kind.
    """
    words = text.replace("||", " ").split()
    if len(words) < 3:  # Apache's, before it has enough samples
        return ", ".join(map(_short, words))
    return f"{_short(words[0])} (10 s), {_short(words[1])} (1 min), {_short(words[2])} (10 min)"


def _short(number: str) -> str:
    try:
        return f"{float(number):.1f}"
    except ValueError:
        return number


def _today(facts: Facts, name: str) -> str:
    now, morning = facts.get(f"{name}TodayNow"), facts.get(f"{name}TodayMorning")
    if now is None or morning is None or not (now.isdigit() and morning.isdigit()):
        return ""
    return str(int(now) - int(morning))


def _log(facts: Facts) -> str:
    low, high = facts.get("commitLogMinOffset"), facts.get("commitLogMaxOffset")
    if low is None or high is None or not high.lstrip("-").isdigit():
        return ""
    return f"{low} to {high} ({output.size_text(int(high) - max(0, _number(low)))})"


def _disk(facts: Facts) -> str:
    ratio = facts.get("commitLogDiskRatio", "")
    try:
        used = f"{float(ratio) * 100:.0f} % used"
    except ValueError:
        return ""
    free = facts.get("commitLogDirCapacity", "").rstrip(".")
    return f"{used}{f'; {free}' if free else ''}"


def _clients(facts: Facts) -> str:
    words = [f"{facts[f'{kind}Connections']} {kind}s" for kind in ("producer", "consumer") if f"{kind}Connections" in facts]
    return ", ".join(words)


def _queue(facts: Facts, kind: str) -> str:
    size = facts.get(f"{kind}ThreadPoolQueueSize")
    if size is None:
        return ""
    wait = _number(facts.get(f"{kind}ThreadPoolQueueHeadWaitTimeMills", "0"))
    of = facts.get(f"{kind}ThreadPoolQueueCapacity", "?")
    return f"{size} of {of}{f', the first for {wait} ms' if wait else ''}"


def delay_text(facts: Facts) -> str:
    """Return the delay levels with waiting messages.

    Apache has `scheduleMessageOffset_N` = `delivered,end`.
    """
    behind = {}
    for key, value in facts.items():
        if key.startswith("scheduleMessageOffset_"):
            delivered, _comma, end = value.partition(",")
            if delivered.lstrip("-").isdigit() and end.isdigit() and int(end) > int(delivered):
                behind[int(key.rpartition("_")[2])] = int(end) - int(delivered)
    return ", ".join(f"level {level}: {count} waiting" for level, count in sorted(behind.items()))


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


def wipe_write_perm(name: Broker, namesrv: Namesrv = None, json: Json = False) -> None:
    """Make a broker's topics read-only in the routes.

    This lasts until `add-write-perm`, or until the broker restarts. Messages that the broker has
    can still be consumed.
    """
    with admin_of(namesrv) as admin:
        name = group_named(admin, name)
        count = admin.wipe_write_perm(name)
    _print_change(name, count, "read-only", json)


def add_write_perm(name: Broker, namesrv: Namesrv = None, json: Json = False) -> None:
    """Make a broker's topics writable again in the routes."""
    with admin_of(namesrv) as admin:
        name = group_named(admin, name)
        count = admin.add_write_perm(name)
    _print_change(name, count, "writable again", json)


def group_named(admin: Any, name: str) -> str:
    """Return the broker name of a master for any of its names. Raises Failed."""
    from rmqkit.client.admin.admin import find_broker

    known = sorted(admin.cluster_info().broker_addr_table)
    group, broker_id = find_broker(name, known) or ("", 0)
    if broker_id:
        raise Failed(f"{name} is a slave, which clients never write to; give its master {group}")
    if not group:
        raise Failed(f"broker {name} is unknown; there are: {', '.join(known) or 'none'}")
    return group


def _print_change(name: str, count: int, how: str, json: bool) -> None:
    value = {"broker_name": name, "topics": count, "state": how}
    output.answer(value, f"broker {name}: {count} topics are {how}", as_json=json)

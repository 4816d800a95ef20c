"""mqadmin's commands against our cluster. Each check reads what the command printed.

The checks share one topic of four queues, one group and twelve messages, which `world` creates with
mqadmin itself. `NOT_YET` lists the commands that our nodes cannot serve, with reasons.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from rmqkit import Admin
from tests.interop import apache
from tests.interop.clusters import Target
from tests.interop.conftest import against_apache
from tests.interop.mqadmin import Mqadmin, Printed
from tests.interop.until import until

CLIENT = f"mqadmin-{apache.VERSION}"
NOT_YET: dict[str, str] = {}
TOPIC, GROUP, PRODUCERS = "mqadmin_topic", "mqadmin_group", "mqadmin_producers"
CHECKS: dict[str, Callable[["World"], None]] = {}


class World(NamedTuple):
    """What the checks share."""

    admin: Mqadmin
    cluster: str
    broker: str
    address: str
    unique_id: str
    offset_id: str
    queue: int
    client_id: str


def check(function: Callable[[World], None]) -> Callable[[World], None]:
    """Register a check under the name of its command."""
    CHECKS[function.__name__.removeprefix("check_")] = function
    return function


def printed(out: Printed, *texts: str) -> None:
    for text in texts:
        assert text in out.out, f"{text!r} is not in:\n{out.out}\n{out.err}"


@pytest.fixture(scope="module")
def world(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    admin = Mqadmin(target.namesrv, tmp_path_factory.mktemp("mqadmin"))
    try:
        cluster, broker, _id, address = admin("clusterList").rows[0][:4]
        made = admin("updateTopic", "-c", cluster, "-t", TOPIC, "-r", "4", "-w", "4")
        printed(made, f"create topic to {address} success.", f"topicName={TOPIC}", "readQueueNums=4", "writeQueueNums=4")
        until("a route of the topic", lambda: "#BrokerName" in admin("topicRoute", "-t", TOPIC, "-l").out)
        for number in range(12):
            # Else each call takes a random queue; checks need three messages in one queue.
            words = ("-k", f"key{number} common", "-c", "TagM", "-b", broker, "-i", str(number % 4))
            sent = admin("sendMessage", "-t", TOPIC, "-p", f"body {number}", *words)
        _broker, queue, status, unique_id = sent.rows[0]
        assert (status, _broker) == ("SEND_OK", broker)
        client_id = admin.consume(GROUP, TOPIC)
        offset_id = admin.produce(PRODUCERS, TOPIC)

        def is_consumed() -> bool:
            rows = [row for row in admin("consumerProgress", "-g", GROUP).rows if row[:2] == [TOPIC, broker]]
            return len(rows) == 4 and all(row[3] == row[4] for row in rows)

        until("the group has consumed and committed all messages", is_consumed)
        yield World(admin, cluster, broker, address, unique_id, offset_id, int(queue), client_id)
    finally:
        admin.close()


# --- cluster and broker


@check
def check_clusterList(world: World) -> None:
    row = world.admin("clusterList").row(world.cluster, world.broker)
    assert row[2:4] == ["0", world.address]
    printed(world.admin("clusterList", "-m"), "#InTotalYest", world.broker)


@check
def check_brokerStatus(world: World) -> None:
    rows = {row[0]: row for row in world.admin("brokerStatus", "-b", world.address).rows}
    for key in ("bootTimestamp", "brokerVersionDesc", "commitLogMaxOffset", "msgPutTotalTodayNow", "putTps", "runtime"):
        assert key in rows, sorted(rows)
    assert int(rows["msgPutTotalTodayNow"][-1]) >= 13
    by_cluster = world.admin("brokerStatus", "-c", world.cluster)
    assert by_cluster.row(world.address, "brokerVersionDesc")[-1] == rows["brokerVersionDesc"][-1]


@check
def check_haStatus(world: World) -> None:
    """The master has no slaves here; `test_mixed_groups.py` tests broker groups."""
    words = dict(line.split("\t") for line in world.admin("haStatus", "-b", world.address).out.splitlines() if "\t" in line)
    assert words["#MasterAddr"] == world.address
    assert (words["#SlaveNum"], words["#InSyncSlaveNum"]) == ("0", "0")
    assert int(words["#MasterCommitLogMaxOffset"]) > 0


@check
def check_getBrokerConfig(world: World) -> None:
    out = world.admin("getBrokerConfig", "-b", world.address)
    values = dict(re.findall(r"^(\S+)\s*=  (.*)$", out.out, re.MULTILINE))
    assert values["brokerName"] == world.broker
    assert values["brokerClusterName"] == world.cluster
    assert "flushDiskType" in values
    assert len(values) > 50


@check
def check_updateBrokerConfig(world: World) -> None:
    def value() -> str:
        out = world.admin("getBrokerConfig", "-b", world.address).out
        return dict(re.findall(r"^(\S+)\s*=  (.*)$", out, re.MULTILINE))["shortPollingTimeMills"]

    before = value()
    change = ("updateBrokerConfig", "-b", world.address, "-k", "shortPollingTimeMills", "-v")
    printed(world.admin(*change, "1357"), f"update broker config success, {world.address}")
    assert value() == "1357"
    printed(world.admin(*change, before), "success")
    assert value() == before


@check
def check_getNamesrvConfig(world: World) -> None:
    values = dict(re.findall(r"^(\S+)\s*=  (.*)$", world.admin("getNamesrvConfig").out, re.MULTILINE))
    assert values["listenPort"] in world.admin.namesrv or against_apache()
    assert "deleteTopicWithBrokerRegistration" in values


@check
def check_updateNamesrvConfig(world: World) -> None:
    def value() -> str:
        out = world.admin("getNamesrvConfig").out
        return dict(re.findall(r"^(\S+)\s*=  (.*)$", out, re.MULTILINE))["deleteTopicWithBrokerRegistration"]

    change = ("updateNamesrvConfig", "-k", "deleteTopicWithBrokerRegistration", "-v")
    assert value() == "false"
    printed(world.admin(*change, "true"), "update name server config success!")
    assert value() == "true"
    world.admin(*change, "false")
    assert value() == "false"


@check
def check_deleteExpiredCommitLog(world: World) -> None:
    assert world.admin("deleteExpiredCommitLog", "-b", world.address).out.split()[-1] == "success"


@check
def check_wipeWritePerm(world: World) -> None:
    wiped = world.admin("wipeWritePerm", "-b", world.broker)
    printed(wiped, f"wipe write perm of broker[{world.broker}] in name server[{world.admin.namesrv}] OK, ")
    assert world.admin("topicRoute", "-t", TOPIC, "-l").row(world.cluster, world.broker)[-1] == "4"
    added = world.admin("addWritePerm", "-b", world.broker)
    printed(added, f"add write perm of broker[{world.broker}] in name server[{world.admin.namesrv}] OK, ")
    assert world.admin("topicRoute", "-t", TOPIC, "-l").row(world.cluster, world.broker)[-1] == "6"


@check
def check_updateKvConfig(world: World) -> None:
    printed(world.admin("updateKvConfig", "-s", "interop", "-k", "k", "-v", "v"), "kv config to namespace success")
    printed(world.admin("deleteKvConfig", "-s", "interop", "-k", "k"), "delete kv config from namespace success")


# --- topics


@check
def check_topicList(world: World) -> None:
    assert [TOPIC] in world.admin("topicList").rows
    out = world.admin("topicList", "-c")
    found = [row for row in out.rows if row[:2] == [world.cluster, TOPIC]]
    assert [row[2] for row in found] == [GROUP], out.out


@check
def check_topicRoute(world: World) -> None:
    printed(world.admin("topicRoute", "-t", TOPIC), f'"brokerName":"{world.broker}"', '"readQueueNums":4', world.address)
    row = world.admin("topicRoute", "-t", TOPIC, "-l").row(world.cluster, world.broker)
    assert row[-3:] == ["4", "4", "6"]


@check
def check_topicStatus(world: World) -> None:
    out = world.admin("topicStatus", "-t", TOPIC)
    rows = [row for row in out.rows if row[0] == world.broker]
    assert [row[1] for row in rows] == ["0", "1", "2", "3"]
    assert sum(int(row[3]) - int(row[2]) for row in rows) >= 13
    printed(out, "Topic Put TPS: ")


@check
def check_topicClusterList(world: World) -> None:
    assert world.admin("topicClusterList", "-t", TOPIC).rows == [[world.cluster]]


@check
def check_updateTopicPerm(world: World) -> None:
    name = "mqadmin_perm"
    world.admin("updateTopic", "-b", world.address, "-t", name, "-r", "2", "-w", "2", "-p", "6")
    until("a route", lambda: "#BrokerName" in world.admin("topicRoute", "-t", name, "-l").out)
    out = world.admin("updateTopicPerm", "-b", world.address, "-t", name, "-p", "4")
    printed(out, f"update topic perm from 6 to 4 in {world.address} success.")
    until("perm 4", lambda: world.admin("topicRoute", "-t", name, "-l").row(world.cluster, world.broker)[-1] == "4")


@check
def check_deleteTopic(world: World) -> None:
    name = "mqadmin_gone"
    world.admin("updateTopic", "-c", world.cluster, "-t", name)
    until("the topic", lambda: [name] in world.admin("topicList").rows)
    out = world.admin("deleteTopic", "-c", world.cluster, "-t", name)
    printed(out, f"delete topic [{name}] from cluster [{world.cluster}] success.", f"delete topic [{name}] from NameServer")
    until("it is gone", lambda: [name] not in world.admin("topicList").rows)


@check
def check_allocateMQ(world: World) -> None:
    out = world.admin("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2").out
    assert out.count('"queueId"') == 4, out
    assert '"10.0.0.1"' in out, out
    assert '"10.0.0.2"' in out, out


@check
def check_statsAll(world: World) -> None:
    out = world.admin("statsAll", "-t", TOPIC)
    row = [row for row in out.rows if row[:2] == [TOPIC, GROUP]]
    assert [len(each) for each in row] == [7], out.out + out.err
    assert int(row[0][2]) == 0, "accumulated"


@check
def check_cleanUnusedTopic(world: World) -> None:
    assert world.admin("cleanUnusedTopic", "-b", world.address).out.split()[-1] == "success"


@check
def check_cleanExpiredCQ(world: World) -> None:
    assert world.admin("cleanExpiredCQ", "-b", world.address).out.split()[-1] == "success"


# --- messages


@check
def check_sendMessage(world: World) -> None:
    out = world.admin("sendMessage", "-t", TOPIC, "-p", "to a queue", "-b", world.broker, "-i", "2")
    broker, queue, status, _id = out.rows[0]
    assert (broker, queue, status) == (world.broker, "2", "SEND_OK")


@check
def check_consumeMessage(world: World) -> None:
    out = world.admin("consumeMessage", "-t", TOPIC, "-b", world.broker, "-i", str(world.queue), "-o", "0", "-c", "3")
    assert out.out.count("Consume ok") == 1, out.out
    assert out.out.count("BODY: body ") == 3, out.out


@check
def check_queryMsgById(world: World) -> None:
    out = world.admin("queryMsgById", "-t", TOPIC, "-i", world.offset_id)
    assert out.row("Topic:")[-1] == TOPIC
    assert out.row("OffsetID:")[-1] == world.offset_id
    printed(out, "Tags:", "Born Host:", "Store Host:", world.address)
    again = world.admin("queryMsgById", "-t", TOPIC, "-i", world.offset_id, "-g", GROUP, "-d", world.client_id)
    printed(again, "consumeResult=CR_SUCCESS")


@check
def check_queryMsgByKey(world: World) -> None:
    rows = world.admin("queryMsgByKey", "-t", TOPIC, "-k", "key11").rows
    assert [row[:2] for row in rows] == [[world.unique_id, str(world.queue)]]
    assert len(world.admin("queryMsgByKey", "-t", TOPIC, "-k", "common").rows) == 12


@check
def check_queryMsgByUniqueKey(world: World) -> None:
    out = world.admin("queryMsgByUniqueKey", "-t", TOPIC, "-i", world.unique_id)
    assert out.row("Queue", "ID:")[-1] == str(world.queue)
    assert out.row("Keys:")[1:] in (["[key11", "common]"], ["[key11,", "common]"])
    assert out.row("Tags:")[-1] in ("TagM", "[TagM]")
    printed(out, GROUP)


@check
def check_queryMsgByOffset(world: World) -> None:
    out = world.admin("queryMsgByOffset", "-t", TOPIC, "-b", world.broker, "-i", str(world.queue), "-o", "1", "-f", "UTF-8")
    assert out.row("Queue", "Offset:")[-1] == "1"
    printed(out, "body ", TOPIC)


@check
def check_printMsg(world: World) -> None:
    out = world.admin("printMsg", "-t", TOPIC, "-d", "true", "-s", "TagM")
    assert out.out.count("BODY: body ") == 12, out.out
    assert "of the producer" not in out.out


@check
def check_printMsgByQueue(world: World) -> None:
    queue = str(world.queue)
    out = world.admin(
        "printMsgByQueue", "-t", TOPIC, "-a", world.broker, "-i", queue, "-p", "true", "-d", "true", "-f", "true"
    )
    assert out.out.count("MSGID: ") >= 3, out.out
    printed(out, "TagM", "BODY: body ")


@check
def check_queryCq(world: World) -> None:
    out = world.admin("queryCq", "-t", TOPIC, "-q", str(world.queue), "-i", "0", "-c", "2", "-b", world.address)
    assert out.out.count("physicOffset") >= 2 or out.out.count("physicSize") >= 2, out.out + out.err
    printed(out, "min: 0")


@check
def check_checkMsgSendRT(world: World) -> None:
    out = world.admin("checkMsgSendRT", "-t", TOPIC, "-a", "5", "-s", "16")
    assert [row[2] for row in out.rows if row[0] == world.broker] == ["true"] * 5, out.out
    printed(out, "Avg RT: ")


@check
def check_sendMsgStatus(world: World) -> None:
    out = world.admin("sendMsgStatus", "-b", world.broker, "-s", "16", "-c", "3")
    assert out.out.count("sendStatus=SEND_OK") == 3, out.out + out.err


@check
def check_queryMsgTraceById(world: World) -> None:
    sent = world.admin("sendMessage", "-t", TOPIC, "-p", "traced", "-m", "true").rows[0][-1]

    def traced() -> Printed:
        return world.admin("queryMsgTraceById", "-i", sent)

    until("its trace", lambda: "#ProducerGroup" in traced().out or "Pub" in traced().out)
    printed(traced(), "success")


# --- groups


@check
def check_updateSubGroup(world: World) -> None:
    out = world.admin("updateSubGroup", "-c", world.cluster, "-g", "mqadmin_made", "-r", "7", "-s", "true")
    printed(out, f"create subscription group to {world.address} success.", "groupName=mqadmin_made", "retryMaxTimes=7")
    out = world.admin("getConsumerConfig", "-g", "mqadmin_made")
    assert out.row("retryMaxTimes")[-1] == "7" if "retryMaxTimes " in out.out else "retryMaxTimes" in out.out


@check
def check_deleteSubGroup(world: World) -> None:
    world.admin("updateSubGroup", "-b", world.address, "-g", "mqadmin_brief")
    out = world.admin("deleteSubGroup", "-b", world.address, "-g", "mqadmin_brief")
    printed(out, f"delete subscription group [mqadmin_brief] from broker [{world.address}] success.")


@check
def check_consumerProgress(world: World) -> None:
    def consumed() -> bool:
        return "Consume Diff Total: 0" in world.admin("consumerProgress", "-g", GROUP).out

    until("everything is consumed", consumed)
    out = world.admin("consumerProgress", "-g", GROUP)
    rows = [row for row in out.rows if row[:2] == [TOPIC, world.broker]]
    assert [row[2] for row in rows] == ["0", "1", "2", "3"], out.out
    assert all(row[3] == row[4] for row in rows), out.out
    printed(out, "Consume TPS: ", "Consume Inflight Total: 0")
    whole = world.admin("consumerProgress")
    assert whole.row(GROUP)[1:2] == ["1"], whole.out


@check
def check_consumerConnection(world: World) -> None:
    out = world.admin("consumerConnection", "-g", GROUP)
    assert out.row(world.client_id)[2] == "JAVA"
    assert out.row(TOPIC)[1] == "*"
    printed(
        out, "ConsumeType: CONSUME_PASSIVELY", "MessageModel: CLUSTERING", "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET"
    )


@check
def check_producerConnection(world: World) -> None:
    rows = world.admin("producerConnection", "-g", PRODUCERS, "-t", TOPIC).rows
    assert len(rows) == 1, rows
    assert "JAVA" in rows[0], rows


@check
def check_producer(world: World) -> None:
    printed(world.admin("producer", "-b", world.address), f"producer group ({PRODUCERS}) instance : ")


@check
def check_consumerStatus(world: World) -> None:
    out = world.admin("consumerStatus", "-g", GROUP)
    printed(out, world.client_id, "Same subscription in the same group of consumer", "Rebalance OK")
    one = world.admin("consumerStatus", "-g", GROUP, "-i", world.client_id)
    printed(one, "#Consumer Properties#", "#Consumer Offset#", TOPIC, "PROP_CLIENT_VERSION")


@check
def check_brokerConsumeStats(world: World) -> None:
    out = world.admin("brokerConsumeStats", "-b", world.address)
    rows = [row for row in out.rows if row[:2] == [TOPIC, GROUP]]
    assert sorted(row[3] for row in rows) == ["0", "1", "2", "3"], out.out + out.err
    printed(out, "Diff Total: ")


def committed(world: World, group: str) -> dict[str, int]:
    """Return the group's offsets in the topic by queue, as our client reads them.

    mqadmin cannot show them: consumerProgress needs a retry topic, which only a member creates, and
    brokerConsumeStats omits an offset of 0.
    """
    with Admin(world.admin.namesrv) as ours:
        return {str(queue.queue_id): ours.group_offset(group, queue) or 0 for queue in ours.queues(TOPIC)}


@check
def check_cloneGroupOffset(world: World) -> None:
    until("it is committed", lambda: "Consume Diff Total: 0" in world.admin("consumerProgress", "-g", GROUP).out)
    world.admin("updateSubGroup", "-b", world.address, "-g", "mqadmin_clone")
    out = world.admin("cloneGroupOffset", "-s", GROUP, "-d", "mqadmin_clone", "-t", TOPIC, "-o", "true")
    printed(out, f"clone group offset success. srcGroup[{GROUP}], destGroup=[mqadmin_clone], topic[{TOPIC}]")
    offsets = committed(world, "mqadmin_clone")
    assert sorted(offsets) == ["0", "1", "2", "3"], offsets
    assert offsets == committed(world, GROUP)
    assert sum(offsets.values()) >= 12, offsets


@check
def check_resetOffsetByTime(world: World) -> None:
    """Without online members the broker stores the reset itself, ours as Apache's."""
    group = "mqadmin_clone"
    world.admin("updateSubGroup", "-b", world.address, "-g", group)
    world.admin("cloneGroupOffset", "-s", GROUP, "-d", group, "-t", TOPIC, "-o", "true")
    out = world.admin("resetOffsetByTime", "-g", group, "-t", TOPIC, "-s", "0")
    rows = [row for row in out.rows if row[0] == world.broker]
    assert sorted(row[1:] for row in rows) == [[str(queue), "0"] for queue in range(4)], out.out + out.err
    assert committed(world, group) == {"0": 0, "1": 0, "2": 0, "3": 0}


@check
def check_skipAccumulatedMessage(world: World) -> None:
    group = "mqadmin_clone"
    out = world.admin("skipAccumulatedMessage", "-g", group, "-t", TOPIC)
    rows = [row for row in out.rows if row[0] == world.broker]
    assert len(rows) == 4, out.out + out.err
    assert sum(int(row[2]) for row in rows) >= 12, out.out
    assert committed(world, group) == {row[1]: int(row[2]) for row in rows}


_CHOSEN = [name for name in CHECKS if against_apache() or name not in NOT_YET]
SHOWS = {
    "sync": ["sendMessage", "checkMsgSendRT"],
    "tag": ["printMsg"],
    "query by key and id": ["queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset"],
    "offset reset": ["resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset"],
    "trace": ["queryMsgTraceById"],
}


@pytest.mark.parametrize("check", _CHOSEN)
def test_mqadmin(world: World, check: str) -> None:
    CHECKS[check](world)

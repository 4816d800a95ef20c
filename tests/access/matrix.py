"""The least that each request code needs: a request that reads well, and the rules that allow it.

`None` in place of rules: only the cluster's own nodes and super users may send it. The topic is T,
the group G; a message of T is at physical offset 0.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqkit.wire.hosts import pack_host
from rmqkit.wire.msgid import offset_id
from tests.broker.requests import pull_fields, send_fields

Rules = tuple[tuple[str, str], ...] | None

CLUSTER = "Cluster:DefaultCluster"
T_PUB = (("Topic:T", "Pub"),)
T_SUB = (("Topic:T", "Sub"),)
T_GET = (("Topic:T", "Get"),)
G_GET = (("Group:G", "Get"),)
C_GET = ((CLUSTER, "Get"),)
C_UPDATE = ((CLUSTER, "Update"),)
READS = (("Topic:T", "Sub"), ("Group:G", "Sub"))
SEES = (("Topic:T", "Get"), ("Group:G", "Get"))
CHANGES = (("Topic:T", "Update"), ("Group:G", "Update"))


class Case(NamedTuple):
    rules: Rules
    fields: Mapping[str, Any] = {}
    body: Any = b""
    #: codes that the request gets if it is allowed, besides SUCCESS
    others: tuple[int, ...] = ()

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


V1 = {
    "producerGroup": "PG",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1760000000000",
    "flag": "0",
    "properties": "",
    "batch": "false",
}
QUEUE = {"topic": "T", "queueId": "0"}
OF_GROUP = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
ACK = {**OF_GROUP, "extraInfo": "0 1760000000000 60000 0 0 broker-a 0", "offset": "0"}
TOPIC = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
CONFIG = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
LOCK = {"clientId": "c", "consumerGroup": "G", "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}]}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "PG"}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
}
CHECK = {"clientId": "c", "group": "G", "subscriptionData": {"topic": "T", "subString": "*"}}
ENTRY = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
ACL = {"policies": [{"policyType": "Custom", "entries": [ENTRY]}]}
MESSAGE_ID = offset_id(pack_host("127.0.0.1", 10911), 0)

BROKER: dict[int, Case] = {
    10: Case(T_PUB, V1, b"x"),
    310: Case(T_PUB, send_fields(), b"x"),
    320: Case(T_PUB, send_fields(), b"x"),
    324: Case(T_PUB, V1, b"x", (1,)),
    325: Case(T_PUB, send_fields(), b"x", (1,)),
    11: Case(READS, pull_fields(consumerGroup="G")),
    361: Case(READS, pull_fields(consumerGroup="G")),
    12: Case(T_GET, {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}, b"", (22,)),
    14: Case((("Topic:T", "Get"), ("Group:G", "Get")), OF_GROUP, b"", (22,)),
    15: Case(CHANGES, {**OF_GROUP, "commitOffset": "0"}),
    17: Case((("Topic:T", "Create"),), TOPIC),
    18: Case((("Topic:T", "Create"),), {}, {"topicConfigList": [CONFIG]}),
    21: Case((("Topic:T", "List"),)),
    25: Case(C_UPDATE, {}, b"traceOn=false"),
    26: Case(C_GET),
    28: Case(C_GET),
    29: Case(T_GET, {**QUEUE, "timestamp": "0"}),
    30: Case(T_GET, QUEUE),
    31: Case(T_SUB, QUEUE),
    32: Case(T_SUB, QUEUE),
    33: Case(T_GET, {"offset": "0"}),
    34: Case(READS, {}, HEARTBEAT),
    35: Case((("Group:G", "Sub"),), {"clientID": "c", "consumerGroup": "G"}),
    36: Case(READS, {"offset": "0", "group": "G", "delayLevel": "0", "maxReconsumeTimes": "3"}),
    37: Case(
        T_PUB,
        {
            "topic": "T",
            "producerGroup": "PG",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "msgId": "m",
        },
        b"",
        (1,),
    ),
    38: Case((("Group:G", "Sub"),), {"consumerGroup": "G"}, b"", (1,)),
    41: Case(READS, {}, LOCK),
    42: Case(READS, {}, LOCK),
    43: Case(C_GET),
    45: Case(C_GET),
    46: Case(READS, {}, CHECK),
    60: Case(C_GET),
    61: Case(C_GET),
    200: Case((("Group:G", "Create"),), {}, {"groupName": "G"}),
    225: Case((("Group:G", "Create"),), {}, {"groupConfigList": [{"groupName": "G"}]}),
    201: Case((("Group:G", "List"),)),
    202: Case(T_GET, {"topic": "T"}),
    203: Case(G_GET, {"consumerGroup": "G"}, b"", (206,)),
    204: Case(C_GET, {"producerGroup": "PG"}, b"", (1,)),
    207: Case((("Group:G", "Delete"),), {"groupName": "G"}),
    208: Case(SEES, {"consumerGroup": "G", "topic": "T"}, b"", (1,)),
    215: Case((("Topic:T", "Delete"),), {"topic": "T"}),
    222: Case(CHANGES, {"topic": "T", "group": "G", "timestamp": "0"}, b"", (1, 206)),
    223: Case(SEES, {"topic": "T", "group": "G"}, b"", (1,)),
    300: Case(T_GET, {"topic": "T"}),
    303: Case(SEES, {"topic": "T", "group": "G"}, b"", (1,)),
    305: Case((("Topic:*", "List"),)),
    306: Case(C_UPDATE),
    307: Case(G_GET, {"consumerGroup": "G", "clientId": "c"}, b"", (1,)),
    308: Case((*SEES, ("Group:F", "Update")), {"compareGroup": "G", "topic": "T", "filterGroups": "F"}),
    309: Case(READS, {"consumerGroup": "G", "clientId": "c", "msgId": MESSAGE_ID}, b"", (1,)),
    314: Case((("Group:G", "Get"), ("Group:H", "Update"), ("Topic:T", "Update")),
              {"srcGroup": "G", "destGroup": "H", "topic": "T"}),
    315: Case(C_GET, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}, b"", (1,)),
    316: Case(C_UPDATE),
    317: Case(C_GET),
    321: Case(SEES, {"topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "G"}),
    323: Case((("Topic:T", "Update"),), {"topic": "T", "msgId": "m"}, b"", (1,)),
    328: Case(C_GET),
    329: Case(C_UPDATE),
    343: Case(G_GET, {"group": "G"}),
    345: Case(SEES, {"topic": "T", "group": "G"}),
    351: Case(T_GET, {"topic": "T"}),
    352: Case(G_GET, {"group": "G"}),
    353: Case(CHANGES, {"topic": "T", "group": "G"}),
    354: Case(T_GET, {"topic": "T"}),
    355: Case(C_UPDATE, {}, b"", (3,)),
    370: Case(T_PUB, {"topic": "T", "recallHandle": "x"}, b"", (1, 604)),
    400: Case(READS, {}, {"topic": "T", "consumerGroup": "G", "clientId": "c"}),
    401: Case((("Topic:T", "Sub"), ("Group:G", "Update")), {}, {"topic": "T", "consumerGroup": "G", "mode": "POP"}),
    402: Case(C_GET),
    513: Case(C_UPDATE, {}, b"", (3,)),
    905: Case(None, {"brokerName": "broker-a"}),
    906: Case(None),
    907: Case(C_GET),
    1007: Case(C_GET, {}, b"", (1,)),
    1008: Case(None),
    3001: Case(C_UPDATE, {"username": "new"}, {"password": "p"}),
    3002: Case(C_UPDATE, {"username": "bob"}, {"password": "p"}),
    3003: Case(C_UPDATE, {"username": "bob"}),
    3004: Case(C_GET, {"username": "bob"}),
    3005: Case(C_GET),
    3006: Case(C_UPDATE, {"subject": "User:bob"}, ACL),
    3007: Case(C_UPDATE, {"subject": "User:bob"}, ACL),
    3008: Case(C_UPDATE, {"subject": "User:bob", "resource": "Topic:B"}),
    3009: Case(C_GET, {"subject": "User:bob"}),
    3010: Case(C_GET),
    60001: Case(SEES, {"consumerGroup": "G", "topic": "T"}),
    60002: Case(C_GET),
    60003: Case(C_GET),
    60004: Case(None),
    200050: Case(READS, {**OF_GROUP, "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
                         "initMode": "0"}, b"", (210,)),
    200051: Case(READS, ACK, b"", (1, 208)),
    200052: Case(READS, {**OF_GROUP, "maxMsgNums": "1"}, b"", (19,)),
    200053: Case(READS, {**ACK, "invisibleTime": "60000"}, b"", (1, 208)),
    200054: Case(READS, {**OF_GROUP, "pollTime": "0", "bornTime": "0"}),
    200055: Case(SEES, OF_GROUP),
    200151: Case(READS, {}, {"acks": [{"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0, "it": 0, "b": ""}]},
                 (1, 208)),
}  # fmt: skip

MEMBER = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "brokerId": "0"}
KEY = {"namespace": "N", "key": "k"}

NAMESERVER: dict[int, Case] = {
    100: Case(C_UPDATE, {**KEY, "value": "v"}),
    101: Case(C_GET, KEY, b"", (22,)),
    102: Case(C_UPDATE, KEY),
    103: Case(None, {**MEMBER, "haServerAddr": "127.0.0.1:2"}, {"topicConfigSerializeWrapper": {"topicConfigTable": {}}}),
    104: Case(None, MEMBER),
    105: Case(T_GET, {"topic": "T"}, b"", (17,)),
    106: Case(C_GET),
    205: Case(C_UPDATE, {"brokerName": "broker-a"}),
    206: Case((("Topic:T", "List"),)),
    216: Case(C_UPDATE, {"topic": "T"}),
    217: Case(C_UPDATE, {"topic": "T"}),
    219: Case(C_GET, {"namespace": "N"}, b"", (22,)),
    224: Case(C_GET, {"cluster": "DefaultCluster"}),
    304: Case(C_GET),
    311: Case(C_GET),
    312: Case(C_GET),
    313: Case(C_GET),
    318: Case(C_UPDATE, {}, b"needWaitForService=false"),
    319: Case(C_GET),
    322: Case(C_GET, MEMBER),
    327: Case(C_UPDATE, {"brokerName": "broker-a"}),
    901: Case(C_GET, {"clusterName": "DefaultCluster", "brokerName": "broker-a"}),
    904: Case(None, MEMBER),
    60005: Case(None, MEMBER, {"users": [], "acls": []}),
}

SET = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}

#: a controller has no table of users: only nodes and the super user of its settings are known
CONTROLLER: dict[int, Case] = {
    904: Case(None, {**MEMBER, "brokerId": "1"}, b"", (2010,)),
    1001: Case(None, SET, {"syncStateSet": [1], "syncStateSetEpoch": 1}, (2013,)),
    1002: Case(None, {**SET, "brokerId": "1", "designateElect": "false"}, b"", (2010,)),
    1003: Case(None, {**SET, "brokerId": "1", "brokerAddress": "10.0.0.1:1"}, b"", (2010,)),
    1004: Case(None, SET, b"", (2008,)),
    1005: Case(None),
    1006: Case(None, {}, ["broker-a"]),
    1009: Case(None, {}, b"enableElectUncleanMaster=true"),
    1010: Case(None),
    1011: Case(None, {**SET, "isCleanLivingBroker": "true"}, b"", (2009,)),
    1012: Case(None, SET),
    1013: Case(None, {**SET, "appliedBrokerId": "1", "registerCheckCode": "10.0.0.1:1;1"}),
    60010: Case(None, {"group": "controllers", "sender": "n1", "receiver": "n0"}, b"", (2005,)),
}

CONTAINER: dict[int, Case] = {
    26: Case(C_GET),
    28: Case(C_GET),
    902: Case(C_UPDATE, {"configPath": ""}, b"", (1,)),
    903: Case(C_UPDATE, {"brokerName": "b", "brokerClusterName": "c", "brokerId": "1"}),
}

"""What request and response codes mean: the table behind `rmqkit explain`. Remarks are in `remarks.py`.

A response code has what it says and what to do about it. A request code has what is asked; which of our nodes answer it
comes from their handler tables. A test holds both complete.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqkit.wire.codes import RequestCode as Q
from rmqkit.wire.codes import ResponseCode as A


class Meaning(NamedTuple):
    meaning: str
    do: str


_CONTROLLER = "Look at the controllers' logs; ask again when a leader is there."
_LITE = "Raise the quota at the broker, or use fewer of them."

RESPONSES: dict[A, Meaning] = {
    A.RPC_TIME_OUT: Meaning(
        "A node asked another one for its client and got no answer in time.", "Look at the node asked."
    ),
    A.RPC_SEND_TO_CHANNEL_FAILED: Meaning("A node could not reach another one.", "Look whether that node runs."),
    A.RPC_ADDR_IS_NULL: Meaning("A node knows no address of another broker.", "Look whether that broker is registered."),
    A.RPC_UNKNOWN: Meaning("A call from node to node failed in another way.", "The remark says how."),
    A.SUCCESS: Meaning("Done.", "Nothing."),
    A.SYSTEM_ERROR: Meaning(
        "The node could not do it; also the answer to many wrong arguments.", "Read the remark: `rmqkit explain 'REMARK'`."
    ),
    A.SYSTEM_BUSY: Meaning(
        "Flow control: the broker has more work waiting than it allows.",
        "Send again later or slower; look at the disk and, with SYNC_FLUSH, at how long a sync takes.",
    ),
    A.REQUEST_CODE_NOT_SUPPORTED: Meaning(
        "The node does not know this request: its release lacks it, or the request went to the wrong kind of node.",
        "Ask a node that has it (docs/compatibility.md).",
    ),
    A.TRANSACTION_FAILED: Meaning("A transaction could not be stored or ended.", "Send the message again."),
    A.FLUSH_DISK_TIMEOUT: Meaning(
        "Stored, but the disk did not confirm it within syncFlushTimeout (SYNC_FLUSH).",
        "It is there and may be lost if the machine fails now; sending it again makes two of it. Look at the disk.",
    ),
    A.SLAVE_NOT_AVAILABLE: Meaning(
        "Stored at the master, which waited for no copy, since no slave is in sync.",
        "`rmqkit cluster status` says why. Start the slaves, or lower inSyncReplicas; the message is at the master alone "
        "until a slave has caught up, and sending it again makes two of it.",
    ),
    A.FLUSH_SLAVE_TIMEOUT: Meaning(
        "Stored at the master; not enough slaves confirmed it within slaveTimeout, and they may have it all the same.",
        "`rmqkit cluster status` says who is behind. The message may be lost if the master fails now; sending it again "
        "makes two of it.",
    ),
    A.MESSAGE_ILLEGAL: Meaning(
        "The broker takes no such message: its body, properties or batch are wrong.",
        "A body has at most maxMessageSize (4 MiB), properties 32 KiB; a batch has one topic and no delay levels.",
    ),
    A.SERVICE_NOT_AVAILABLE: Meaning(
        "The broker takes no messages now: its disk is full or failed, it is a slave, or it is shutting down.",
        "`rmqkit explain BROKER` says which; producers go on with other brokers.",
    ),
    A.VERSION_NOT_SUPPORTED: Meaning(
        "The request is of a protocol version this node does not take.", "Use a newer client."
    ),
    A.NO_PERMISSION: Meaning(
        "Forbidden here: by the permission of broker or topic, by the group's settings, or for a key that is not live.",
        "Look at `rmqkit topic perm TOPIC`, `rmqkit group show GROUP`, and brokerPermission.",
    ),
    A.TOPIC_NOT_EXIST: Meaning(
        "The topic is not there, and the broker makes none on its own (autoCreateTopicEnable), or not by this name.",
        "Make it: `rmqkit topic create TOPIC`; look for a typing error: `rmqkit topic list`.",
    ),
    A.TOPIC_EXIST_ALREADY: Meaning("The topic is there already.", "Use it, or another name."),
    A.PULL_NOT_FOUND: Meaning("No new message; the consumer pulls again.", "Nothing: consumers see it all the time."),
    A.PULL_RETRY_IMMEDIATELY: Meaning(
        "Nothing here matches the filter; the consumer goes on from the next offset.", "Nothing: consumers do it."
    ),
    A.PULL_OFFSET_MOVED: Meaning(
        "The offset asked for is not in the queue (deleted with its file, or beyond its end); the consumer is put right.",
        "Nothing, unless messages were missed: then the group was behind by more than fileReservedTime.",
    ),
    A.QUERY_NOT_FOUND: Meaning("Nothing by that key, or no offset of that group yet.", "Nothing for a new group."),
    A.SUBSCRIPTION_PARSE_FAILED: Meaning(
        "The filter expression of a subscription is wrong.", "The remark says where; try it: `rmqkit consume --filter`."
    ),
    A.SUBSCRIPTION_NOT_EXIST: Meaning(
        "The broker does not know this consumer's subscription: no heartbeat has come yet, or members of one group "
        "subscribe to different topics.",
        "A moment after a start it goes by itself; else give all members of a group the same subscriptions.",
    ),
    A.SUBSCRIPTION_NOT_LATEST: Meaning(
        "The broker has an older subscription of this group than the consumer's.",
        "It goes with the next heartbeat; if not, members of one group have different filters.",
    ),
    A.SUBSCRIPTION_GROUP_NOT_EXIST: Meaning(
        "The group is not there and the broker makes none on its own (autoCreateSubscriptionGroup).",
        "`rmqkit group create GROUP`.",
    ),
    A.FILTER_DATA_NOT_EXIST: Meaning("The broker has no compiled filter of this group.", "It comes with a heartbeat."),
    A.FILTER_DATA_NOT_LATEST: Meaning("The broker's filter of this group is old.", "It goes with the next heartbeat."),
    A.INVALID_PARAMETER: Meaning("An argument of the request is wrong.", "The remark names it."),
    A.TRANSACTION_SHOULD_COMMIT: Meaning("The transaction is to be committed.", "Nothing: between clients and brokers."),
    A.TRANSACTION_SHOULD_ROLLBACK: Meaning(
        "The transaction is to be rolled back.", "Nothing: between clients and brokers."
    ),
    A.TRANSACTION_STATE_UNKNOW: Meaning("The outcome is not known yet.", "Nothing: the broker asks again."),
    A.TRANSACTION_STATE_GROUP_WRONG: Meaning(
        "The transaction was begun by another producer group.", "End it with the group that sent the half message."
    ),
    A.NO_BUYER_ID: Meaning("A unitised deployment misses its buyer id.", "Not used outside Alibaba."),
    A.NOT_IN_CURRENT_UNIT: Meaning("The message belongs to another unit.", "Not used outside Alibaba."),
    A.CONSUMER_NOT_ONLINE: Meaning(
        "Nobody of that group is connected to this broker.", "Start a member; `rmqkit group members GROUP` shows them."
    ),
    A.CONSUME_MSG_TIMEOUT: Meaning("A member did not answer in time.", "Look at its listener, or ask another member."),
    A.NO_MESSAGE: Meaning("There is no such message.", "It may have been deleted with its file (fileReservedTime)."),
    A.POLLING_FULL: Meaning("Too many requests wait for messages.", "Fewer consumers, or more brokers."),
    A.POLLING_TIMEOUT: Meaning("No message came while a pop waited.", "Nothing: consumers ask again."),
    A.BROKER_NOT_EXIST: Meaning("No broker by that name is known.", "`rmqkit cluster status`; is it registered?"),
    A.BROKER_DISPATCH_NOT_COMPLETE: Meaning(
        "The broker's queues are not made up to the end of its log yet.", "Wait: it is recovering or has much to index."
    ),
    A.BROADCAST_CONSUMPTION: Meaning(
        "The group broadcasts, so offsets are with its members and not here.", "Ask the members: `rmqkit group running`."
    ),
    A.FLOW_CONTROL: Meaning("The broker holds a consumer back.", "It goes on by itself; members pull less often."),
    A.NOT_LEADER_FOR_QUEUE: Meaning(
        "A static topic's queue is led by another broker now.", "Clients refresh and go there."
    ),
    A.ILLEGAL_OPERATION: Meaning("Not possible for a message or topic of this kind.", "The remark says why."),
    A.GO_AWAY: Meaning(
        "The node is about to leave: open a new connection.", "Nothing: clients of 5.x do; older ones see one failed call."
    ),
    A.CONTROLLER_FENCED_MASTER_EPOCH: Meaning("A master of an earlier epoch spoke.", "It steps down by itself."),
    A.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: Meaning("A change to an old set of replicas in sync.", "It is tried again."),
    A.CONTROLLER_INVALID_MASTER: Meaning("The broker that asked is not the master.", "It follows the master from now on."),
    A.CONTROLLER_INVALID_REPLICAS: Meaning("A replica in the request is not one of the group.", _CONTROLLER),
    A.CONTROLLER_MASTER_NOT_AVAILABLE: Meaning("The group has no master now.", "Wait for the election, or elect one."),
    A.CONTROLLER_INVALID_REQUEST: Meaning("A request that the controller cannot follow.", "The remark says why."),
    A.CONTROLLER_BROKER_NOT_ALIVE: Meaning("The broker is not alive for the controller.", "Look whether it runs."),
    A.CONTROLLER_NOT_LEADER: Meaning("This controller does not lead.", "Ask the leader; clients find it by themselves."),
    A.CONTROLLER_BROKER_METADATA_NOT_EXIST: Meaning("The controller does not know that broker.", "Register it."),
    A.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: Meaning("That broker cannot be forgotten now.", "Stop it first."),
    A.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: Meaning("The broker has to register first.", "It does so by itself."),
    A.CONTROLLER_MASTER_STILL_EXIST: Meaning("There is a master already.", "Nothing, or name the broker to be elected."),
    A.CONTROLLER_ELECT_MASTER_FAILED: Meaning("No replica could be elected.", "Start a replica that was in sync."),
    A.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: Meaning("The set of replicas in sync was not changed.", _CONTROLLER),
    A.CONTROLLER_BROKER_ID_INVALID: Meaning("That broker id is taken or was not given.", "Let the controller give one."),
    A.CONTROLLER_JRAFT_INTERNAL_ERROR: Meaning("The controllers' Raft log failed.", _CONTROLLER),
    A.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS: Meaning("The controller has no heartbeat of that broker.", _CONTROLLER),
    A.LMQ_QUOTA_EXCEEDED: Meaning("More light queues than allowed.", _LITE),
    A.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Meaning("More light subscriptions than allowed.", _LITE),
    A.USER_NOT_EXIST: Meaning("No such user (authentication).", "Create it with mqadmin createUser."),
    A.POLICY_NOT_EXIST: Meaning("No such policy (authorization).", "Create it with mqadmin createAcl."),
}

REQUESTS: dict[Q, str] = {
    Q.SEND_MESSAGE: "store a message, with long field names",
    Q.PULL_MESSAGE: "read a queue from an offset on, waiting a while when it is at its end",
    Q.QUERY_MESSAGE: "find messages by key or unique id",
    Q.QUERY_BROKER_OFFSET: "was never used",
    Q.QUERY_CONSUMER_OFFSET: "where a group is in a queue",
    Q.UPDATE_CONSUMER_OFFSET: "put a group at an offset, as its members commit",
    Q.UPDATE_AND_CREATE_TOPIC: "make a topic or change it",
    Q.UPDATE_AND_CREATE_TOPIC_LIST: "make several topics",
    Q.GET_ALL_TOPIC_CONFIG: "all topics of a broker (slaves ask it)",
    Q.GET_TOPIC_CONFIG_LIST: "was never used",
    Q.GET_TOPIC_NAME_LIST: "was never used",
    Q.UPDATE_BROKER_CONFIG: "change live settings of a broker",
    Q.GET_BROKER_CONFIG: "all settings of a broker",
    Q.TRIGGER_DELETE_FILES: "was never used",
    Q.GET_BROKER_RUNTIME_INFO: "what a broker says of itself",
    Q.SEARCH_OFFSET_BY_TIMESTAMP: "the offset that was stored at a time",
    Q.GET_MAX_OFFSET: "the end of a queue",
    Q.GET_MIN_OFFSET: "the beginning of a queue",
    Q.GET_EARLIEST_MSG_STORETIME: "when a queue's first message was stored",
    Q.VIEW_MESSAGE_BY_ID: "a message by its offset id",
    Q.HEART_BEAT: "a client says which groups and subscriptions it has",
    Q.UNREGISTER_CLIENT: "a client leaves its groups",
    Q.CONSUMER_SEND_MSG_BACK: "a consumer failed with a message: deliver it again later, or park it in %DLQ%",
    Q.END_TRANSACTION: "commit or roll back a half message",
    Q.GET_CONSUMER_LIST_BY_GROUP: "the members of a group, for rebalancing",
    Q.CHECK_TRANSACTION_STATE: "a broker asks a producer how a transaction ended",
    Q.NOTIFY_CONSUMER_IDS_CHANGED: "a broker tells members that their group changed",
    Q.LOCK_BATCH_MQ: "lock queues for a member that consumes in order",
    Q.UNLOCK_BATCH_MQ: "give such locks back",
    Q.GET_ALL_CONSUMER_OFFSET: "all offsets of all groups (slaves ask it)",
    Q.GET_ALL_DELAY_OFFSET: "how far each delay level is (slaves ask it)",
    Q.CHECK_CLIENT_CONFIG: "a consumer asks whether its filter will do",
    Q.GET_CLIENT_CONFIG: "was never used",
    Q.GET_TIMER_CHECK_POINT: "how far the timer is (slaves ask it)",
    Q.GET_TIMER_METRICS: "how many timer messages wait, by topic (slaves ask it)",
    Q.PUT_KV_CONFIG: "set a value at a name server",
    Q.GET_KV_CONFIG: "a value at a name server",
    Q.DELETE_KV_CONFIG: "remove a value at a name server",
    Q.REGISTER_BROKER: "a broker tells a name server of itself and its topics",
    Q.UNREGISTER_BROKER: "a broker leaves",
    Q.GET_ROUTEINFO_BY_TOPIC: "which brokers have a topic",
    Q.GET_BROKER_CLUSTER_INFO: "all brokers and clusters",
    Q.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "make a group or change it",
    Q.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "all groups of a broker (slaves ask it)",
    Q.GET_TOPIC_STATS_INFO: "first and next offset of each queue of a topic",
    Q.GET_CONSUMER_CONNECTION_LIST: "who of a group is online, and their subscriptions",
    Q.GET_PRODUCER_CONNECTION_LIST: "which producers of a group are online",
    Q.WIPE_WRITE_PERM_OF_BROKER: "show a broker's topics as read-only",
    Q.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "all topics",
    Q.DELETE_SUBSCRIPTIONGROUP: "delete a group",
    Q.GET_CONSUME_STATS: "how far a group is in each queue",
    Q.SUSPEND_CONSUMER: "was never used",
    Q.RESUME_CONSUMER: "was never used",
    Q.RESET_CONSUMER_OFFSET_IN_CONSUMER: "was never used",
    Q.RESET_CONSUMER_OFFSET_IN_BROKER: "was never used",
    Q.ADJUST_CONSUMER_THREAD_POOL: "was never used",
    Q.WHO_CONSUME_THE_MESSAGE: "was never used",
    Q.DELETE_TOPIC_IN_BROKER: "delete a topic at a broker",
    Q.DELETE_TOPIC_IN_NAMESRV: "delete a topic at a name server",
    Q.REGISTER_TOPIC_IN_NAMESRV: "tell a name server of one topic",
    Q.GET_KVLIST_BY_NAMESPACE: "all values of a namespace at a name server",
    Q.RESET_CONSUMER_CLIENT_OFFSET: "a broker moves a member to other offsets",
    Q.GET_CONSUMER_STATUS_FROM_CLIENT: "a broker asks a member for its offsets",
    Q.INVOKE_BROKER_TO_RESET_OFFSET: "move a group in a topic",
    Q.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "offsets as the members of a group have them",
    Q.GET_TOPICS_BY_CLUSTER: "topics of one cluster",
    Q.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "make several groups",
    Q.QUERY_TOPIC_CONSUME_BY_WHO: "which groups consume a topic",
    Q.REGISTER_FILTER_SERVER: "of filter servers, which 5.x no longer has",
    Q.REGISTER_MESSAGE_FILTER_CLASS: "of filter servers, which 5.x no longer has",
    Q.QUERY_CONSUME_TIME_SPAN: "how far a group is, in time",
    Q.GET_SYSTEM_TOPIC_LIST_FROM_NS: "names of clusters and brokers as topics",
    Q.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "a broker's own topics",
    Q.CLEAN_EXPIRED_CONSUMEQUEUE: "remove queues whose messages are all gone",
    Q.GET_CONSUMER_RUNNING_INFO: "what a member says it is doing",
    Q.QUERY_CORRECTION_OFFSET: "offsets of groups compared with one of them",
    Q.CONSUME_MESSAGE_DIRECTLY: "give one message to one member now",
    Q.SEND_MESSAGE_V2: "store a message, with one-letter field names: what clients send",
    Q.GET_UNIT_TOPIC_LIST: "topics of a unitised deployment",
    Q.GET_HAS_UNIT_SUB_TOPIC_LIST: "topics of a unitised deployment that have subscriptions of units",
    Q.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "topics outside units that have subscriptions of units",
    Q.CLONE_GROUP_OFFSET: "put a group where another one is",
    Q.VIEW_BROKER_STATS_DATA: "one counter of a broker: last minute, hour, day",
    Q.CLEAN_UNUSED_TOPIC: "remove queues of topics that are gone",
    Q.GET_BROKER_CONSUME_STATS: "how far all groups of a broker are",
    Q.UPDATE_NAMESRV_CONFIG: "change live settings of a name server",
    Q.GET_NAMESRV_CONFIG: "all settings of a name server",
    Q.SEND_BATCH_MESSAGE: "store several messages of one topic",
    Q.QUERY_CONSUME_QUEUE: "entries of a queue as the disk has them",
    Q.QUERY_DATA_VERSION: "a broker asks whether a name server has its newest topics",
    Q.RESUME_CHECK_HALF_MESSAGE: "ask again about a half message that was given up",
    Q.SEND_REPLY_MESSAGE: "the reply to a request message",
    Q.SEND_REPLY_MESSAGE_V2: "the reply to a request message, with one-letter field names",
    Q.PUSH_REPLY_MESSAGE_TO_CLIENT: "a broker hands a reply to the client that waits for it",
    Q.ADD_WRITE_PERM_OF_BROKER: "show a broker's topics as writable again",
    Q.GET_ALL_PRODUCER_INFO: "all producers that are online",
    Q.DELETE_EXPIRED_COMMITLOG: "delete files of the log that are past their time",
    Q.QUERY_TOPICS_BY_CONSUMER: "topics that a group has consumed",
    Q.QUERY_SUBSCRIPTION_BY_CONSUMER: "what a group that is online wants of a topic",
    Q.GET_TOPIC_CONFIG: "a topic's settings",
    Q.GET_SUBSCRIPTIONGROUP_CONFIG: "a group's settings",
    Q.UPDATE_AND_GET_GROUP_FORBIDDEN: "forbid a group to read a topic",
    Q.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "of queues in RocksDB",
    Q.EXPORT_ROCKSDB_CONFIG_TO_JSON: "of settings in RocksDB",
    Q.LITE_PULL_MESSAGE: "PULL_MESSAGE of consumers that pull themselves",
    Q.RECALL_MESSAGE: "take a timer message back before it is due",
    Q.QUERY_ASSIGNMENT: "a consumer asks the broker for its queues",
    Q.SET_MESSAGE_REQUEST_MODE: "whether a group pulls or pops a topic",
    Q.GET_ALL_MESSAGE_REQUEST_MODE: "all such modes (slaves ask it)",
    Q.UPDATE_AND_CREATE_STATIC_TOPIC: "make a topic whose queues keep their ids over brokers",
    Q.GET_BROKER_MEMBER_GROUP: "the live brokers of a broker group",
    Q.ADD_BROKER: "start another broker in a container",
    Q.REMOVE_BROKER: "stop a broker in a container",
    Q.BROKER_HEARTBEAT: "a broker says that it lives",
    Q.NOTIFY_MIN_BROKER_ID_CHANGE: "a name server tells brokers whose id is the smallest now",
    Q.EXCHANGE_BROKER_HA_INFO: "master and slaves tell each other their addresses for replication",
    Q.GET_BROKER_HA_STATUS: "how replication goes",
    Q.RESET_MASTER_FLUSH_OFFSET: "a master tells its slaves what is durable",
    Q.CONTROLLER_ALTER_SYNC_STATE_SET: "a master changes the set of replicas in sync",
    Q.CONTROLLER_ELECT_MASTER: "elect a master",
    Q.CONTROLLER_REGISTER_BROKER: "a broker registers with the controllers",
    Q.CONTROLLER_GET_REPLICA_INFO: "who is master of a group",
    Q.CONTROLLER_GET_METADATA_INFO: "who leads the controllers",
    Q.CONTROLLER_GET_SYNC_STATE_DATA: "which replicas are in sync",
    Q.GET_BROKER_EPOCH_CACHE: "where each master's epoch began in the log",
    Q.NOTIFY_BROKER_ROLE_CHANGED: "a controller tells a broker its role",
    Q.UPDATE_CONTROLLER_CONFIG: "change settings of a controller",
    Q.GET_CONTROLLER_CONFIG: "all settings of a controller",
    Q.CLEAN_BROKER_DATA: "make the controllers forget brokers",
    Q.CONTROLLER_GET_NEXT_BROKER_ID: "a free broker id",
    Q.CONTROLLER_APPLY_BROKER_ID: "take a broker id",
    Q.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: "limit reads of old messages",
    Q.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: "no longer limit reads of old messages",
    Q.GET_COLD_DATA_FLOW_CTR_INFO: "limits of reads of old messages",
    Q.SET_COMMITLOG_READ_MODE: "how the log's files are read",
    Q.AUTH_CREATE_USER: "create a user",
    Q.AUTH_UPDATE_USER: "change a user",
    Q.AUTH_DELETE_USER: "delete a user",
    Q.AUTH_GET_USER: "a user",
    Q.AUTH_LIST_USER: "all users",
    Q.AUTH_CREATE_ACL: "create a policy",
    Q.AUTH_UPDATE_ACL: "change a policy",
    Q.AUTH_DELETE_ACL: "delete a policy",
    Q.AUTH_GET_ACL: "a policy",
    Q.AUTH_LIST_ACL: "all policies",
    Q.SWITCH_TIMER_ENGINE: "which of two timers keeps delayed messages",
    Q.POP_MESSAGE: "take messages of a queue for a while",
    Q.ACK_MESSAGE: "a popped message is done",
    Q.PEEK_MESSAGE: "look at messages without taking them",
    Q.CHANGE_MESSAGE_INVISIBLETIME: "keep a popped message longer, or give it back",
    Q.NOTIFICATION: "wait for messages to pop",
    Q.POLLING_INFO: "how many pops wait",
    Q.POP_ROLLBACK: "hand popped messages out again",
    Q.POP_LITE_MESSAGE: "pop of light topics",
    Q.LITE_SUBSCRIPTION_CTL: "subscriptions of light topics",
    Q.ACK_LITE_MESSAGE: "acknowledge messages of light topics",
    Q.NOTIFY_UNSUBSCRIBE_LITE: "a broker tells a client that a light subscription has ended",
    Q.GET_BROKER_LITE_INFO: "figures of light topics",
    Q.GET_PARENT_TOPIC_INFO: "light topics of a topic",
    Q.GET_LITE_TOPIC_INFO: "one light topic",
    Q.GET_LITE_CLIENT_INFO: "light subscriptions of a client",
    Q.GET_LITE_GROUP_INFO: "light subscriptions of a group",
    Q.TRIGGER_LITE_DISPATCH: "hand out messages of light topics now",
    Q.BATCH_ACK_MESSAGE: "several popped messages are done",
}

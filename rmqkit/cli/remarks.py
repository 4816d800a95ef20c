"""Texts that nodes answer and clients log, with their cause and what to do: the table behind `rmqkit explain 'TEXT'`.

Each entry is the text on a line of its own, its cause indented under it, and after `>` what to do (`@name`: one of
`_COMMON`). A text has `{}` where names and numbers stand. It is found when it is part of what was asked, or (a few words
of it are enough) when what was asked is part of it. Texts are upstream's where a broker of Apache answers the same; the
others are ours. A test holds our nodes' texts complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Remark(NamedTuple):
    text: str
    cause: str
    do: str


_COMMON = {
    "full": "Free the disk, lower fileReservedTime, or give storePathCommitLog a larger one; sending goes on by itself.",
    "slow": "Send slower or to more brokers. Look at the disk; with SYNC_FLUSH every send waits for it.",
    "typing": "Look for a typing error; names have letters, digits, _ - % and |.",
    "restart": "Look at the node's log and disk.",
    "stale": "It goes by itself with the next heartbeat, at most 30 s later; if not, members of the group differ in it.",
    "limit": "Something makes too many of them; delete what is not used, or spread over more brokers.",
    "online": "Start a member, or wait until it has sent its first heartbeat; `rmqkit group members GROUP`.",
    "bug": "The client sends what no client of RocketMQ sends; look at its version, and at proxies on the way.",
}

_TEXT = r"""
# sends
topic[{}] not exist, apply first please!
  The topic is not at this broker and it makes none on its own (autoCreateTopicEnable), or not with that name.
  > `rmqkit topic create TOPIC`; look for a typing error with `rmqkit topic list`.
[REJECTREQUEST]system busy, start flow control for a while
  Apache's broker: its page cache is busy (osPageCacheBusyTimeOutMills) or its transient pool is used up.
  > @slow
[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is false on this slave
  A consumer asked a slave for messages, most likely because its master is gone, and the slave is not to serve any.
  > Start the master, or set slaveReadEnable=true on master and slaves.
[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while
  Apache's broker: the request waited longer than waitTimeMillsInSendQueue (200 ms) for a thread.
  > @slow
[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while
  Apache's broker: writing to the page cache takes too long, so waiting requests are thrown out.
  > @slow
[PC_SYNCHRONIZED]broker busy, start flow control for a while
  Apache's broker: writing to the page cache took more than a second.
  > @slow
[OVERLOAD]system busy, start flow control for a while
  More sends wait for the disk than the broker keeps.
  > @slow
create mapped file failed, server is busy or broken.
  Apache's broker could not make its next log file.
  > @full
service not available now{}disk is full
  The disk is nearly full, so the broker takes nothing more (diskSpaceWarningLevelRatio); it can still be read.
  > @full
service not available now. It may be caused by one of the following reasons: the broker's disk is full
  Apache's broker cannot store: full disk, it is a slave, or it is shutting down.
  > `rmqkit broker status` has the disk; producers go on with other brokers.
service not available now: the broker is isolated: {}
  It has just started, was away without dying, or a name server has taken it out: another broker may serve in its place,
    so it finds out who of its group is alive before it serves.
  > It goes by itself, most often within a second; `rmqkit cluster status` has the reason. Else see that it reaches a name
    server.
service not available now: the broker is pre-online: {}
  It takes over what the others of its group know better (progress of consumers and of delayed messages) before it
    serves.
  > It goes by itself; `rmqkit explain BROKER` has the stage. Clients go on with other brokers.
this log is being cut back: ask again when its end is known
  A master that comes back asked a slave that is just cutting what its log has beyond the master's (haTruncateAhead).
  > It asks again by itself within a second.
the broker is a slave and locks no queues: its master does, or who acts for it
  A consumer in order asked a slave for a lock, most likely by an old route.
  > It goes when the consumer refreshes its routes (30 s at most). Without a master, see `rmqkit explain BROKER` for why
    nobody acts.
service not available now: {}
  The broker stores nothing now, for the reason given: a full disk, a failed sync, a role that does not write.
  > `rmqkit explain BROKER` has the facts. After a failed sync the broker must be started again on a sound
    disk.
in-sync replicas not enough{}
  Nothing was stored: fewer brokers of the group are in sync than a put needs (inSyncReplicas, totalReplicas).
  > `rmqkit cluster status` says which, and why. Start the slaves; enableAutoInSyncReplicas=true goes on with those
    that are there, down to minInSyncReplicas.
the message is illegal, maybe msg body or properties length not matched
  A body above maxMessageSize or properties above 32 KiB.
  > Make the message smaller, or raise maxMessageSize at brokers and producers.
the message is illegal: a body of {} bytes, allowed are 1 to {} (maxMessageSize)
  The body is empty or too large.
  > Make the message smaller, or raise maxMessageSize at brokers and producers.
the properties are {} bytes, the limit is {}
  Keys, tag and user properties together are too long.
  > Put large values into the body.
the batch cannot be read: {}
  The body of a batch is not a row of messages.
  > @bug
batch request does not support retry group
  Messages to a retry topic go one by one.
  > Send them one by one.
a batch takes no delay levels
  A message with a delay level is in a batch.
  > Send delayed messages one by one.
inner batches and multi-dispatch are not supported by this broker yet
  The message wants one record of many messages, or to stand in several queues.
  > Use plain messages and plain batches.
the delay level (property DELAY) is {}, not a number
  DELAY is a level's number.
  > Use 1 to 18, or no DELAY.
accurate timer message is not enabled, timerWheelEnable is false
  The message has an exact time and the broker no timer.
  > Use a delay level, or a broker with timerWheelEnable=true.
timer message illegal, the delay time should not be bigger than the max delay {}
  The message's time is too far away (timerMaxDelaySec, 3 days).
  > Send it later, or raise timerMaxDelaySec.
the broker[{}] sending transaction message is forbidden
  Transactions are off (rejectTransactionMessage) or not built into this broker.
  > Send it as a plain message, or to a broker with transactions.
the broker[{}] sending message is forbidden
  brokerPermission of this broker lacks 2 (write).
  > `rmqkit config set BROKER brokerPermission=6`.
the topic[{}] sending message is forbidden
  The topic's permission lacks 2 (write).
  > `rmqkit topic perm TOPIC rw`.
sending to topic[{}] is forbidden: its permission is {}
  The topic's permission lacks 2 (write).
  > `rmqkit topic perm TOPIC rw`.
Sending message to topic[{}] is forbidden.
  It is one of the broker's own topics.
  > Use a topic of your own.
request queueId[{}] is illegal
  The producer's route has more queues than the topic has now.
  > It goes when the producer refreshes its routes (30 s); a fixed queue id must be below the number of write
    queues.
writing is not permitted
  The name server shows the topic's brokers as read-only: by the topic's permission, or because write permission
    was wiped.
  > `rmqkit topic perm TOPIC`, `rmqkit broker add-write-perm BROKER`.
subscription group not exist, {}
  A consumer of an unknown group sent a message back.
  > `rmqkit group create GROUP`.
look message by offset failed, {}
  A consumer sent back a message that is not in the log any more.
  > Nothing: it was deleted with its file.
the master broker is null
  The acting slave found no master to write for it.
  > Start a master of another group.

# replication
this broker is a master itself
  Another broker that takes itself for the master of this group asked it to follow (code 906): two brokers have
    brokerId 0.
  > Give one of them another brokerId, or another brokerName; `rmqkit doctor` finds them.
the master's addresses: {}
  A master that returns told addresses (code 906) that are none.
  > Look at its brokerIP1, brokerIP2 and listenPort.
Can't modify topic or subscription group from slave broker, please execute it from master broker.
  A slave has its topics and groups from its master.
  > Ask the master: the broker's name without an id.
Can not reset offset in slave broker
  A slave has its offsets from its master.
  > Ask the master: the broker's name without an id.
a slave has its master's brokerName
  A slave found a master of another group.
  > Correct brokerName or haMasterAddress of the slave.
id {} belongs to {}, which is connected
  Two slaves of the group have the same brokerId.
  > Give each broker of a group an id of its own.
a slave needs a brokerId above 0, not {}
  0 is the master's id.
  > Set the slave's brokerId.
Can't modify topic or subscription group from slave broker, please execute it from master broker.
  A slave's tables are copies of its master's.
  > Ask the master; when it is gone, start it.
Can not reset offset in slave broker
  Offsets are reset at the master, whose slaves follow.
  > Ask the master; when it is gone, start it.
this broker is a slave itself
  A slave was told that another slave is its master.
  > Correct haMasterAddress, and brokerRole of both.
it reports {}, and this log ends at {}
  A stranger connected to the port for replication, or a slave that has messages this master never had.
  > `rmqkit explain NODE` the slave; if there is none, find out who connects there.
it wants {}, and this log begins at {}
  A slave has been away for so long that the files it would go on from are deleted.
  > Stop the slave, move its store folder away, and start it: it copies what there is.

# pulls
the consumer's group info not exist
  The broker has had no heartbeat of this group yet.
  > @online
the consumer's subscription not exist
  No member's heartbeat names this topic; often two consumers use one group for different topics.
  > Give every member of a group the same subscriptions, or each consumer its own group.
the consumer's subscription not latest
  The consumer's filter is newer than the broker's.
  > @stale
parse the consumer's subscription failed
  The filter expression is wrong.
  > Try it: `rmqkit consume TOPIC --filter`.
the consumer group[{}] can not consume by broadcast way
  Its settings forbid broadcasting.
  > `rmqkit group update GROUP --broadcast`, or consume in clustering mode.
the consumer group[{}] is forbidden for topic[{}]
  Somebody forbade this group that topic (353).
  > Code 353 allows it again (`Admin.ask_broker`).
subscription group [{}] does not exist
  The group is unknown and the broker makes none (autoCreateSubscriptionGroup).
  > `rmqkit group create GROUP`.
subscription group no permission, {}
  The group may not consume (consumeEnable=false).
  > `rmqkit group update GROUP --enable`.
the broker[{}] pulling message is forbidden
  brokerPermission of this broker lacks 4 (read).
  > `rmqkit config set BROKER brokerPermission=6`.
the topic[{}] pulling message is forbidden
  The topic's permission lacks 4 (read).
  > `rmqkit topic perm TOPIC rw`.
queueId[{}] is illegal, topic:[{}] {}eadQueueNums
  The consumer's route has more queues than the topic has now.
  > It goes when the consumer refreshes its routes (30 s).
The broker does not support consumer to filter message by {}
  SQL92 filters are off, or the kind is unknown.
  > Set enablePropertyFilter=true at the brokers and start them again.
The broker[{}] pulling message is forbidden
  brokerPermission lacks 4 (read).
  > Set brokerPermission to 6.
The broker's consumer filter data is not exist
  Filters with extended queues (enableConsumeQueueExt): the broker has no compiled filter of this group.
  > @stale
the consumer's consumer filter data not latest
  The consumer's filter is newer than the one the broker has compiled.
  > @stale
the consumer's filter cannot be used: {}
  The filter expression is wrong, or asks for what this broker does not do.
  > Try it: `rmqkit consume TOPIC --filter`.
store getMessage return null
  The store answered nothing: it is stopping.
  > @restart
the offset request is
  The offset is outside the queue; the consumer is put right.
  > Nothing.

# groups, offsets, clients
No group in this broker. group: {}
  The group has no settings at this broker.
  > `rmqkit group create GROUP`.
Group {} not exist!
  The group is unknown to this broker.
  > `rmqkit group create GROUP`.
Group {} does not exist
  The group is unknown to this broker.
  > `rmqkit group create GROUP`.
THe consumer group <{}> not exist
  The group never consumed that topic at this broker.
  > @typing
Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first
  The group has no offset in that queue yet.
  > Nothing: it begins where consumeFromWhere says.
Not found, do not set to zero, maybe this group boot first
  The group has no offset in that queue yet.
  > Nothing.
QueueId and commitOffset cannot be null
  A commit without its fields.
  > @bug
Target offset {} not in consume queue range [{}-{}]
  That offset is not in the queue.
  > Choose one that is.
too many (topic, group) pairs have offsets on this broker
  The table of offsets is full.
  > @limit
Consumer not online, so can not reset offset
  The broker passes resets on to members, and none is online.
  > `rmqkit group reset` sets the offsets directly then; or set useServerSideResetOffset=true.
No Any Consumer online in the consumer group: [{}]
  Nobody of the group is online.
  > @online
the consumer group[{}] not online
  Nobody of the group is connected to this broker.
  > @online
no consumer for this group, {}
  Nobody of the group is connected to this broker.
  > @online
the producer group[{}] not exist
  No producer of that group is connected to this broker.
  > @typing
The Consumer <{}> <{}> not online
  That member is not connected to this broker.
  > @online
The Consumer {} not online
  That member is not connected to this broker.
  > @online
the client does not support this feature. version={}
  A member's release is too old for this.
  > Use a newer client.
The Consumer <{}> Version <{}> too low to finish
  A member's release is too old for this.
  > Use a newer client.
more than {} clients on this broker
  The table of clients is full.
  > @limit
the broker waits for {} answers of clients already
  Many requests about members at once.
  > Ask again in a moment.
this broker would hold more than {} topics
  The request would fill the table of topics beyond its end.
  > @limit
this broker would hold more than {} groups
  The request would fill the table of groups beyond its end.
  > @limit
MIXED message type is not supported.
  A topic has one type of message here.
  > Make it with message.type NORMAL, FIFO, DELAY or TRANSACTION.
{} is not exist!
  There is no queue or topic by that name at this broker.
  > `rmqkit topic route TOPIC` says where it is.
this broker holds {} topics already
  The table of topics is full.
  > @limit
this broker holds {} groups already
  The table of groups is full.
  > @limit
this broker holds {} bans already
  The table of forbidden topics is full.
  > @limit

# topics
The specified topic is blank.
  A request without a topic.
  > @typing
The specified topic contains illegal characters
  A name with characters that are not allowed.
  > @typing
The specified topic is longer than topic max length {}.
  The name is too long.
  > @typing
The specified group is blank.
  A request without a group.
  > @typing
The specified group contains illegal characters
  A name with characters that are not allowed.
  > @typing
The specified group is longer than group max length {}.
  The name is too long.
  > @typing
The topic[{}] is conflict with system topic.
  That name is the system's own.
  > Choose another name.
No topic in this broker. topic: {}
  The topic is not at this broker.
  > `rmqkit topic route TOPIC` says where it is.
topic[{}] not exist
  The topic is not at this broker.
  > `rmqkit topic route TOPIC` says where it is.
Topic {} does not exist
  The topic is not at this broker.
  > `rmqkit topic route TOPIC` says where it is.
Topic {} not exist!
  The topic is not at this broker.
  > `rmqkit topic route TOPIC` says where it is.
attribute change {} is neither +key=value nor -key
  Attributes are changed as +key=value or -key.
  > Write them so.
done, but {} could not be written
  The change holds until the node stops: its file could not be written.
  > @full
changed, but {} cannot be written
  The change holds until the node stops: its file could not be written.
  > @full

# messages and figures
can not find message by the offset, {}
  No record begins there: deleted with its file, or no offset id at all.
  > Look for it by unique id: `rmqkit message show ID --topic TOPIC`.
can not find message, maybe time range not correct
  The index has no such key in that time.
  > Widen --begin and --end; keys are indexed with messageIndexEnable only.
no message at {} of {}
  That place of the queue is empty: deleted, or not written yet.
  > `rmqkit topic info TOPIC`.
The stats <{}> <{}> not exist
  That counter never counted anything.
  > Nothing: nothing went in or out yet.
topic[{}] takes no replies at this broker
  A reply was sent where no request came from.
  > @bug
send reply message fail, channel of <{}> not found
  The client that asked is gone.
  > Nothing: nobody waits.

# name servers
No topic route info in name server for the topic: {}
  No broker has told the name server of that topic: it is not there, or its brokers are down or register
    elsewhere.
  > `rmqkit topic list`, `rmqkit cluster status`; compare namesrvAddr of brokers and client.
name server not ready
  The name server just started and waits for brokers (needWaitForService).
  > Ask again.
Can not update config in black list.
  Paths and the list itself cannot be changed while it runs.
  > Write it into the node's file and start it again.
cannot be changed while the node runs
  The key is read once, at the start.
  > Write it into the node's file, or `rmqkit cluster up --set`, and start it again.
a configuration text has at most {} bytes
  The request is too large to be settings.
  > @bug
No config item, Namespace: {}
  Nothing is stored under that key.
  > @typing
crc32 not match
  A broker's registration was damaged on its way.
  > It registers again within 30 s.
broker id {} was {}, which is out of the routes now
  Another broker was registered with that name and id. After a move to another address this is as it should be; else two
    brokers have one id, and put each other out of the routes in turns.
  > `rmqkit doctor` finds them; give one of them another brokerId.
broker id {} stays with {}, which has the newer state version
  Another broker is registered with that name and id, and knows a newer election (stateVersion).
  > Stop one of them, or give it another brokerId.
Failed to decode RegisterBrokerBody
  A registration that cannot be read.
  > Compare the releases of both.
the table of topics is full
  The name server holds as many topics as it takes.
  > @limit
topic {} has a negative number of queues
  A registration that cannot be.
  > @bug
there are at most {} entries
  The table of values is full.
  > @limit
there are at most {} namespaces
  The table of values is full.
  > @limit
all entries together have at most {} characters
  The table of values is full.
  > @limit
{} {} is not an address of the form host:port
  A broker registers without a usable address.
  > Set brokerIP1 and listenPort of that broker.
request type {} not supported
  The node does not know the request.
  > `rmqkit explain NUMBER` says what it is; ask a node that has it.
{} failed: {}: {}
  The node's own error: a bug.
  > Report it with the lines of the node's log at that moment.

# what clients say
No route info of this topic
  A Java client found no broker for the topic: it is not there, or no name server knows it.
  > `rmqkit topic route TOPIC` with the client's name server address; see "No topic route info".
No name server address, please set it.
  The client has no address.
  > Set NAMESRV_ADDR or namesrv=.
The broker[{}] not exist
  The client's route names a broker without a master.
  > `rmqkit cluster status`.
connect to <{}> failed
  Nothing listens at that address, or a firewall is between.
  > Compare brokerIP1 (what clients are told) with what they can reach: `rmqkit topic route TOPIC`.
connect to {} failed
  Nothing listens at that address, or a firewall is between.
  > Compare brokerIP1 (what clients are told) with what they can reach: `rmqkit topic route TOPIC`.
wait response on the channel <{}> timeout
  The node took the request and gave no answer in time.
  > The send may have been stored. Look at the node: load, disk, paused?
sendDefaultImpl call timeout
  All of the send's time went into tries that did not end.
  > Raise sendMsgTimeout, or look why brokers are slow or not reachable.
gave no answer:
  The node took the request and gave no answer in time, or is not reachable.
  > Look whether it runs: `rmqkit cluster status`; a send may have been stored.
Send [{}] times, still failed
  Every try failed; the last reason is in the text.
  > Explain that reason.
group[{}] has been created before, specify another name please
  Two consumers of one group in one client.
  > One is enough, or give each an instance name.
has a consumer in client {} already
  Two consumers of one group in one client.
  > Give one an instance_name of its own.
the consumer message buffer is full, so do flow control
  The listener is slower than messages come.
  > More threads or members, or a quicker listener.
lock the mq failed
  Another member holds the queue still.
  > It gets it within 60 s, when that lease ends.
# containers
brokers are added and removed from the container's own machine; remoteConfigUpdateEnable
  Another machine asked a container to add or remove a broker (902, 903).
  > Ask from its machine: `rmqkit container`; or set remoteConfigUpdateEnable=true in the file of its first broker.
this container reads the files it was started with{}only (--container-folder), not {}
  A broker was to be added by a file that lies elsewhere; a container reads no others.
  > Put the file below the container's folder, or start the container with another --container-folder.
the container makes {} changes already; ask again later
  Brokers are being added and removed, as many at a time as a container does.
  > Wait for them: `rmqkit container list`.
addBroker config path is empty
  902 without its configPath.
  > `rmqkit container add FILE`; mqadmin's addBroker wants -b.
a configPath has at most {} characters
  902 with a path that no file system has.
  > @typing
Broker not exist
  903 for a broker that is not in that container.
  > Compare name, id and cluster with `rmqkit container list`.
the container is stopping
  Its process was asked to end.
  > Start it again.
THREAD STATE: BLOCKED
  A listener's threads wait for one another.
  > Look at the stacks: `rmqkit group running --stack`.
"""


def _read(text: str) -> Iterator[Remark]:
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if entry.startswith("#"):
            continue
        said, rest = entry.split("\n", 1)
        cause, do = (" ".join(part.split()) for part in rest.split("\n  > ", 1))
        yield Remark(said, cause, _COMMON[do[1:]] if do.startswith("@") else do)


REMARKS: tuple[Remark, ...] = tuple(_read(_TEXT))


def find(text: str) -> list[Remark]:
    """The rows that a text is about, the most telling first."""
    found = [(len(_fixed(row)), row) for row in REMARKS if _pattern(row).search(text)]
    if not found and len(text) > 5:
        lower = " ".join(text.lower().split())
        found = [(len(_fixed(row)), row) for row in REMARKS if lower in row.text.lower()]
    found.sort(key=lambda each: -each[0])
    # "{} failed: {}" and the like say nothing where a longer text fits.
    return [row for _size, row in found[:3] if _size * 3 >= found[0][0]]


def _fixed(row: Remark) -> str:
    return row.text.replace("{}", "")


def _pattern(row: Remark) -> re.Pattern[str]:
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in row.text.split("{}")]
    return re.compile(".*?".join(parts), re.IGNORECASE | re.DOTALL)

package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.KVTable;
import org.apache.rocketmq.remoting.protocol.body.ProducerConnection;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What the admin client asks. The groups beside "basic" name what a broker must have for them. */
final class AdminChecks {
    private AdminChecks() {
    }

    static void register() {
        Driver.add("basic", "admin_topic", AdminChecks::topic);
        Driver.add("basic", "admin_cluster", AdminChecks::cluster);
        Driver.add("basic", "admin_delete_topic", AdminChecks::deleteTopic);
        Driver.add("basic", "admin_offsets", AdminChecks::offsets);
        Driver.add("basic", "admin_view_message", AdminChecks::viewMessage);
        Driver.add("basic", "admin_kv", AdminChecks::kv);
        Driver.add("basic", "admin_write_perm", AdminChecks::writePerm);
        Driver.add("basic", "admin_broker_config", AdminChecks::brokerConfig);
        Driver.add("basic", "admin_group", AdminChecks::subscriptionGroup);
        Driver.add("stats", "admin_topic_stats", AdminChecks::topicStats);
        Driver.add("stats", "admin_connections", AdminChecks::connections);
        Driver.add("stats", "admin_consume_stats", AdminChecks::consumeStats);
        Driver.add("stats", "admin_broker_runtime", AdminChecks::brokerRuntime);
        Driver.add("query", "query_by_key", AdminChecks::queryByKey);
        Driver.add("query", "query_by_unique_id", AdminChecks::queryByUniqueId);
    }

    private static Map<String, Object> topic(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        try {
            admin.examineTopicRouteInfo(scene.topic);
            throw new AssertionError("a route for a topic nobody created");
        } catch (MQClientException e) {
            expectEquals(ResponseCode.TOPIC_NOT_EXIST, e.getResponseCode(), "code of an unknown topic");
        }
        scene.createTopic(3);
        TopicRouteData route = admin.examineTopicRouteInfo(scene.topic);
        expectEquals(3, route.getQueueDatas().get(0).getReadQueueNums(), "read queues");
        expectEquals(3, route.getQueueDatas().get(0).getWriteQueueNums(), "write queues");
        expectEquals(6, route.getQueueDatas().get(0).getPerm(), "perm");
        TopicConfig config = admin.examineTopicConfig(scene.master(), scene.topic);
        expectEquals(3, config.getReadQueueNums(), "read queues of the broker");
        scene.createTopic(5);
        await("five queues", () -> admin.examineTopicRouteInfo(scene.topic).getQueueDatas().get(0).getReadQueueNums() == 5);
        Set<String> all = admin.fetchAllTopicList().getTopicList();
        expect(all.contains(scene.topic), "the list of all topics has it");
        return detail("brokers", route.getBrokerDatas().size(), "topics", all.size());
    }

    private static Map<String, Object> cluster(Scene scene) throws Exception {
        ClusterInfo info = scene.admin().examineBrokerClusterInfo();
        expect(!info.getBrokerAddrTable().isEmpty() && !info.getClusterAddrTable().isEmpty(), "tables");
        String name = info.getClusterAddrTable().keySet().iterator().next();
        Set<String> topics = scene.admin().fetchTopicsByCLuster(name).getTopicList();
        expect(topics.contains(name), "the cluster's name is a topic: " + topics);
        return detail("clusters", info.getClusterAddrTable().keySet(), "brokers", info.getBrokerAddrTable().keySet());
    }

    private static Map<String, Object> deleteTopic(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQAdminExt admin = scene.admin();
        admin.deleteTopicInBroker(Collections.singleton(scene.master()), scene.topic);
        String cluster = admin.examineBrokerClusterInfo().getClusterAddrTable().keySet().iterator().next();
        Set<String> names = Collections.singleton(scene.namesrv);
        admin.deleteTopicInNameServer(names, cluster, scene.topic);
        await("no route", () -> {
            try {
                admin.examineTopicRouteInfo(scene.topic);
                return false;
            } catch (MQClientException e) {
                return e.getResponseCode() == ResponseCode.TOPIC_NOT_EXIST;
            }
        });
        return detail();
    }

    private static Map<String, Object> offsets(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.send(scene.producer(), "m", 6);
        DefaultMQAdminExt admin = scene.admin();
        MessageQueue queue = new MessageQueue(scene.topic, admin.examineTopicRouteInfo(scene.topic).getQueueDatas().get(0).getBrokerName(), 0);
        expectEquals(0L, admin.minOffset(queue), "min");
        expectEquals(6L, admin.maxOffset(queue), "max");
        expectEquals(0L, admin.searchOffset(queue, 1), "long ago");
        expectEquals(6L, admin.searchOffset(queue, System.currentTimeMillis() + 100_000), "in the future");
        return detail("max", 6);
    }

    private static Map<String, Object> viewMessage(Scene scene) throws Exception {
        scene.createTopic(1);
        SendResult sent = scene.producer().send(new Message(scene.topic, "TagV", "view-key", utf8("see me")));
        MessageExt seen = scene.admin().viewMessage(scene.topic, sent.getOffsetMsgId());
        expectEquals("see me", Scene.text(seen.getBody()), "body");
        expectEquals("TagV", seen.getTags(), "tag");
        expectEquals(sent.getOffsetMsgId(), sent.getOffsetMsgId().toUpperCase(), "upper case id");
        return detail("offset_id", sent.getOffsetMsgId());
    }

    private static Map<String, Object> kv(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        admin.createAndUpdateKvConfig("interop", scene.topic, "value 1");
        expectEquals("value 1", admin.getKVConfig("interop", scene.topic), "value");
        KVTable list = admin.getKVListByNamespace("interop");
        expectEquals("value 1", list.getTable().get(scene.topic), "listed value");
        admin.deleteKvConfig("interop", scene.topic);
        try {
            admin.getKVConfig("interop", scene.topic);
            throw new AssertionError("still there");
        } catch (MQClientException e) {
            expectEquals(ResponseCode.QUERY_NOT_FOUND, e.getResponseCode(), "code");
        }
        return detail("listed", list.getTable().size());
    }

    private static Map<String, Object> writePerm(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQAdminExt admin = scene.admin();
        String broker = admin.examineTopicRouteInfo(scene.topic).getQueueDatas().get(0).getBrokerName();
        int wiped = admin.wipeWritePermOfBroker(scene.namesrv, broker);
        int perm = admin.examineTopicRouteInfo(scene.topic).getQueueDatas().get(0).getPerm();
        int added = admin.addWritePermOfBroker(scene.namesrv, broker);
        expect(wiped > 0 && added > 0, "topics changed: " + wiped + ", " + added);
        expectEquals(4, perm, "perm without write");
        expectEquals(6, admin.examineTopicRouteInfo(scene.topic).getQueueDatas().get(0).getPerm(), "perm with write");
        return detail("wiped", wiped, "added", added);
    }

    private static Map<String, Object> brokerConfig(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        Properties before = admin.getBrokerConfig(scene.master());
        expect(before.containsKey("brokerName") && before.containsKey("longPollingEnable"), "keys: " + before.keySet());
        Properties change = new Properties();
        change.setProperty("shortPollingTimeMills", "1234");
        admin.updateBrokerConfig(scene.master(), change);
        expectEquals("1234", admin.getBrokerConfig(scene.master()).getProperty("shortPollingTimeMills"), "changed value");
        change.setProperty("shortPollingTimeMills", before.getProperty("shortPollingTimeMills"));
        admin.updateBrokerConfig(scene.master(), change);
        return detail("keys", before.size());
    }

    private static Map<String, Object> subscriptionGroup(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(scene.group);
        config.setRetryMaxTimes(5);
        admin.createAndUpdateSubscriptionGroupConfig(scene.master(), config);
        SubscriptionGroupConfig got = admin.examineSubscriptionGroupConfig(scene.master(), scene.group);
        expectEquals(5, got.getRetryMaxTimes(), "retries");
        admin.deleteSubscriptionGroup(scene.master(), scene.group, false);
        return detail("group", got.getGroupName());
    }

    private static Map<String, Object> topicStats(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.send(scene.producer(), "m", 6);
        TopicStatsTable stats = scene.admin().examineTopicStats(scene.topic);
        expectEquals(2, stats.getOffsetTable().size(), "queues");
        long messages = 0;
        for (Map.Entry<MessageQueue, TopicOffset> entry : stats.getOffsetTable().entrySet()) {
            messages += entry.getValue().getMaxOffset() - entry.getValue().getMinOffset();
        }
        expectEquals(6L, messages, "messages");
        return detail("messages", messages);
    }

    private static Map<String, Object> connections(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        scene.send(producer, "m", 1);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "TagA || TagB", MessageModel.CLUSTERING);
        await("a queue", () -> member.queues().size() == 1);
        scene.awaitProducers(1, producer);
        DefaultMQAdminExt admin = scene.admin();
        ConsumerConnection consumers = admin.examineConsumerConnectionInfo(scene.group);
        expectEquals(1, consumers.getConnectionSet().size(), "consumers");
        expectEquals("TagA || TagB", consumers.getSubscriptionTable().get(scene.topic).getSubString(), "subscription");
        ProducerConnection producers = admin.examineProducerConnectionInfo("p" + scene.group, scene.topic);
        expectEquals(1, producers.getConnectionSet().size(), "producers");
        Set<String> who = admin.queryTopicConsumeByWho(scene.topic).getGroupList();
        return detail("client", consumers.getConnectionSet().iterator().next().getLanguage(), "groups_of_topic", who);
    }

    private static Map<String, Object> consumeStats(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.beginGroup();
        scene.send(scene.producer(), "m", 10);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("all messages", () -> new HashSet<>(member.got).size() == 10);
        member.consumer.shutdown();
        DefaultMQAdminExt admin = scene.admin();
        Map<Integer, Long> behind = new HashMap<>();
        admin.examineConsumeStats(scene.group).getOffsetTable().forEach((queue, offset) -> {
            if (queue.getTopic().equals(scene.topic)) {
                behind.put(queue.getQueueId(), offset.getBrokerOffset() - offset.getConsumerOffset());
            }
        });
        expectEquals(new TreeSet<>(java.util.Arrays.asList(0, 1)), new TreeSet<>(behind.keySet()), "queues");
        expect(behind.values().stream().allMatch(gap -> gap == 0), "behind: " + behind);
        return detail("queues", behind.size());
    }

    private static Map<String, Object> brokerRuntime(Scene scene) throws Exception {
        Map<String, String> table = scene.admin().fetchBrokerRuntimeStats(scene.master()).getTable();
        for (String key : new String[] {"brokerVersionDesc", "putTps", "getTransferredTps", "bootTimestamp", "commitLogMaxOffset",
            "dispatchBehindBytes", "earliestMessageTimeStamp"}) {
            expect(table.containsKey(key), key + " is missing in " + table.keySet());
        }
        return detail("version", table.get("brokerVersionDesc"), "keys", table.size());
    }

    private static Map<String, Object> queryByKey(Scene scene) throws Exception {
        scene.createTopic(2);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 9; i++) {
            producer.send(new Message(scene.topic, "T", "common key" + i, utf8("m" + i)));
        }
        long from = System.currentTimeMillis() - 600_000;
        QueryResult all = scene.admin().queryMessage(scene.topic, "common", 64, from, System.currentTimeMillis() + 600_000);
        expectEquals(9, all.getMessageList().size(), "messages of the common key");
        QueryResult one = scene.admin().queryMessage(scene.topic, "key3", 64, from, System.currentTimeMillis() + 600_000);
        expectEquals("m3", Scene.text(one.getMessageList().get(0).getBody()), "body");
        try {
            scene.admin().queryMessage(scene.topic, "nobody", 64, from, System.currentTimeMillis() + 600_000);
            throw new AssertionError("found a key nobody used");
        } catch (MQClientException e) {
            expectEquals(ResponseCode.NO_MESSAGE, e.getResponseCode(), "code for an unknown key");
        }
        return detail("found", all.getMessageList().size());
    }

    private static Map<String, Object> queryByUniqueId(Scene scene) throws Exception {
        scene.createTopic(1);
        SendResult sent = scene.producer().send(new Message(scene.topic, utf8("find me")));
        MessageExt seen = scene.admin().viewMessage(scene.topic, sent.getMsgId());
        expectEquals("find me", Scene.text(seen.getBody()), "body");
        expectEquals(sent.getMsgId(), seen.getMsgId(), "id");
        return detail("id", seen.getMsgId());
    }
}

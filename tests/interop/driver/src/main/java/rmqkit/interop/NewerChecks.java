package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What only the 5.x client can do. */
final class NewerChecks {
    private NewerChecks() {
    }

    static void register() {
        Driver.add("basic", "send_compressed", NewerChecks::compressed);
        Driver.add("lists", "admin_lists", NewerChecks::lists);
        Driver.add("reset", "admin_reset_queue", NewerChecks::resetQueue);
        Driver.add("diagnosis", "admin_group_views", NewerChecks::groupViews);
        Driver.add("basic", "push_heartbeat_v2", NewerChecks::heartbeatV2);
    }

    private static Map<String, Object> compressed(Scene scene) throws Exception {
        scene.createTopic(1);
        byte[] regular = Scene.utf8(String.join("", Collections.nCopies(4096, "0123456789abcdef")));
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer producer = scene.producer();
            producer.setCompressType(type);
            producer.send(new Message(scene.topic, regular));
        }
        List<MessageExt> got = Reading.all(scene);
        expectEquals(CompressionType.values().length, got.size(), "messages");
        for (MessageExt message : got) {
            expect(Arrays.equals(regular, message.getBody()), "body of " + message.getQueueOffset());
            expect(message.getStoreSize() < regular.length / 4, "stored compressed: " + message.getStoreSize());
        }
        return detail("types", Arrays.toString(CompressionType.values()));
    }

    /** The client sends its subscriptions only when they change; the broker keeps them all the time. */
    private static Map<String, Object> heartbeatV2(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.beginGroup();
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        Queue<String> got = new ConcurrentLinkedQueue<>();
        consumer.setUseHeartbeatV2(true);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.subscribe(scene.topic, "TagA");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(Scene.text(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQAdminExt admin = scene.admin();
        int polls = 50;
        for (int i = 0; i < polls; i++) {
            Set<String> topics = admin.examineConsumerConnectionInfo(scene.group).getSubscriptionTable().keySet();
            expect(topics.contains(scene.topic), "subscribed at poll " + i + ": " + topics);
            Thread.sleep(100);
        }
        scene.producer().send(new Message(scene.topic, "TagA", Scene.utf8("m")));
        await("the message", () -> got.contains("m"), got::size);
        consumer.shutdown();
        return detail("polls", polls);
    }

    /** Several topics (18) and several groups (225) by one request each. */
    private static Map<String, Object> lists(Scene scene) throws Exception {
        DefaultMQAdminExt admin = scene.admin();
        TopicConfig one = new TopicConfig(scene.topic + "_1");
        TopicConfig two = new TopicConfig(scene.topic + "_2");
        one.setReadQueueNums(3);
        two.setWriteQueueNums(5);
        admin.createAndUpdateTopicConfigList(scene.master(), Arrays.asList(one, two));
        expectEquals(3, admin.examineTopicConfig(scene.master(), one.getTopicName()).getReadQueueNums(), "read queues");
        expectEquals(5, admin.examineTopicConfig(scene.master(), two.getTopicName()).getWriteQueueNums(), "write queues");
        SubscriptionGroupConfig first = new SubscriptionGroupConfig();
        first.setGroupName(scene.group + "_1");
        first.setRetryMaxTimes(3);
        SubscriptionGroupConfig second = new SubscriptionGroupConfig();
        second.setGroupName(scene.group + "_2");
        admin.createAndUpdateSubscriptionGroupConfigList(scene.master(), Arrays.asList(first, second));
        expectEquals(3, admin.examineSubscriptionGroupConfig(scene.master(), first.getGroupName()).getRetryMaxTimes(), "retries");
        expectEquals(16, admin.examineSubscriptionGroupConfig(scene.master(), second.getGroupName()).getRetryMaxTimes(), "retries");
        return detail("topics", 2, "groups", 2);
    }

    /** One queue of an online group is set to an offset of the middle. */
    private static Map<String, Object> resetQueue(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.beginGroup();
        scene.send(scene.producer(), "m", 10);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("all messages", () -> new HashSet<>(member.got).size() == 10, member.got::size);
        MessageQueue queue = scene.queues().iterator().next();
        scene.admin().resetOffsetByQueueId(scene.master(), scene.group, scene.topic, queue.getQueueId(), 7);
        await("three messages again", () -> member.got.size() >= 13, member.got::size);
        member.consumer.shutdown();
        expectEquals(new TreeSet<>(Arrays.asList("m7", "m8", "m9")), new TreeSet<>(new ArrayList<>(member.got).subList(10, 13)),
            "what came again");
        return detail("got", member.got.size());
    }

    /** What a group reads and where it is: topics, subscription, the span of time in each queue, offsets that members have. */
    private static Map<String, Object> groupViews(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.beginGroup();
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "TagA || TagB", MessageModel.CLUSTERING);
        await("queues", () -> member.queues().size() == 2);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 6; i++) {
            producer.send(new Message(scene.topic, "TagA", Scene.utf8("m" + i)));
        }
        await("all messages", () -> new HashSet<>(member.got).size() == 6, member.got::size);
        DefaultMQAdminExt admin = scene.admin();
        expect(admin.queryTopicsByConsumer(scene.group).getTopicList().contains(scene.topic), "topics of the group");
        expectEquals("TagA || TagB", admin.querySubscription(scene.group, scene.topic).getSubString(), "subscription");
        expectEquals(2, admin.queryConsumeTimeSpan(scene.topic, scene.group).size(), "spans");
        Map<String, Map<MessageQueue, Long>> status = admin.getConsumeStatus(scene.topic, scene.group, "");
        expectEquals(Collections.singleton(member.consumer.buildMQClientId()), status.keySet(), "clients");
        expectEquals(6L, status.values().iterator().next().values().stream().mapToLong(offset -> offset).sum(), "offsets of the client");
        return detail("clients", status.size());
    }
}

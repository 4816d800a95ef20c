package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Batches, and topics with queue.type=BatchCQ: there a batch is one record, which consumers unwrap.
 *
 * <p>The facts are those of Apache's BatchSendIT, except testBatchSend_CompressionBody: client 5.5.0
 * compresses no batches. Its brokers return up to 1024 messages a pull, these return up to 32 and the
 * rest of a batch.
 */
@SuppressWarnings("deprecation")
final class BatchChecks {
    private static final int SIZE = 10;

    private BatchChecks() {
    }

    static void register() {
        Driver.add("batches", "batch_outer", BatchChecks::outer);
        Driver.add("batches", "batch_view", BatchChecks::view);
        Driver.add("batches", "batch_inner", BatchChecks::inner);
        Driver.add("batches", "batch_inner_consumers", BatchChecks::consumers);
        Driver.add("batches", "batch_inner_retry", BatchChecks::retry);
        Driver.add("batches", "batch_without_id", BatchChecks::withoutId);
        Driver.add("batches", "batch_properties", BatchChecks::properties);
        Driver.add("batches", "batch_topic_type", BatchChecks::topicType);
    }

    private static void createBatchTopic(Scene scene, int queues) throws Exception {
        createTopic(scene, queues, "BatchCQ");
    }

    private static void createTopic(Scene scene, int queues, String type) throws Exception {
        scene.admin().createAndUpdateTopicConfig(scene.master(), withType(scene.topic, queues, type));
        await("route of " + scene.topic, () -> {
            try {
                return !scene.admin().examineTopicRouteInfo(scene.topic).getQueueDatas().isEmpty();
            } catch (Exception e) {
                return false;
            }
        });
    }

    private static TopicConfig withType(String topic, int queues, String type) {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        config.setAttributes(new java.util.HashMap<>(Collections.singletonMap("+queue.type", type)));
        return config;
    }

    private static List<Message> batch(Scene scene, int first) {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < SIZE; i++) {
            messages.add(new Message(scene.topic, utf8("m" + (first + i))));
        }
        return messages;
    }

    /** Sends SIZE batches; the broker answers each with {@code ids} ids of either kind. */
    private static void sendBatches(Scene scene, MessageQueue queue, int ids) throws Exception {
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < SIZE; i++) {
            SendResult result = producer.send(batch(scene, i * SIZE), queue);
            expectEquals(SendStatus.SEND_OK, result.getSendStatus(), "status");
            expectEquals(queue.getQueueId(), result.getMessageQueue().getQueueId(), "queue");
            expectEquals((long) i * SIZE, result.getQueueOffset(), "offset of a batch");
            expectEquals(ids, result.getMsgId().split(",").length, "ids of a batch");
            expectEquals(ids, result.getOffsetMsgId().split(",").length, "offset ids of a batch");
        }
    }

    /** Pulls from offset 5, in the middle of the first batch, to the end. */
    private static List<MessageExt> pullFromFive(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        List<MessageExt> got = new ArrayList<>();
        long next = 5;
        while (next < SIZE * SIZE) {
            PullResult result = consumer.pullBlockIfNotFound(queue, "*", next, SIZE * SIZE);
            expectEquals(PullStatus.FOUND, result.getPullStatus(), "status of a pull");
            expectEquals(0L, result.getMinOffset(), "min");
            expectEquals((long) SIZE * SIZE, result.getMaxOffset(), "max");
            got.addAll(result.getMsgFoundList());
            next = result.getNextBeginOffset();
        }
        return got;
    }

    /** testBatchSend_SysOuterBatch: with queue.type=SimpleCQ each message is a record. */
    private static Map<String, Object> outer(Scene scene) throws Exception {
        createTopic(scene, 1, "SimpleCQ");
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        expectEquals(0L, consumer.minOffset(queue), "min of an empty queue");
        expectEquals(0L, consumer.maxOffset(queue), "max of an empty queue");
        sendBatches(scene, queue, SIZE);
        List<MessageExt> got = pullFromFive(consumer, queue);
        expectEquals(SIZE * SIZE - 5, got.size(), "messages from offset 5 on");
        for (int i = 0; i < got.size(); i++) {
            expectEquals((long) i + 5, got.get(i).getQueueOffset(), "offset");
            expectEquals("m" + (i + 5), Scene.text(got.get(i).getBody()), "body");
            expectEquals(scene.topic, got.get(i).getTopic(), "topic");
            expectEquals(queue.getQueueId(), got.get(i).getQueueId(), "queue");
        }
        return detail("messages", got.size());
    }

    /** testBatchSend_ViewMessage: each message of a batch is found by both of its ids, and by its keys. */
    private static Map<String, Object> view(Scene scene) throws Exception {
        scene.createTopic(1);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            messages.add(new Message(scene.topic, "TagA", String.format("key%03d all", i), utf8("m" + i)));
        }
        DefaultMQProducer producer = scene.producer();
        SendResult result = producer.send(messages);
        expectEquals(SendStatus.SEND_OK, result.getSendStatus(), "status");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        String[] ids = result.getMsgId().split(",");
        expectEquals(100, offsetIds.length, "offset ids");
        expectEquals(100, ids.length, "ids");
        await("the last message by its id", () -> {
            try {
                return producer.viewMessage(scene.topic, ids[99]) != null;
            } catch (MQClientException e) {
                return false;
            }
        });
        for (int i = 0; i < 100; i++) {
            expectEquals("m" + i, Scene.text(producer.viewMessage(scene.topic, offsetIds[i]).getBody()), "by offset id");
            expectEquals("m" + i, Scene.text(producer.viewMessage(scene.topic, ids[i]).getBody()), "by id");
        }
        long end = System.currentTimeMillis() + 3_600_000;
        for (int i = 0; i < 100; i += 33) {
            List<MessageExt> found = producer.queryMessage(scene.topic, String.format("key%03d", i), 9, 0, end).getMessageList();
            expectEquals(1, found.size(), "messages of a key");
            expectEquals("m" + i, Scene.text(found.get(0).getBody()), "by key");
        }
        expectEquals(64, producer.queryMessage(scene.topic, "all", 64, 0, end).getMessageList().size(), "messages of the shared key");
        return detail("views", 200);
    }

    private static Map<String, Object> inner(Scene scene) throws Exception {
        createBatchTopic(scene, 1);
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        expectEquals(-1L, consumer.minOffset(queue), "min of an empty queue");
        expectEquals(0L, consumer.maxOffset(queue), "max of an empty queue");
        sendBatches(scene, queue, 1);
        List<MessageExt> got = pullFromFive(consumer, queue);
        expectEquals(SIZE * SIZE, got.size(), "messages from the middle of the first batch on");
        for (int i = 0; i < got.size(); i++) {
            MessageExt first = got.get(i / SIZE * SIZE);
            MessageExt message = got.get(i);
            expectEquals((long) i, message.getQueueOffset(), "offset");
            expectEquals("m" + i, Scene.text(message.getBody()), "body");
            expectEquals(scene.topic, message.getTopic(), "topic");
            expectEquals(queue.getQueueId(), message.getQueueId(), "queue");
            expectEquals(first.getBornHostString(), message.getBornHostString(), "born host");
            expectEquals(first.getBornTimestamp(), message.getBornTimestamp(), "born time");
            expectEquals(first.getStoreTimestamp(), message.getStoreTimestamp(), "store time");
            expectEquals(first.getCommitLogOffset(), message.getCommitLogOffset(), "record");
        }
        expectEquals(0L, consumer.minOffset(queue), "min");
        expectEquals((long) SIZE * SIZE, consumer.maxOffset(queue), "max");
        expectEquals(0L, consumer.searchOffset(queue, got.get(0).getStoreTimestamp()), "offset by the first time");
        long last = got.get(99).getStoreTimestamp();
        expectEquals(90L, consumer.searchOffset(queue, last + 1_000_000), "offset by a later time");
        PullResult none = consumer.pull(queue, "TagA", 12, 32);
        expectEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "a batch has no tags of its own");
        expectEquals((long) SIZE * SIZE, none.getNextBeginOffset(), "next without a match");
        return detail("messages", got.size());
    }

    private static Map<String, Object> consumers(Scene scene) throws Exception {
        createBatchTopic(scene, 2);
        ConsumeChecks.Member member =
            new ConsumeChecks.Member(scene, "*", org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel.CLUSTERING);
        await("all queues", () -> member.queues().size() == 2, member::queues);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 6; i++) {
            producer.send(batch(scene, i * SIZE));
        }
        producer.send(new Message(scene.topic, utf8("m60")));
        await("61 messages", () -> new HashSet<>(member.got).size() == 61, member.got::size);
        expectEquals(61, member.got.size(), "messages, none twice");
        DefaultLitePullConsumer lite = scene.litePullConsumer();
        lite.setAutoCommit(false);
        lite.start();
        lite.assign(lite.fetchMessageQueues(scene.topic));
        for (MessageQueue queue : lite.fetchMessageQueues(scene.topic)) {
            lite.seekToBegin(queue);
        }
        // The client may have pulled before the seek, so a batch can come twice.
        Set<String> polled = new HashSet<>();
        await("61 polled messages", () -> {
            lite.poll(500).forEach(message -> polled.add(Scene.text(message.getBody())));
            return polled.size() >= 61;
        }, polled::size);
        return detail("pushed", member.got.size(), "polled", polled.size());
    }

    /** The broker does not take back a part of a batch; the client sends the message to the retry topic. */
    private static Map<String, Object> retry(Scene scene) throws Exception {
        createBatchTopic(scene, 1);
        Queue<String> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String text = Scene.text(message.getBody());
            got.add(text + "/" + message.getReconsumeTimes());
            boolean fails = text.equals("m4") && message.getReconsumeTimes() == 0;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        scene.producer().send(batch(scene, 0));
        await("the message again", () -> got.contains("m4/1"), () -> got);
        expectEquals(SIZE + 1, got.size(), "messages: " + got);
        return detail("got", got.size());
    }

    /** A client before 5.0 sends a batch without an id: its messages are records. */
    private static Map<String, Object> withoutId(Scene scene) throws Exception {
        createBatchTopic(scene, 1);
        DefaultMQProducer producer = scene.producer();
        dropBatchIds(producer);
        SendResult result = producer.send(batch(scene, 0));
        expectEquals(SIZE, result.getOffsetMsgId().split(",").length, "offset ids");
        expectEquals(SIZE, result.getMsgId().split(",").length, "ids");
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        PullResult some = consumer.pullBlockIfNotFound(queue, "*", 5, 32);
        expectEquals(5, some.getMsgFoundList().size(), "messages");
        expectEquals(5L, some.getMsgFoundList().get(0).getQueueOffset(), "first offset");
        return detail("next", some.getNextBeginOffset());
    }

    private static Map<String, Object> properties(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        dropBatchIds(producer);
        Message message = new Message(scene.topic, "tags123", "keys123", utf8("body"));
        message.setWaitStoreMsgOK(false);
        message.setBuyerId("buyerid123");
        message.setFlag(123);
        SendResult result = producer.send(new ArrayList<>(Collections.singletonList(message)));
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        List<MessageExt> found = new ArrayList<>(consumer.pullBlockIfNotFound(queue, "*", 0, 32).getMsgFoundList());
        found.add(producer.viewMessage(scene.topic, result.getOffsetMsgId()));
        await("the message by its id", () -> {
            try {
                return found.add(producer.viewMessage(scene.topic, result.getMsgId()));
            } catch (MQClientException e) {
                return false;
            }
        });
        for (MessageExt each : found) {
            expectEquals("keys123", each.getKeys(), "keys");
            expectEquals("tags123", each.getTags(), "tags");
            expectEquals("buyerid123", each.getBuyerId(), "buyer");
            expectEquals(123, each.getFlag(), "flag");
            expect(!each.isWaitStoreMsgOK(), "it did not wait: " + each);
        }
        return detail("views", found.size());
    }

    private static Map<String, Object> topicType(Scene scene) throws Exception {
        createBatchTopic(scene, 1);
        TopicConfig config = scene.admin().examineTopicConfig(scene.master(), scene.topic);
        expectEquals("BatchCQ", config.getAttributes().get("queue.type"), "attribute");
        try {
            scene.admin().createAndUpdateTopicConfig(scene.master(), withType(scene.topic, 1, "SimpleCQ"));
        } catch (Exception e) {
            expectEquals("BatchCQ",
                scene.admin().examineTopicConfig(scene.master(), scene.topic).getAttributes().get("queue.type"), "unchanged");
            return detail("refused", String.valueOf(e.getMessage()));
        }
        throw new AssertionError("the type of the queues was changed");
    }

    private static void dropBatchIds(DefaultMQProducer producer) {
        producer.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
            @Override
            public String hookName() {
                return "no-batch-id";
            }

            @Override
            public void sendMessageBefore(SendMessageContext context) {
                context.getMessage().getProperties().remove(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
            }

            @Override
            public void sendMessageAfter(SendMessageContext context) {
            }
        });
    }
}

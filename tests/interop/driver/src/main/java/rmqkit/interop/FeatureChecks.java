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
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** SQL92 filters, ordered groups, dead letters, offset reset, request and reply, trace: each a group of its own. */
@SuppressWarnings("deprecation")
final class FeatureChecks {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";

    private FeatureChecks() {
    }

    static void register() {
        Driver.add("sql", "push_sql_filter", FeatureChecks::pushSql);
        Driver.add("sql", "pull_sql_filter", FeatureChecks::pullSql);
        Driver.add("sql", "sql_refused", FeatureChecks::sqlRefused);
        Driver.add("orderly", "push_orderly_suspend", FeatureChecks::orderlySuspend);
        Driver.add("orderly", "push_orderly_two_members", FeatureChecks::orderlyTwoMembers);
        Driver.add("retry", "push_retry_dlq", FeatureChecks::retryUntilDead);
        Driver.add("reset", "admin_reset_offset", FeatureChecks::resetOffset);
        Driver.add("request", "request_reply", FeatureChecks::requestReply);
        Driver.add("trace", "trace", FeatureChecks::trace);
        Driver.add("diagnosis", "consume_message_directly", FeatureChecks::consumeDirectly);
    }

    /** Twelve messages with the properties n (0 to 11) and kind ("even" or "odd"); every third has no n. */
    private static void sendNumbered(Scene scene) throws Exception {
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 12; i++) {
            Message message = new Message(scene.topic, "Tag" + "AB".charAt(i % 2), utf8("m" + i));
            if (i % 3 != 2) {
                message.putUserProperty("n", Integer.toString(i));
            }
            message.putUserProperty("kind", i % 2 == 0 ? "even" : "odd");
            producer.send(message);
        }
    }

    private static Map<String, Object> pushSql(Scene scene) throws Exception {
        scene.createTopic(2);
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.subscribe(scene.topic, MessageSelector.bySql("n > 3 AND kind = 'even' OR TAGS = 'TagB' AND n IS NULL"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(Scene.text(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        sendNumbered(scene);
        // n is there for 0 1 3 4 6 7 9 10; odd and without n: 5 and 11.
        Set<String> wanted = new TreeSet<>(java.util.Arrays.asList("m4", "m6", "m10", "m5", "m11"));
        await("the chosen messages", () -> got.containsAll(wanted), () -> got);
        expectEquals(wanted, new TreeSet<>(got), "what the filter let through");
        return detail("got", got.size());
    }

    private static Map<String, Object> pullSql(Scene scene) throws Exception {
        scene.createTopic(1);
        sendNumbered(scene);
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        // The client learns that the broker knows SQL92 from the answer to a heartbeat.
        consumer.pull(queue, "*", 0, 1);
        await("an answered heartbeat", () -> {
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            try {
                consumer.pull(queue, MessageSelector.bySql("n > 0"), 0, 32);
                return true;
            } catch (MQClientException e) {
                return false;
            }
        });
        PullResult some = consumer.pull(queue, MessageSelector.bySql("n BETWEEN 6 AND 9 AND kind IN ('odd', 'other')"), 0, 32);
        expectEquals(PullStatus.FOUND, some.getPullStatus(), "status");
        expectEquals(new TreeSet<>(java.util.Arrays.asList("m7", "m9")), Reading.texts(some.getMsgFoundList()), "chosen");
        expectEquals(12L, some.getNextBeginOffset(), "next");
        PullResult none = consumer.pull(queue, MessageSelector.bySql("n > 1000"), 0, 32);
        expectEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "status without a match");
        return detail("matched", some.getMsgFoundList().size());
    }

    /** A push consumer with an expression that does not parse is refused as it starts (CHECK_CLIENT_CONFIG). */
    private static Map<String, Object> sqlRefused(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.subscribe(scene.topic, MessageSelector.bySql("n > > 3"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
        } catch (MQClientException e) {
            expectEquals(ResponseCode.SUBSCRIPTION_PARSE_FAILED, e.getResponseCode(), "code of a bad expression");
            return detail("said", e.getErrorMessage());
        }
        throw new AssertionError("a bad expression was taken");
    }

    private static Map<String, Object> orderlySuspend(Scene scene) throws Exception {
        scene.createTopic(1);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(scene.topic, "*");
        AtomicInteger refusals = new AtomicInteger(2);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            String body = Scene.text(messages.get(0).getBody());
            got.add(body + "#" + messages.get(0).getReconsumeTimes());
            if (body.equals("m1") && refusals.getAndDecrement() > 0) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        scene.send(scene.producer(), "m", 3);
        await("the last", () -> got.contains("m2#0"), () -> got);
        expectEquals(java.util.Arrays.asList("m0#0", "m1#0", "m1#1", "m1#2", "m2#0"), new ArrayList<>(got), "deliveries");
        return detail("got", got);
    }

    /** A second member takes over some queues; each queue's messages stay in order, whoever has it. */
    private static Map<String, Object> orderlyTwoMembers(Scene scene) throws Exception {
        scene.createTopic(4);
        Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
        AtomicInteger[] share = {new AtomicInteger(), new AtomicInteger()};
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        for (int who = 0; who < 2; who++) {
            AtomicInteger mine = share[who];
            members[who] = scene.pushConsumer();
            members[who].subscribe(scene.topic, "*");
            members[who].registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    seen.computeIfAbsent(message.getQueueId(), id -> Collections.synchronizedList(new ArrayList<>()))
                        .add(Integer.parseInt(Scene.text(message.getBody())));
                    mine.incrementAndGet();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        }
        members[0].start();
        DefaultMQProducer producer = scene.producer();
        int number = sendByQueue(scene, producer, 0, 80);
        await("messages for one", () -> share[0].get() >= 80, share[0]::get);
        members[1].start();
        await("two queues each", () -> queuesOf(members[0], scene) == 2 && queuesOf(members[1], scene) == 2,
            () -> queuesOf(members[0], scene) + " " + queuesOf(members[1], scene));
        sendByQueue(scene, producer, number, 80);
        await("messages for two", () -> share[1].get() >= 40 && distinct(seen) == 160, () -> distinct(seen));
        for (Map.Entry<Integer, List<Integer>> queue : seen.entrySet()) {
            List<Integer> once = new ArrayList<>(new java.util.LinkedHashSet<>(queue.getValue()));
            List<Integer> sorted = new ArrayList<>(once);
            Collections.sort(sorted);
            expectEquals(sorted, once, "order in queue " + queue.getKey());
        }
        return detail("first", share[0].get(), "second", share[1].get());
    }

    private static int sendByQueue(Scene scene, DefaultMQProducer producer, int from, int count) throws Exception {
        for (int i = from; i < from + count; i++) {
            producer.send(new Message(scene.topic, utf8(Integer.toString(i))),
                (queues, message, arg) -> queues.stream().filter(q -> q.getQueueId() == (Integer) arg).findFirst().get(), i % 4);
        }
        return from + count;
    }

    private static long queuesOf(DefaultMQPushConsumer member, Scene scene) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(scene.topic)).count();
    }

    private static int distinct(Map<Integer, List<Integer>> seen) {
        Set<Integer> all = new HashSet<>();
        seen.values().forEach(list -> {
            synchronized (list) {
                all.addAll(list);
            }
        });
        return all.size();
    }

    private static Map<String, Object> retryUntilDead(Scene scene) throws Exception {
        scene.createTopic(1);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            got.add(Scene.text(message.getBody()) + "#" + message.getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        Message sent = new Message(scene.topic, "TagD", "dead-key", utf8("m"));
        sent.putUserProperty("color", "red");
        SendResult result = scene.producer().send(sent);
        String dead = "%DLQ%" + scene.group;
        await("the dead letter", () -> stored(scene, dead) == 1, () -> got);
        expectEquals(java.util.Arrays.asList("m#0", "m#1", "m#2"), new ArrayList<>(got), "deliveries");
        MessageExt letter = scene.admin().queryMessage(dead, "dead-key", 8, 0, System.currentTimeMillis() + 600_000)
            .getMessageList().get(0);
        expectEquals("m", Scene.text(letter.getBody()), "body");
        expectEquals(dead, letter.getTopic(), "topic");
        expectEquals("red", letter.getUserProperty("color"), "property");
        expectEquals(scene.topic, letter.getProperty("RETRY_TOPIC"), "where it came from");
        expectEquals(result.getOffsetMsgId(), letter.getProperty("ORIGIN_MESSAGE_ID"), "which it was");
        return detail("got", got);
    }

    private static long stored(Scene scene, String topic) {
        try {
            return scene.admin().examineTopicStats(topic).getOffsetTable().values().stream()
                .mapToLong(offset -> offset.getMaxOffset() - offset.getMinOffset()).sum();
        } catch (Exception e) {
            return 0;
        }
    }

    /** A group that is online is set back to the beginning and is given everything again. */
    private static Map<String, Object> resetOffset(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.beginGroup();
        scene.send(scene.producer(), "m", 10);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("all messages", () -> new HashSet<>(member.got).size() == 10, member.got::size);
        member.consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        await("they are committed", () -> behind(scene) == 0, () -> behind(scene));
        Map<MessageQueue, Long> to = scene.admin().resetOffsetByTimestamp(scene.topic, scene.group, 0, true);
        expectEquals(scene.queues(), new TreeSet<>(to.keySet()), "queues that were reset");
        expect(to.values().stream().allMatch(offset -> offset == 0), "offsets " + to);
        await("all messages again", () -> member.got.size() >= 20, member.got::size);
        member.consumer.shutdown();
        List<String> again = new ArrayList<>(member.got).subList(10, 20);
        expectEquals(Scene.bodies("m", 10), new TreeSet<>(again), "what came again");
        return detail("got", member.got.size());
    }

    private static long behind(Scene scene) throws Exception {
        return scene.admin().examineConsumeStats(scene.group).getOffsetTable().entrySet().stream()
            .filter(entry -> entry.getKey().getTopic().equals(scene.topic))
            .mapToLong(entry -> entry.getValue().getBrokerOffset() - entry.getValue().getConsumerOffset()).sum();
    }

    private static Map<String, Object> requestReply(Scene scene) throws Exception {
        scene.createTopic(2);
        DefaultMQProducer answering = scene.producer();
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.subscribe(scene.topic, "*");
        AtomicInteger silent = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (Scene.text(message.getBody()).startsWith("silent")) {
                    silent.incrementAndGet();
                    continue;
                }
                try {
                    answering.send(MessageUtil.createReplyMessage(message, utf8("re: " + Scene.text(message.getBody()))), 10_000);
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await("queues", () -> queuesOf(consumer, scene) == 2);
        DefaultMQProducer asking = scene.producer();
        // A reply is pushed to the client that asks, which a broker knows by its heartbeats.
        asking.send(new Message(scene.topic, utf8("silent, to learn the route")));
        answering.send(new Message(scene.topic, utf8("silent too")));
        scene.awaitProducers(2, asking, answering);
        // A new share of the queues is a new version of the subscription, which a heartbeat tells the broker. The client
        // leaves this heartbeat out if another one is under way. Until the next one, 30 s later, its pulls are refused.
        await("the first messages", () -> {
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            return silent.get() >= 2;
        }, silent::get);
        for (int i = 0; i < 3; i++) {
            Message reply = asking.request(new Message(scene.topic, utf8("ask " + i)), 20_000);
            expectEquals("re: ask " + i, Scene.text(reply.getBody()), "reply");
        }
        AtomicReference<String> later = new AtomicReference<>();
        CountDownLatch done = new CountDownLatch(1);
        asking.request(new Message(scene.topic, utf8("call me")), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                later.set(Scene.text(message.getBody()));
                done.countDown();
            }

            @Override
            public void onException(Throwable e) {
                later.set(e.toString());
                done.countDown();
            }
        }, 20_000);
        expect(done.await(30, TimeUnit.SECONDS), "no callback");
        expectEquals("re: call me", later.get(), "reply to the callback");
        try {
            asking.request(new Message(scene.topic, utf8("silent")), 2_000);
            throw new AssertionError("a reply nobody sent");
        } catch (RequestTimeoutException e) {
            return detail("replies", 4, "unanswered", e.getErrorMessage());
        }
    }

    /** A traced producer and a traced consumer leave their traces in the trace topic. */
    private static Map<String, Object> trace(Scene scene) throws Exception {
        scene.createTopic(1);
        String key = "traced" + System.nanoTime();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(scene.group, null, new AllocateMessageQueueAveragely(), true, null);
        scene.atEnd(consumer::shutdown);
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.setInstanceName("interop-traced-consumer");
        consumer.subscribe(scene.topic, "*");
        CountDownLatch consumed = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await("a queue", () -> queuesOf(consumer, scene) == 1);
        DefaultMQProducer producer = new DefaultMQProducer("p" + scene.group, null, true, null);
        scene.atEnd(producer::shutdown);
        producer.setNamesrvAddr(scene.namesrv);
        producer.setInstanceName("interop-traced-producer");
        producer.setSendMsgTimeout(10_000);
        producer.start();
        SendResult sent = producer.send(new Message(scene.topic, "T", key, utf8("traced")));
        expect(consumed.await(60, TimeUnit.SECONDS), "consumed");
        // A trace is found by the unique id of its message: the trace's KEYS hold it.
        Set<String> kinds = new TreeSet<>();
        await("traces of sending and of consuming", () -> {
            try {
                scene.admin().queryMessage(TRACE_TOPIC, sent.getMsgId(), 32, 0, System.currentTimeMillis() + 600_000)
                    .getMessageList().forEach(trace -> {
                        for (String line : Scene.text(trace.getBody()).split("\u0002")) {
                            kinds.add(line.split("\u0001")[0]);
                        }
                    });
            } catch (MQClientException e) {
                return false;
            }
            return kinds.containsAll(java.util.Arrays.asList("Pub", "SubBefore", "SubAfter"));
        }, () -> kinds);
        return detail("kinds", kinds);
    }

    /** An administrator has one member of a group consume a stored message once more. */
    private static Map<String, Object> consumeDirectly(Scene scene) throws Exception {
        scene.createTopic(1);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("a queue", () -> member.queues().size() == 1);
        SendResult sent = scene.producer().send(new Message(scene.topic, utf8("once more")));
        await("the message", () -> member.got.size() == 1);
        String said = scene.admin().consumeMessageDirectly(scene.group, member.consumer.buildMQClientId(), scene.topic, sent.getMsgId())
            .getConsumeResult().toString();
        expectEquals("CR_SUCCESS", said, "result");
        expectEquals(2, member.got.size(), "deliveries");
        return detail("said", said);
    }
}

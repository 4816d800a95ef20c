package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Orderly consumption, redelivery, delay and transactions, each a group of its own: a broker may lack one. */
@SuppressWarnings("deprecation")
final class LaterChecks {
    private LaterChecks() {
    }

    static void register() {
        Driver.add("orderly", "push_orderly", LaterChecks::orderly);
        Driver.add("retry", "push_retry", LaterChecks::retry);
        Driver.add("delay", "send_delay_level", LaterChecks::delayLevel);
        Driver.add("timer", "send_timer_property", LaterChecks::timerProperty);
        Driver.add("transaction", "send_transaction", LaterChecks::transaction);
        Driver.add("sample", "store_sample", LaterChecks::storeSample);
        Driver.add("diagnosis", "consumer_running_info", LaterChecks::runningInfo);
    }

    private static Map<String, Object> orderly(Scene scene) throws Exception {
        scene.createTopic(2);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> got.add(Scene.text(message.getBody())));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 40; i++) {
            producer.send(new Message(scene.topic, utf8(String.format("%d-%02d", i % 2, i))),
                (queues, message, arg) -> queues.stream().filter(q -> q.getQueueId() == (Integer) arg).findFirst().get(), i % 2);
        }
        await("40 messages", () -> got.size() >= 40, got::size);
        for (String side : new String[] {"0-", "1-"}) {
            List<String> seen = new ArrayList<>();
            got.stream().filter(body -> body.startsWith(side)).forEach(seen::add);
            List<String> sorted = new ArrayList<>(seen);
            Collections.sort(sorted);
            expectEquals(sorted, seen, "order in a queue");
        }
        consumer.shutdown();
        return detail("got", got.size());
    }

    private static Map<String, Object> retry(Scene scene) throws Exception {
        scene.createTopic(1);
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            got.add(Scene.text(message.getBody()) + "#" + message.getReconsumeTimes() + " " + message.getTopic());
            context.setDelayLevelWhenNextConsume(1);
            return message.getReconsumeTimes() < 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        scene.send(scene.producer(), "m", 1);
        await("the second delivery", () -> got.size() == 2, () -> got);
        expectEquals("m0#0 " + scene.topic, got.get(0), "first delivery");
        expectEquals("m0#1 " + scene.topic, got.get(1), "second delivery");
        return detail("got", got);
    }

    private static Map<String, Object> delayLevel(Scene scene) throws Exception {
        scene.createTopic(1);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("a queue", () -> member.queues().size() == 1);
        Message message = new Message(scene.topic, utf8("later"));
        message.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        scene.producer().send(message);
        await("the delayed message", () -> !member.got.isEmpty());
        long waited = System.currentTimeMillis() - sent;
        expect(waited >= 4_500, "delivered after " + waited + " ms");
        return detail("waited_ms", waited);
    }

    /** A delivery time by its property, as clients without an API for it set it. */
    private static Map<String, Object> timerProperty(Scene scene) throws Exception {
        scene.createTopic(1);
        Message message = new Message(scene.topic, utf8("later"));
        MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "2");
        long sent = System.currentTimeMillis();
        scene.producer().send(message);
        await("the message", () -> scene.messagesStored() == 1, scene::messagesStored);
        long waited = Reading.all(scene).get(0).getStoreTimestamp() - sent;
        expect(waited >= 2_000, "delivered after " + waited + " ms");
        return detail("waited_ms", waited);
    }

    private static Map<String, Object> transaction(Scene scene) throws Exception {
        scene.createTopic(1);
        TransactionMQProducer producer = new TransactionMQProducer("t" + scene.group, Scene.hook());
        producer.setNamesrvAddr(scene.namesrv);
        producer.setInstanceName("interop-transaction");
        AtomicInteger checks = new AtomicInteger();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
                return (LocalTransactionState) outcome;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            producer.sendMessageInTransaction(new Message(scene.topic, utf8("yes")), LocalTransactionState.COMMIT_MESSAGE);
            producer.sendMessageInTransaction(new Message(scene.topic, utf8("no")), LocalTransactionState.ROLLBACK_MESSAGE);
            producer.sendMessageInTransaction(new Message(scene.topic, utf8("ask")), LocalTransactionState.UNKNOW);
            await("two messages", () -> scene.messagesStored() == 2, scene::messagesStored);
        } finally {
            producer.shutdown();
        }
        expectEquals(new java.util.TreeSet<>(java.util.Arrays.asList("ask", "yes")), Reading.texts(Reading.all(scene)), "stored");
        return detail("checks", checks.get());
    }

    /** Messages of every kind with fixed names and bodies: what `tests/store/golden` is recorded from. */
    private static Map<String, Object> storeSample(Scene scene) throws Exception {
        String topic = "SampleTopic";
        scene.createTopic(topic, 2);
        DefaultMQProducer producer = scene.producer();
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            queues.add(new MessageQueue(topic, scene.admin().examineTopicRouteInfo(topic).getQueueDatas().get(0).getBrokerName(), i));
        }
        for (int i = 0; i < 6; i++) {
            Message message = new Message(topic, "Tag" + "ABC".charAt(i % 3), "order-" + i + " sample", utf8("message " + i));
            message.putUserProperty("index", Integer.toString(i));
            producer.send(message, queues.get(i % 2));
        }
        producer.send(new Message(topic, utf8("without tag or key")), queues.get(0));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            batch.add(new Message(topic, "TagBatch", "batch-" + i, utf8("of a batch " + i)));
        }
        producer.send(batch, queues.get(1));
        producer.send(new Message(topic, "TagZip", "zip", utf8(String.join("", Collections.nCopies(1024, "compress ")))), queues.get(0));
        Message unicode = new Message(topic, "标签", "ключ", utf8("grüße 世界"));
        producer.send(unicode, queues.get(1));
        Message delayed = new Message(topic, "TagDelay", "delay", utf8("after the delay"));
        delayed.setDelayTimeLevel(1);
        producer.send(delayed, queues.get(0));
        Message parked = new Message(topic, "TagDelay", "parked", utf8("two hours from now"));
        parked.setDelayTimeLevel(18);
        producer.send(parked, queues.get(0));
        await("the delayed message", () -> scene.admin().maxOffset(queues.get(0)) == 6, () -> scene.admin().maxOffset(queues.get(0)));
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("SampleGroup");
        scene.admin().createAndUpdateSubscriptionGroupConfig(scene.master(), group);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("SampleGroup");
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.start();
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queues.get(0), 4, false);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queues.get(1), 2, false);
        consumer.shutdown();
        return detail("queue_0", 6, "queue_1", scene.admin().maxOffset(queues.get(1)));
    }

    private static Map<String, Object> runningInfo(Scene scene) throws Exception {
        scene.createTopic(1);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("a queue", () -> member.queues().size() == 1);
        ConsumerRunningInfo info = scene.admin().getConsumerRunningInfo(scene.group, member.consumer.buildMQClientId(), false);
        expect(info.getMqTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(scene.topic)), "queues of the client");
        return detail("queues", info.getMqTable().size());
    }
}

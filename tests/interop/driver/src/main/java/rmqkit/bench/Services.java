package rmqkit.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Loads of the services beside plain sends: transactions, pop with acks, and messages with a delivery time. */
final class Services {
    private static final int BATCH = 32;
    private static final int IN_FLIGHT = 1024;
    private static final long TIMEOUT_MS = 10_000;
    private static final int FAILURES_MAX = 1000;
    /** Longer than any load: a message that comes twice is then an error of the broker. */
    private static final long INVISIBLE_MS = 300_000;
    private final Load load;
    private final Reads reads;
    private final DefaultMQProducer producer;
    private final DefaultMQAdminExt admin;

    Services(Load load, Reads reads, DefaultMQProducer producer, DefaultMQAdminExt admin) {
        this.load = load;
        this.reads = reads;
        this.producer = producer;
        this.admin = admin;
    }

    /**
     * `threads` that each send a half message and commit it, for `runMs`. The window ends when all committed messages can be
     * read, so that a broker that commits later than it is told to does not look faster.
     */
    Map<String, Object> transactions(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        byte[] body = Sends.body(asked.number("size", 1024));
        AtomicLong checks = new AtomicLong();
        TransactionMQProducer transactions = committing(checks);
        long before = load.count(topic);
        Window window = new Window(load);
        List<Thread> threads = new ArrayList<>();
        window.begin();
        for (int i = 0; i < asked.number("threads", 16); i++) {
            Thread thread = new Thread(() -> commitUntilTold(window, transactions, topic, body), "load-transactions-" + i);
            threads.add(thread);
            thread.start();
        }
        Thread.sleep(asked.number("runMs", 5000));
        window.running = false;
        for (Thread thread : threads) {
            thread.join();
        }
        long sentNanos = System.nanoTime();
        boolean whole = await(asked.number("waitMs", 60_000), () -> load.count(topic) - before >= window.done.sum());
        window.end();
        transactions.shutdown();
        Map<String, Object> result = new TreeMap<>(window.result());
        result.put("whole", whole);
        result.put("settleMs", (System.nanoTime() - sentNanos) / 1e6);
        result.put("readable", load.count(topic) - before);
        result.put("checks", checks.get());
        return result;
    }

    private TransactionMQProducer committing(AtomicLong checks) throws Exception {
        TransactionMQProducer transactions = new TransactionMQProducer("bench_transactions");
        transactions.setNamesrvAddr(load.namesrv);
        transactions.setInstanceName(load.instance + "-transactions");
        transactions.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        transactions.setSendMsgTimeout((int) TIMEOUT_MS);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
        return transactions;
    }

    private static void commitUntilTold(Window window, TransactionMQProducer transactions, String topic, byte[] body) {
        while (window.running) {
            long start = System.nanoTime();
            try {
                SendStatus status = transactions.sendMessageInTransaction(new Message(topic, body), null).getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    window.done.increment();
                    window.times.add(System.nanoTime() - start);
                } else {
                    window.failed(new IllegalStateException(status.name()));
                }
            } catch (Exception e) {
                window.failed(e);
            }
        }
    }

    /** `workers` that each pop up to 32 messages and ack every one of them, until `total` messages are acked. */
    Map<String, Object> pop(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        String group = asked.text("group");
        String broker = asked.text("broker");
        long total = asked.number("total", 50_000);
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        String brokerName = producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
        MQClientAPIImpl api = admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        Set<Long> seen = ConcurrentHashMap.newKeySet();
        AtomicLong popped = new AtomicLong();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(asked.number("waitMs", 120_000));
        Window window = new Window(load);
        List<Thread> threads = new ArrayList<>();
        window.begin();
        for (int i = 0; i < asked.number("workers", 8); i++) {
            Thread thread = new Thread(() -> {
                while (window.done.sum() < total && System.nanoTime() < deadline && window.failed.sum() < FAILURES_MAX) {
                    long start = System.nanoTime();
                    try {
                        List<MessageExt> messages = pop(api, brokerName, broker, topic, group);
                        popped.addAndGet(messages.size());
                        messages.forEach(each -> seen.add(((long) each.getQueueId() << 48) + each.getQueueOffset()));
                        ackAll(api, broker, topic, group, messages, window);
                        if (!messages.isEmpty()) {
                            window.times.add(System.nanoTime() - start);
                        }
                    } catch (Exception e) {
                        window.failed(e);
                    }
                }
            }, "load-pop-" + i);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        window.end();
        Map<String, Object> result = new TreeMap<>(window.result());
        result.put("popped", popped.get());
        result.put("distinct", seen.size());
        return result;
    }

    private static List<MessageExt> pop(MQClientAPIImpl api, String brokerName, String broker, String topic, String group)
        throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(BATCH);
        header.setInvisibleTime(INVISIBLE_MS);
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        CompletableFuture<PopResult> future = new CompletableFuture<>();
        api.popMessageAsync(brokerName, broker, header, TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        });
        PopResult result = future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        return result.getPopStatus() == PopStatus.FOUND ? result.getMsgFoundList() : Collections.emptyList();
    }

    /** One request for each message, as the push consumer in pop mode acks. */
    private static void ackAll(
        MQClientAPIImpl api, String broker, String topic, String group, List<MessageExt> messages, Window window
    ) throws Exception {
        CountDownLatch answers = new CountDownLatch(messages.size());
        for (MessageExt message : messages) {
            String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
            String[] words = ExtraInfoUtil.split(handle);
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(ExtraInfoUtil.getRealTopic(words, topic, group));
            header.setQueueId(ExtraInfoUtil.getQueueId(words));
            header.setOffset(ExtraInfoUtil.getQueueOffset(words));
            header.setExtraInfo(handle);
            api.ackMessageAsync(broker, TIMEOUT_MS, new AckCallback() {
                @Override
                public void onSuccess(AckResult result) {
                    if (result.getStatus() == AckStatus.OK) {
                        window.done.increment();
                    } else {
                        window.failed(new IllegalStateException("ack: " + result.getStatus()));
                    }
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    window.failed(error);
                    answers.countDown();
                }
            }, header);
        }
        if (!answers.await(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("acks without an answer");
        }
    }

    /** `total` messages as fast as they go, due from `inMs` on, spread evenly over `spreadMs`. */
    Map<String, Object> timers(Load.Command asked) throws Exception {
        Window window = new Window(load);
        long first = System.currentTimeMillis() + asked.number("inMs", 3_600_000);
        sendTimers(window, asked, first, asked.number("spreadMs", 0));
        return window.result();
    }

    private void sendTimers(Window window, Load.Command asked, long first, long spreadMs) throws Exception {
        String topic = asked.text("topic");
        long total = asked.number("total", 50_000);
        byte[] body = Sends.body(asked.number("size", 128));
        Semaphore room = new Semaphore(IN_FLIGHT);
        Sends sends = new Sends(load, producer);
        window.begin();
        for (long i = 0; i < total; i++) {
            room.acquire();
            Message message = new Message(topic, body);
            message.setDeliverTimeMs(first + i * spreadMs / total);
            sends.sendAsync(window, message, room, System.nanoTime());
        }
        Sends.awaitAnswers(room, IN_FLIGHT);
        window.end();
    }

    /**
     * `total` messages that are all due at the same second, `inMs` after the first is sent. The rate of delivery is from that
     * second until the last of them can be read.
     */
    Map<String, Object> burst(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        long before = load.count(topic);
        long due = (System.currentTimeMillis() + asked.number("inMs", 20_000)) / 1000 * 1000 + 1000;
        Window accepted = new Window(load);
        sendTimers(accepted, asked, due, 0);
        long dueNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(due - System.currentTimeMillis());
        if (System.nanoTime() > dueNanos) {
            throw new IllegalStateException("the messages were due before all of them were sent: a larger inMs, or fewer");
        }
        AtomicLong firstNanos = new AtomicLong(Long.MAX_VALUE);
        boolean whole = await(due - System.currentTimeMillis() + asked.number("waitMs", 120_000), () -> {
            long count = load.count(topic) - before;
            if (count > 0) {
                firstNanos.accumulateAndGet(System.nanoTime(), Math::min);
            }
            return count >= accepted.done.sum();
        });
        double seconds = (System.nanoTime() - dueNanos) / 1e9;
        Map<String, Object> result = new TreeMap<>(accepted.result());
        result.put("whole", whole);
        result.put("readable", load.count(topic) - before);
        result.put("firstMs", (firstNanos.get() - dueNanos) / 1e6);
        result.put("deliverSeconds", seconds);
        result.put("deliveredPerSecond", accepted.done.sum() / seconds);
        return result;
    }

    /**
     * Sends `rate` messages per second, each due `inMs` plus up to `spreadMs` later, while a consumer listens. A message's
     * lateness is from the time it is due to its listener, by one clock.
     */
    Map<String, Object> lateness(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        int rate = asked.number("rate", 1000);
        int spreadMs = asked.number("spreadMs", 3000);
        long total = (long) rate * asked.number("runMs", 5000) / 1000;
        AtomicLong early = new AtomicLong();
        AtomicLong received = new AtomicLong();
        Set<Long> seen = ConcurrentHashMap.newKeySet();
        Latencies late = new Latencies();
        DefaultMQPushConsumer consumer = reads.consumer(topic, asked.text("group"), (messages, context) -> {
            long now = System.currentTimeMillis();
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                long due = body.getLong();
                early.addAndGet(now < due ? 1 : 0);
                late.add(TimeUnit.MILLISECONDS.toNanos(now - due));
                seen.add(body.getLong());
                received.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Window sent = new Window(load);
        Semaphore room = new Semaphore(IN_FLIGHT);
        Sends sends = new Sends(load, producer);
        sent.begin();
        long start = System.nanoTime();
        for (long number = 0; number < total; number++) {
            long at = start + number * 1_000_000_000L / rate;
            for (long left = at - System.nanoTime(); left > 0; left = at - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            long due = System.currentTimeMillis() + asked.number("inMs", 3000) + number * 7919 % spreadMs;
            byte[] body = new byte[asked.number("size", 128)];
            ByteBuffer.wrap(body).putLong(due).putLong(number);
            Message message = new Message(topic, body);
            message.setDeliverTimeMs(due);
            room.acquire();
            sends.sendAsync(sent, message, room, System.nanoTime());
        }
        Sends.awaitAnswers(room, IN_FLIGHT);
        boolean whole = await(asked.number("waitMs", 60_000), () -> seen.size() >= sent.done.sum());
        sent.end();
        consumer.shutdown();
        Map<String, Object> result = new TreeMap<>(sent.result());
        result.put("whole", whole);
        result.put("received", received.get());
        result.put("distinct", seen.size());
        result.put("early", early.get());
        result.put("late50Ms", late.percentileMs(0.5));
        result.put("late99Ms", late.percentileMs(0.99));
        return result;
    }

    private static boolean await(long waitMs, Callable<Boolean> reached) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        while (!reached.call()) {
            if (System.nanoTime() > deadline) {
                return false;
            }
            Thread.sleep(5);
        }
        return true;
    }
}

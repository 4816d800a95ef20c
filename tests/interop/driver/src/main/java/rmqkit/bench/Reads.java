package rmqkit.bench;

import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Loads of a push consumer: all that is there as fast as it comes, and each message's way from its send to its listener. */
final class Reads {
    private static final int BATCH = 32;
    private final Load load;
    private final Sends sends;

    Reads(Load load, Sends sends) {
        this.load = load;
        this.sends = sends;
    }

    DefaultMQPushConsumer consumer(String topic, String group, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(load.namesrv);
        consumer.setInstanceName(load.instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(BATCH);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        return consumer;
    }

    /** Reads `total` messages; the window is from the first to the last of them. Each must come once. */
    Map<String, Object> drain(Load.Command asked) throws Exception {
        long total = asked.number("total", 300_000);
        Window window = new Window(load);
        AtomicBoolean began = new AtomicBoolean();
        CountDownLatch all = new CountDownLatch(1);
        Map<Integer, AtomicLong> offsetsNext = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer(asked.text("topic"), asked.text("group"), (messages, context) -> {
            if (began.compareAndSet(false, true)) {
                window.begin();
            }
            MessageExt last = messages.get(messages.size() - 1);
            offsetsNext.computeIfAbsent(last.getQueueId(), id -> new AtomicLong())
                .accumulateAndGet(last.getQueueOffset() + 1, Math::max);
            window.done.add(messages.size());
            if (window.done.sum() >= total) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean whole = all.await(asked.number("waitMs", 60_000), TimeUnit.MILLISECONDS);
        if (began.get()) {
            window.end();
        }
        consumer.shutdown();
        Map<String, Object> result = new TreeMap<>(window.result());
        result.put("whole", whole);
        result.put("distinct", offsetsNext.values().stream().mapToLong(AtomicLong::get).sum());
        return result;
    }

    /**
     * Sends at a fixed rate while a consumer listens. A message's time runs from the moment it was due to be sent, so that a
     * sender that was held up does not hide it.
     */
    Map<String, Object> endToEnd(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        int size = Math.max(8, asked.number("size", 1024));
        Window received = new Window(load);
        Window sent = new Window(load);
        CountDownLatch joined = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(topic, asked.text("group"), (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                long due = ByteBuffer.wrap(message.getBody()).getLong();
                if (due == 0) {
                    joined.countDown();
                    continue;
                }
                received.done.increment();
                if (received.open) {
                    received.times.add(now - due);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Semaphore room = new Semaphore(8192);
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        do {
            if (System.nanoTime() > giveUp) {
                throw new IllegalStateException("the consumer has received nothing in 60 s");
            }
            room.acquire();
            sends.sendAsync(new Window(load), new Message(topic, new byte[size]), room, 0);
        } while (!joined.await(100, TimeUnit.MILLISECONDS));
        Thread pacer = new Thread(() -> pace(sent, topic, size, asked.number("rate", 1000), room), "load-pacer");
        pacer.start();
        received.pass(asked.number("leadMs", 1000), asked.number("runMs", 5000));
        sent.running = false;
        pacer.join();
        Sends.awaitAnswers(room, 8192);
        for (int i = 0; i < 100 && received.done.sum() < sent.done.sum(); i++) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        Map<String, Object> result = new TreeMap<>(received.result());
        result.put("sent", sent.done.sum());
        result.put("failed", sent.failed.sum());
        result.put("firstFailure", sent.firstFailure);
        return result;
    }

    private void pace(Window sent, String topic, int size, int rate, Semaphore room) {
        long start = System.nanoTime();
        for (long number = 1; sent.running; number++) {
            long due = start + number * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            byte[] body = new byte[size];
            ByteBuffer.wrap(body).putLong(due == 0 ? 1 : due);
            room.acquireUninterruptibly();
            sends.sendAsync(sent, new Message(topic, body), room, due);
        }
    }
}

package rmqkit.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Loads of sends. Like Apache's own benchmark producer: one producer, shared by all threads, bodies that do not compress. */
final class Sends {
    private final Load load;
    private final DefaultMQProducer producer;

    Sends(Load load, DefaultMQProducer producer) {
        this.load = load;
        this.producer = producer;
    }

    static byte[] body(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'a');
        return body;
    }

    /** `threads` that each wait for the answer before the next send; with `count` above 1, `count` messages a send. */
    Map<String, Object> closedLoop(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        int count = asked.number("count", 1);
        byte[] body = body(asked.number("size", 1024));
        Window window = new Window(load);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < asked.number("threads", 1); i++) {
            Thread thread = new Thread(() -> sendUntilTold(window, topic, body, count), "load-" + i);
            threads.add(thread);
            thread.start();
        }
        window.pass(asked.number("leadMs", 1000), asked.number("runMs", 5000));
        for (Thread thread : threads) {
            thread.join();
        }
        return window.result();
    }

    private void sendUntilTold(Window window, String topic, byte[] body, int count) {
        while (window.running) {
            long start = System.nanoTime();
            try {
                if (count == 1) {
                    note(window, producer.send(new Message(topic, body)), 1, start);
                } else {
                    List<Message> batch = new ArrayList<>(count);
                    for (int i = 0; i < count; i++) {
                        batch.add(new Message(topic, body));
                    }
                    note(window, producer.send(batch), count, start);
                }
            } catch (Exception e) {
                window.failed(e);
            }
        }
    }

    private static void note(Window window, SendResult result, int count, long start) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            window.failed(new IllegalStateException(result.getSendStatus().name()));
            return;
        }
        window.done.add(count);
        if (window.open) {
            window.times.add(System.nanoTime() - start);
        }
    }

    /** One thread that sends without waiting while fewer than `inFlight` answers are missing. */
    Map<String, Object> async(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        int inFlight = asked.number("inFlight", 1024);
        byte[] body = body(asked.number("size", 1024));
        Window window = new Window(load);
        Semaphore room = new Semaphore(inFlight);
        Thread thread = new Thread(() -> {
            while (window.running) {
                room.acquireUninterruptibly();
                sendAsync(window, new Message(topic, body), room, System.nanoTime());
            }
        }, "load-async");
        thread.start();
        window.pass(asked.number("leadMs", 1000), asked.number("runMs", 5000));
        thread.join();
        awaitAnswers(room, inFlight);
        return window.result();
    }

    /** `total` messages as fast as they go, for a reader that comes later. */
    Map<String, Object> fill(Load.Command asked) throws Exception {
        String topic = asked.text("topic");
        int inFlight = asked.number("inFlight", 1024);
        byte[] body = body(asked.number("size", 1024));
        Window window = new Window(load);
        Semaphore room = new Semaphore(inFlight);
        window.begin();
        for (int i = 0; i < asked.number("total", 300_000); i++) {
            room.acquire();
            sendAsync(window, new Message(topic, body), room, System.nanoTime());
        }
        awaitAnswers(room, inFlight);
        window.end();
        return window.result();
    }

    void sendAsync(Window window, Message message, Semaphore room, long start) {
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    note(window, result, 1, start);
                    room.release();
                }

                @Override
                public void onException(Throwable e) {
                    window.failed(e);
                    room.release();
                }
            });
        } catch (Exception e) {
            window.failed(e);
            room.release();
        }
    }

    static void awaitAnswers(Semaphore room, int inFlight) throws InterruptedException {
        if (!room.tryAcquire(inFlight, 30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("answers are missing after 30 s");
        }
    }
}

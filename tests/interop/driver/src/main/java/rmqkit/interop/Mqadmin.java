package rmqkit.interop;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many commands of mqadmin in one JVM. Each line of standard input is a JSON array with a command's words, each line of standard
 * output a JSON object with what it printed: {"out", "err", "ms"}, or {"error"} when it did not end in time.
 *
 * Words of our own: "@consume NAMESRV GROUP TOPIC" keeps a push consumer that consumes everything, and "@produce NAMESRV GROUP TOPIC"
 * a producer that sends one message, so that there is somebody to look at. The JVM ends when its standard input does.
 */
public final class Mqadmin {
    private static final long LIMIT_MS = 60_000;
    private static final List<Object> KEPT = new ArrayList<>();

    private Mqadmin() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8.name());
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(lines), "lifeline");
        reader.setDaemon(true);
        reader.start();
        while (true) {
            out.println(run(JSON.parseArray(lines.take(), String.class).toArray(new String[0])));
        }
    }

    private static void read(BlockingQueue<String> lines) {
        try {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                lines.add(line);
            }
        } catch (IOException e) {
            // The pipe is gone, which ends this JVM as well.
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(String[] words) throws Exception {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ByteArrayOutputStream wrong = new ByteArrayOutputStream();
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8.name()));
        System.setErr(new PrintStream(wrong, true, StandardCharsets.UTF_8.name()));
        long start = System.currentTimeMillis();
        FutureTask<Void> task = new FutureTask<>(() -> {
            if (words[0].equals("@consume")) {
                consume(words[1], words[2], words[3]);
            } else if (words[0].equals("@produce")) {
                produce(words[1], words[2], words[3]);
            } else {
                forgetCommands();
                MQAdminStartup.main0(words, null);
            }
            return null;
        });
        Thread thread = new Thread(task, String.join(" ", words));
        thread.setDaemon(true);
        thread.start();
        String error = null;
        try {
            task.get(LIMIT_MS, TimeUnit.MILLISECONDS);
        } catch (Exception e) {
            error = e.toString() + " " + Arrays.toString(thread.getStackTrace());
        }
        return JSON.toJSONString(Scene.detail("out", said.toString(StandardCharsets.UTF_8.name()),
            "err", wrong.toString(StandardCharsets.UTF_8.name()), "ms", System.currentTimeMillis() - start, "error", error));
    }

    /** Some commands keep a client that they have shut down; new ones are made for each run. */
    private static void forgetCommands() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Collection.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((Collection<?>) field.get(null)).clear();
            }
        }
    }

    private static void consume(String namesrv, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("mqadmin-seen-" + group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        KEPT.add(consumer);
        System.out.print(consumer.buildMQClientId());
    }

    private static void produce(String namesrv, String group, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("mqadmin-seen-producer");
        producer.start();
        KEPT.add(producer);
        System.out.print(producer.send(new Message(topic, Scene.utf8("of the producer"))).getOffsetMsgId());
    }
}

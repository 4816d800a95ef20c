package rmqkit.bench;

import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The load side of `tests/bench/against_apache.py`: one JVM with Apache's client that does one load after the other, against
 * one broker after the other.
 *
 * It dials the port of its first argument, reads a command a line (`name key=value ...`) and answers each with lines of JSON:
 * `begin` and `end` at the ends of the window that counts, then `done` with the figures, or `error`. Headers are written in
 * the binary form, as Apache's benchmark does, unless the second argument is JSON.
 */
public final class Load {
    String namesrv;
    String instance;
    private final PrintWriter out;
    private int opened;
    private DefaultMQProducer producer;
    private DefaultMQAdminExt admin;
    private Sends sends;
    private Reads reads;
    private Services services;

    private Load(PrintWriter out) {
        this.out = out;
    }

    public static void main(String[] args) throws Exception {
        String headers = args.length > 1 ? args[1] : SerializeType.ROCKETMQ.name();
        System.setProperty(RemotingCommand.SERIALIZE_TYPE_PROPERTY, headers);
        try (Socket socket = new Socket("127.0.0.1", Integer.parseInt(args[0]))) {
            BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            Load load = new Load(new PrintWriter(socket.getOutputStream(), true, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                try {
                    load.tell("done", load.run(new Command(line)));
                } catch (Throwable e) {
                    load.tell("error", Map.of("text", String.valueOf(e)));
                }
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** One command as it came. */
    static final class Command {
        final String name;
        private final Map<String, String> fields = new HashMap<>();

        Command(String line) {
            String[] parts = line.split(" ");
            name = parts[0];
            for (int i = 1; i < parts.length; i++) {
                int mark = parts[i].indexOf('=');
                fields.put(parts[i].substring(0, mark), parts[i].substring(mark + 1));
            }
        }

        String text(String key) {
            String value = fields.get(key);
            if (value == null) {
                throw new IllegalArgumentException(name + " needs " + key);
            }
            return value;
        }

        int number(String key, int otherwise) {
            String value = fields.get(key);
            return value == null ? otherwise : Integer.parseInt(value);
        }
    }

    void tell(String what, Map<String, Object> content) {
        out.println(JSON.toJSONString(Map.of(what, content)));
    }

    private Map<String, Object> run(Command asked) throws Exception {
        switch (asked.name) {
            case "open":
                return open(asked);
            case "topic":
                return topic(asked);
            case "stored":
                return stored(asked);
            case "sync":
                return sends.closedLoop(asked);
            case "async":
                return sends.async(asked);
            case "fill":
                return sends.fill(asked);
            case "drain":
                return reads.drain(asked);
            case "e2e":
                return reads.endToEnd(asked);
            case "transactions":
                return services.transactions(asked);
            case "pop":
                return services.pop(asked);
            case "timers":
                return services.timers(asked);
            case "burst":
                return services.burst(asked);
            case "lateness":
                return services.lateness(asked);
            case "close":
                producer.shutdown();
                admin.shutdown();
                return Map.of();
            default:
                throw new IllegalArgumentException("no such command: " + asked.name);
        }
    }

    private Map<String, Object> open(Command asked) throws Exception {
        namesrv = asked.text("namesrv");
        // A client id of its own for each broker: nothing of the one before is known to this one.
        instance = "bench-" + ++opened;
        producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(instance);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName(instance + "-admin");
        admin.start();
        sends = new Sends(this, producer);
        reads = new Reads(this, sends);
        services = new Services(this, reads, producer, admin);
        return Map.of();
    }

    /** Makes a topic on the broker and waits until the name server gives it out. */
    private Map<String, Object> topic(Command asked) throws Exception {
        String name = asked.text("topic");
        int queues = asked.number("queues", 8);
        admin.createAndUpdateTopicConfig(asked.text("broker"), new TopicConfig(name, queues, queues));
        for (int i = 0; i < 600; i++) {
            try {
                if (producer.fetchPublishMessageQueues(name).size() == queues) {
                    return Map.of();
                }
            } catch (Exception e) {
                // Not known yet.
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("topic " + name + " is not given out after 30 s");
    }

    /** How many messages the broker has of a topic. */
    private Map<String, Object> stored(Command asked) throws Exception {
        return new TreeMap<>(Map.of("count", count(asked.text("topic"))));
    }

    long count(String topic) throws Exception {
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        long count = 0;
        for (MessageQueue queue : queues) {
            count += admin.maxOffset(queue) - admin.minOffset(queue);
        }
        return count;
    }
}

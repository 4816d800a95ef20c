package rmqkit.interop;

import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What one check works with: names of its own, clients that are shut down at its end, and waiting with a deadline. */
final class Scene implements AutoCloseable {
    static final long WAIT_MS = 60_000;
    private static final AtomicInteger CLIENTS = new AtomicInteger();
    private static final String RUN = Long.toString(System.currentTimeMillis() % 100_000_000L, 36);

    final String namesrv;
    final String topic;
    final String group;
    private final Deque<Runnable> atEnd = new ArrayDeque<>();
    private DefaultMQAdminExt admin;

    Scene(String namesrv, String check) {
        this.namesrv = namesrv;
        this.topic = "it_" + check + "_" + RUN;
        this.group = "g_" + check + "_" + RUN;
    }

    static Map<String, Object> detail(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    static void expect(boolean holds, String fact) {
        if (!holds) {
            throw new AssertionError(fact);
        }
    }

    static void expectEquals(Object wanted, Object got, String what) {
        expect(wanted == null ? got == null : wanted.equals(got), what + ": wanted " + wanted + ", got " + got);
    }

    static void await(String what, Callable<Boolean> reached) throws Exception {
        await(what, reached, () -> "");
    }

    static void await(String what, Callable<Boolean> reached, Callable<Object> seen) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (!reached.call()) {
            expect(System.currentTimeMillis() < deadline, "not within " + WAIT_MS + " ms: " + what + " " + seen.call());
            Thread.sleep(20);
        }
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    static Set<String> bodies(String prefix, int count) {
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            wanted.add(prefix + i);
        }
        return wanted;
    }

    static Set<String> minus(Collection<String> wanted, Collection<String> got) {
        Set<String> left = new TreeSet<>(wanted);
        left.removeAll(got);
        return left;
    }

    /** What clients call themselves; null for the machine's own address. */
    private static final String CLIENT_IP = System.getProperty("interop.client.ip");

    static {
        if (CLIENT_IP != null) {
            nameMessagesAfter(CLIENT_IP);
        }
    }

    /** Writes an IPv4 address over the one message ids begin with. */
    private static void nameMessagesAfter(String ip) {
        try {
            Field field = MessageClientIDSetter.class.getDeclaredField("FIX_STRING");
            field.setAccessible(true);
            char[] fixed = (char[]) field.get(null);
            String hex = UtilAll.bytes2string(InetAddress.getByName(ip).getAddress());
            expectEquals(20, fixed.length, "characters of the fixed part of an IPv4 message id");
            hex.getChars(0, hex.length(), fixed, 0);
        } catch (ReflectiveOperationException | UnknownHostException e) {
            throw new IllegalStateException(e);
        }
    }

    private static <T extends ClientConfig> T named(T client) {
        if (CLIENT_IP != null) {
            client.setClientIP(CLIENT_IP);
        }
        return client;
    }

    /** Signs requests with the keys of the system properties; null without them. */
    static RPCHook hook() {
        String accessKey = System.getProperty("interop.access.key");
        return accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, System.getProperty("interop.secret.key")));
    }

    private static String instance() {
        return "interop-" + CLIENTS.incrementAndGet();
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = named(new DefaultMQProducer("p" + group, hook()));
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(instance());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        atEnd.push(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer pushConsumer() {
        DefaultMQPushConsumer consumer = named(new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely()));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        atEnd.push(consumer::shutdown);
        return consumer;
    }

    @SuppressWarnings("deprecation")
    DefaultMQPullConsumer pullConsumer() throws Exception {
        DefaultMQPullConsumer consumer = named(new DefaultMQPullConsumer(group, hook()));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.start();
        atEnd.push(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer() {
        DefaultLitePullConsumer consumer = named(new DefaultLitePullConsumer(group, hook()));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        atEnd.push(consumer::shutdown);
        return consumer;
    }

    DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = named(new DefaultMQAdminExt(hook()));
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName(instance());
            admin.start();
            atEnd.push(admin::shutdown);
        }
        return admin;
    }

    /** What is done when the check ends, newest first. */
    void atEnd(Runnable action) {
        atEnd.push(action);
    }

    /** The address of one master. */
    String master() throws Exception {
        ClusterInfo info = admin().examineBrokerClusterInfo();
        for (BrokerData data : info.getBrokerAddrTable().values()) {
            String address = data.getBrokerAddrs().get(0L);
            if (address != null) {
                return address;
            }
        }
        throw new AssertionError("no master in " + info.getBrokerAddrTable());
    }

    /** Creates the check's topic with so many queues on one master, and waits until the name server gives its route. */
    void createTopic(int queues) throws Exception {
        createTopic(topic, queues);
    }

    void createTopic(String name, int queues) throws Exception {
        TopicConfig config = new TopicConfig(name);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        admin().createAndUpdateTopicConfig(master(), config);
        await("route of " + name, () -> {
            try {
                return !admin().examineTopicRouteInfo(name).getQueueDatas().isEmpty();
            } catch (Exception e) {
                return false;
            }
        });
    }

    void createGroup() throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin().createAndUpdateSubscriptionGroupConfig(master(), config);
    }

    /**
     * Creates the check's group and commits offset 0 for one queue of its topic.
     *
     * Of several first commits of a group and topic that come at once, Apache's broker keeps one and loses the others:
     * ConsumerOffsetManager.commitOffset makes their table without a lock. With one commit made before, none is lost.
     */
    void beginGroup() throws Exception {
        createGroup();
        admin().updateConsumeOffset(master(), group, queues().iterator().next(), 0);
    }

    /** Waits until the broker knows so many producers of the check's group; these send their heartbeats meanwhile. */
    void awaitProducers(int count, DefaultMQProducer... producers) throws Exception {
        await("producers known to the broker", () -> {
            for (DefaultMQProducer producer : producers) {
                producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
            }
            try {
                return admin().examineProducerConnectionInfo("p" + group, topic).getConnectionSet().size() == count;
            } catch (MQBrokerException | MQClientException e) {
                return false;
            }
        });
    }

    /** Sends prefix0, prefix1 and so on, one by one. */
    void send(DefaultMQProducer producer, String prefix, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.send(new Message(topic, utf8(prefix + i)));
        }
    }

    /** The topic's queues as its route names them. */
    Set<MessageQueue> queues() throws Exception {
        Set<MessageQueue> queues = new TreeSet<>();
        for (QueueData data : admin().examineTopicRouteInfo(topic).getQueueDatas()) {
            for (int i = 0; i < data.getReadQueueNums(); i++) {
                queues.add(new MessageQueue(topic, data.getBrokerName(), i));
            }
        }
        return queues;
    }

    long messagesStored() throws Exception {
        long stored = 0;
        for (MessageQueue queue : queues()) {
            stored += admin().maxOffset(queue) - admin().minOffset(queue);
        }
        return stored;
    }

    @Override
    public void close() {
        while (!atEnd.isEmpty()) {
            try {
                atEnd.pop().run();
            } catch (RuntimeException e) {
                System.err.println("at the end of " + topic + ": " + e);
            }
        }
    }
}

package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.HashSet;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What push consumers do. */
final class ConsumeChecks {
    private ConsumeChecks() {
    }

    static void register() {
        Driver.add("basic", "push_one_member", ConsumeChecks::oneMember);
        Driver.add("basic", "push_tag_filter", ConsumeChecks::tagFilter);
        Driver.add("basic", "push_rebalance", ConsumeChecks::rebalance);
        Driver.add("basic", "push_broadcast", ConsumeChecks::broadcast);
        Driver.add("basic", "push_resume", ConsumeChecks::resume);
    }

    /** A member of the check's group that notes what it was given. */
    static final class Member {
        final Queue<String> got = new ConcurrentLinkedQueue<>();
        final DefaultMQPushConsumer consumer;
        private final String topic;

        Member(Scene scene, String filter, MessageModel model) throws Exception {
            topic = scene.topic;
            consumer = scene.pushConsumer();
            consumer.setMessageModel(model);
            consumer.subscribe(topic, filter);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    got.add(Scene.text(message.getBody()));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        Set<Integer> queues() {
            Set<Integer> queues = new TreeSet<>();
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (queue.getTopic().equals(topic)) {
                    queues.add(queue.getQueueId());
                }
            }
            return queues;
        }

        /** The number of messages whose end the client has noted: the sum of the offsets that it commits next. */
        long finished() {
            DefaultMQPushConsumerImpl inner = consumer.getDefaultMQPushConsumerImpl();
            return inner.getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic))
                .mapToLong(queue -> Math.max(0, inner.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY))).sum();
        }
    }

    private static Map<String, Object> oneMember(Scene scene) throws Exception {
        scene.createTopic(4);
        Member member = new Member(scene, "*", MessageModel.CLUSTERING);
        await("all queues", () -> member.queues().size() == 4, member::queues);
        scene.send(scene.producer(), "m", 50);
        await("50 messages", () -> new HashSet<>(member.got).size() == 50, member.got::size);
        expectEquals(50, member.got.size(), "messages, none twice");
        return detail("got", member.got.size());
    }

    private static Map<String, Object> tagFilter(Scene scene) throws Exception {
        scene.createTopic(2);
        Member chosen = new Member(scene, "TagA || TagC", MessageModel.CLUSTERING);
        DefaultMQProducer producer = scene.producer();
        String[] tags = {"TagA", "TagB", "TagC", "TagD", null, "Aa", "BB"};
        int wanted = 0;
        for (int i = 0; i < 70; i++) {
            String tag = tags[i % tags.length];
            producer.send(new Message(scene.topic, tag, utf8(tag + "-" + i)));
            wanted += "TagA".equals(tag) || "TagC".equals(tag) ? 1 : 0;
        }
        int all = wanted;
        await("the chosen tags", () -> new HashSet<>(chosen.got).size() >= all, chosen.got::size);
        for (String body : chosen.got) {
            expect(body.startsWith("TagA-") || body.startsWith("TagC-"), "unwanted " + body);
        }
        expectEquals(wanted, new HashSet<>(chosen.got).size(), "messages");
        return detail("sent", 70, "got", chosen.got.size());
    }

    private static Map<String, Object> rebalance(Scene scene) throws Exception {
        scene.createTopic(8);
        DefaultMQProducer producer = scene.producer();
        Member first = new Member(scene, "*", MessageModel.CLUSTERING);
        await("first has all queues", () -> first.queues().size() == 8, first::queues);
        scene.send(producer, "alone", 40);
        await("messages for one", () -> first.got.containsAll(Scene.bodies("alone", 40)), first.got::size);

        Member second = new Member(scene, "*", MessageModel.CLUSTERING);
        await("four queues each", () -> first.queues().size() == 4 && second.queues().size() == 4,
            () -> first.queues() + " " + second.queues());
        Set<Integer> both = new TreeSet<>(first.queues());
        both.addAll(second.queues());
        expectEquals(8, both.size(), "queues of both without overlap");
        String split = first.queues() + " " + second.queues();
        scene.send(producer, "shared", 80);
        await("messages for two", () -> {
            Set<String> got = new HashSet<>(first.got);
            got.addAll(second.got);
            return got.containsAll(Scene.bodies("shared", 80));
        }, () -> first.got.size() + " " + second.got.size());
        long ofSecond = second.got.stream().filter(body -> body.startsWith("shared")).count();
        expect(ofSecond > 0 && ofSecond < 80, "both work: " + ofSecond);

        second.consumer.shutdown();
        await("queues return", () -> first.queues().size() == 8, first::queues);
        scene.send(producer, "again", 40);
        await("messages for one again", () -> first.got.containsAll(Scene.bodies("again", 40)), first.got::size);

        int deliveries = first.got.size() + second.got.size();
        Set<String> all = new HashSet<>(first.got);
        all.addAll(second.got);
        expectEquals(160, all.size(), "every message consumed");
        return detail("split", split, "second_got", ofSecond, "deliveries", deliveries, "repeats", deliveries - all.size());
    }

    private static Map<String, Object> broadcast(Scene scene) throws Exception {
        scene.createTopic(4);
        Member first = new Member(scene, "*", MessageModel.BROADCASTING);
        Member second = new Member(scene, "*", MessageModel.BROADCASTING);
        await("all queues for each", () -> first.queues().size() == 4 && second.queues().size() == 4);
        scene.send(scene.producer(), "m", 30);
        Set<String> wanted = Scene.bodies("m", 30);
        await("all messages for each", () -> first.got.containsAll(wanted) && second.got.containsAll(wanted),
            () -> first.got.size() + " " + second.got.size());
        expectEquals(60, first.got.size() + second.got.size(), "deliveries");
        return detail("first", first.got.size(), "second", second.got.size());
    }

    private static Map<String, Object> resume(Scene scene) throws Exception {
        scene.createTopic(4);
        scene.beginGroup();
        DefaultMQProducer producer = scene.producer();
        Member before = new Member(scene, "*", MessageModel.CLUSTERING);
        scene.send(producer, "early", 40);
        await("the early ones", () -> before.got.containsAll(Scene.bodies("early", 40)), before.got::size);
        // A shut-down consumer commits what it has finished. It notes the end of a message after the listener has returned.
        await("all early ones are finished", () -> before.finished() == 40, before::finished);
        before.consumer.shutdown();
        scene.send(producer, "late", 40);
        Member after = new Member(scene, "*", MessageModel.CLUSTERING);
        await("the late ones", () -> after.got.containsAll(Scene.bodies("late", 40)), after.got::size);
        long again = after.got.stream().filter(body -> body.startsWith("early")).count();
        expectEquals(0L, again, "early ones given again");
        return detail("before", before.got.size(), "after", after.got.size());
    }
}

package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What pull consumers do. */
@SuppressWarnings("deprecation")
final class PullChecks {
    private PullChecks() {
    }

    static void register() {
        Driver.add("basic", "pull_plain", PullChecks::plain);
        Driver.add("basic", "pull_long_poll", PullChecks::longPoll);
        Driver.add("basic", "pull_tag_filter", PullChecks::tagFilter);
        Driver.add("basic", "pull_offsets", PullChecks::offsets);
        Driver.add("basic", "lite_assign_seek", PullChecks::liteAssignSeek);
        Driver.add("basic", "lite_subscribe_resume", PullChecks::liteSubscribeResume);
    }

    private static Map<String, Object> plain(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.send(scene.producer(), "m", 10);
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        PullResult some = consumer.pull(queue, "*", 2, 4);
        expectEquals(PullStatus.FOUND, some.getPullStatus(), "status");
        expectEquals(4, some.getMsgFoundList().size(), "messages");
        expectEquals("m2", Scene.text(some.getMsgFoundList().get(0).getBody()), "first body");
        expectEquals(6L, some.getNextBeginOffset(), "next");
        expectEquals(0L, some.getMinOffset(), "min");
        expectEquals(10L, some.getMaxOffset(), "max");
        PullResult end = consumer.pull(queue, "*", 10, 4);
        expectEquals(PullStatus.NO_NEW_MSG, end.getPullStatus(), "status at the end");
        expectEquals(10L, end.getNextBeginOffset(), "next at the end");
        PullResult beyond = consumer.pull(queue, "*", 5000, 4);
        expectEquals(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "status beyond the end");
        expectEquals(10L, beyond.getNextBeginOffset(), "next beyond the end");
        return detail("min", some.getMinOffset(), "max", some.getMaxOffset());
    }

    private static Map<String, Object> longPoll(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        DefaultMQProducer producer = scene.producer();
        CompletableFuture<PullResult> waiting = CompletableFuture.supplyAsync(() -> {
            try {
                return consumer.pullBlockIfNotFound(queue, "*", 0, 32);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        Thread.sleep(1_000);
        expect(!waiting.isDone(), "answered before a message came: " + waiting);
        long sent = System.currentTimeMillis();
        producer.send(new Message(scene.topic, utf8("woken")));
        PullResult result = waiting.get(10, TimeUnit.SECONDS);
        expectEquals(PullStatus.FOUND, result.getPullStatus(), "status");
        expectEquals("woken", Scene.text(result.getMsgFoundList().get(0).getBody()), "body");
        return detail("woken_after_ms", System.currentTimeMillis() - sent);
    }

    private static Map<String, Object> tagFilter(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 12; i++) {
            producer.send(new Message(scene.topic, "Tag" + "ABC".charAt(i % 3), utf8("m" + i)));
        }
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        PullResult two = consumer.pull(queue, "TagA || TagC", 0, 32);
        expectEquals(8, two.getMsgFoundList().size(), "messages of two tags");
        PullResult none = consumer.pull(queue, "TagZ", 0, 32);
        expectEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "status without a match");
        expectEquals(12L, none.getNextBeginOffset(), "next without a match");
        return detail("matched", two.getMsgFoundList().size());
    }

    private static Map<String, Object> offsets(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.createGroup();
        scene.send(scene.producer(), "m", 5);
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        expectEquals(0L, consumer.minOffset(queue), "min");
        expectEquals(5L, consumer.maxOffset(queue), "max");
        long fresh = consumer.fetchConsumeOffset(queue, true);
        consumer.updateConsumeOffset(queue, 3);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 3, false);
        await("the committed offset", () -> consumer.fetchConsumeOffset(queue, true) == 3,
            () -> consumer.fetchConsumeOffset(queue, true));
        List<MessageExt> messages = consumer.pull(queue, "*", 0, 32).getMsgFoundList();
        long stamp = messages.get(4).getStoreTimestamp();
        long at = consumer.searchOffset(queue, messages.get(0).getStoreTimestamp());
        expectEquals(0L, at, "offset at the first message's time");
        expectEquals(5L, consumer.searchOffset(queue, stamp + 1_000_000), "offset after the last message");
        expectEquals(0L, consumer.searchOffset(queue, 1L), "offset long ago");
        long earliest = consumer.earliestMsgStoreTime(queue);
        expectEquals(messages.get(0).getStoreTimestamp(), earliest, "earliest store time");
        return detail("fresh_group_offset", fresh, "earliest", earliest);
    }

    private static Map<String, Object> liteAssignSeek(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.send(scene.producer(), "m", 20);
        DefaultLitePullConsumer consumer = scene.litePullConsumer();
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(scene.topic);
        expectEquals(2, queues.size(), "queues");
        consumer.assign(queues);
        Set<String> got = new HashSet<>();
        await("all messages", () -> {
            consumer.poll(500).forEach(message -> got.add(Scene.text(message.getBody())));
            return got.size() == 20;
        }, got::size);
        MessageQueue queue = queues.stream().filter(q -> q.getQueueId() == 0).findFirst().get();
        consumer.assign(Collections.singletonList(queue));
        consumer.seek(queue, 7);
        List<MessageExt> again = new ArrayList<>();
        await("messages after the seek", () -> {
            again.addAll(consumer.poll(500));
            return again.size() >= 3;
        }, again::size);
        expectEquals(7L, again.get(0).getQueueOffset(), "first offset after the seek");
        consumer.seekToBegin(queue);
        List<MessageExt> all = new ArrayList<>();
        await("messages from the begin", () -> {
            all.addAll(consumer.poll(500));
            return all.size() >= 10;
        }, all::size);
        expectEquals(0L, all.get(0).getQueueOffset(), "first offset from the begin");
        consumer.commitSync();
        return detail("got", got.size(), "after_seek", again.size());
    }

    private static Map<String, Object> liteSubscribeResume(Scene scene) throws Exception {
        scene.createTopic(2);
        scene.beginGroup();
        DefaultMQProducer producer = scene.producer();
        scene.send(producer, "early", 10);
        DefaultLitePullConsumer first = scene.litePullConsumer();
        first.setAutoCommit(false);
        first.subscribe(scene.topic, "*");
        first.start();
        Set<String> got = new HashSet<>();
        await("the early ones", () -> {
            first.poll(500).forEach(message -> got.add(Scene.text(message.getBody())));
            return got.size() == 10;
        }, got::size);
        first.commitSync();
        first.shutdown();
        scene.send(producer, "late", 10);
        DefaultLitePullConsumer second = scene.litePullConsumer();
        second.subscribe(scene.topic, "*");
        second.start();
        Set<String> rest = new HashSet<>();
        await("the late ones", () -> {
            second.poll(500).forEach(message -> rest.add(Scene.text(message.getBody())));
            return rest.size() >= 10;
        }, rest::size);
        expectEquals(Scene.bodies("late", 10), new java.util.TreeSet<>(rest), "what the second member got");
        return detail("first", got.size(), "second", rest.size());
    }
}

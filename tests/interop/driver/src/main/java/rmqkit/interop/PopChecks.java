package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Pop consumption: the push consumer in pop mode, and single requests. */
final class PopChecks {
    private static final long TIMEOUT_MS = 10_000;

    private PopChecks() {
    }

    static void register() {
        Driver.add("pop", "pop_push", PopChecks::push);
        Driver.add("pop", "pop_push_retry", PopChecks::pushRetry);
        Driver.add("pop", "pop_requests", PopChecks::requests);
        Driver.add("pop", "pop_orderly", PopChecks::orderly);
    }

    private static void popMode(Scene scene) throws Exception {
        scene.beginGroup();
        scene.admin().setMessageRequestMode(scene.master(), scene.topic, scene.group, MessageRequestMode.POP, 0, TIMEOUT_MS);
    }

    /** Two members pop every message once; after the invisible time nothing comes again. */
    private static Map<String, Object> push(Scene scene) throws Exception {
        scene.createTopic(4);
        popMode(scene);
        List<String> got = new CopyOnWriteArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = scene.pushConsumer();
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(5_000);
            consumer.subscribe(scene.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> got.add(Scene.text(message.getBody())));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        scene.send(scene.producer(), "m", 60);
        await("all messages", () -> new TreeSet<>(got).size() == 60, got::size);
        Thread.sleep(9_000);
        expectEquals(Scene.bodies("m", 60), new TreeSet<>(got), "messages");
        expectEquals(60, got.size(), "deliveries");
        return detail("got", got.size());
    }

    /** A failed message comes again after the client's delay, and counts as failed once. */
    private static Map<String, Object> pushRetry(Scene scene) throws Exception {
        scene.createTopic(1);
        popMode(scene);
        Map<String, List<Integer>> got = Collections.synchronizedMap(new TreeMap<>());
        DefaultMQPushConsumer consumer = scene.pushConsumer();
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(5_000);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(scene.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = Scene.text(message.getBody());
            expectEquals(scene.topic, message.getTopic(), "topic");
            got.computeIfAbsent(body, key -> new ArrayList<>()).add(message.getReconsumeTimes());
            boolean fails = body.equals("m1") && message.getReconsumeTimes() == 0;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        scene.send(scene.producer(), "m", 3);
        await("the second delivery", () -> got.getOrDefault("m1", Collections.emptyList()).size() == 2, got::toString);
        Thread.sleep(7_000);
        expectEquals(Arrays.asList(0, 1), got.get("m1"), "failed deliveries before each delivery");
        expectEquals(Collections.singletonList(0), got.get("m0"), "an acked message");
        return detail("got", got.toString());
    }

    /** Pop, ack, batch ack and a changed invisible time, by the client's own calls. */
    private static Map<String, Object> requests(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.beginGroup();
        scene.send(scene.producer(), "m", 6);
        MQClientAPIImpl api = scene.admin().getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        List<MessageExt> first = pop(scene, api, 32);
        expectEquals(6, first.size(), "popped");
        expectEquals(0, pop(scene, api, 32).size(), "popped again");
        expectEquals(AckStatus.OK, ack(scene, api, first.get(0)), "ack");
        List<String> handles = new ArrayList<>();
        first.subList(1, 4).forEach(message -> handles.add(message.getProperty(MessageConst.PROPERTY_POP_CK)));
        CompletableFuture<AckStatus> batch = new CompletableFuture<>();
        api.batchAckMessageAsync(scene.master(), TIMEOUT_MS, acked(batch), scene.topic, scene.group, handles);
        expectEquals(AckStatus.OK, batch.get(TIMEOUT_MS, TimeUnit.MILLISECONDS), "batch ack");
        String handle = change(scene, api, first.get(4), 60_000);
        await("one message again", () -> {
            List<MessageExt> again = pop(scene, api, 32);
            if (again.isEmpty()) {
                return false;
            }
            expectEquals(1, again.size(), "messages again");
            expectEquals(Scene.text(first.get(5).getBody()), Scene.text(again.get(0).getBody()), "message again");
            expectEquals(1, again.get(0).getReconsumeTimes(), "failed deliveries");
            expectEquals(scene.topic, again.get(0).getTopic(), "topic");
            expectEquals(AckStatus.OK, ack(scene, api, again.get(0)), "ack of a redelivered message");
            return true;
        });
        first.get(4).getProperties().put(MessageConst.PROPERTY_POP_CK, handle);
        expectEquals(AckStatus.OK, ack(scene, api, first.get(4)), "ack with the new handle");
        Thread.sleep(7_000);
        expectEquals(0, pop(scene, api, 32).size(), "left");
        return detail("handle", handle);
    }

    /** Ordered pops of one queue: the block, its end by acks and by time, counts, and a repeated attempt. */
    private static Map<String, Object> orderly(Scene scene) throws Exception {
        scene.createTopic(1);
        scene.beginGroup();
        scene.send(scene.producer(), "m", 5);
        MQClientAPIImpl api = scene.admin().getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        List<MessageExt> first = popInOrder(scene, api, 2, "one");
        expectEquals(Arrays.asList("m0", "m1"), texts(first), "the first batch");
        expectEquals(999, ExtraInfoUtil.getReviveQid(ExtraInfoUtil.split(handle(first.get(0)))), "revive queue");
        expectEquals(0, popInOrder(scene, api, 2, "two").size(), "popped while blocked");
        List<MessageExt> repeated = popInOrder(scene, api, 2, "one");
        expectEquals(Arrays.asList("m0", "m1"), texts(repeated), "the repeated attempt");
        expectEquals(0, repeated.get(0).getReconsumeTimes(), "failed deliveries of a repeated attempt");
        expectEquals(AckStatus.OK, ack(scene, api, repeated.get(0)), "ack");
        expectEquals(0, popInOrder(scene, api, 2, "two").size(), "popped after the first ack");
        expectEquals(AckStatus.OK, ack(scene, api, repeated.get(1)), "ack");
        List<MessageExt> second = popInOrder(scene, api, 2, "three");
        expectEquals(Arrays.asList("m2", "m3"), texts(second), "the second batch");
        for (MessageExt message : second) {
            message.getProperties().put(MessageConst.PROPERTY_POP_CK, change(scene, api, message, 1_500));
        }
        expectEquals(0, popInOrder(scene, api, 2, "four").size(), "popped before the changed time");
        List<MessageExt> again = new ArrayList<>();
        await("the batch again", () -> again.addAll(popInOrder(scene, api, 3, "five")), again::size);
        expectEquals(Arrays.asList("m2", "m3", "m4"), texts(again), "the batch again");
        List<Integer> counts = new ArrayList<>();
        again.forEach(message -> counts.add(message.getReconsumeTimes()));
        expectEquals(Arrays.asList(1, 1, 0), counts, "failed deliveries");
        for (int i = 2; i >= 0; i--) {
            expectEquals(AckStatus.OK, ack(scene, api, again.get(i)), "ack");
        }
        expectEquals(0, popInOrder(scene, api, 2, "six").size(), "left");
        return detail("handle", handle(again.get(0)));
    }

    private static String handle(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    private static List<String> texts(List<MessageExt> messages) {
        List<String> texts = new ArrayList<>();
        messages.forEach(message -> texts.add(Scene.text(message.getBody())));
        return texts;
    }

    private static List<MessageExt> popInOrder(Scene scene, MQClientAPIImpl api, int count, String attempt)
        throws Exception {
        PopMessageRequestHeader header = header(scene, count);
        header.setOrder(true);
        header.setAttemptId(attempt);
        header.setInvisibleTime(60_000);
        return pop(scene, api, header);
    }

    private static List<MessageExt> pop(Scene scene, MQClientAPIImpl api, int count) throws Exception {
        return pop(scene, api, header(scene, count));
    }

    private static PopMessageRequestHeader header(Scene scene, int count) {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(scene.group);
        header.setTopic(scene.topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(5_000);
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        return header;
    }

    private static List<MessageExt> pop(Scene scene, MQClientAPIImpl api, PopMessageRequestHeader header)
        throws Exception {
        CompletableFuture<PopResult> future = new CompletableFuture<>();
        api.popMessageAsync(brokerName(scene), scene.master(), header, TIMEOUT_MS, new PopCallback() {
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

    private static AckStatus ack(Scene scene, MQClientAPIImpl api, MessageExt message) throws Exception {
        String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
        String[] words = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(scene.group);
        header.setTopic(ExtraInfoUtil.getRealTopic(words, scene.topic, scene.group));
        header.setQueueId(ExtraInfoUtil.getQueueId(words));
        header.setOffset(ExtraInfoUtil.getQueueOffset(words));
        header.setExtraInfo(handle);
        CompletableFuture<AckStatus> future = new CompletableFuture<>();
        api.ackMessageAsync(scene.master(), TIMEOUT_MS, acked(future), header);
        return future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    private static String change(Scene scene, MQClientAPIImpl api, MessageExt message, long invisibleMs) throws Exception {
        String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
        String[] words = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(scene.group);
        header.setTopic(ExtraInfoUtil.getRealTopic(words, scene.topic, scene.group));
        header.setQueueId(ExtraInfoUtil.getQueueId(words));
        header.setOffset(ExtraInfoUtil.getQueueOffset(words));
        header.setExtraInfo(handle);
        header.setInvisibleTime(invisibleMs);
        CompletableFuture<String> future = new CompletableFuture<>();
        api.changeInvisibleTimeAsync(brokerName(scene), scene.master(), header, TIMEOUT_MS, new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                future.complete(result.getStatus() == AckStatus.OK ? result.getExtraInfo() : "");
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        });
        String changed = future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        expect(!changed.isEmpty() && !changed.equals(handle), "a new handle: " + changed);
        return changed;
    }

    private static AckCallback acked(CompletableFuture<AckStatus> future) {
        return new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                future.complete(result.getStatus());
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        };
    }

    private static String brokerName(Scene scene) throws Exception {
        return scene.queues().iterator().next().getBrokerName();
    }
}

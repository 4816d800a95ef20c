package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What a producer does; what was stored is read back by pulling. */
final class SendChecks {
    private SendChecks() {
    }

    static void register() {
        Driver.add("basic", "send_sync", SendChecks::sync);
        Driver.add("basic", "send_async", SendChecks::async);
        Driver.add("basic", "send_oneway", SendChecks::oneway);
        Driver.add("basic", "send_batch", SendChecks::batch);
        Driver.add("basic", "send_properties", SendChecks::properties);
        Driver.add("basic", "send_unicode", SendChecks::unicode);
        Driver.add("basic", "send_large", SendChecks::large);
        Driver.add("basic", "send_to_chosen_queue", SendChecks::chosenQueue);
        Driver.add("basic", "send_to_unknown_topic", SendChecks::unknownTopic);
        Driver.add("basic", "send_refused", SendChecks::refused);
    }

    private static Map<String, Object> sync(Scene scene) throws Exception {
        scene.createTopic(4);
        DefaultMQProducer producer = scene.producer();
        Set<Integer> queues = new HashSet<>();
        Set<String> ids = new HashSet<>();
        Map<Integer, Long> next = new TreeMap<>();
        for (int i = 0; i < 40; i++) {
            SendResult result = producer.send(new Message(scene.topic, utf8("m" + i)));
            expectEquals(SendStatus.SEND_OK, result.getSendStatus(), "status");
            expectEquals(scene.topic, result.getMessageQueue().getTopic(), "topic");
            int queue = result.getMessageQueue().getQueueId();
            expectEquals(next.getOrDefault(queue, 0L), result.getQueueOffset(), "offset in queue " + queue);
            next.put(queue, result.getQueueOffset() + 1);
            queues.add(queue);
            ids.add(result.getMsgId());
            expect(result.getOffsetMsgId().length() == 32, "offset id " + result.getOffsetMsgId());
        }
        expectEquals(4, queues.size(), "queues used");
        expectEquals(40, ids.size(), "distinct ids");
        expectEquals(Scene.bodies("m", 40), Reading.texts(Reading.all(scene)), "what is stored");
        return detail("queues", queues.size(), "sent", 40);
    }

    private static Map<String, Object> async(Scene scene) throws Exception {
        scene.createTopic(4);
        DefaultMQProducer producer = scene.producer();
        int count = 500;
        CountDownLatch left = new CountDownLatch(count);
        List<Throwable> errors = Collections.synchronizedList(new ArrayList<>());
        Set<String> ids = Collections.synchronizedSet(new HashSet<>());
        for (int i = 0; i < count; i++) {
            producer.send(new Message(scene.topic, utf8("a" + i)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    ids.add(result.getMessageQueue().getQueueId() + "@" + result.getQueueOffset());
                    left.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    errors.add(e);
                    left.countDown();
                }
            });
        }
        expect(left.await(Scene.WAIT_MS, TimeUnit.MILLISECONDS), left.getCount() + " callbacks are missing");
        expect(errors.isEmpty(), errors.size() + " failed: " + (errors.isEmpty() ? "" : errors.get(0)));
        expectEquals(count, ids.size(), "distinct places");
        expectEquals(Scene.bodies("a", count), Reading.texts(Reading.all(scene)), "what is stored");
        return detail("sent", count);
    }

    private static Map<String, Object> oneway(Scene scene) throws Exception {
        scene.createTopic(2);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 20; i++) {
            producer.sendOneway(new Message(scene.topic, utf8("o" + i)));
        }
        await("20 messages stored", () -> scene.messagesStored() == 20, scene::messagesStored);
        expectEquals(Scene.bodies("o", 20), Reading.texts(Reading.all(scene)), "what is stored");
        return detail("stored", scene.messagesStored());
    }

    private static Map<String, Object> batch(Scene scene) throws Exception {
        scene.createTopic(2);
        DefaultMQProducer producer = scene.producer();
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            Message message = new Message(scene.topic, "TagB", "key" + i, utf8("b" + i));
            message.putUserProperty("n", Integer.toString(i));
            messages.add(message);
        }
        SendResult result = producer.send(messages);
        expectEquals(SendStatus.SEND_OK, result.getSendStatus(), "status");
        expectEquals(5, result.getMsgId().split(",").length, "unique ids");
        expectEquals(5, result.getOffsetMsgId().split(",").length, "offset ids");
        expectEquals(0L, result.getQueueOffset(), "first queue offset");
        List<MessageExt> stored = Reading.all(scene);
        expectEquals(Scene.bodies("b", 5), Reading.texts(stored), "what is stored");
        for (MessageExt message : stored) {
            expectEquals("TagB", message.getTags(), "tag");
            expectEquals("b" + message.getUserProperty("n"), Scene.text(message.getBody()), "property");
            expectEquals(result.getMessageQueue().getQueueId(), message.getQueueId(), "one queue for a batch");
            expectEquals((long) Integer.parseInt(message.getUserProperty("n")), message.getQueueOffset(), "order in the queue");
        }
        return detail("stored", stored.size());
    }

    private static Map<String, Object> properties(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        Message sent = new Message(scene.topic, "TagA", "one two", utf8("body"));
        sent.setFlag(77);
        sent.putUserProperty("color", "red");
        sent.putUserProperty("long", String.join("", Collections.nCopies(4000, "x")));
        sent.setBuyerId("buyer-1");
        SendResult result = producer.send(sent);
        MessageExt got = Reading.all(scene).get(0);
        expectEquals("TagA", got.getTags(), "tags");
        expectEquals("one two", got.getKeys(), "keys");
        expectEquals("red", got.getUserProperty("color"), "color");
        expectEquals(4000, got.getUserProperty("long").length(), "long value");
        expectEquals("buyer-1", got.getBuyerId(), "buyer id");
        expectEquals(77, got.getFlag(), "flag");
        expectEquals(result.getMsgId(), got.getMsgId(), "unique id");
        expectEquals(0, got.getReconsumeTimes(), "reconsume times");
        expect(got.getBornTimestamp() > 0 && got.getStoreTimestamp() > 0, "stamps");
        return detail("properties", new TreeMap<>(got.getProperties()).keySet());
    }

    private static Map<String, Object> unicode(Scene scene) throws Exception {
        scene.createTopic(1);
        String text = "grüße, 世界, мир, \uD83D\uDE80 {\"quote\\\":\"}";
        Message sent = new Message(scene.topic, "标签", "клÿч", utf8(text));
        sent.putUserProperty("名前", text);
        scene.producer().send(sent);
        MessageExt got = Reading.all(scene).get(0);
        expectEquals(text, Scene.text(got.getBody()), "body");
        expectEquals("标签", got.getTags(), "tag");
        expectEquals("клÿч", got.getKeys(), "key");
        expectEquals(text, got.getUserProperty("名前"), "property");
        return detail("bytes", got.getBody().length);
    }

    private static Map<String, Object> large(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        byte[] noise = new byte[1 << 20];
        new Random(7).nextBytes(noise);
        byte[] regular = utf8(String.join("", Collections.nCopies(1 << 16, "0123456789abcdef")));
        byte[] below = Arrays.copyOf(regular, 4095);
        byte[] nearLimit = new byte[(4 << 20) - 4096];
        new Random(8).nextBytes(nearLimit);
        producer.setCompressMsgBodyOverHowmuch(4096);
        for (byte[] body : Arrays.asList(noise, regular, below)) {
            expectEquals(SendStatus.SEND_OK, producer.send(new Message(scene.topic, body)).getSendStatus(), "status");
        }
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        expectEquals(SendStatus.SEND_OK, producer.send(new Message(scene.topic, nearLimit)).getSendStatus(), "status");
        List<MessageExt> got = Reading.all(scene);
        expectEquals(4, got.size(), "messages");
        expect(Arrays.equals(noise, got.get(0).getBody()), "1 MiB that does not compress");
        expect(Arrays.equals(regular, got.get(1).getBody()), "1 MiB that compresses");
        expect(Arrays.equals(below, got.get(2).getBody()), "below the threshold");
        expect(Arrays.equals(nearLimit, got.get(3).getBody()), "almost 4 MiB, plain");
        expect(got.get(1).getStoreSize() < 64 << 10, "stored compressed: " + got.get(1).getStoreSize());
        return detail("store_sizes", Arrays.asList(got.get(0).getStoreSize(), got.get(1).getStoreSize(),
            got.get(2).getStoreSize(), got.get(3).getStoreSize()));
    }

    private static Map<String, Object> chosenQueue(Scene scene) throws Exception {
        scene.createTopic(4);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 12; i++) {
            int wanted = i % 3;
            SendResult result = producer.send(new Message(scene.topic, utf8("q" + i)), (queues, message, arg) -> {
                return queues.stream().filter(q -> q.getQueueId() == (Integer) arg).findFirst().get();
            }, wanted);
            expectEquals(wanted, result.getMessageQueue().getQueueId(), "queue");
        }
        int[] found = new int[4];
        Reading.all(scene).forEach(message -> found[message.getQueueId()]++);
        expect(Arrays.equals(new int[] {4, 4, 4, 0}, found), "messages a queue: " + Arrays.toString(found));
        return detail("queues", Arrays.toString(found));
    }

    private static Map<String, Object> unknownTopic(Scene scene) throws Exception {
        SendResult result = scene.producer().send(new Message(scene.topic, utf8("first")));
        expectEquals(SendStatus.SEND_OK, result.getSendStatus(), "status");
        await("route of the new topic", () -> {
            try {
                return scene.admin().examineTopicRouteInfo(scene.topic) != null;
            } catch (Exception e) {
                return false;
            }
        });
        int queues = scene.queues().size();
        expectEquals(4, queues, "queues as the client's default asks");
        expectEquals(1L, scene.messagesStored(), "messages");
        return detail("queues", queues);
    }

    private static Map<String, Object> refused(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        producer.setRetryTimesWhenSendFailed(0);
        List<String> said = new ArrayList<>();
        for (Message bad : Arrays.asList(
            new Message(scene.topic, new byte[0]),
            new Message("bad topic!", utf8("x")),
            new Message("SCHEDULE_TOPIC_XXXX", utf8("x")))) {
            try {
                producer.send(bad);
                throw new AssertionError("sent to " + bad.getTopic());
            } catch (MQClientException e) {
                said.add(e.getResponseCode() + " " + e.getErrorMessage());
            }
        }
        expectEquals(0L, scene.messagesStored(), "messages");
        return detail("said", said);
    }
}

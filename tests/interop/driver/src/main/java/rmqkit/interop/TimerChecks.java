package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Messages with a delivery time and their recall, by the API of the 5.x client. */
final class TimerChecks {
    private TimerChecks() {
    }

    static void register() {
        Driver.add("timer", "send_timer", TimerChecks::send);
        Driver.add("timer", "recall_timer", TimerChecks::recall);
    }

    private static Map<String, Object> send(Scene scene) throws Exception {
        scene.createTopic(1);
        ConsumeChecks.Member member = new ConsumeChecks.Member(scene, "*", MessageModel.CLUSTERING);
        await("a queue", () -> member.queues().size() == 1);
        DefaultMQProducer producer = scene.producer();
        long due = System.currentTimeMillis() + 3_000;
        Message seconds = new Message(scene.topic, utf8("seconds"));
        seconds.setDelayTimeSec(3);
        Message milliseconds = new Message(scene.topic, utf8("milliseconds"));
        milliseconds.setDelayTimeMs(3_000);
        Message time = new Message(scene.topic, utf8("time"));
        time.setDeliverTimeMs(due);
        for (Message message : new Message[] {seconds, milliseconds, time}) {
            expect(producer.send(message).getRecallHandle() != null, "a recall handle");
        }
        await("three messages", () -> member.got.size() >= 3, () -> member.got);
        long waited = System.currentTimeMillis() - due;
        List<MessageExt> stored = Reading.all(scene);
        expectEquals(new TreeSet<>(java.util.Arrays.asList("milliseconds", "seconds", "time")), Reading.texts(stored), "stored");
        for (MessageExt message : stored) {
            expect(message.getStoreTimestamp() >= due, "early by " + (due - message.getStoreTimestamp()) + " ms");
        }
        Message far = new Message(scene.topic, utf8("far"));
        far.setDelayTimeSec(4 * 86_400);
        try {
            producer.send(far);
            expect(false, "a time beyond three days was taken");
        } catch (MQBrokerException refused) {
            expectEquals(13, refused.getResponseCode(), "code");
        }
        return detail("late_ms", waited);
    }

    private static Map<String, Object> recall(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        Message gone = new Message(scene.topic, utf8("gone"));
        gone.setDelayTimeMs(4_000);
        Message kept = new Message(scene.topic, utf8("kept"));
        kept.setDelayTimeMs(4_000);
        SendResult sent = producer.send(gone);
        producer.send(kept);
        expectEquals(sent.getMsgId(), producer.recallMessage(scene.topic, sent.getRecallHandle()), "id");
        await("the other message", () -> scene.messagesStored() >= 1, scene::messagesStored);
        Thread.sleep(1_500);
        expectEquals(new TreeSet<>(java.util.Collections.singleton("kept")), Reading.texts(Reading.all(scene)), "stored");
        return detail("handle", sent.getRecallHandle());
    }
}

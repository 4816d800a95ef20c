package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Java's side of a talk with our Python client, which runs beside it (`tests/interop/test_mixed.py`): each answers the other's
 * questions and reads the other's traces. -Dinterop.mixed names the topics: NAME_java is answered here, NAME_ours there.
 */
@SuppressWarnings("deprecation")
final class ReplyChecks {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";

    private ReplyChecks() {
    }

    static void register() {
        Driver.add("sample", "mixed", ReplyChecks::mixed);
    }

    private static Map<String, Object> mixed(Scene scene) throws Exception {
        String name = System.getProperty("interop.mixed");
        scene.createTopic(1);
        DefaultMQProducer answering = scene.producer();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(scene.group, null, new AllocateMessageQueueAveragely(), true, null);
        scene.atEnd(consumer::shutdown);
        consumer.setNamesrvAddr(scene.namesrv);
        consumer.setInstanceName("interop-mixed-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(name + "_java", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    answering.send(MessageUtil.createReplyMessage(message, utf8("java: " + Scene.text(message.getBody()))), 10_000);
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asking = new DefaultMQProducer("p" + scene.group, null, true, null);
        scene.atEnd(asking::shutdown);
        asking.setNamesrvAddr(scene.namesrv);
        asking.setInstanceName("interop-mixed-producer");
        asking.setSendMsgTimeout(10_000);
        asking.start();
        // A reply is pushed to the client that asks, which a broker knows by its heartbeats.
        asking.send(new Message(name + "_ours", utf8("no question, to learn the route")));
        scene.awaitProducers(2, asking, answering);
        for (int i = 0; i < 3; i++) {
            Message question = new Message(name + "_ours", "T", "asked-by-java", utf8("java asks " + i));
            expectEquals("ours: java asks " + i, Scene.text(asking.request(question, 30_000).getBody()), "reply of our client");
        }
        Map<String, TraceContext> kinds = new ConcurrentHashMap<>();
        await("traces of our producer and consumer", () -> {
            collect(scene, "asked-by-ours", kinds, "Pub");
            collect(scene, "asked-by-java", kinds, "SubBefore", "SubAfter");
            return kinds.size() == 3;
        }, kinds::keySet);
        TraceContext pub = kinds.get("Pub");
        expectEquals(name + "_java", pub.getTraceBeans().get(0).getTopic(), "topic of our Pub");
        expectEquals("TagOurs", pub.getTraceBeans().get(0).getTags(), "tags of our Pub");
        expectEquals(name + "_askers", pub.getGroupName(), "group of our Pub");
        expectEquals(name + "_answerers", kinds.get("SubAfter").getGroupName(), "group of our SubAfter");
        return detail("kinds", kinds.keySet());
    }

    /** The trace contexts of our client, read by Java's own decoder. */
    private static void collect(Scene scene, String key, Map<String, TraceContext> kinds, String... wanted) throws Exception {
        List<MessageExt> found;
        try {
            found = scene.admin().queryMessage(TRACE_TOPIC, key, 64, 0, System.currentTimeMillis() + 600_000).getMessageList();
        } catch (MQClientException e) {
            return;
        }
        for (MessageExt message : found) {
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(Scene.text(message.getBody()))) {
                boolean ours = context.getGroupName().endsWith("_askers") || context.getGroupName().endsWith("_answerers");
                if (ours && java.util.Arrays.asList(wanted).contains(context.getTraceType().name())) {
                    kinds.put(context.getTraceType().name(), context);
                }
            }
        }
    }
}

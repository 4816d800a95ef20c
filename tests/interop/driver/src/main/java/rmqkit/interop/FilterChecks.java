package rmqkit.interop;

import static rmqkit.interop.Scene.await;
import static rmqkit.interop.Scene.detail;
import static rmqkit.interop.Scene.expect;
import static rmqkit.interop.Scene.expectEquals;
import static rmqkit.interop.Scene.utf8;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;

/** What SQL92 expressions mean, by the parser of Apache's broker; and the lite pull consumer with one. */
@SuppressWarnings("deprecation")
final class FilterChecks {
    private static final String[] VALUES = {
        "1", "2", "-1", "+1", "1.5", " 1", "1f", "0x1p0", "NaN", "Infinity", "-0.0", ".5", "3000000000", "true", "TRUE", "x", "axb", "it's"
    };
    private static final String[] EXPRESSIONS = {
        "a = 1", "a <> 1", "a > 1", "a >= 1", "a < 1", "a <= 1", "1 < a", "a = 1.0", "a > 1.0", "a < 1.0", "a >= .5", "a = -1", "a > --1",
        "a = 3000000000", "a > 2999999999", "a = 1L", "a = 'x'", "a <> 'x'", "a = 'it''s'", "a = b", "a <> b", "a > b", "a = TRUE", "TRUE = a",
        "a = FALSE", "a", "NOT a", "NOT a = 1", "NOT (a = 1)", "a IS NULL", "a IS NOT NULL", "-a IS NULL", "-a = b",
        "a BETWEEN 1 AND 2", "a NOT BETWEEN 1 AND 2", "a BETWEEN -1 AND b", "a IN ('1', 'x', '2', '1.5', '-1')", "a NOT IN ('1')", "b IN ('x')",
        "a CONTAINS 'x'", "a NOT CONTAINS 'x'", "a STARTSWITH 'a'", "a NOT STARTSWITH 'a'", "a ENDSWITH 'b'", "a NOT ENDSWITH 'b'", "a CONTAINS ''",
        "a > 1 OR b = 'x'", "b = 'x' OR a > 1", "a > 1 AND b = 'x'", "b IS NULL AND a = 1 OR a = 2", "a = 1 = TRUE", "1 = '1'", "'axb' CONTAINS 'x'",
        "a > 1 -- to the end\n AND b = 'x'", "/* so */ a = 1", "a=1AND b IS NULL", "((((a)))) IN ('x')", "TRUE", "FALSE", "NULL", "NOT NULL",
        "TAGS = 'TagA' AND a IS NOT NULL", "$none IS NULL AND a = 'x'"
    };
    private static final String[] REFUSED = {
        "a >", "(a = 1", "a == 1", "a > 'x'", "a = NULL", "NULL <> a", "TRUE = 1", "a > 1 > 2", "a BETWEEN 2 AND 1", "5", "-a", "NOT 5", "'x' IN ('x')",
        "a IN ()", "a IN (1)", "a CONTAINS 1", "a > 0.0", "a > 1e999", "a = 100000000000000000000", "a = \"x\"", "a AND AND b"
    };

    private FilterChecks() {
    }

    static void register() {
        Driver.add("sql", "sql_meaning", FilterChecks::meaning);
        Driver.add("sql", "lite_sql_filter", FilterChecks::lite);
    }

    /** The properties of message i: a always, b for some. */
    private static Map<String, String> properties(int i) {
        Map<String, String> properties = new HashMap<>();
        if (i < VALUES.length) {
            properties.put("a", VALUES[i]);
        }
        if (i % 3 == 0) {
            properties.put("b", VALUES[(i * 7 + 3) % VALUES.length]);
        } else if (i % 3 == 1) {
            properties.put("b", "x");
        }
        return properties;
    }

    private static Set<String> wanted(String expression, List<Map<String, String>> sent) throws MQFilterException {
        BooleanExpression compiled = SelectorParser.parse(expression);
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < sent.size(); i++) {
            Map<String, String> properties = sent.get(i);
            Object result;
            try {
                result = compiled.evaluate(new EvaluationContext() {
                    @Override
                    public Object get(String name) {
                        return properties.get(name);
                    }

                    @Override
                    public Map<String, Object> keyValues() {
                        return new HashMap<>(properties);
                    }
                });
            } catch (Exception e) {
                result = null;
            }
            if (Boolean.TRUE.equals(result)) {
                wanted.add("m" + i);
            }
        }
        return wanted;
    }

    private static Map<String, Object> meaning(Scene scene) throws Exception {
        scene.createTopic(1);
        DefaultMQProducer producer = scene.producer();
        List<Map<String, String>> sent = new ArrayList<>();
        for (int i = 0; i <= VALUES.length; i++) {
            Message message = new Message(scene.topic, "TagA", utf8("m" + i));
            properties(i).forEach(message::putUserProperty);
            producer.send(message);
            Map<String, String> all = new HashMap<>(properties(i));
            all.put("TAGS", "TagA");
            sent.add(all);
        }
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(scene.topic).iterator().next();
        consumer.pull(queue, "*", 0, 1);
        await("an answered heartbeat", () -> {
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            try {
                consumer.pull(queue, MessageSelector.bySql("TRUE"), 0, 1);
                return true;
            } catch (MQClientException e) {
                return false;
            }
        });
        for (String expression : EXPRESSIONS) {
            Set<String> got = new TreeSet<>();
            PullResult result = consumer.pull(queue, MessageSelector.bySql(expression), 0, 32);
            if (result.getMsgFoundList() != null) {
                for (MessageExt message : result.getMsgFoundList()) {
                    got.add(Scene.text(message.getBody()));
                }
            }
            expectEquals(wanted(expression, sent), got, expression);
            expectEquals((long) sent.size(), result.getNextBeginOffset(), "next offset of " + expression);
        }
        refuse(scene, consumer);
        return detail("expressions", EXPRESSIONS.length, "messages", sent.size(), "refused", REFUSED.length);
    }

    /** What Apache's parser does not take is answered with SUBSCRIPTION_PARSE_FAILED (CHECK_CLIENT_CONFIG). */
    private static void refuse(Scene scene, DefaultMQPullConsumer consumer) throws Exception {
        for (String expression : REFUSED) {
            try {
                SelectorParser.parse(expression);
                throw new AssertionError("Apache's parser takes " + expression);
            } catch (MQFilterException e) {
                // as it should be
            }
            try {
                consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQClientAPIImpl().checkClientInBroker(
                    scene.master(), scene.group, "client", FilterAPI.build(scene.topic, expression, "SQL92"), 10_000);
                throw new AssertionError("the broker takes " + expression);
            } catch (MQClientException e) {
                expectEquals(ResponseCode.SUBSCRIPTION_PARSE_FAILED, e.getResponseCode(), "code of " + expression);
            }
        }
    }

    private static Map<String, Object> lite(Scene scene) throws Exception {
        scene.createTopic(2);
        DefaultMQProducer producer = scene.producer();
        for (int i = 0; i < 20; i++) {
            Message message = new Message(scene.topic, utf8("m" + i));
            message.putUserProperty("n", Integer.toString(i));
            producer.send(message);
        }
        DefaultLitePullConsumer consumer = scene.litePullConsumer();
        consumer.subscribe(scene.topic, MessageSelector.bySql("n BETWEEN 5 AND 9 OR n = 19"));
        consumer.start();
        Set<String> wanted = Scene.minus(Scene.bodies("m", 10), Scene.bodies("m", 5));
        wanted.add("m19");
        Set<String> got = new TreeSet<>();
        await("the chosen messages", () -> {
            consumer.poll(200).forEach(message -> got.add(Scene.text(message.getBody())));
            return got.containsAll(wanted);
        }, () -> got);
        expect(got.equals(wanted), "wanted " + wanted + ", got " + got);
        return detail("got", got.size());
    }
}

package rmqkit.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer as any application writes it, which knows nothing of masters and slaves: prints each message it is given
 * as `broker queue offset body`, until its standard input ends.
 *
 * Arguments: name server, topic, group, and how often the client looks for new routes (30,000 ms when nobody says).
 */
public final class Rider {
    private Rider() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(Integer.parseInt(args[3]));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String queue = message.getBrokerName() + " " + message.getQueueId() + " " + message.getQueueOffset();
                synchronized (Rider.class) {
                    System.out.println("got " + queue + " " + Scene.text(message.getBody()));
                    System.out.flush();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.currentThread().join();
    }
}

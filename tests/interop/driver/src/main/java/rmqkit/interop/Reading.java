package rmqkit.interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads a whole topic by plain pulls, queue after queue. */
@SuppressWarnings("deprecation")
final class Reading {
    private Reading() {
    }

    static List<MessageExt> all(Scene scene) throws Exception {
        DefaultMQPullConsumer consumer = scene.pullConsumer();
        List<MessageExt> found = new ArrayList<>();
        Set<MessageQueue> queues = new TreeSet<>(consumer.fetchSubscribeMessageQueues(scene.topic));
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, "*", offset, 32, 20_000);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
                Scene.expect(result.getNextBeginOffset() > offset, "stuck at " + queue + " " + offset + ": " + result);
                offset = result.getNextBeginOffset();
            }
        }
        return found;
    }

    static Set<String> texts(Collection<MessageExt> messages) {
        Set<String> bodies = new TreeSet<>();
        messages.forEach(message -> bodies.add(Scene.text(message.getBody())));
        return bodies;
    }
}

package rmqkit.bench;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.LongAdder;

/**
 * What one load came to. Everything is counted from start to end; the rate is that of a window within, whose two ends are
 * told to the other side, so that it can look at the processes at the same moments.
 */
final class Window {
    /** Whether the load goes on. */
    volatile boolean running = true;
    /** Whether times are noted. */
    volatile boolean open;
    final LongAdder done = new LongAdder();
    final LongAdder failed = new LongAdder();
    final Latencies times = new Latencies();
    volatile String firstFailure = "";
    private final Load load;
    private double seconds;
    private long within;

    Window(Load load) {
        this.load = load;
    }

    /** Lets the load run `leadMs` that do not count and `runMs` that do, then ends it. */
    void pass(long leadMs, long runMs) throws Exception {
        Thread.sleep(leadMs);
        begin();
        Thread.sleep(runMs);
        end();
        running = false;
    }

    private long beganNanos;
    private long before;

    void begin() {
        load.tell("begin", Map.of());
        open = true;
        before = done.sum();
        beganNanos = System.nanoTime();
    }

    void end() {
        within = done.sum() - before;
        seconds = (System.nanoTime() - beganNanos) / 1e9;
        open = false;
        load.tell("end", Map.of());
    }

    void failed(Throwable why) {
        failed.increment();
        if (firstFailure.isEmpty()) {
            firstFailure = String.valueOf(why);
        }
    }

    Map<String, Object> result() {
        Map<String, Object> result = new TreeMap<>();
        result.put("seconds", seconds);
        result.put("within", within);
        result.put("perSecond", seconds > 0 ? within / seconds : 0);
        result.put("done", done.sum());
        result.put("failed", failed.sum());
        result.put("firstFailure", firstFailure);
        result.put("p50Ms", times.percentileMs(0.5));
        result.put("p99Ms", times.percentileMs(0.99));
        result.put("p999Ms", times.percentileMs(0.999));
        return result;
    }
}

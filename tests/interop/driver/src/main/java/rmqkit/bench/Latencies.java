package rmqkit.bench;

import java.util.concurrent.atomic.AtomicLongArray;

/** Times in buckets that grow with the time: 32 to each power of two, so that a percentile is right to 3 %. */
final class Latencies {
    private static final int BITS = 5;
    private static final int PER_POWER = 1 << BITS;
    private final AtomicLongArray counts = new AtomicLongArray((64 - BITS) * PER_POWER);

    void add(long nanos) {
        counts.incrementAndGet(bucket(Math.max(0, nanos)));
    }

    long count() {
        long sum = 0;
        for (int i = 0; i < counts.length(); i++) {
            sum += counts.get(i);
        }
        return sum;
    }

    /** The time in ms that `share` of all stay below; 0 when there are none. */
    double percentileMs(double share) {
        long wanted = (long) Math.ceil(count() * share);
        long seen = 0;
        for (int i = 0; i < counts.length(); i++) {
            seen += counts.get(i);
            if (seen >= wanted && seen > 0) {
                return upperEnd(i) / 1e6;
            }
        }
        return 0;
    }

    private static int bucket(long nanos) {
        if (nanos < PER_POWER) {
            return (int) nanos;
        }
        int power = 63 - Long.numberOfLeadingZeros(nanos);
        int within = (int) (nanos >>> (power - BITS)) & (PER_POWER - 1);
        return (power - BITS + 1) * PER_POWER + within;
    }

    private static double upperEnd(int bucket) {
        if (bucket < PER_POWER) {
            return bucket + 1;
        }
        int power = bucket / PER_POWER + BITS - 1;
        return (double) (PER_POWER + bucket % PER_POWER + 1) * (1L << (power - BITS));
    }
}

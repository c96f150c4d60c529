package commitlogfs;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

/** Counts durations in steps of 0.1 ms up to a minute; the maximum is exact. */
final class Latencies {
    private static final long STEP_NS = 100_000;
    private final AtomicLongArray counts = new AtomicLongArray(600_000);
    private final AtomicLong maxNs = new AtomicLong();

    void add(long nanoseconds) {
        counts.incrementAndGet((int) Math.min(nanoseconds / STEP_NS, counts.length() - 1));
        maxNs.accumulateAndGet(nanoseconds, Math::max);
    }

    /** Upper bound, in ms, of the step that holds the given share of all durations; 0 without any. */
    double quantileMs(double share) {
        long total = 0;
        for (int i = 0; i < counts.length(); i++) {
            total += counts.get(i);
        }
        long wanted = (long) Math.ceil(total * share);
        long seen = 0;
        for (int i = 0; i < counts.length() && total > 0; i++) {
            seen += counts.get(i);
            if (seen >= wanted) {
                return (i + 1) * STEP_NS / 1e6;
            }
        }
        return 0;
    }

    double maxMs() {
        return maxNs.get() / 1e6;
    }
}

package commitlogfs;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** Message bodies that follow from their sequence number: 8 bytes of it, then splitmix64 output seeded by it. */
final class Bodies {
    static final int MIN_BYTES = 8;

    private Bodies() {
    }

    static byte[] make(long sequence, int sizeBytes) {
        ByteBuffer out = ByteBuffer.allocate((sizeBytes + 7) / 8 * 8);
        out.putLong(sequence);
        long state = sequence;
        while (out.hasRemaining()) {
            state += 0x9E3779B97F4A7C15L;
            long z = (state ^ (state >>> 30)) * 0xBF58476D1CE4E5B9L;
            z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
            out.putLong(z ^ (z >>> 31));
        }
        return out.array().length == sizeBytes ? out.array() : Arrays.copyOf(out.array(), sizeBytes);
    }

    /** The sequence number, or -1 when any byte differs from what {@link #make} gives. */
    static long verify(byte[] body) {
        if (body == null || body.length < MIN_BYTES) {
            return -1;
        }
        long sequence = ByteBuffer.wrap(body).getLong();
        return sequence >= 0 && Arrays.equals(body, make(sequence, body.length)) ? sequence : -1;
    }
}

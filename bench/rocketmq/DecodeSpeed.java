import java.io.File;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own decoder over mapped segments, one thread: DecodeSpeed DIRECTORY ROUNDS prints one line per round,
 * "messages nanoseconds checksum". Bodies are read, not unpacked; no CRC is computed.
 */
public final class DecodeSpeed {
    private static final int BLANK = 0xCBD43194;

    private DecodeSpeed() {
    }

    public static void main(String[] args) throws Exception {
        File[] segments = new File(args[0]).listFiles((directory, name) -> name.matches("[0-9]{20}"));
        Arrays.sort(segments);
        for (int round = 0; round < Integer.parseInt(args[1]); round++) {
            long messages = 0;
            long sum = 0;
            long start = System.nanoTime();
            for (File segment : segments) {
                try (FileChannel channel = FileChannel.open(Path.of(segment.getPath()), StandardOpenOption.READ)) {
                    MappedByteBuffer log = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
                    while (isRecord(log)) {
                        MessageExt message = MessageDecoder.decode(log, true, false, false);
                        if (message == null) {
                            throw new IllegalStateException("not decoded: " + segment + " at " + log.position());
                        }
                        messages++;
                        sum += message.getBody().length + message.getTopic().length() + message.getProperties().size();
                    }
                }
            }
            System.out.println(messages + " " + (System.nanoTime() - start) + " " + sum);
        }
    }

    /** decode takes blank and unwritten bytes for the end of the whole buffer: ask before. */
    private static boolean isRecord(ByteBuffer log) {
        if (log.remaining() < 8) {
            return false;
        }
        int magic = log.getInt(log.position() + 4);
        return magic != 0 && magic != BLANK;
    }
}

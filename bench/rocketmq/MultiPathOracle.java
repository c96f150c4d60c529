package commitlogfs;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.rocketmq.store.MultiPathMappedFileQueue;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.logfile.MappedFile;

/**
 * Asks RocketMQ's own multi-path queue where it would put a segment; no file is made.
 *
 * <p>In: "segmentSize TAB paths TAB readonlyPaths TAB fullPaths TAB createOffset", lists separated by commas.
 * Out: "ok TAB nextFile TAB nextNextFile", or "error TAB what".
 */
public final class MultiPathOracle {
    private MultiPathOracle() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split("\t", -1)));
        }
    }

    private static String answer(String[] fields) {
        try {
            MessageStoreConfig config = new MessageStoreConfig();
            config.setStorePathCommitLog(fields[1]);
            config.setReadOnlyCommitLogStorePaths(fields[2]);
            Set<String> full = fields[3].isEmpty() ? Collections.emptySet()
                : new HashSet<>(Arrays.asList(fields[3].split(",")));
            Recorder queue = new Recorder(config, Integer.parseInt(fields[0]), () -> full);
            queue.tryCreateMappedFile(Long.parseLong(fields[4]));
            return "ok\t" + queue.next + "\t" + queue.nextNext;
        } catch (RuntimeException e) {
            return "error\t" + e.toString().replaceAll("\\s", " ");
        }
    }

    /** The real queue with only its last step, making the files, replaced by noting their names. */
    private static final class Recorder extends MultiPathMappedFileQueue {
        private String next;
        private String nextNext;

        Recorder(MessageStoreConfig config, int segmentSize, Supplier<Set<String>> full) {
            super(config, segmentSize, null, full);
        }

        @Override
        protected MappedFile doCreateMappedFile(String nextFilePath, String nextNextFilePath) {
            next = nextFilePath;
            nextNext = nextNextFilePath;
            return null;
        }
    }
}

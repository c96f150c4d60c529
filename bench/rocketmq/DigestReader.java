package commitlogfs;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pulls every queue of --topic to its present end, and writes a line for each message to --output:
 * "queueId queueOffset keys SHA-256 of the body".
 */
final class DigestReader {
    private static final int AT_ONCE = 32;

    private final Options options;

    DigestReader(Options options) {
        this.options = options;
    }

    boolean run() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "digests"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        long count = 0;
        try (BufferedWriter output = Files.newBufferedWriter(Paths.get(options.text("output")))) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
                long end = consumer.maxOffset(queue);
                for (long offset = consumer.minOffset(queue); offset < end;) {
                    PullResult result = consumer.pull(queue, "*", offset, AT_ONCE);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            output.write(line(message));
                            count++;
                        }
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        }
        consumer.shutdown();
        System.out.println("{\"event\":\"result\",\"read\":" + count + "}");
        return true;
    }

    private static String line(MessageExt message) throws Exception {
        StringBuilder digest = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(message.getBody())) {
            digest.append(String.format("%02x", one));
        }
        return message.getQueueId() + " " + message.getQueueOffset() + " " + message.getKeys() + " " + digest + "\n";
    }
}

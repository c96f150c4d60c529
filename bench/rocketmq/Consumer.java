package commitlogfs;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pulls every queue of a topic from its lowest offset and recomputes every body byte.
 *
 * <p>Ends when all queues are at their end and --expect different messages were seen, or when nothing new came for
 * --idle-timeout seconds. --received gets one line per message:
 * "sequence queueId queueOffset commitLogOffset storeSize offsetMsgId", sequence -1 for a corrupted body.
 */
final class Consumer {
    private static final int BATCH = 32;

    private final Options options;
    private final long expect;
    private final long idleNs;
    private final BitSet seen = new BitSet();
    private final AtomicLong pullErrors = new AtomicLong();
    private final AtomicLong skipped = new AtomicLong();
    private final long startedNs = System.nanoTime();
    private volatile long lastNewNs = startedNs;
    private volatile long distinct;
    private volatile String lastError = "";
    private long duplicates;
    private long corrupted;
    private long bodyBytes;
    private long firstMessageNs;
    private MessageExt first;
    private BufferedWriter received;
    private DefaultMQPullConsumer consumer;

    Consumer(Options options) {
        this.options = options;
        expect = options.number("expect", 0);
        idleNs = (long) (options.real("idle-timeout", 10) * 1e9);
    }

    boolean run() throws Exception {
        if (options.flag("received")) {
            received = Files.newBufferedWriter(Paths.get(options.text("received")));
        }
        consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.start();
        lastNewNs = System.nanoTime(); // on a busy machine the start alone can take longer than the idle time
        List<Thread> threads = new ArrayList<>();
        for (MessageQueue queue : findQueues()) {
            Thread thread = new Thread(() -> drain(queue), "queue-" + queue.getQueueId());
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        consumer.shutdown();
        if (received != null) {
            received.close();
        }
        print();
        return distinct >= expect && corrupted == 0;
    }

    /** The queues, as soon as the name server knows the topic; none when the idle time passes first. */
    private Collection<MessageQueue> findQueues() throws InterruptedException {
        while (!isIdle()) {
            try {
                return consumer.fetchSubscribeMessageQueues(options.text("topic"));
            } catch (MQClientException e) {
                noteError(e);
            }
        }
        return Collections.emptyList();
    }

    private void drain(MessageQueue queue) {
        try {
            long offset = -1;
            while (!isIdle()) {
                PullResult result;
                try {
                    if (offset < 0) {
                        offset = consumer.minOffset(queue);
                    }
                    result = consumer.pull(queue, "*", offset, BATCH);
                } catch (InterruptedException e) {
                    throw e;
                } catch (Exception e) {
                    noteError(e);
                    continue;
                }
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        skipped.addAndGet(message.getQueueOffset() - offset);
                        offset = message.getQueueOffset() + 1;
                        note(message);
                    }
                } else if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                    if (distinct >= expect && expect > 0) {
                        return;
                    }
                    Thread.sleep(20);
                    continue;
                }
                skipped.addAndGet(Math.max(0, result.getNextBeginOffset() - offset));
                offset = result.getNextBeginOffset();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized void note(MessageExt message) {
        lastNewNs = System.nanoTime();
        long sequence = Bodies.verify(message.getBody());
        bodyBytes += message.getBody() == null ? 0 : message.getBody().length;
        if (sequence < 0 || sequence >= Integer.MAX_VALUE) {
            corrupted++;
            sequence = -1;
        } else if (seen.get((int) sequence)) {
            duplicates++;
        } else {
            seen.set((int) sequence);
            distinct++;
        }
        if (first == null) {
            firstMessageNs = lastNewNs;
        }
        if (first == null || message.getCommitLogOffset() < first.getCommitLogOffset()) {
            first = message;
        }
        if (received != null) {
            write(sequence, message);
        }
    }

    private void write(long sequence, MessageExt message) {
        try {
            received.write(sequence + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
                + message.getCommitLogOffset() + " " + message.getStoreSize() + " " + offsetId(message) + "\n");
        } catch (IOException e) {
            throw new IllegalStateException("cannot write the list of received messages", e);
        }
    }

    private boolean isIdle() {
        return System.nanoTime() - lastNewNs > idleNs;
    }

    private void noteError(Exception e) throws InterruptedException {
        pullErrors.incrementAndGet();
        lastError = String.valueOf(e.getMessage());
        Thread.sleep(100);
    }

    private static String offsetId(MessageExt message) {
        return message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId();
    }

    private synchronized void print() {
        double seconds = first == null ? 0 : (lastNewNs - firstMessageNs) / 1e9;
        String firstJson = first == null ? "null" : String.format(Locale.ROOT,
            "{\"commit_log_offset\":%d,\"store_size\":%d,\"offset_msg_id\":\"%s\",\"msg_id\":\"%s\"}",
            first.getCommitLogOffset(), first.getStoreSize(), offsetId(first), first.getMsgId());
        System.out.println(String.format(Locale.ROOT,
            "{\"event\":\"result\",\"distinct\":%d,\"duplicates\":%d,\"corrupted\":%d,\"skipped\":%d,\"pull_errors\":%d,"
                + "\"body_bytes\":%d,\"lowest\":%d,\"highest\":%d,\"seconds\":%.3f,\"first\":%s,\"last_error\":\"%s\"}",
            distinct, duplicates, corrupted, skipped.get(), pullErrors.get(), bodyBytes,
            seen.isEmpty() ? -1 : seen.nextSetBit(0), seen.length() - 1, seconds, firstJson,
            lastError.replaceAll("[^ !#-\\[\\]-~]", " ")));
    }
}

package commitlogfs;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages synchronously from several threads.
 *
 * <p>Ends after --count messages, after --duration seconds, or with --until-eof when stdin closes. With --batches, each
 * line on stdin is a number of messages that are sent then, with a result for them alone; nothing is sent between two
 * batches, and the end of stdin ends the run. A message counts as
 * acknowledged only with SEND_OK; then one line "sequence offsetMsgId queueId queueOffset" is written to --acked with a
 * single write(2), so that killing this process loses none. With --retry a failed message is sent again until it is
 * acknowledged or the run ends; it may then be stored twice, as with any producer.
 */
final class Sender {
    private static final long PAUSE_AFTER_FAILURE_MS = 50;

    private final Options options;
    private final int sizeBytes;
    private final long start;
    private final long count;
    private final double rate;
    private final boolean retry;
    private final String[] tags;
    private final AtomicLong next = new AtomicLong();
    private final AtomicLong acked = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicLong abandoned = new AtomicLong();
    private final Latencies latencies = new Latencies();
    private final long startedNs = System.nanoTime();
    private final long endNs;
    private volatile boolean ended;
    private volatile String lastError = "";
    private FileOutputStream ackedFile;
    private DefaultMQProducer producer;

    Sender(Options options) {
        this(options, options.number("start", 0), options.number("count", Long.MAX_VALUE));
    }

    private Sender(Options options, long start, long count) {
        this.options = options;
        this.start = start;
        this.count = count;
        sizeBytes = (int) options.number("size", 1024);
        if (sizeBytes < Bodies.MIN_BYTES) {
            throw new IllegalArgumentException("--size must be at least " + Bodies.MIN_BYTES);
        }
        rate = options.real("rate", 0);
        retry = options.flag("retry");
        tags = options.flag("tags") ? options.text("tags").split(",") : new String[0];
        endNs = options.flag("duration") ? startedNs + (long) (options.real("duration", 0) * 1e9) : Long.MAX_VALUE;
        boolean ends = count != Long.MAX_VALUE || endNs != Long.MAX_VALUE || options.flag("until-eof");
        if (!ends && !options.flag("batches")) {
            throw new IllegalArgumentException("one of --count, --duration, --until-eof, --batches is required");
        }
    }

    boolean run() throws Exception {
        if (options.flag("acked")) {
            ackedFile = new FileOutputStream(options.text("acked"), true);
        }
        producer = new DefaultMQProducer("commitlogfs-sender");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE); // noise, which only costs time
        // A starved machine shows as latency, which is reported, not as a failed send.
        producer.setSendMsgTimeout((int) options.number("timeout-ms", 10000));
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(5000);
        producer.start();
        if (options.flag("batches")) {
            boolean good = sendBatches();
            producer.shutdown();
            return good;
        }
        if (options.flag("until-eof")) {
            endAtEof();
        }
        if (options.flag("progress")) {
            reportEverySecond();
        }
        sendInThreads();
        producer.shutdown();
        return count == Long.MAX_VALUE || endNs != Long.MAX_VALUE || options.flag("until-eof") || acked.get() == count;
    }

    private boolean sendBatches() throws Exception {
        boolean good = true;
        long first = start;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Sender batch = new Sender(options, first, Long.parseLong(line));
            batch.producer = producer;
            batch.ackedFile = ackedFile;
            batch.sendInThreads();
            good &= batch.acked.get() == batch.count;
            first += batch.count;
        }
        return good;
    }

    private void sendInThreads() throws InterruptedException {
        Thread[] threads = new Thread[(int) options.number("threads", 4)];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(this::sendAll, "sender-" + i);
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        ended = true;
        print("result");
    }

    private void sendAll() {
        try {
            while (!isOver()) {
                long number = next.getAndIncrement();
                if (number >= count) {
                    return;
                }
                waitForTurn(number);
                while (!sendOnce(start + number)) {
                    if (!retry || isOver()) {
                        abandoned.incrementAndGet();
                        break;
                    }
                    Thread.sleep(PAUSE_AFTER_FAILURE_MS);
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean sendOnce(long sequence) throws InterruptedException {
        Message message = new Message(options.text("topic"), Bodies.make(sequence, sizeBytes));
        if (options.flag("keys")) {
            message.setKeys("key-" + sequence);
        }
        if (tags.length > 0) {
            message.setTags(tags[(int) (sequence % tags.length)]);
        }
        long before = System.nanoTime();
        SendResult result;
        try {
            result = producer.send(message);
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) {
            noteFailure(String.valueOf(e.getMessage()));
            return false;
        }
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            noteFailure(result.getSendStatus().name());
            return false;
        }
        latencies.add(System.nanoTime() - before);
        noteAcked(sequence, result);
        return true;
    }

    private void noteAcked(long sequence, SendResult result) {
        acked.incrementAndGet();
        if (ackedFile == null) {
            return;
        }
        String line = sequence + " " + result.getOffsetMsgId() + " " + result.getMessageQueue().getQueueId() + " "
            + result.getQueueOffset() + "\n";
        try {
            synchronized (this) {
                ackedFile.write(line.getBytes(StandardCharsets.US_ASCII));
            }
        } catch (IOException e) {
            throw new IllegalStateException("cannot write the list of acknowledged messages", e);
        }
    }

    private void noteFailure(String reason) {
        failed.incrementAndGet();
        lastError = reason;
    }

    private boolean isOver() {
        return ended || System.nanoTime() >= endNs;
    }

    private void waitForTurn(long number) throws InterruptedException {
        if (rate <= 0) {
            return;
        }
        long dueNs = startedNs + (long) (number / rate * 1e9);
        while (!isOver() && System.nanoTime() < dueNs) {
            Thread.sleep(Math.max(1, Math.min(100, (dueNs - System.nanoTime()) / 1_000_000)));
        }
    }

    private void endAtEof() {
        daemon(() -> {
            try {
                while (System.in.read() >= 0) {
                    // what is written does not matter, only the end does
                }
            } catch (IOException e) {
                lastError = String.valueOf(e.getMessage());
            }
            ended = true;
        });
    }

    private void reportEverySecond() {
        daemon(() -> {
            while (!ended) {
                try {
                    Thread.sleep(1000);
                } catch (InterruptedException e) {
                    return;
                }
                print("progress");
            }
        });
    }

    private static void daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    private void print(String event) {
        double seconds = (System.nanoTime() - startedNs) / 1e9;
        String line = String.format(Locale.ROOT,
            "{\"event\":\"%s\",\"acked\":%d,\"failed\":%d,\"abandoned\":%d,\"seconds\":%.3f,"
                + "\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f,\"last_error\":\"%s\"}",
            event, acked.get(), failed.get(), abandoned.get(), seconds, latencies.quantileMs(0.5),
            latencies.quantileMs(0.99), latencies.maxMs(), lastError.replaceAll("[^ !#-\\[\\]-~]", " "));
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }
}

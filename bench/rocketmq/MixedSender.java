package commitlogfs;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends messages of every kind that a broker stores differently: with several keys and blanks between them, text of
 * all planes, delays, transactions of each outcome, batches, queues of their own for light subscribers, compressed
 * bodies, and some that a consumer with the longest of names sends back.
 *
 * <p>Topics begin with --prefix; --rounds tells how often each kind is sent. With --inner the topic PREFIXInner, which
 * must have the attribute queue.type=BatchCQ, gets batches and single messages, too. The result tells how many messages
 * of each topic consumers are to see, each with a body of {@link Bodies}; a delayed one is seen after a second.
 */
final class MixedSender {
    private static final int COMPRESSED_FROM_BYTES = 2048;
    private static final int LONGEST_GROUP = 120;
    private static final String SMILE = "\uD83D\uDE00";
    private static final String[] TAGS = {"TagA", "TagB", "Gr\u00FC\u00DFe", SMILE + "tag", "polygenelubricants"};
    private static final String[] KEYS = {"one", "one two three", "two  blanks", " around ", SMILE + " \u4E2D\u6587", ""};

    private final Options options;
    private final String prefix;
    private final Map<String, Integer> visible = new TreeMap<>();
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;

    MixedSender(Options options) {
        this.options = options;
        prefix = options.text("prefix", "Mixed");
    }

    boolean run() throws Exception {
        producer = started(new DefaultMQProducer(prefix + "-sender"));
        transactions = new TransactionMQProducer(prefix + "-transactions");
        transactions.setTransactionListener(new Outcomes());
        started(transactions);
        int rounds = (int) options.number("rounds", 10);
        for (int round = 0; round < rounds; round++) {
            sendRound(round);
        }
        sendBack(prefix + "Plain", (prefix + repeat("-long", LONGEST_GROUP)).substring(0, LONGEST_GROUP));
        sendBack(prefix + "Light", prefix + "-light");
        producer.shutdown();
        transactions.shutdown();
        print();
        return true;
    }

    private <P extends DefaultMQProducer> P started(P some) throws Exception {
        some.setNamesrvAddr(options.text("namesrv"));
        some.setInstanceName(some.getProducerGroup());
        some.setCompressMsgBodyOverHowmuch(COMPRESSED_FROM_BYTES);
        some.setSendMsgTimeout(10000);
        some.setRetryTimesWhenSendFailed(0);
        some.start();
        return some;
    }

    private void sendRound(int round) throws Exception {
        for (int i = 0; i < TAGS.length; i++) {
            Message message = next("Plain", 50 + 31 * i);
            message.setTags(TAGS[i]);
            message.setKeys(KEYS[(round + i) % KEYS.length]);
            message.putUserProperty("note", SMILE + round);
            send(message);
        }
        send(next("Bare", 8));
        send(next("Plain", 3000));
        Message delayed = next("Delayed", 100);
        delayed.setDelayTimeLevel(1);
        delayed.setTags("late");
        send(delayed);
        Message veryLate = new Message(prefix + "Delayed", "later", Bodies.make(0, 100));
        veryLate.setDelayTimeLevel(18);
        send(veryLate);
        sendTransaction(round);
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = next("Batch", 40);
            message.setTags(TAGS[i]);
            message.setKeys("batch-" + round + " " + i);
            batch.add(message);
        }
        demandStored(producer.send(batch));
        if (options.flag("inner")) {
            List<Message> inner = Arrays.asList(new Message(prefix + "Inner", "in", Bodies.make(0, 20)),
                new Message(prefix + "Inner", "in", Bodies.make(1, 20)));
            demandStored(producer.send(inner));
            demandStored(producer.send(inner.subList(0, 1)));
            send(new Message(prefix + "Inner", "single", Bodies.make(2, 20)));
        }
        Message light = next("Light", 60);
        light.setTags("lmq");
        MessageAccessor.putProperty(light, "INNER_MULTI_DISPATCH", "%LMQ%one,%LMQ%" + round % 3);
        send(light);
        Message lateLight = next("Light", 60);
        lateLight.setDelayTimeLevel(1);
        MessageAccessor.putProperty(lateLight, "INNER_MULTI_DISPATCH", "%LMQ%late");
        send(lateLight);
    }

    private void sendTransaction(int round) throws Exception {
        Message message = round % 3 == 0 ? next("Transaction", 80)
            : new Message(prefix + "Transaction", Bodies.make(0, 80));
        message.setKeys("transaction-" + round);
        message.setTags("T" + round % 3);
        demandStored(transactions.sendMessageInTransaction(message, round));
    }

    /** The first few messages of a topic, which the broker then delivers to the group's own topic. */
    private void sendBack(String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            PullResult result = consumer.pull(queue, "*", consumer.minOffset(queue), 2);
            List<MessageExt> found = result.getPullStatus() == PullStatus.FOUND ? result.getMsgFoundList()
                : Collections.emptyList();
            for (MessageExt message : found) {
                consumer.sendMessageBack(message, 1, queue.getBrokerName());
            }
        }
        consumer.shutdown();
    }

    /** Its body carries the number of messages of the topic before it. */
    private Message next(String topic, int sizeBytes) {
        int number = visible.merge(prefix + topic, 1, Integer::sum) - 1;
        return new Message(prefix + topic, Bodies.make(number, sizeBytes));
    }

    private void send(Message message) throws Exception {
        demandStored(producer.send(message));
    }

    private static void demandStored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result);
        }
    }

    private static String repeat(String text, int times) {
        return String.join("", Collections.nCopies(times, text));
    }

    private void print() {
        StringBuilder line = new StringBuilder("{\"event\":\"result\",\"visible\":{");
        String separator = "";
        for (Map.Entry<String, Integer> topic : visible.entrySet()) {
            line.append(separator).append('"').append(topic.getKey()).append("\":").append(topic.getValue());
            separator = ",";
        }
        byte[] out = line.append("}}").toString().getBytes(StandardCharsets.UTF_8);
        System.out.println(new String(out, StandardCharsets.US_ASCII));
    }

    /** Committed, rolled back, never decided, by turns. */
    private static final class Outcomes implements TransactionListener {
        private static final LocalTransactionState[] STATES = {LocalTransactionState.COMMIT_MESSAGE,
            LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW};

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object round) {
            return STATES[(Integer) round % STATES.length];
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }
}

package commitlogfs;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends --count messages with JSON bodies of 30 to some 3,000 bytes to --topic, one by one or in lists of --batch.
 *
 * <p>Bodies of 100 bytes and more are compressed as --compress says: NONE, ZLIB, LZ4 or ZSTD. Lists never are.
 */
final class TextSender {
    private static final int COMPRESSED_FROM_BYTES = 100;

    private final Options options;

    TextSender(Options options) {
        this.options = options;
    }

    boolean run() throws Exception {
        String kind = options.text("compress", "NONE");
        DefaultMQProducer producer = new DefaultMQProducer("texts-" + kind);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(producer.getProducerGroup());
        producer.setSendMsgTimeout(10000);
        producer.setCompressMsgBodyOverHowmuch(kind.equals("NONE") ? Integer.MAX_VALUE : COMPRESSED_FROM_BYTES);
        if (!kind.equals("NONE")) {
            chooseCompression(producer, kind);
        }
        producer.start();
        int count = (int) options.number("count", 1000);
        int batch = (int) options.number("batch", 1);
        for (int first = 0; first < count; first += batch) {
            SendResult result = batch == 1 ? producer.send(message(first)) : producer.send(messages(first, batch));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("not stored: " + result);
            }
        }
        producer.shutdown();
        System.out.println("{\"event\":\"result\",\"sent\":" + count + "}");
        return true;
    }

    /** Clients before 5.0 have no choice, so they do not have this method either. */
    private static void chooseCompression(DefaultMQProducer producer, String kind) throws Exception {
        Class<?> type = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
        Object value = type.getMethod("of", String.class).invoke(null, kind);
        producer.getClass().getMethod("setCompressType", type).invoke(producer, value);
    }

    private List<Message> messages(int first, int count) {
        List<Message> list = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            list.add(message(number));
        }
        return list;
    }

    private Message message(int number) {
        StringBuilder text = new StringBuilder("{\"order\":" + number + ",\"to\":\"\u00C6r\u00F8 \uD83D\uDE00\",\"items\":[");
        for (int item = 0; item < number % 100; item++) {
            text.append(item == 0 ? "" : ",").append("{\"price\":").append(number * 31L % (item + 7)).append(".5}");
        }
        Message message = new Message(options.text("topic"), text.append("]}").toString().getBytes(StandardCharsets.UTF_8));
        message.setTags("T" + number % 3);
        message.setKeys("order-" + number);
        return message;
    }
}

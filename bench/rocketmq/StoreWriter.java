package commitlogfs;

import java.io.File;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Collections;
import java.util.HashMap;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store, opened here without a broker, so that it takes what no producer can send: every transaction
 * type, topics of more than 127 characters, hosts of both kinds in one log, any property.
 *
 * <p>Arguments: the store's root folder, the number of messages, a seed, then broker.conf settings as key=value. The
 * store is stopped cleanly when all has been dispatched.
 */
public final class StoreWriter {
    private static final String SMILE = "\uD83D\uDE00";
    private static final String[] TOPICS = {"Plain", "Other", SMILE + "Text", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%" + String.join("", Collections.nCopies(40, "long"))};
    private static final String[] TEXTS = {"a", "Gr\u00FC\u00DFe", SMILE, "\u4E2D\u6587 " + SMILE, "polygenelubricants",
        "two  words", " around ", "x y z", "\uD83D", "A=B#C"};
    private static final int[] TYPES = {MessageSysFlag.TRANSACTION_NOT_TYPE, MessageSysFlag.TRANSACTION_NOT_TYPE,
        MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE,
        MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};
    private static final SocketAddress V4 = new InetSocketAddress("127.0.0.1", 10911);
    private static final SocketAddress V6 = new InetSocketAddress("::1", 10911);

    private final Random chance;

    private StoreWriter(long seed) {
        chance = new Random(seed);
    }

    public static void main(String[] args) throws Exception {
        int status = 1;
        try {
            run(args);
            status = 0;
        } catch (Exception e) {
            e.printStackTrace();
        }
        System.exit(status);
    }

    private static void run(String[] args) throws Exception {
        DefaultMessageStore store = open(args);
        if (!store.load()) {
            throw new IllegalStateException("the store cannot be loaded");
        }
        store.start();
        StoreWriter writer = new StoreWriter(Long.parseLong(args[2]));
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            PutMessageResult result = store.putMessage(writer.next());
            if (!result.isOk()) {
                throw new IllegalStateException("message " + i + " was not stored: " + result);
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        store.shutdown();
    }

    private static DefaultMessageStore open(String[] args) throws Exception {
        Properties properties = new Properties();
        for (int i = 3; i < args.length; i++) {
            String[] setting = args[i].split("=", 2);
            properties.setProperty(setting[0], setting[1]);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setHaListenPort(0);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        return new DefaultMessageStore(config, new BrokerStatsManager("writer", false),
            (topic, queueId, offset, tagsCode, time, bitmap, values) -> { }, new BrokerConfig(), topics);
    }

    private MessageExtBrokerInner next() {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        MessageAccessor.setProperties(message, new HashMap<>());
        String topic = any(TOPICS);
        message.setTopic(topic);
        message.setQueueId(chance.nextInt(3));
        message.setBody(new byte[chance.nextInt(300)]);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(chance.nextBoolean() ? V4 : V6);
        message.setStoreHost(chance.nextBoolean() ? V4 : V6);
        if (message.getBornHost() == V6) {
            message.setBornHostV6Flag();
        }
        if (message.getStoreHost() == V6) {
            message.setStoreHostAddressV6Flag();
        }
        message.setSysFlag(message.getSysFlag() | TYPES[chance.nextInt(TYPES.length)]);
        if (chance.nextInt(4) > 0) {
            message.setTags(any(TEXTS));
        }
        if (chance.nextInt(3) > 0) {
            message.setKeys(any(TEXTS));
        }
        if (chance.nextInt(4) > 0) {
            MessageAccessor.putProperty(message, "UNIQ_KEY", Long.toHexString(chance.nextLong()).toUpperCase());
        }
        if (topic.startsWith("SCHEDULE") || chance.nextInt(9) == 0) {
            message.setDelayTimeLevel(chance.nextInt(25) - 2);
        }
        if (chance.nextInt(5) == 0) {
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%" + any(TEXTS).hashCode() % 3);
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private String any(String[] texts) {
        return texts[chance.nextInt(texts.length)];
    }
}

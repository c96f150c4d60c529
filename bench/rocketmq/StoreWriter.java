package commitlogfs;

import java.io.File;
import java.lang.reflect.Constructor;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*; // MessageExtBrokerInner is here in 5.x and in the store in 4.9
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store, opened without a broker, so that it takes what no producer can send: every transaction type,
 * topics of more than 127 characters, hosts of both kinds in one log, any property, and batches of any size in topics
 * with batch queues (5.x). It compiles against every version from 4.9.3 to 5.5.0.
 *
 * <p>Arguments, once per store and separated by {@code --}: the store's root directory, the number of messages, a seed,
 * then broker.conf settings as key=value. A store is stopped cleanly when all has been dispatched. Two settings are the
 * writer's own: {@code halt=true} ends the process instead, as a kill does; {@code tidy=true} leaves out whatever puts
 * entries in wrong places: halves and roll-backs of transactions, light queues named twice or by a message that goes
 * into a batch queue, faulty batches.
 */
public final class StoreWriter {
    private static final String SMILE = "\uD83D\uDE00";
    private static final String[] TOPICS = {"Plain", "Other", SMILE + "Text", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%" + String.join("", Collections.nCopies(40, "long")), "%RETRY%short",
        "%DLQ%short", "rmq_sys_wheel_timer", "rmq_sys_other"};
    private static final String[] BATCH_TOPICS = {"BatchSingles", "BatchMixed", "BatchOdd"};
    private static final String[] TEXTS = {"a", "Gr\u00FC\u00DFe", SMILE, "\u4E2D\u6587 " + SMILE, "polygenelubricants",
        "two  words", " around ", "x y z", "\uD83D", "A=B#C"};
    private static final String[] LIGHT_QUEUES = {"%LMQ%a", "%LMQ%b", "%LMQ%two words", "%LMQ%\u4E2D" + SMILE,
        "%LMQ%a%b#c:d", "%LMQ%", "%LMQ%Plain"};
    private static final int[] TYPES = {MessageSysFlag.TRANSACTION_NOT_TYPE, MessageSysFlag.TRANSACTION_NOT_TYPE,
        MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE,
        MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};
    private static final int INNER_BATCH_FLAG = 1 << 7; // of 5.x only
    private static final String[] ODD_COUNTS = {"0", "-3", "+2", "0001", "32767", "1"};
    private static final SocketAddress V4 = new InetSocketAddress("127.0.0.1", 10911);
    private static final SocketAddress V6 = new InetSocketAddress("::1", 10911);

    private final Random chance;
    private final boolean batches;
    private final boolean tidy;

    private StoreWriter(long seed, boolean batches, boolean tidy) {
        chance = new Random(seed);
        this.batches = batches;
        this.tidy = tidy;
    }

    public static void main(String[] args) throws Exception {
        int status = 1;
        try {
            List<String> words = new ArrayList<>();
            for (String arg : args) {
                if (arg.equals("--")) {
                    run(words);
                    words.clear();
                } else {
                    words.add(arg);
                }
            }
            run(words);
            status = 0;
        } catch (Exception e) {
            e.printStackTrace();
        }
        System.exit(status);
    }

    private static void run(List<String> words) throws Exception {
        Properties settings = new Properties();
        for (String word : words.subList(3, words.size())) {
            String[] setting = word.split("=", 2);
            settings.setProperty(setting[0], setting[1]);
        }
        ConcurrentMap<String, TopicConfig> topics = topics();
        boolean batches = topics.values().stream().anyMatch(StoreWriter::isBatch);
        writeTopics(words.get(0), topics);
        DefaultMessageStore store = open(words.get(0), settings, topics);
        if (!store.load()) {
            throw new IllegalStateException("the store cannot be loaded");
        }
        store.start();
        StoreWriter writer = new StoreWriter(Long.parseLong(words.get(2)), batches,
            Boolean.parseBoolean(settings.getProperty("tidy")));
        for (int i = 0; i < Integer.parseInt(words.get(1)); i++) {
            MessageExtBrokerInner message = writer.next();
            PutMessageResult result = store.putMessage(message);
            // Versions without records of the second kind refuse long topics.
            boolean mayBeRefused = message.getTopic().length() > Byte.MAX_VALUE;
            if (!result.isOk() && !mayBeRefused) {
                throw new IllegalStateException("message " + i + " was not stored: " + result);
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        if (Boolean.parseBoolean(settings.getProperty("halt"))) {
            Runtime.getRuntime().halt(0);
        }
        store.shutdown();
    }

    private static DefaultMessageStore open(String root, Properties settings, ConcurrentMap<String, TopicConfig> topics)
        throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setHaListenPort(0);
        BrokerStatsManager stats = new BrokerStatsManager("writer", false);
        MessageArrivingListener listener = (topic, queueId, offset, tagsCode, time, bitmap, values) -> { };
        for (Constructor<?> constructor : DefaultMessageStore.class.getConstructors()) {
            if (constructor.getParameterCount() == 4) {
                return (DefaultMessageStore) constructor.newInstance(config, stats, listener, new BrokerConfig());
            }
            if (constructor.getParameterCount() == 5) {
                return (DefaultMessageStore) constructor.newInstance(config, stats, listener, new BrokerConfig(), topics);
            }
        }
        throw new IllegalStateException("this version's store is made in another way");
    }

    /** All topics, and those with batch queues where the version has topic attributes. */
    private static ConcurrentMap<String, TopicConfig> topics() throws Exception {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : TOPICS) {
            topics.put(topic, new TopicConfig(topic));
        }
        for (String topic : BATCH_TOPICS) {
            TopicConfig config = new TopicConfig(topic);
            try {
                TopicConfig.class.getMethod("setAttributes", Map.class).invoke(config, Map.of("queue.type", "BatchCQ"));
            } catch (NoSuchMethodException e) {
                break;
            }
            topics.put(topic, config);
        }
        return topics;
    }

    private static boolean isBatch(TopicConfig topic) {
        return List.of(BATCH_TOPICS).contains(topic.getTopicName());
    }

    /** config/topics.json, as a broker of this version writes it. */
    private static void writeTopics(String root, ConcurrentMap<String, TopicConfig> topics) throws Exception {
        Class<?> table;
        Class<?> version;
        try {
            table = Class.forName("org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper");
            version = Class.forName("org.apache.rocketmq.remoting.protocol.DataVersion");
        } catch (ClassNotFoundException e) {
            table = Class.forName("org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper");
            version = Class.forName("org.apache.rocketmq.common.DataVersion");
        }
        Object all = table.getConstructor().newInstance();
        table.getMethod("setTopicConfigTable", ConcurrentMap.class).invoke(all, topics);
        table.getMethod("setDataVersion", version).invoke(all, version.getConstructor().newInstance());
        Path file = Path.of(root, "config", "topics.json");
        Files.createDirectories(file.getParent());
        Files.write(file, table.getMethod("toJson", boolean.class).invoke(all, true).toString()
            .getBytes(StandardCharsets.UTF_8));
    }

    private MessageExtBrokerInner next() {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        MessageAccessor.setProperties(message, new HashMap<>());
        String topic = batches && chance.nextInt(4) == 0 ? anyBatchTopic() : any(TOPICS);
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
        int type = TYPES[chance.nextInt(TYPES.length)];
        boolean isHalf = type == MessageSysFlag.TRANSACTION_PREPARED_TYPE
            || type == MessageSysFlag.TRANSACTION_ROLLBACK_TYPE;
        message.setSysFlag(message.getSysFlag() | (tidy && isHalf ? MessageSysFlag.TRANSACTION_NOT_TYPE : type));
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
        if (chance.nextInt(5) == 0 && !(tidy && topic.startsWith("Batch"))) {
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", lightQueues());
        }
        if (topic.startsWith("Batch")) {
            makeBatch(message);
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private String anyBatchTopic() {
        return BATCH_TOPICS[chance.nextInt(tidy ? BATCH_TOPICS.length - 1 : BATCH_TOPICS.length)];
    }

    /** One to three queues, seldom the same one twice. */
    private String lightQueues() {
        Collection<String> names = tidy ? new LinkedHashSet<>() : new ArrayList<>();
        for (int i = chance.nextInt(3); i >= 0; i--) {
            names.add(any(LIGHT_QUEUES));
        }
        return String.join(",", names);
    }

    /** A single message, a batch of some size, or what only a faulty producer makes. */
    private void makeBatch(MessageExtBrokerInner message) {
        int kind = message.getTopic().equals("BatchSingles") ? 0 : chance.nextInt(4);
        boolean odd = message.getTopic().equals("BatchOdd");
        if (kind > 0) {
            message.setSysFlag(message.getSysFlag() | INNER_BATCH_FLAG);
            MessageAccessor.putProperty(message, "INNER_NUM", odd ? any(ODD_COUNTS) : "" + (1 + chance.nextInt(4)));
        }
        if (odd && kind == 3) {
            message.getProperties().remove("INNER_NUM");
        }
        if (odd && kind < 2) {
            MessageAccessor.putProperty(message, "INNER_BASE", "7");
        }
    }

    private String any(String[] texts) {
        return texts[chance.nextInt(texts.length)];
    }
}

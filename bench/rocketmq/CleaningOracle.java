package commitlogfs;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Asks RocketMQ's own cleaning service what it makes of the fill level of its commitlog; nothing is deleted, and no
 * store is loaded.
 *
 * <p>Arguments: the three ratios in percent (clean, force, full), then per store its root directory and its commitlog
 * paths. In: an empty line. Out: per store "delete TAB forcibly TAB full", each true or false; one line for all.
 */
public final class CleaningOracle {
    private static final int DISK_FULL_BIT = 1 << 4;

    private final DefaultMessageStore store;
    private final Object service;
    private final Method isSpaceToDelete;
    private final Field cleanImmediately;

    private CleaningOracle(String[] ratios, String root, String paths) throws Exception {
        new File(root, "consumequeue").mkdirs();
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(paths);
        config.setDiskMaxUsedSpaceRatio(Integer.parseInt(ratios[0]));
        config.setDiskSpaceCleanForciblyRatio(Integer.parseInt(ratios[1]));
        config.setDiskSpaceWarningLevelRatio(Integer.parseInt(ratios[2]));
        store = new DefaultMessageStore(config, new BrokerStatsManager("oracle", false), null, new BrokerConfig(),
            new ConcurrentHashMap<>());
        Field field = DefaultMessageStore.class.getDeclaredField("cleanCommitLogService");
        field.setAccessible(true);
        service = field.get(store);
        isSpaceToDelete = declaring("isSpaceToDelete").getDeclaredMethod("isSpaceToDelete");
        isSpaceToDelete.setAccessible(true);
        cleanImmediately = declaring("isSpaceToDelete").getDeclaredField("cleanImmediately");
        cleanImmediately.setAccessible(true);
    }

    private Class<?> declaring(String method) throws NoSuchMethodException {
        for (Class<?> c = service.getClass(); c != null; c = c.getSuperclass()) {
            for (Method m : c.getDeclaredMethods()) {
                if (m.getName().equals(method)) {
                    return c;
                }
            }
        }
        throw new NoSuchMethodException(method);
    }

    private String look() throws Exception {
        boolean delete = (boolean) isSpaceToDelete.invoke(service);
        boolean full = (store.getRunningFlags().getFlagBits() & DISK_FULL_BIT) != 0;
        return delete + "\t" + cleanImmediately.getBoolean(service) + "\t" + full;
    }

    public static void main(String[] args) throws Exception {
        List<CleaningOracle> stores = new ArrayList<>();
        for (int i = 3; i < args.length; i += 2) {
            stores.add(new CleaningOracle(args, args[i], args[i + 1]));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        while (in.readLine() != null) {
            StringBuilder line = new StringBuilder("ok");
            for (CleaningOracle each : stores) {
                line.append('\t').append(each.look());
            }
            out.println(line);
        }
        System.exit(0);
    }
}

package commitlogfs;

import java.util.HashMap;
import java.util.Map;

/** Command line of the form {@code --name value} or {@code --flag}; a missing required value is an error. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    static Options parse(String[] args, int from) {
        Options options = new Options();
        for (int i = from; i < args.length; i++) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("unexpected argument " + args[i]);
            }
            boolean hasValue = i + 1 < args.length && !args[i + 1].startsWith("--");
            options.values.put(args[i].substring(2), hasValue ? args[i + 1] : "true");
            i += hasValue ? 1 : 0;
        }
        return options;
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is required");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    long number(String name, long otherwise) {
        return values.containsKey(name) ? Long.parseLong(values.get(name)) : otherwise;
    }

    double real(String name, double otherwise) {
        return values.containsKey(name) ? Double.parseDouble(values.get(name)) : otherwise;
    }

    boolean flag(String name) {
        return values.containsKey(name);
    }
}

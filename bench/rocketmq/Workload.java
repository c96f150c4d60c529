package commitlogfs;

/** Entry point of the helper: {@code send OPTIONS} or {@code consume OPTIONS}; results are JSON lines on stdout. */
public final class Workload {
    private Workload() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 0) {
            usage();
        }
        Options options = Options.parse(args, 1);
        boolean asAsked;
        switch (args[0]) {
            case "send":
                asAsked = new Sender(options).run();
                break;
            case "consume":
                asAsked = new Consumer(options).run();
                break;
            default:
                usage();
                return;
        }
        System.out.flush();
        // The client leaves threads behind that are no daemons.
        System.exit(asAsked ? 0 : 1);
    }

    private static void usage() {
        System.err.println("usage: Workload send|consume --namesrv ADDRESS --topic TOPIC ...");
        System.exit(2);
    }
}

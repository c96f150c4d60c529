package commitlogfs;

/** Entry point of the helper: a verb and OPTIONS; results are JSON on stdout. */
public final class Workload {
    private Workload() {
    }

    public static void main(String[] args) {
        if (args.length == 0) {
            usage();
        }
        int status = 1;
        try {
            status = run(args[0], Options.parse(args, 1)) ? 0 : 1;
        } catch (Exception e) {
            e.printStackTrace();
        }
        System.out.flush();
        // The client leaves threads behind that are no daemons.
        System.exit(status);
    }

    private static boolean run(String verb, Options options) throws Exception {
        switch (verb) {
            case "send":
                return new Sender(options).run();
            case "consume":
                return new Consumer(options).run();
            case "mixed":
                return new MixedSender(options).run();
            case "texts":
                return new TextSender(options).run();
            case "digests":
                return new DigestReader(options).run();
            default:
                usage();
                return false;
        }
    }

    private static void usage() {
        System.err.println("usage: Workload send|consume|mixed|texts|digests --namesrv ADDRESS ...");
        System.exit(2);
    }
}

package rmqkit.interop;

import java.io.IOException;

/**
 * Runs another main class and ends this JVM when standard input ends.
 *
 * The process that started the JVM holds the other end of that pipe, so the JVM dies with it however it dies, even by a
 * kill that leaves it no time to clean up.
 */
public final class Lifeline {
    private Lifeline() {
    }

    public static void main(String[] args) throws Exception {
        watch();
        String[] rest = new String[args.length - 1];
        System.arraycopy(args, 1, rest, 0, rest.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }

    static void watch() {
        Thread thread = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    Thread.onSpinWait();
                }
            } catch (IOException e) {
                // The pipe is gone, which is what is waited for.
            }
            Runtime.getRuntime().halt(97);
        }, "lifeline");
        thread.setDaemon(true);
        thread.start();
    }
}

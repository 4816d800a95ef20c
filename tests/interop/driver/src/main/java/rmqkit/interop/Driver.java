package rmqkit.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Runs checks of Apache's Java client against a cluster, all in one JVM.
 *
 * <pre>
 * Driver NAMESRV CHECK...     a check is a name, a group of checks such as "basic", or "all" (but "sample")
 * Driver list                 the names and their groups
 * </pre>
 *
 * With -Dinterop.threads=N so many checks run at a time. Standard output has one JSON object a check:
 * {"check", "ok", "ms", "detail"}; a failed one has "error" and "trace". The exit code is 0 when every check passed, 1 when
 * one failed, 2 for wrong arguments.
 */
public final class Driver {
    /** A check that hangs longer than this has failed; the next one runs. */
    private static final long LIMIT_MS = 150_000;
    /**
     * Checks that run by themselves, after the others: one changes something for every client of the cluster, and what the other
     * deletes at the name server may be brought back by a registration that is under way.
     */
    private static final Set<String> ALONE = new HashSet<>(Arrays.asList("admin_write_perm", "admin_delete_topic"));
    private static final Map<String, Entry> CHECKS = new LinkedHashMap<>();

    static {
        SendChecks.register();
        ConsumeChecks.register();
        PullChecks.register();
        AdminChecks.register();
        LaterChecks.register();
        FeatureChecks.register();
        FilterChecks.register();
        NewerChecks.register();
        PopChecks.register();
        BatchChecks.register();
        TimerChecks.register();
        ReplyChecks.register();
    }

    interface Check {
        Map<String, Object> run(Scene scene) throws Exception;
    }

    private static final class Entry {
        final String group;
        final Check check;

        Entry(String group, Check check) {
            this.group = group;
            this.check = check;
        }
    }

    private Driver() {
    }

    static void add(String group, String name, Check check) {
        CHECKS.put(name, new Entry(group, check));
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8.name());
        System.setOut(System.err);
        if (args.length == 1 && args[0].equals("list")) {
            CHECKS.forEach((name, entry) -> out.println(line("check", name, "group", entry.group)));
            exit(0);
        }
        List<String> names = args.length < 2 ? null : chosen(args);
        if (names == null) {
            System.err.println("usage: Driver NAMESRV CHECK... | Driver list");
            exit(2);
        }
        List<String> together = new ArrayList<>(names);
        together.removeAll(ALONE);
        names.retainAll(ALONE);
        AtomicInteger failed = new AtomicInteger();
        runAll(args[0], together, Integer.getInteger("interop.threads", 1), out, failed);
        runAll(args[0], names, 1, out, failed);
        exit(failed.get() == 0 ? 0 : 1);
    }

    /** Runs checks on so many threads, each in the order given; most of a check's time is waiting. */
    private static void runAll(String namesrv, List<String> names, int threads, PrintStream out, AtomicInteger failed)
        throws InterruptedException {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (String name : names) {
            pool.execute(() -> failed.addAndGet(runOne(namesrv, name, out) ? 0 : 1));
        }
        pool.shutdown();
        pool.awaitTermination(Long.MAX_VALUE, TimeUnit.MILLISECONDS);
    }

    private static List<String> chosen(String[] args) {
        List<String> names = new ArrayList<>();
        for (int i = 1; i < args.length; i++) {
            int before = names.size();
            for (Map.Entry<String, Entry> known : CHECKS.entrySet()) {
                boolean wanted = args[i].equals("all") && !known.getValue().group.equals("sample")
                    || args[i].equals(known.getKey()) || args[i].equals(known.getValue().group);
                if (wanted && !names.contains(known.getKey())) {
                    names.add(known.getKey());
                }
            }
            if (names.size() == before && !CHECKS.containsKey(args[i])) {
                System.err.println("no such check or group: " + args[i]);
                return null;
            }
        }
        return names;
    }

    private static boolean runOne(String namesrv, String name, PrintStream out) {
        long start = System.currentTimeMillis();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("check", name);
        boolean ok = false;
        try (Scene scene = new Scene(namesrv, name)) {
            FutureTask<Map<String, Object>> task = new FutureTask<>(() -> CHECKS.get(name).check.run(scene));
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            thread.start();
            Map<String, Object> detail = task.get(LIMIT_MS, TimeUnit.MILLISECONDS);
            ok = true;
            result.put("ok", true);
            result.put("detail", detail);
        } catch (Throwable thrown) {
            Throwable e = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            result.put("ok", false);
            result.put("error", e.toString());
            result.put("trace", trace.toString());
        }
        result.put("ms", System.currentTimeMillis() - start);
        out.println(JSON.toJSONString(result, SerializerFeature.DisableCircularReferenceDetect));
        return ok;
    }

    private static String line(Object... pairs) {
        return JSON.toJSONString(Scene.detail(pairs));
    }

    private static void exit(int code) {
        System.out.flush();
        // The client leaves threads behind that are no daemons.
        Runtime.getRuntime().halt(code);
    }
}

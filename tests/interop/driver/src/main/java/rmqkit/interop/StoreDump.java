package rmqkit.interop;

import com.alibaba.fastjson.JSON;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Prints each record of a store folder's commit log as Apache's own decoder sees it, one JSON object a line; of bodies the first 60 characters. */
public final class StoreDump {
    private StoreDump() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8.name());
        List<Path> files;
        try (Stream<Path> listed = Files.list(Paths.get(args[0], "commitlog"))) {
            files = listed.sorted().collect(Collectors.toList());
        }
        for (Path file : files) {
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
            while (bytes.remaining() >= 8) {
                int start = bytes.position();
                int size = bytes.getInt(start);
                int magic = bytes.getInt(start + 4);
                if (size <= 0) {
                    break;
                }
                long offset = Long.parseLong(file.getFileName().toString()) + start;
                if (magic == MessageDecoder.BLANK_MAGIC_CODE) {
                    out.println(JSON.toJSONString(Scene.detail("offset", offset, "size", size, "magic", magic)));
                    break;
                }
                bytes.limit(start + size);
                MessageExt stored = MessageDecoder.decode(bytes.slice(), true, false, false);
                MessageExt message = MessageDecoder.decode(bytes.slice(), true, true, false);
                bytes.limit(bytes.capacity());
                bytes.position(start + size);
                out.println(JSON.toJSONString(seen(message, stored, offset, size, magic)));
            }
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> seen(MessageExt message, MessageExt stored, long offset, int size, int magic) {
        String text = Scene.text(message.getBody());
        return Scene.detail("offset", offset, "size", size, "magic", magic, "topic", message.getTopic(),
            "queue_id", message.getQueueId(), "queue_offset", message.getQueueOffset(), "flag", message.getFlag(),
            "sys_flag", stored.getSysFlag(), "body_crc", message.getBodyCRC(), "body_size_stored", stored.getBody().length,
            "body_size", message.getBody().length, "body", text.substring(0, Math.min(60, text.length())),
            "born_ms", message.getBornTimestamp(), "born_host", message.getBornHost().toString(),
            "store_ms", message.getStoreTimestamp(), "store_host", message.getStoreHost().toString(),
            "reconsume_times", message.getReconsumeTimes(),
            "prepared_offset", message.getPreparedTransactionOffset(), "properties", new TreeMap<>(message.getProperties()));
    }
}

// What operations came to, as plain data: exceptions, results of several futures, records.

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;

class Outcomes {
    static final long SECONDS_MAX = 60;

    interface Shown<V> {
        Object of(V value) throws Exception;
    }

    static Map<String, Object> error(Throwable failure) {
        while ((failure instanceof ExecutionException || failure instanceof CompletionException) && failure.getCause() != null) {
            failure = failure.getCause();
        }
        var shown = new LinkedHashMap<String, Object>();
        shown.put("error", failure.getClass().getSimpleName());
        if (failure instanceof ApiException) {
            shown.put("code", Errors.forException(failure).name());
        }
        shown.put("retriable", failure instanceof RetriableException);
        shown.put("message", String.valueOf(failure.getMessage()));
        if (failure.getCause() != null && failure.getCause() != failure) {
            shown.put("cause", error(failure.getCause()));
        }
        return shown;
    }

    static <V> Object future(Future<V> future, Shown<V> shown) {
        return future(future, SECONDS_MAX, shown);
    }

    static <V> Object future(Future<V> future, long seconds, Shown<V> shown) {
        try {
            return shown.of(future.get(seconds, TimeUnit.SECONDS));
        } catch (Throwable failure) {
            return error(failure);
        }
    }

    // Several futures by name.
    static <K, V> Map<String, Object> each(Map<K, ? extends Future<V>> futures, Shown<V> shown) {
        var found = new TreeMap<String, Object>();
        futures.forEach((key, future) -> found.put(key.toString(), future(future, shown)));
        return found;
    }

    static <V> Object done(V nothing) {
        return "done";
    }

    static Map<String, Object> map(Object... keysAndValues) {
        var made = new LinkedHashMap<String, Object>();
        for (int index = 0; index < keysAndValues.length; index += 2) {
            made.put((String) keysAndValues[index], keysAndValues[index + 1]);
        }
        return made;
    }

    static TopicPartition partition(JsonNode pair) {
        return new TopicPartition(pair.get(0).asText(), pair.get(1).asInt());
    }

    static List<TopicPartition> partitions(JsonNode pairs) {
        var found = new ArrayList<TopicPartition>();
        pairs.forEach(pair -> found.add(partition(pair)));
        return found;
    }

    // [[topic, partition, offset, metadata], ...]
    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode rows) {
        var found = new LinkedHashMap<TopicPartition, OffsetAndMetadata>();
        rows.forEach(row -> found.put(partition(row), new OffsetAndMetadata(row.get(2).asLong(), row.path(3).asText(""))));
        return found;
    }

    static Object offset(OffsetAndMetadata offset) {
        return offset == null ? null
            : map("offset", offset.offset(), "metadata", offset.metadata(), "leader_epoch", offset.leaderEpoch().orElse(-1));
    }

    static <V> Map<String, Object> byPartition(Map<TopicPartition, V> values, Shown<V> shown) throws Exception {
        var found = new TreeMap<String, Object>();
        for (var entry : values.entrySet()) {
            found.put(entry.getKey().toString(), shown.of(entry.getValue()));
        }
        return found;
    }

    static List<String> names(java.util.Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    static List<Integer> ids(java.util.Collection<Node> nodes) {
        return nodes.stream().map(Node::id).toList();
    }

    static String text(byte[] data) {
        if (data == null) {
            return null;
        }
        String text = new String(data, StandardCharsets.UTF_8);
        return text.length() <= 100 ? text : text.substring(0, 20) + "… (" + text.length() + ")";
    }

    static Map<String, Object> record(ConsumerRecord<byte[], byte[]> record) {
        var headers = new ArrayList<List<String>>();
        for (Header header : record.headers()) {
            headers.add(java.util.Arrays.asList(header.key(), text(header.value())));
        }
        return map("at", record.topic() + "-" + record.partition(), "offset", record.offset(), "key", text(record.key()),
            "value", text(record.value()), "headers", headers, "timestamp", record.timestamp(),
            "timestamp_type", record.timestampType().toString(), "leader_epoch", record.leaderEpoch().orElse(-1));
    }
}

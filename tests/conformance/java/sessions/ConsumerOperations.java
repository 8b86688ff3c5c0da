// Operations of consumers: by themselves and in groups of either protocol.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

class ConsumerOperations {
    static final Duration ONE_POLL = Duration.ofMillis(40);
    final ClientSessions.Session session;
    final Map<String, KafkaConsumer<byte[], byte[]>> consumers = new HashMap<>();
    final Map<String, IsolationLevel> levels = new HashMap<>();

    ConsumerOperations(ClientSessions.Session session) {
        this.session = session;
    }

    interface Asked {
        Object of(KafkaConsumer<byte[], byte[]> consumer, JsonNode fields) throws Exception;
    }

    interface Act {
        void on(KafkaConsumer<byte[], byte[]> consumer, JsonNode fields) throws Exception;
    }

    void register() {
        session.operations.put("new_consumer", this::make);
        session.operations.put("poll", this::poll);
        session.operations.put("close_consumer", this::closeOne);
        act("subscribe", this::subscribe);
        act("assign", (consumer, fields) -> consumer.assign(partitions(fields)));
        act("unsubscribe", (consumer, fields) -> consumer.unsubscribe());
        act("seek", (consumer, fields) -> consumer.seek(Outcomes.partition(fields.get("partition")), fields.get("offset").asLong()));
        act("seek_to_beginning", (consumer, fields) -> consumer.seekToBeginning(partitions(fields)));
        act("seek_to_end", (consumer, fields) -> consumer.seekToEnd(partitions(fields)));
        act("pause", (consumer, fields) -> consumer.pause(partitions(fields)));
        act("resume", (consumer, fields) -> consumer.resume(partitions(fields)));
        act("commit_offsets", (consumer, fields) -> {
            if (fields.has("offsets")) {
                consumer.commitSync(Outcomes.offsets(fields.get("offsets")));
            } else {
                consumer.commitSync();
            }
        });
        asked("committed", (consumer, fields) -> Outcomes.byPartition(consumer.committed(new HashSet<>(partitions(fields))), Outcomes::offset));
        asked("position", (consumer, fields) -> consumer.position(Outcomes.partition(fields.get("partition"))));
        asked("beginning_offsets", (consumer, fields) -> Outcomes.byPartition(consumer.beginningOffsets(partitions(fields)), offset -> offset));
        asked("end_offsets", (consumer, fields) -> Outcomes.byPartition(consumer.endOffsets(partitions(fields)), offset -> offset));
        asked("offsets_for_times", (consumer, fields) -> {
            var times = new HashMap<TopicPartition, Long>();
            fields.get("times").forEach(row -> times.put(Outcomes.partition(row), row.get(2).asLong()));
            return Outcomes.byPartition(consumer.offsetsForTimes(times), found -> found == null ? null
                : Outcomes.map("offset", found.offset(), "timestamp", found.timestamp(), "leader_epoch", found.leaderEpoch().orElse(-1)));
        });
        asked("assignment", (consumer, fields) -> Outcomes.names(consumer.assignment()));
        asked("subscription", (consumer, fields) -> consumer.subscription().stream().sorted().toList());
        asked("paused", (consumer, fields) -> Outcomes.names(consumer.paused()));
        asked("partitions_for", (consumer, fields) -> shownPartitions(consumer.partitionsFor(fields.get("topic").asText())));
        asked("group_metadata", (consumer, fields) -> {
            var metadata = consumer.groupMetadata();
            return Outcomes.map("group", metadata.groupId(), "generation", metadata.generationId(), "member_id", metadata.memberId(),
                "instance", metadata.groupInstanceId().orElse(null));
        });
    }

    void asked(String operation, Asked asked) {
        session.operations.put(operation, fields -> asked.of(consumer(fields.get("consumer").asText()), fields));
    }

    void act(String operation, Act act) {
        session.operations.put(operation, fields -> {
            act.on(consumer(fields.get("consumer").asText()), fields);
            return "done";
        });
    }

    KafkaConsumer<byte[], byte[]> consumer(String name) {
        var found = consumers.get(name);
        if (found == null) {
            throw new IllegalArgumentException("no such consumer");
        }
        return found;
    }

    static List<TopicPartition> partitions(JsonNode fields) {
        return Outcomes.partitions(fields.get("partitions"));
    }

    static Object shownPartitions(List<PartitionInfo> found) {
        return found == null ? null : found.stream().sorted(Comparator.comparing(PartitionInfo::partition)).map(each -> Outcomes.map(
            "partition", each.partition(), "leader", each.leader() == null ? null : each.leader().id(),
            "replicas", each.replicas().length, "in_sync", each.inSyncReplicas().length)).toList();
    }

    Object make(JsonNode fields) {
        String name = fields.get("consumer").asText();
        levels.put(name, fields.path("settings").path("isolation.level").asText("").equals("read_committed") ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED);
        consumers.put(name, new KafkaConsumer<>(session.settings(fields, name), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
        return "done";
    }

    void subscribe(KafkaConsumer<byte[], byte[]> consumer, JsonNode fields) {
        if (fields.has("pattern")) {
            consumer.subscribe(Pattern.compile(fields.get("pattern").asText()));
        } else if (fields.has("server_pattern")) {
            consumer.subscribe(new SubscriptionPattern(fields.get("server_pattern").asText()));
        } else {
            consumer.subscribe(ClientSessions.texts(fields.get("topics")));
        }
    }

    // Polls the consumers in turn until each stands at the end of what it is assigned, `assigned` partitions are, and
    // everybody has one if they are to be shared.
    Object poll(JsonNode fields) {
        var names = ClientSessions.texts(fields.get("consumers"));
        int wanted = fields.path("assigned").asInt(-1);
        boolean shared = fields.path("shared").asBoolean();
        long deadline = System.nanoTime() + fields.path("bound_ms").asLong(10_000) * 1_000_000;
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        boolean ended = false;
        Object error = null;
        try {
            while (!ended && System.nanoTime() < deadline) {
                for (String name : names) {
                    consumer(name).poll(ONE_POLL).forEach(records::add);
                }
                ended = (!shared || names.stream().noneMatch(name -> consumer(name).assignment().isEmpty())) && atEnd(names, wanted);
            }
        } catch (Exception failure) {
            error = Outcomes.error(failure);
        }
        var seen = new TreeMap<String, Map<String, Object>>();
        for (var record : records) {
            seen.put(String.format("%s-%d-%019d", record.topic(), record.partition(), record.offset()), Outcomes.record(record));
        }
        Object assigned = names.size() == 1 ? List.of(Outcomes.names(consumer(names.get(0)).assignment()))
            : names.stream().map(name -> consumer(name).assignment().size()).sorted().toList();
        var outcome = Outcomes.map("records", seen.values(), "at_end", ended, "assigned", assigned);
        if (names.size() == 1) {
            // Nobody else had a part of them: none comes twice.
            outcome.put("repeated", records.size() - seen.size());
        }
        if (error != null) {
            outcome.put("failed", error);
        }
        return outcome;
    }

    // By the admin client: requests of the consumer wait behind its fetches.
    Map<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> ends(String name, Set<TopicPartition> partitions) throws Exception {
        var wanted = partitions.stream().collect(Collectors.toMap(each -> each, each -> OffsetSpec.latest()));
        return session.admin(JsonNodeFactory.instance.objectNode()).listOffsets(wanted, new ListOffsetsOptions(levels.get(name))).all().get();
    }

    boolean atEnd(List<String> names, int wanted) throws Exception {
        Set<TopicPartition> all = new HashSet<>();
        for (String name : names) {
            all.addAll(consumer(name).assignment());
        }
        if (wanted >= 0 && all.size() != wanted) {
            return false;
        }
        for (String name : names) {
            var consumer = consumer(name);
            var partitions = new HashSet<>(consumer.assignment());
            partitions.removeAll(consumer.paused());
            if (partitions.isEmpty()) {
                continue;
            }
            for (var end : ends(name, partitions).entrySet()) {
                try {
                    // A position beyond the end is one that the broker has not answered to yet.
                    if (consumer.position(end.getKey(), Duration.ofSeconds(5)) != end.getValue().offset()) {
                        return false;
                    }
                } catch (TimeoutException failure) {
                    // Not known yet: asked again until the bound.
                    return false;
                }
            }
        }
        return true;
    }

    Object closeOne(JsonNode fields) {
        String name = fields.get("consumer").asText();
        var consumer = consumer(name);
        consumers.remove(name);
        consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)));
        return "done";
    }

    void close() {
        consumers.values().forEach(consumer -> consumer.close(CloseOptions.timeout(Duration.ofMillis(500))));
        consumers.clear();
    }
}

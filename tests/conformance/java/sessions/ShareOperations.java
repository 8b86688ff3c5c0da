// Operations of share consumers, and of the admin client on share groups.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

class ShareOperations {
    static final Duration ONE_POLL = Duration.ofMillis(100);
    // How long nothing may come any more before there is nothing.
    static final long QUIET_NANOSECONDS = 700_000_000;
    final ClientSessions.Session session;
    final Map<String, KafkaShareConsumer<byte[], byte[]>> consumers = new HashMap<>();

    ShareOperations(ClientSessions.Session session) {
        this.session = session;
    }

    interface Asked {
        Object of(Admin admin, JsonNode fields) throws Exception;
    }

    void register() {
        session.operations.put("new_share_consumer", fields -> {
            String name = fields.get("consumer").asText();
            consumers.put(name, new KafkaShareConsumer<>(session.settings(fields, name), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
            return "done";
        });
        session.operations.put("share_subscribe", fields -> {
            consumer(fields).subscribe(ClientSessions.texts(fields.get("topics")));
            return consumer(fields).subscription().stream().sorted().toList();
        });
        session.operations.put("share_unsubscribe", fields -> {
            consumer(fields).unsubscribe();
            return "done";
        });
        session.operations.put("share_poll", this::poll);
        session.operations.put("share_acknowledge", fields -> {
            consumer(fields).acknowledge(fields.get("topic").asText(), fields.get("partition").asInt(), fields.get("offset").asLong(), AcknowledgeType.ACCEPT);
            return "done";
        });
        session.operations.put("close_share_consumer", fields -> {
            var consumer = consumer(fields);
            consumers.remove(fields.get("consumer").asText());
            consumer.close(Duration.ofSeconds(10));
            return "done";
        });
        asked("describe_share_groups", (admin, fields) -> Outcomes.each(admin.describeShareGroups(ClientSessions.texts(fields.get("groups"))).describedGroups(), ShareOperations::shown));
        asked("delete_share_groups", (admin, fields) -> Outcomes.each(admin.deleteShareGroups(ClientSessions.texts(fields.get("groups"))).deletedGroups(), Outcomes::done));
        asked("list_share_group_offsets", (admin, fields) -> {
            String group = fields.get("group").asText();
            var found = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group);
            return Outcomes.future(found, offsets -> Outcomes.byPartition(offsets, each -> each == null ? null
                : Outcomes.map("start", each.startOffset(), "leader_epoch", each.leaderEpoch().orElse(-1), "lag", each.lag().orElse(-1L))));
        });
        asked("alter_share_group_offsets", (admin, fields) -> {
            var offsets = new LinkedHashMap<TopicPartition, Long>();
            fields.get("offsets").forEach(row -> offsets.put(Outcomes.partition(row), row.get(2).asLong()));
            var result = admin.alterShareGroupOffsets(fields.get("group").asText(), offsets);
            return Outcomes.each(offsets.keySet().stream().collect(Collectors.toMap(each -> each, result::partitionResult)), Outcomes::done);
        });
        asked("delete_share_group_offsets", (admin, fields) -> {
            var topics = ClientSessions.texts(fields.get("topics"));
            var result = admin.deleteShareGroupOffsets(fields.get("group").asText(), new HashSet<>(topics));
            return Outcomes.each(topics.stream().collect(Collectors.toMap(each -> each, result::topicResult)), Outcomes::done);
        });
    }

    void asked(String operation, Asked asked) {
        session.operations.put(operation, fields -> asked.of(session.admin(fields), fields));
    }

    KafkaShareConsumer<byte[], byte[]> consumer(JsonNode fields) {
        return consumer(fields.get("consumer").asText());
    }

    KafkaShareConsumer<byte[], byte[]> consumer(String name) {
        var found = consumers.get(name);
        if (found == null) {
            throw new IllegalArgumentException("no such consumer");
        }
        return found;
    }

    static Object shown(ShareGroupDescription group) {
        return Outcomes.map("state", group.groupState().toString(), "coordinator", group.coordinator().id(), "epoch", group.groupEpoch(),
            "target_epoch", group.targetAssignmentEpoch(), "members", group.members().stream().map(member -> Outcomes.map("client", member.clientId(),
                "host", member.host(), "member_id", member.consumerId(), "epoch", member.memberEpoch(),
                "assigned", Outcomes.names(member.assignment().topicPartitions()))).toList());
    }

    // Polls the consumers in turn until so many deliveries came and nothing more does. How the records are cut into
    // polls is each broker's own matter, so what becomes of one goes by its offset and by how often it was delivered
    // alone: `say` has a word for each delivery, and the last one counts for those behind it.
    Object poll(JsonNode fields) {
        var names = ClientSessions.texts(fields.get("consumers"));
        int wanted = fields.get("deliveries").asInt();
        var say = new ArrayList<List<String>>();
        fields.path("say").forEach(words -> say.add(ClientSessions.texts(words)));
        long deadline = System.nanoTime() + fields.path("bound_ms").asLong(15_000) * 1_000_000;
        var deliveries = new TreeMap<String, Object>();
        var refused = new TreeMap<String, Object>();
        long last = System.nanoTime();
        Object failed = null;
        int repeated = 0;
        try {
            while (System.nanoTime() < deadline && (deliveries.size() < wanted || System.nanoTime() - last < QUIET_NANOSECONDS)) {
                for (String name : names) {
                    var consumer = consumer(name);
                    for (var record : consumer.poll(ONE_POLL)) {
                        last = System.nanoTime();
                        repeated += deliveries.put(place(record), Outcomes.record(record)) == null ? 0 : 1;
                        if (!say.isEmpty()) {
                            consumer.acknowledge(record, said(say, record));
                        }
                    }
                    consumer.commitSync().forEach((partition, failure) -> failure.ifPresent(error -> refused.put(partition.topicPartition().toString(), Outcomes.error(error))));
                }
            }
        } catch (Exception failure) {
            failed = Outcomes.error(failure);
        }
        var outcome = Outcomes.map("deliveries", deliveries, "repeated", repeated, "refused", refused);
        if (failed != null) {
            outcome.put("failed", failed);
        }
        return outcome;
    }

    static String place(ConsumerRecord<byte[], byte[]> record) {
        return String.format("%s-%d-%09d delivery %d", record.topic(), record.partition(), record.offset(), record.deliveryCount().orElse((short) 0));
    }

    static AcknowledgeType said(List<List<String>> say, ConsumerRecord<byte[], byte[]> record) {
        var words = say.get((int) (record.offset() % say.size()));
        int delivery = Math.max(1, record.deliveryCount().orElse((short) 1));
        return AcknowledgeType.valueOf(words.get(Math.min(delivery, words.size()) - 1));
    }

    void close() {
        consumers.values().forEach(consumer -> consumer.close(Duration.ofMillis(500)));
        consumers.clear();
    }
}

// Operations of the admin client: topics, configs, offsets, groups, transactions, the cluster.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

class AdminOperations {
    final ClientSessions.Session session;

    AdminOperations(ClientSessions.Session session) {
        this.session = session;
    }

    interface Asked {
        Object of(Admin admin, JsonNode fields) throws Exception;
    }

    void asked(String operation, Asked asked) {
        session.operations.put(operation, fields -> asked.of(session.admin(fields), fields));
    }

    void register() {
        asked("new_admin", (admin, fields) -> "done");
        asked("create_topics", this::createTopics);
        asked("delete_topics", (admin, fields) -> Outcomes.each(admin.deleteTopics(ClientSessions.texts(fields.get("topics"))).topicNameValues(), Outcomes::done));
        asked("describe_topics", (admin, fields) -> Outcomes.each(admin.describeTopics(ClientSessions.texts(fields.get("topics"))).topicNameValues(), AdminOperations::shown));
        asked("list_topics", (admin, fields) -> admin.listTopics().listings().get().stream().map(topic ->
            Outcomes.map("name", topic.name(), "id", topic.topicId().toString(), "internal", topic.isInternal())).toList());
        asked("create_partitions", (admin, fields) -> {
            var wanted = new HashMap<String, NewPartitions>();
            fields.get("topics").properties().forEach(entry -> wanted.put(entry.getKey(), NewPartitions.increaseTo(entry.getValue().asInt())));
            var options = new CreatePartitionsOptions().validateOnly(fields.path("validate_only").asBoolean());
            return Outcomes.each(admin.createPartitions(wanted, options).values(), Outcomes::done);
        });
        asked("describe_configs", this::describeConfigs);
        asked("alter_configs", this::alterConfigs);
        asked("list_offsets", this::listOffsets);
        asked("delete_records", (admin, fields) -> {
            var before = new HashMap<TopicPartition, RecordsToDelete>();
            fields.get("before").forEach(row -> before.put(Outcomes.partition(row), RecordsToDelete.beforeOffset(row.get(2).asLong())));
            return Outcomes.each(admin.deleteRecords(before).lowWatermarks(), DeletedRecords::lowWatermark);
        });
        registerGroups();
        registerTransactions();
        registerCluster();
    }

    Object createTopics(Admin admin, JsonNode fields) {
        var wanted = new ArrayList<NewTopic>();
        for (JsonNode row : fields.get("topics")) {
            NewTopic topic;
            if (row.has("assignments")) {
                var assignments = new HashMap<Integer, List<Integer>>();
                row.get("assignments").properties().forEach(entry -> {
                    var replicas = new ArrayList<Integer>();
                    entry.getValue().forEach(replica -> replicas.add(replica.asInt()));
                    assignments.put(Integer.parseInt(entry.getKey()), replicas);
                });
                topic = new NewTopic(row.get("name").asText(), assignments);
            } else {
                topic = new NewTopic(row.get("name").asText(), optional(row, "partitions"), optional(row, "replicas").map(Integer::shortValue));
            }
            if (row.has("configs")) {
                var configs = new HashMap<String, String>();
                row.get("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
                topic.configs(configs);
            }
            wanted.add(topic);
        }
        var result = admin.createTopics(wanted, new CreateTopicsOptions().validateOnly(fields.path("validate_only").asBoolean()));
        var found = new TreeMap<String, Object>();
        for (String name : result.values().keySet()) {
            found.put(name, Outcomes.future(result.config(name), config -> Outcomes.map("partitions", result.numPartitions(name).get(),
                "replicas", result.replicationFactor(name).get(), "configs", shown(config))));
        }
        return found;
    }

    static Optional<Integer> optional(JsonNode row, String name) {
        return row.has(name) ? Optional.of(row.get(name).asInt()) : Optional.empty();
    }

    static Object shown(TopicDescription topic) {
        return Outcomes.map("id", topic.topicId().toString(), "internal", topic.isInternal(), "operations", String.valueOf(topic.authorizedOperations()),
            "partitions", topic.partitions().stream().map(each -> Outcomes.map("partition", each.partition(), "leader", each.leader() == null ? null : each.leader().id(),
                "replicas", Outcomes.ids(each.replicas()), "in_sync", Outcomes.ids(each.isr()),
                "eligible", Outcomes.ids(Optional.ofNullable(each.elr()).orElse(List.of())), "last_known", Outcomes.ids(Optional.ofNullable(each.lastKnownElr()).orElse(List.of())))).toList());
    }

    static Object shown(Config config) {
        var found = new TreeMap<String, Object>();
        for (ConfigEntry entry : config.entries()) {
            found.put(entry.name(), Outcomes.map("value", entry.value(), "source", String.valueOf(entry.source()), "sensitive", entry.isSensitive(),
                "read_only", entry.isReadOnly(), "type", String.valueOf(entry.type())));
        }
        return found;
    }

    static ConfigResource resource(JsonNode pair) {
        return new ConfigResource(ConfigResource.Type.valueOf(pair.get(0).asText()), pair.get(1).asText());
    }

    Object describeConfigs(Admin admin, JsonNode fields) {
        var resources = new ArrayList<ConfigResource>();
        fields.get("resources").forEach(pair -> resources.add(resource(pair)));
        return named(admin.describeConfigs(resources, new DescribeConfigsOptions().includeSynonyms(fields.path("synonyms").asBoolean())).values(), AdminOperations::shown);
    }

    // Without Java's own way of writing a resource.
    <V> Object named(Map<ConfigResource, ? extends java.util.concurrent.Future<V>> futures, Outcomes.Shown<V> shown) {
        var found = new TreeMap<String, Object>();
        futures.forEach((resource, future) -> found.put(resource.type() + " " + resource.name(), Outcomes.future(future, shown)));
        return found;
    }

    Object alterConfigs(Admin admin, JsonNode fields) {
        var changes = new HashMap<ConfigResource, Collection<AlterConfigOp>>();
        for (JsonNode row : fields.get("changes")) {
            var entry = new ConfigEntry(row.get(3).asText(), row.path(4).isNull() || row.path(4).isMissingNode() ? null : row.get(4).asText());
            changes.computeIfAbsent(resource(row), resource -> new ArrayList<>())
                .add(new AlterConfigOp(entry, AlterConfigOp.OpType.valueOf(row.get(2).asText())));
        }
        return named(admin.incrementalAlterConfigs(changes, new AlterConfigsOptions().validateOnly(fields.path("validate_only").asBoolean())).values(), Outcomes::done);
    }

    static OffsetSpec spec(JsonNode spec) {
        return switch (spec.asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            case "earliest_local" -> OffsetSpec.earliestLocal();
            case "latest_tiered" -> OffsetSpec.latestTiered();
            default -> OffsetSpec.forTimestamp(spec.asLong());
        };
    }

    Object listOffsets(Admin admin, JsonNode fields) {
        var wanted = new LinkedHashMap<TopicPartition, OffsetSpec>();
        fields.get("partitions").forEach(row -> wanted.put(Outcomes.partition(row), spec(row.get(2))));
        var result = admin.listOffsets(wanted, new ListOffsetsOptions(fields.path("committed").asBoolean() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED));
        var found = new TreeMap<String, Object>();
        for (TopicPartition each : wanted.keySet()) {
            found.put(each.toString(), Outcomes.future(result.partitionResult(each), info ->
                Outcomes.map("offset", info.offset(), "timestamp", info.timestamp(), "leader_epoch", info.leaderEpoch().orElse(-1))));
        }
        return found;
    }

    void registerGroups() {
        asked("list_groups", (admin, fields) -> admin.listGroups().all().get().stream().map(group -> Outcomes.map("group", group.groupId(),
            "type", group.type().map(Object::toString).orElse(null), "protocol", group.protocol(), "state", group.groupState().map(Object::toString).orElse(null))).toList());
        asked("describe_groups", (admin, fields) -> Outcomes.each(admin.describeConsumerGroups(ClientSessions.texts(fields.get("groups"))).describedGroups(), AdminOperations::shown));
        asked("describe_classic_groups", (admin, fields) -> Outcomes.each(admin.describeClassicGroups(ClientSessions.texts(fields.get("groups"))).describedGroups(), group ->
            Outcomes.map("protocol", group.protocol(), "data", group.protocolData(), "state", group.state().toString(), "members", group.members().size())));
        asked("delete_groups", (admin, fields) -> Outcomes.each(admin.deleteConsumerGroups(ClientSessions.texts(fields.get("groups"))).deletedGroups(), Outcomes::done));
        asked("alter_group_offsets", (admin, fields) -> {
            var offsets = Outcomes.offsets(fields.get("offsets"));
            var result = admin.alterConsumerGroupOffsets(fields.get("group").asText(), offsets);
            return Outcomes.each(offsets.keySet().stream().collect(Collectors.toMap(each -> each, result::partitionResult)), Outcomes::done);
        });
        asked("list_group_offsets", (admin, fields) -> {
            var specs = new HashMap<String, ListConsumerGroupOffsetsSpec>();
            for (String group : ClientSessions.texts(fields.get("groups"))) {
                var spec = new ListConsumerGroupOffsetsSpec();
                specs.put(group, fields.has("partitions") ? spec.topicPartitions(Outcomes.partitions(fields.get("partitions"))) : spec);
            }
            var result = admin.listConsumerGroupOffsets(specs, new ListConsumerGroupOffsetsOptions().requireStable(fields.path("stable").asBoolean()));
            var found = new TreeMap<String, Object>();
            for (String group : specs.keySet()) {
                found.put(group, Outcomes.future(result.partitionsToOffsetAndMetadata(group), offsets -> Outcomes.byPartition(offsets, Outcomes::offset)));
            }
            return found;
        });
        asked("delete_group_offsets", (admin, fields) -> {
            var partitions = new HashSet<>(Outcomes.partitions(fields.get("partitions")));
            var result = admin.deleteConsumerGroupOffsets(fields.get("group").asText(), partitions);
            return Outcomes.each(partitions.stream().collect(Collectors.toMap(each -> each, result::partitionResult)), Outcomes::done);
        });
        asked("remove_members", (admin, fields) -> {
            var members = ClientSessions.texts(fields.path("instances")).stream().map(MemberToRemove::new).collect(Collectors.toSet());
            var options = members.isEmpty() ? new RemoveMembersFromConsumerGroupOptions() : new RemoveMembersFromConsumerGroupOptions(members);
            return Outcomes.future(admin.removeMembersFromConsumerGroup(fields.get("group").asText(), options).all(), Outcomes::done);
        });
    }

    static Object shown(ConsumerGroupDescription group) {
        return Outcomes.map("state", group.groupState().toString(), "type", group.type().toString(), "assignor", group.partitionAssignor(), "simple", group.isSimpleConsumerGroup(),
            "epoch", group.groupEpoch().orElse(null), "target_epoch", group.targetAssignmentEpoch().orElse(null), "coordinator", group.coordinator().id(),
            "members", group.members().stream().map(member -> Outcomes.map("client", member.clientId(), "instance", member.groupInstanceId().orElse(null),
                "host", member.host(), "member_id", member.consumerId(), "epoch", member.memberEpoch().orElse(null),
                "assigned", group.members().size() == 1 ? Outcomes.names(member.assignment().topicPartitions()) : member.assignment().topicPartitions().size(),
                "target", member.targetAssignment().map(target -> target.topicPartitions().size()).orElse(null))).toList());
    }

    void registerTransactions() {
        asked("describe_producers", (admin, fields) -> Outcomes.each(
            Outcomes.partitions(fields.get("partitions")).stream().collect(Collectors.toMap(each -> each, each -> admin.describeProducers(List.of(each)).partitionResult(each))),
            state -> state.activeProducers().stream().map(producer -> Outcomes.map("producer_id", producer.producerId(), "epoch", producer.producerEpoch(),
                "last_sequence", producer.lastSequence(), "last_timestamp", producer.lastTimestamp(), "coordinator_epoch", producer.coordinatorEpoch().orElse(-1),
                "transaction_start", producer.currentTransactionStartOffset().orElse(-1))).toList()));
        asked("describe_transactions", (admin, fields) -> {
            var ids = ClientSessions.texts(fields.get("ids"));
            var result = admin.describeTransactions(ids);
            return Outcomes.each(ids.stream().collect(Collectors.toMap(id -> id, result::description)), state -> Outcomes.map("state", state.state().toString(),
                "producer_id", state.producerId(), "epoch", state.producerEpoch(), "timeout_ms", state.transactionTimeoutMs(),
                "started", state.transactionStartTimeMs().isPresent(), "partitions", Outcomes.names(state.topicPartitions()), "coordinator", state.coordinatorId()));
        });
        asked("list_transactions", (admin, fields) -> admin.listTransactions().all().get().stream().map(each -> Outcomes.map("id", each.transactionalId(),
            "producer_id", each.producerId(), "state", each.state().toString())).toList());
        asked("fence_producers", (admin, fields) -> Outcomes.each(admin.fenceProducers(ClientSessions.texts(fields.get("ids"))).fencedProducers(), Outcomes::done));
        asked("abort_transaction_of", (admin, fields) -> {
            var partition = Outcomes.partition(fields.get("partition"));
            var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
            var open = producers.stream().filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst();
            if (open.isEmpty()) {
                return "no transaction";
            }
            var spec = new AbortTransactionSpec(partition, open.get().producerId(), (short) open.get().producerEpoch(), open.get().coordinatorEpoch().orElse(0));
            return Outcomes.future(admin.abortTransaction(spec).all(), Outcomes::done);
        });
    }

    void registerCluster() {
        asked("describe_cluster", (admin, fields) -> {
            var result = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(fields.path("operations").asBoolean()));
            var operations = result.authorizedOperations().get();
            return Outcomes.map("nodes", result.nodes().get().stream().map(node -> Outcomes.map("id", node.id(), "rack", node.rack(), "fenced", node.isFenced())).toList(),
                "operations", operations == null ? null : operations.stream().map(Enum::name).sorted().toList());
        });
        asked("elect_leaders", (admin, fields) -> {
            var type = ElectionType.valueOf(fields.get("type").asText());
            var partitions = new HashSet<>(Outcomes.partitions(fields.get("partitions")));
            var found = admin.electLeaders(type, partitions).partitions().get();
            return Outcomes.byPartition(found, failure -> failure.map(each -> (Object) Outcomes.error(each)).orElse("elected"));
        });
        asked("describe_log_dirs", (admin, fields) -> {
            var found = new ArrayList<Object>();
            for (var broker : admin.describeLogDirs(List.of(fields.get("broker").asInt())).allDescriptions().get().entrySet()) {
                for (var folder : broker.getValue().values()) {
                    folder.replicaInfos().forEach((partition, info) -> found.add(Outcomes.map("broker", broker.getKey(),
                        "at", partition.toString(), "size", info.size(), "lag", info.offsetLag(), "future", info.isFuture())));
                }
            }
            return found;
        });
        asked("alter_reassignments", (admin, fields) -> {
            var wanted = new HashMap<TopicPartition, Optional<NewPartitionReassignment>>();
            fields.get("partitions").forEach(row -> {
                var replicas = new ArrayList<Integer>();
                row.path(2).forEach(each -> replicas.add(each.asInt()));
                wanted.put(Outcomes.partition(row), replicas.isEmpty() ? Optional.empty() : Optional.of(new NewPartitionReassignment(replicas)));
            });
            return Outcomes.each(admin.alterPartitionReassignments(wanted).values(), Outcomes::done);
        });
        asked("list_reassignments", (admin, fields) -> Outcomes.names(
            admin.listPartitionReassignments(new HashSet<>(Outcomes.partitions(fields.get("partitions")))).reassignments().get().keySet()));
        asked("list_config_resources", (admin, fields) -> admin.listConfigResources().all().get().stream().map(each -> each.type() + " " + each.name()).sorted().toList());
    }
}

// Share groups as applications use them; run as a single source file:
//
//     java -cp kafka-clients.jar:... Queues.java BOOTSTRAP PREFIX SCENARIO...
//
// Each scenario makes a topic and a group of its own and prints lines that begin with its name. They say the same on
// every broker that has share groups: what members come across in any order is counted or sorted.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Queues {
    static final Duration POLL = Duration.ofMillis(200);
    static final long PATIENCE_MS = 60_000;
    static final long QUIET_MS = 3_000;
    static String bootstrap;
    static String prefix;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        prefix = arguments[1];
        try (Admin made = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
            admin = made;
            for (int each = 2; each < arguments.length; each++) {
                run(arguments[each]);
            }
        }
    }

    static void run(String scenario) throws Exception {
        switch (scenario) {
            case "implicit" -> implicit();
            case "explicit" -> explicit();
            case "limit" -> deliveryLimit();
            case "renew" -> renew();
            case "expiry" -> expiry();
            case "exact" -> acquireMode("record_limit");
            case "batches" -> acquireMode("batch_optimized");
            case "members" -> members();
            case "committed" -> readCommitted();
            case "offsets" -> offsets();
            case "errors" -> errors();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    // ------------------------------------------------------------ scenarios

    /** Nothing is said of records: the next poll accepts them, and a member that comes later gets none of them. */
    static void implicit() throws Exception {
        make("implicit", 3, Map.of());
        produce("implicit", 3, 60);
        Set<String> seen = new TreeSet<>();
        int deliveries = 0;
        try (KafkaShareConsumer<String, String> consumer = consumer("implicit", Map.of())) {
            long until = System.currentTimeMillis() + PATIENCE_MS;
            while (seen.size() < 60 && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    seen.add(record.value());
                    deliveries++;
                }
            }
            consumer.commitSync();
        }
        say("implicit", "records " + seen.size() + " deliveries " + deliveries);
        say("implicit", "left " + drain("implicit", 0).size());
    }

    /** Each record is accepted, released once or rejected, by what is in it; then nothing is left. */
    static void explicit() throws Exception {
        make("explicit", 1, Map.of());
        produce("explicit", 1, 30);
        Map<String, List<Integer>> counts = new TreeMap<>();
        try (KafkaShareConsumer<String, String> consumer =
                consumer("explicit", Map.of("share.acknowledgement.mode", "explicit"))) {
            int done = 0;
            long until = System.currentTimeMillis() + PATIENCE_MS;
            while (done < 30 && System.currentTimeMillis() < until) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                for (ConsumerRecord<String, String> record : records) {
                    int number = Integer.parseInt(record.value());
                    counts.computeIfAbsent(record.value(), name -> new ArrayList<>())
                            .add((int) record.deliveryCount().orElse((short) -1));
                    boolean first = record.deliveryCount().orElse((short) -1) == 1;
                    AcknowledgeType type = AcknowledgeType.ACCEPT;
                    if (number % 5 == 0 && first) {
                        type = AcknowledgeType.RELEASE;
                    } else if (number % 7 == 3) {
                        type = AcknowledgeType.REJECT;
                    }
                    consumer.acknowledge(record, type);
                    done += type == AcknowledgeType.RELEASE ? 0 : 1;
                }
                Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
                for (Optional<KafkaException> each : results.values()) {
                    each.ifPresent(fault -> say("explicit", "commit failed " + fault.getClass().getSimpleName()));
                }
            }
        }
        counts.forEach((value, deliveries) -> say("explicit", value + " " + deliveries));
        say("explicit", "left " + drain("explicit", 0).size());
    }

    /** A record that is always released is given up after as many deliveries as the group allows. */
    static void deliveryLimit() throws Exception {
        make("limit", 1, Map.of("share.delivery.count.limit", "3"));
        produce("limit", 1, 4);
        Map<String, List<Integer>> counts = new TreeMap<>();
        try (KafkaShareConsumer<String, String> consumer =
                consumer("limit", Map.of("share.acknowledgement.mode", "explicit"))) {
            long quietSince = System.currentTimeMillis();
            while (System.currentTimeMillis() - quietSince < 4_000 || counts.isEmpty()) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    quietSince = System.currentTimeMillis();
                    counts.computeIfAbsent(record.value(), name -> new ArrayList<>())
                            .add((int) record.deliveryCount().orElse((short) -1));
                    consumer.acknowledge(record, AcknowledgeType.RELEASE);
                }
                consumer.commitSync();
            }
        }
        counts.forEach((value, deliveries) -> say("limit", value + " " + deliveries));
    }

    /** A member that renews its locks keeps its records for longer than the lock lasts (KIP-1222). */
    static void renew() throws Exception {
        make("renew", 1, Map.of("share.record.lock.duration.ms", "3000"));
        produce("renew", 1, 3);
        int others = 0;
        try (KafkaShareConsumer<String, String> holder =
                        consumer("renew", Map.of("share.acknowledgement.mode", "explicit"));
                KafkaShareConsumer<String, String> other = consumer("renew", Map.of())) {
            List<ConsumerRecord<String, String>> held = pollSome(holder, 3);
            say("renew", "held " + held.size() + " timeout " + holder.acquisitionLockTimeoutMs().orElse(-1));
            for (int round = 0; round < 4; round++) {
                for (ConsumerRecord<String, String> record : held) {
                    holder.acknowledge(record, AcknowledgeType.RENEW);
                }
                holder.commitSync();
                others += other.poll(Duration.ofMillis(1_200)).count();
                holder.poll(Duration.ofMillis(10));
            }
            for (ConsumerRecord<String, String> record : held) {
                holder.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            holder.commitSync().values().forEach(result -> say("renew", "accepted " + result.isEmpty()));
        }
        say("renew", "others got " + others);
        say("renew", "left " + drain("renew", 0).size());
    }

    /** What a member does not acknowledge in time others get, one delivery later; its own word comes too late. */
    static void expiry() throws Exception {
        make("expiry", 1, Map.of("share.record.lock.duration.ms", "2000"));
        produce("expiry", 1, 2);
        try (KafkaShareConsumer<String, String> slow =
                        consumer("expiry", Map.of("share.acknowledgement.mode", "explicit"));
                KafkaShareConsumer<String, String> other =
                        consumer("expiry", Map.of("share.acknowledgement.mode", "explicit"))) {
            List<ConsumerRecord<String, String>> held = pollSome(slow, 2);
            say("expiry", "held " + held.size());
            List<ConsumerRecord<String, String>> again = pollSome(other, 2);
            for (ConsumerRecord<String, String> record : again) {
                say("expiry", "again " + record.value() + " " + record.deliveryCount().orElse((short) -1));
                other.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            other.commitSync();
            for (ConsumerRecord<String, String> record : held) {
                slow.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            slow.commitSync().values().forEach(result -> say(
                    "expiry", "late " + result.map(fault -> fault.getClass().getSimpleName()).orElse("accepted")));
        }
    }

    /** How many records one poll gives from one batch of ten: about so many, or exactly (KIP-1206). */
    static void acquireMode(String mode) throws Exception {
        String name = mode.equals("record_limit") ? "exact" : "batches";
        make(name, 1, Map.of());
        produce(name, 1, 10);
        List<Integer> sizes = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer =
                consumer(name, Map.of("share.acquire.mode", mode, "max.poll.records", "4"))) {
            int seen = 0;
            long until = System.currentTimeMillis() + PATIENCE_MS;
            while (seen < 10 && System.currentTimeMillis() < until) {
                int count = consumer.poll(POLL).count();
                if (count > 0) {
                    sizes.add(count);
                    seen += count;
                }
            }
            consumer.commitSync();
        }
        say(name, "sizes " + sizes);
    }

    /** Six members read two partitions: each record goes to one of them. */
    static void members() throws Exception {
        make("members", 2, Map.of());
        Map<String, AtomicInteger> seen = new ConcurrentSkipListMap<>();
        AtomicInteger total = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < 6; each++) {
            Thread thread = new Thread(() -> {
                try (KafkaShareConsumer<String, String> consumer =
                        consumer("members", Map.of("max.poll.records", "20"))) {
                    long until = System.currentTimeMillis() + PATIENCE_MS;
                    while (total.get() < 600 && System.currentTimeMillis() < until) {
                        for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                            seen.computeIfAbsent(record.value(), name -> new AtomicInteger()).incrementAndGet();
                            total.incrementAndGet();
                        }
                    }
                    consumer.commitSync();
                }
            });
            thread.start();
            threads.add(thread);
        }
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (memberCount("members") < 6 && System.currentTimeMillis() < until) {
            Thread.sleep(100);
        }
        say("members", "members " + memberCount("members"));
        for (int round = 0; round < 6; round++) {
            produce("members", 2, 100, 100 * round);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        say("members", "records " + seen.size() + " deliveries " + total.get());
    }

    static int memberCount(String name) throws Exception {
        try {
            return admin.describeShareGroups(List.of(group(name))).all().get().get(group(name)).members().size();
        } catch (ExecutionException fault) {
            return 0; // not one of them has come yet
        }
    }

    /** Records of aborted transactions are not delivered to a group that reads what is committed. */
    static void readCommitted() throws Exception {
        make("committed", 1, Map.of("share.isolation.level", "read_committed"));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", prefix + "-committed");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                for (int each = 0; each < 3; each++) {
                    producer.send(new ProducerRecord<>(topic("committed"), 0, null, round + "-" + each)).get();
                }
                if (round % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        say("committed", "records " + new TreeSet<>(drain("committed", 6)));
    }

    /** What administrators see and change. */
    static void offsets() throws Exception {
        make("offsets", 2, Map.of());
        produce("offsets", 2, 20);
        say("offsets", "first " + drain("offsets", 20).size());
        say("offsets", "listed " + listed("offsets"));
        ShareGroupDescription group =
                admin.describeShareGroups(List.of(group("offsets"))).all().get().get(group("offsets"));
        say("offsets", "described " + group.groupState() + " members " + group.members().size());
        say("offsets", "lags " + lags("offsets"));
        admin.alterShareGroupOffsets(group("offsets"), Map.of(new TopicPartition(topic("offsets"), 0), 4L)).all().get();
        say("offsets", "altered " + lags("offsets"));
        say("offsets", "again " + drain("offsets", 6).size());
        admin.deleteShareGroupOffsets(group("offsets"), Set.of(topic("offsets"))).all().get();
        say("offsets", "deleted " + lags("offsets"));
        say("offsets", "from the start " + drain("offsets", 20).size());
        admin.deleteShareGroups(List.of(group("offsets"))).all().get();
        say("offsets", "listed " + listed("offsets"));
    }

    static String listed(String name) throws Exception {
        for (GroupListing each : admin.listGroups().all().get()) {
            if (each.groupId().equals(group(name))) {
                return each.type().orElseThrow() + " " + each.protocol() + " " + each.groupState().orElseThrow();
            }
        }
        return "nowhere";
    }

    /** How many records are left of each partition: where a broker has its start is its own business. */
    static Map<Integer, Long> lags(String name) throws Exception {
        Map<Integer, Long> found = new TreeMap<>();
        admin.listShareGroupOffsets(Map.of(group(name), new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group(name)).get()
                .forEach((place, offset) -> found.put(place.partition(), offset == null ? -1 : offset.lag().orElse(-1L)));
        return found;
    }

    /** What is refused, and with which words. */
    static void errors() throws Exception {
        make("errors", 1, Map.of());
        produce("errors", 1, 1);
        say("errors", "no group " + fault(() -> admin.describeShareGroups(List.of(prefix + "-none")).all().get()));
        say("errors", "delete none " + fault(() -> admin.deleteShareGroups(List.of(prefix + "-none")).all().get()));
        try (KafkaShareConsumer<String, String> consumer = consumer("errors", Map.of())) {
            pollSome(consumer, 1);
            say("errors", "delete with members "
                    + fault(() -> admin.deleteShareGroups(List.of(group("errors"))).all().get()));
            say("errors", "alter with members " + fault(() -> admin.alterShareGroupOffsets(
                    group("errors"), Map.of(new TopicPartition(topic("errors"), 0), 0L)).all().get()));
            say("errors", "as a consumer group "
                    + fault(() -> admin.describeConsumerGroups(List.of(group("errors"))).all().get()));
        }
        say("errors", "bad setting " + fault(() -> set("errors", Map.of("share.delivery.count.limit", "1"))));
        say("errors", "unknown topic " + fault(() -> admin.alterShareGroupOffsets(
                group("errors"), Map.of(new TopicPartition(prefix + "-nowhere", 0), 0L)).all().get()));
    }

    interface Call {
        void run() throws Exception;
    }

    static String fault(Call call) {
        try {
            call.run();
            return "none";
        } catch (ExecutionException fault) {
            return fault.getCause().getClass().getSimpleName();
        } catch (Exception fault) {
            return fault.getClass().getSimpleName();
        }
    }

    // ------------------------------------------------------------ what scenarios are made of

    static String topic(String name) {
        return prefix + "-" + name;
    }

    static String group(String name) {
        return prefix + "-" + name + "-group";
    }

    static void say(String scenario, String what) {
        synchronized (System.out) {
            System.out.println(scenario + " " + what);
        }
    }

    static void make(String name, int partitions, Map<String, String> settings) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic(name), partitions, (short) 1))).all().get();
        Map<String, String> all = new TreeMap<>(settings);
        all.put("share.auto.offset.reset", "earliest");
        set(name, all);
    }

    static void set(String name, Map<String, String> settings) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        settings.forEach((key, value) ->
                changes.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group(name));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    static void produce(String name, int partitions, int count) throws Exception {
        produce(name, partitions, count, 0);
    }

    /** Numbers as values, spread over the partitions; those of one partition in one batch. */
    static void produce(String name, int partitions, int count, int first) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", "1000");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = first; number < first + count; number++) {
                producer.send(new ProducerRecord<>(
                        topic(name), number % partitions, null, String.format("%03d", number)));
            }
        }
    }

    static KafkaShareConsumer<String, String> consumer(String name, Map<String, String> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group(name));
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("fetch.max.wait.ms", "200");
        settings.putAll(more);
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        consumer.subscribe(List.of(topic(name)));
        return consumer;
    }

    static List<ConsumerRecord<String, String>> pollSome(KafkaShareConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < until) {
            consumer.poll(POLL).forEach(found::add);
        }
        return found;
    }

    /** All that a new member gets until nothing comes for a while, once it has as many as are expected. */
    static List<String> drain(String name, int expected) {
        List<String> found = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer = consumer(name, Map.of())) {
            long until = System.currentTimeMillis() + PATIENCE_MS;
            long quietSince = System.currentTimeMillis();
            while (System.currentTimeMillis() - quietSince < QUIET_MS
                    || (found.size() < expected && System.currentTimeMillis() < until)) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    quietSince = System.currentTimeMillis();
                    found.add(record.value());
                }
            }
            consumer.commitSync();
        }
        return found;
    }
}

// Java's admin client on what brokers other than the leader know and on every resource that has settings, driven by
// tests/conformance/test_conformance_admin_resources.py; run as a single source file:
//
//     java -cp kafka-tools.jar:... AdminResources.java BOOTSTRAP ITERATIONS LOGGER
//
// Each iteration describes producers on every replica, looks for hanging transactions on every broker with Kafka's own
// tool, and alters, describes and lists groups, client metrics, loggers, topics and brokers. One `name=value` line for
// what was seen at the end; an exception ends it with exit code 1.

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.config.ConfigResource.Type;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.common.utils.Time;

public class AdminResources {
    static final int SECONDS = 30;
    static Admin admin;
    static int exitStatus;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        int iterations = Integer.parseInt(arguments[1]);
        Exit.setExitProcedure((status, message) -> exitStatus = Math.max(exitStatus, status));
        try (Admin made = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap))) {
            admin = made;
            Collection<Node> brokers = admin.describeCluster().nodes().get(SECONDS, TimeUnit.SECONDS);
            String topic = "producers-" + System.nanoTime();
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) brokers.size()))).all().get();
            produce(bootstrap, topic);
            for (int number = 0; number < iterations; number++) {
                producers(topic, brokers);
                for (Node broker : brokers) {
                    hanging(bootstrap, broker.id());
                }
                group("group-" + number % 7, number);
                metrics("metrics-" + number % 7, number);
                loggers(brokers.iterator().next().idString(), arguments[2], number);
                every(topic, brokers.iterator().next().idString());
                expect(admin.describeMetadataQuorum().quorumInfo().get().nodes().size() > 0, "nodes of the quorum");
            }
            say("iterations", iterations);
            say("brokers", brokers.size());
            say("types", new TreeSet<>(types()));
        }
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    static void expect(boolean met, String what) {
        if (!met) {
            throw new AssertionError(what);
        }
    }

    static void produce(String bootstrap, String topic) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.idempotence", "true", "acks", "all");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[] {1})).get(SECONDS, TimeUnit.SECONDS);
        }
    }

    // Of the leader, and of every replica by its number.
    static void producers(String topic, Collection<Node> brokers) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        expect(admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers().size() == 1, "leader");
        for (Node broker : brokers) {
            var options = new DescribeProducersOptions().brokerId(broker.id());
            var state = admin.describeProducers(List.of(place), options).partitionResult(place).get();
            expect(state.activeProducers().size() == 1, "producers of broker " + broker.id());
        }
    }

    // kafka-transactions.sh find-hanging --broker-id N
    static void hanging(String bootstrap, int brokerId) throws Exception {
        Class<?> tool = Class.forName("org.apache.kafka.tools.TransactionsCommand");
        Method execute = tool.getDeclaredMethod("execute", String[].class, Function.class, PrintStream.class, Time.class);
        execute.setAccessible(true);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        String[] words = {"--bootstrap-server", bootstrap, "find-hanging", "--broker-id", "" + brokerId};
        Function<Object, Admin> create = any -> Admin.create(Map.of("bootstrap.servers", (Object) bootstrap));
        exitStatus = -1;
        execute.invoke(null, words, create, new PrintStream(said), Time.SYSTEM);
        expect(exitStatus == 0, "exit status " + exitStatus + " for broker " + brokerId);
        expect(said.toString().lines().count() == 1, "nothing hangs on broker " + brokerId + ": " + said);
    }

    static Config described(Type type, String name) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return admin.describeConfigs(List.of(resource), options).all().get(SECONDS, TimeUnit.SECONDS).get(resource);
    }

    static void alter(Type type, String name, String setting, String value, AlterConfigOp.OpType operation)
            throws Exception {
        Collection<AlterConfigOp> changes = List.of(new AlterConfigOp(new ConfigEntry(setting, value), operation));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(type, name), changes)).all().get(SECONDS, TimeUnit.SECONDS);
    }

    // The other brokers hear of a change a moment later.
    static void await(Type type, String name, String setting, String value) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!described(type, name).get(setting).value().equals(value)) {
            expect(System.nanoTime() < until, type + " " + name + " " + setting + " is not " + value);
            Thread.sleep(10);
        }
    }

    static void group(String name, int number) throws Exception {
        String value = "" + (45_000 + number % 1_000);
        alter(Type.GROUP, name, "consumer.session.timeout.ms", value, AlterConfigOp.OpType.SET);
        await(Type.GROUP, name, "consumer.session.timeout.ms", value);
        try {
            alter(Type.GROUP, name, "consumer.session.timeout.ms", "1", AlterConfigOp.OpType.SET);
            throw new AssertionError("a session of a millisecond");
        } catch (ExecutionException refused) {
            expect(refused.getCause().getClass().getSimpleName().equals("InvalidConfigurationException"), "" + refused);
        }
    }

    static void metrics(String name, int number) throws Exception {
        String value = "" + (1_000 + number);
        alter(Type.CLIENT_METRICS, name, "interval.ms", value, AlterConfigOp.OpType.SET);
        await(Type.CLIENT_METRICS, name, "interval.ms", value);
    }

    static void loggers(String brokerId, String logger, int number) throws Exception {
        String level = number % 2 == 0 ? "ERROR" : "WARN";
        alter(Type.BROKER_LOGGER, brokerId, logger, level, AlterConfigOp.OpType.SET);
        expect(described(Type.BROKER_LOGGER, brokerId).get(logger).value().equals(level), "the level of " + logger);
    }

    static void every(String topic, String brokerId) throws Exception {
        expect(described(Type.TOPIC, topic).entries().size() > 30, "settings of a topic");
        expect(described(Type.BROKER, brokerId).entries().size() > 300, "settings of a broker");
        described(Type.BROKER, "");
        expect(types().size() == 5, "types of resources: " + types());
    }

    static Set<Type> types() throws Exception {
        Set<Type> found = new HashSet<>();
        for (ConfigResource resource : admin.listConfigResources(Set.of(), new ListConfigResourcesOptions()).all().get()) {
            found.add(resource.type());
        }
        return found;
    }
}

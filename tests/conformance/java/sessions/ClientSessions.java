// Carries out operations of the Java client that it reads as JSON lines, and answers what came of each.
// Usage: ClientSessions <bootstrap> <bootstrap with SASL>
//
//   {"id": 1, "session": "s", "operation": "create_topics", "fields": {...}}
//   {"id": 1, "seconds": 0.03, "outcome": ...}
//
// Sessions run side by side, each in a thread of its own, in the order of its lines. An outcome is a value, or
// {"error": ...} with the exception. "end" closes what a session opened. The clients have default settings,
// save what the fields of new_admin, new_producer and new_consumer say.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.admin.Admin;

public class ClientSessions {
    interface Operation {
        Object perform(JsonNode fields) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper().configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, false);
    static final Map<String, Session> sessions = new ConcurrentHashMap<>();
    static final PrintStream answers = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, StandardCharsets.UTF_8);
    static String bootstrap;
    static String loginBootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        loginBootstrap = arguments[1];
        System.setOut(System.err);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = JSON.readTree(line);
            sessions.computeIfAbsent(request.get("session").asText(), Session::new).submit(request);
        }
        Runtime.getRuntime().halt(0);
    }

    static void answer(JsonNode request, Object outcome, long nanoseconds) {
        var line = new LinkedHashMap<String, Object>();
        line.put("id", request.get("id"));
        line.put("seconds", nanoseconds / 1e9);
        line.put("outcome", outcome);
        try {
            String text = JSON.writeValueAsString(line);
            synchronized (answers) {
                answers.println(text);
            }
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    // The clients of one session, by their names.
    static class Session {
        final String name;
        final ExecutorService thread;
        final Map<String, Operation> operations = new HashMap<>();
        final Map<String, Admin> admins = new HashMap<>();
        final ProducerOperations producers;
        final ConsumerOperations consumers;
        final ShareOperations shares;

        Session(String name) {
            this.name = name;
            thread = Executors.newSingleThreadExecutor(work -> {
                var made = new Thread(work, name);
                made.setDaemon(true);
                return made;
            });
            consumers = new ConsumerOperations(this);
            producers = new ProducerOperations(this);
            shares = new ShareOperations(this);
            new AdminOperations(this).register();
            new AdminRights(this).register();
            producers.register();
            consumers.register();
            shares.register();
            operations.put("end", fields -> end());
        }

        void submit(JsonNode request) {
            thread.submit(() -> {
                long began = System.nanoTime();
                Object outcome;
                try {
                    Operation operation = operations.get(request.get("operation").asText());
                    outcome = operation == null ? Map.of("error", "no such operation") : operation.perform(request.get("fields"));
                } catch (Throwable failure) {
                    outcome = Outcomes.error(failure);
                }
                answer(request, outcome, System.nanoTime() - began);
            });
        }

        // The settings of a client: where it connects, who it is, and what the fields say.
        Properties settings(JsonNode fields, String client) {
            var settings = new Properties();
            String user = fields.path("user").asText("");
            settings.put("bootstrap.servers", user.isEmpty() ? bootstrap : loginBootstrap);
            settings.put("client.id", client);
            if (!user.isEmpty()) {
                settings.put("security.protocol", "SASL_PLAINTEXT");
                settings.put("sasl.mechanism", "PLAIN");
                settings.put("sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required username=\""
                    + user + "\" password=\"" + fields.path("password").asText("secret of " + user) + "\";");
            }
            fields.path("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
            return settings;
        }

        // The admin client that the fields name; "admin" without one.
        Admin admin(JsonNode fields) {
            return admins.computeIfAbsent(fields.path("admin").asText("admin"), name -> Admin.create(settings(fields, name)));
        }

        Object end() {
            consumers.close();
            shares.close();
            producers.close();
            admins.values().forEach(admin -> admin.close(Duration.ZERO));
            sessions.remove(name);
            thread.shutdown();
            return "ended";
        }
    }

    static List<String> texts(JsonNode array) {
        var found = new ArrayList<String>();
        array.forEach(each -> found.add(each.asText()));
        return found;
    }
}

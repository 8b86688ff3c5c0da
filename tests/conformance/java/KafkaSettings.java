// Every setting of the Kafka whose jars are on the class path, one per line: kind, name, type, default, importance,
// valid values, how it changes while a broker runs. The table of tests/unit/model/test_model_kafka_settings.py:
//
//     java -cp "$HOME/.cache/tidelog/kafka-oracle/libs-4.3.1/*" tests/conformance/java/KafkaSettings.java \
//         >tests/unit/model/kafka_settings.tsv

import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

public class KafkaSettings {
    public static void main(String[] arguments) {
        show("broker", kafka.server.KafkaConfig.configDef(), DynamicBrokerConfig.dynamicConfigUpdateModes());
        show("topic", LogConfig.configDefCopy(), Map.of());
        show("group", GroupConfig.CONFIG_DEF, Map.of());
        show("client-metrics", ClientMetricsConfigs.configDef(), Map.of());
    }

    static void show(String kind, ConfigDef definition, Map<String, String> modes) {
        for (String name : new TreeSet<>(definition.names())) {
            ConfigDef.ConfigKey key = definition.configKeys().get(name);
            boolean required = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE;
            String value = required ? "null" : String.valueOf(ConfigDef.convertToString(key.defaultValue, key.type));
            String valid = key.validator == null ? "" : key.validator.toString().replace("\n", " ");
            String mode = key.internalConfig ? "internal" : modes.getOrDefault(name, "");
            System.out.println(String.join("\t", kind, name, key.type.name(), value, key.importance.name(), valid, mode));
        }
    }
}

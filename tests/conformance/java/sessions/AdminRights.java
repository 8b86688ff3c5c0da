// Operations of the admin client on rights, users and quotas.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialAlteration;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;

class AdminRights {
    final ClientSessions.Session session;

    AdminRights(ClientSessions.Session session) {
        this.session = session;
    }

    void register() {
        var operations = session.operations;
        operations.put("create_acls", fields -> {
            var wanted = new ArrayList<AclBinding>();
            fields.get("acls").forEach(row -> wanted.add(binding(row)));
            return Outcomes.each(session.admin(fields).createAcls(wanted).values(), Outcomes::done);
        });
        operations.put("describe_acls", fields -> shown(session.admin(fields).describeAcls(filter(fields.get("filter"))).values().get()));
        operations.put("delete_acls", fields -> {
            var filters = new ArrayList<AclBindingFilter>();
            fields.get("filters").forEach(row -> filters.add(filter(row)));
            return Outcomes.each(session.admin(fields).deleteAcls(filters).values(), results -> results.values().stream()
                .map(result -> result.exception() == null ? shown(result.binding()) : Outcomes.error(result.exception()).toString()).sorted().toList());
        });
        operations.put("describe_scram", fields -> {
            var result = session.admin(fields).describeUserScramCredentials(ClientSessions.texts(fields.get("users")));
            var found = new TreeMap<String, Object>();
            for (String user : ClientSessions.texts(fields.get("users"))) {
                found.put(user, Outcomes.future(result.description(user), description -> description.credentialInfos().stream()
                    .map(info -> info.mechanism() + " " + info.iterations()).sorted().toList()));
            }
            return found;
        });
        operations.put("alter_scram", this::alterScram);
        operations.put("describe_quotas", fields -> {
            var components = new ArrayList<ClientQuotaFilterComponent>();
            fields.get("components").forEach(pair -> components.add(pair.get(1).isNull()
                ? ClientQuotaFilterComponent.ofEntityType(pair.get(0).asText()) : ClientQuotaFilterComponent.ofEntity(pair.get(0).asText(), pair.get(1).asText())));
            var filter = fields.path("strict").asBoolean() ? ClientQuotaFilter.containsOnly(components) : ClientQuotaFilter.contains(components);
            var found = new TreeMap<String, Object>();
            session.admin(fields).describeClientQuotas(filter).entities().get().forEach((entity, values) ->
                found.put(new TreeMap<>(entity.entries()).toString(), new TreeMap<>(values)));
            return found;
        });
        operations.put("alter_quotas", fields -> {
            var changes = new ArrayList<ClientQuotaAlteration>();
            for (JsonNode row : fields.get("changes")) {
                Map<String, String> entity = new HashMap<>();
                row.get(0).properties().forEach(entry -> entity.put(entry.getKey(), entry.getValue().isNull() ? null : entry.getValue().asText()));
                changes.add(new ClientQuotaAlteration(new ClientQuotaEntity(entity),
                    List.of(new ClientQuotaAlteration.Op(row.get(1).asText(), row.get(2).isNull() ? null : row.get(2).asDouble()))));
            }
            var found = new TreeMap<String, Object>();
            session.admin(fields).alterClientQuotas(changes).values().forEach((entity, future) ->
                found.put(new TreeMap<>(entity.entries()).toString(), Outcomes.future(future, Outcomes::done)));
            return found;
        });
    }

    // [resource type, name, pattern type, principal, host, operation, permission]
    static AclBinding binding(JsonNode row) {
        return new AclBinding(new ResourcePattern(ResourceType.valueOf(row.get(0).asText()), row.get(1).asText(), PatternType.valueOf(row.get(2).asText())),
            new AccessControlEntry(row.get(3).asText(), row.get(4).asText(), AclOperation.valueOf(row.get(5).asText()), AclPermissionType.valueOf(row.get(6).asText())));
    }

    static String text(JsonNode value) {
        return value.isNull() ? null : value.asText();
    }

    static AclBindingFilter filter(JsonNode row) {
        return new AclBindingFilter(new ResourcePatternFilter(ResourceType.valueOf(row.get(0).asText()), text(row.get(1)), PatternType.valueOf(row.get(2).asText())),
            new AccessControlEntryFilter(text(row.get(3)), text(row.get(4)), AclOperation.valueOf(row.get(5).asText()), AclPermissionType.valueOf(row.get(6).asText())));
    }

    static Object shown(Collection<AclBinding> bindings) {
        return bindings.stream().map(AdminRights::shown).sorted().toList();
    }

    static String shown(AclBinding binding) {
        return binding.toString();
    }

    Object alterScram(JsonNode fields) {
        var changes = new ArrayList<UserScramCredentialAlteration>();
        for (JsonNode row : fields.get("changes")) {
            var mechanism = ScramMechanism.valueOf(row.get(1).asText());
            changes.add(row.size() == 2 ? new UserScramCredentialDeletion(row.get(0).asText(), mechanism)
                : new UserScramCredentialUpsertion(row.get(0).asText(), new ScramCredentialInfo(mechanism, row.get(2).asInt()), "a password"));
        }
        return Outcomes.each(session.admin(fields).alterUserScramCredentials(changes).values(), Outcomes::done);
    }
}

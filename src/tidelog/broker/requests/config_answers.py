"""What DescribeConfigs, CreateTopics and the two ways to alter settings share."""

from collections.abc import Mapping

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.tls_changes import refused_certificates
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AlterConfigs, ConfigChanges, Result
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.settings import Explanation

Fields = dict[str, object]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCE_TYPES = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


def config_fields(explanation: Explanation, *, synonyms: bool, documentation: bool) -> Fields:
    """One setting as DescribeConfigs sends it; CreateTopics sends the first fields of it."""
    setting = explanation.setting
    return {
        "name": setting.name,
        "value": explanation.value,
        "read_only": setting.read_only,
        "config_source": int(explanation.source),
        "is_sensitive": setting.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": int(synonym.source)}
            for synonym in (explanation.synonyms if synonyms else ())
        ],
        "config_type": int(setting.type),
        "documentation": setting.documentation if documentation else None,
    }


def unsupported_resource(resource_type: int) -> Refused:
    """There is nothing of this type that could have settings, or it has none that could be changed so."""
    return Refused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def error_fields(result: object) -> Fields:
    """The error of a result: none where something was done."""
    if isinstance(result, Refused):
        return {"error_code": result.code, "error_message": result.message}
    return {"error_code": ErrorCode.NONE, "error_message": None}


def submit_changes(
    metadata: Metadata,
    settings: LiveSettings,
    node_id: int,
    resources: list[tuple[int, str, ConfigChanges | Refused | None]],
    *,
    validate_only: bool,
) -> Mapping[str, object] | DelayedAnswer:
    """Have the controller make the changes that could be read, and answer for every resource in order.

    None stands for changes that this broker has made itself.
    """

    def usable(changes: ConfigChanges | Refused | None) -> ConfigChanges | Refused | None:
        if not isinstance(changes, ConfigChanges):
            return changes
        return refused_certificates(metadata.image, settings, node_id, changes) or changes

    resources = [(resource_type, name, usable(changes)) for resource_type, name, changes in resources]
    wanted = tuple(changes for _, _, changes in resources if isinstance(changes, ConfigChanges))

    def answer(results: tuple[Result, ...]) -> Fields:
        remaining = iter(results)
        return {
            "responses": [
                {
                    **error_fields(next(remaining) if isinstance(changes, ConfigChanges) else changes),
                    "resource_type": resource_type,
                    "resource_name": name,
                }
                for resource_type, name, changes in resources
            ]
        }

    if not wanted:
        return answer(())
    delayed = DelayedAnswer()
    metadata.submit(AlterConfigs(wanted, validate_only), lambda results: delayed.answer(answer(results)))
    return delayed

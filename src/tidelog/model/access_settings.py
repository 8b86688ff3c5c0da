"""The settings of the authorizer and of quotas: rows of the one table (see settings_table)."""

from tidelog.model.setting_rows import Importance, SettingType
from tidelog.model.setting_rows import broker_setting as _broker

_INT, _STRING, _BOOLEAN = SettingType.INT, SettingType.STRING, SettingType.BOOLEAN

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

ACCESS_SETTINGS = (
    _broker(
        "authorizer.class.name", _STRING, "", Importance.LOW,
        "What decides who may do what: Kafka's name of the authorizer of ACLs, or nothing, and everybody may "
        "do everything.", choices=("", STANDARD_AUTHORIZER),
    ),
    _broker(
        "super.users", _STRING, "", Importance.MEDIUM,
        "The principals that may do everything, parted by semicolons: `User:admin;User:CN=root,O=acme`.",
    ),
    _broker(
        "allow.everyone.if.no.acl.found", _BOOLEAN, False, Importance.MEDIUM,
        "Whether everybody may do everything to a resource that no ACL is for.",
    ),
    _broker(
        "quota.window.num", _INT, 11, Importance.LOW,
        "Over how many windows of time the rates of clients are measured.", minimum=1,
    ),
    _broker(
        "quota.window.size.seconds", _INT, 1, Importance.LOW,
        "How long such a window is.", minimum=1,
    ),
    _broker(
        "controller.quota.window.num", _INT, 11, Importance.LOW,
        "Over how many windows the changes that clients make to topics are measured.", minimum=1,
    ),
    _broker(
        "controller.quota.window.size.seconds", _INT, 1, Importance.LOW,
        "How long such a window is.", minimum=1,
    ),
)  # fmt: skip

"""Kafka's settings that are refused here, each with the reason: accepting them would mislead.

A security setting that nobody heeds, a policy that nobody asks, a place where nothing is kept. The value that
Kafka has when nobody sets them is taken, for it promises nothing; DescribeConfigs shows it.
"""

from tidelog.model.setting_rows import Importance, Setting, SettingType, UpdateMode
from tidelog.model.setting_rows import refused_setting as _refused

_BOOLEAN, _CLASS, _INT, _LIST = SettingType.BOOLEAN, SettingType.CLASS, SettingType.INT, SettingType.LIST
_LONG, _PASSWORD, _STRING = SettingType.LONG, SettingType.PASSWORD, SettingType.STRING
_HIGH, _LOW, _MEDIUM = Importance.HIGH, Importance.LOW, Importance.MEDIUM
_CLUSTER_WIDE, _PER_BROKER = UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER

_QUORUM = (
    _refused(
        "process.roles", _LIST, None, _HIGH,
        "Whether a node is a broker, a controller, or both.",
        "there is no KRaft quorum here: any broker may become the controller",
    ),
    _refused(
        "controller.listener.names", _LIST, None, _HIGH,
        "The listeners of the controllers.",
        "there is no KRaft quorum here: any broker may become the controller",
    ),
    _refused(
        "controller.quorum.voters", _LIST, (), _HIGH,
        "Who decides about the metadata.",
        "there is no KRaft quorum here: any broker may become the controller (see "
        "zookeeper.connect and tidelog.coordination.path)",
    ),
    _refused(
        "controller.quorum.bootstrap.servers", _LIST, (), _HIGH,
        "Where the controllers are found.",
        "there is no KRaft quorum here: any broker may become the controller (see "
        "zookeeper.connect and tidelog.coordination.path)",
    ),
    _refused(
        "controller.quorum.auto.join.enable", _BOOLEAN, False, _LOW,
        "Whether a controller joins the quorum by itself.",
        "there is no KRaft quorum here: any broker may become the controller",
    ),
    _refused(
        "metadata.log.dir", _STRING, None, _HIGH,
        "The folder of the metadata log.",
        "the metadata is in the coordination store (see tidelog.coordination.path)",
    ),
    _refused(
        "sasl.mechanism.controller.protocol", _STRING, "GSSAPI", _HIGH,
        "The SASL mechanism between brokers and controllers.",
        "brokers reach each other by sasl.mechanism.inter.broker.protocol alone",
    ),
    _refused(
        "early.start.listeners", _LIST, None, _HIGH,
        "The listeners that open before the broker is ready.",
        "every listener opens when the broker is ready",
    ),
)  # fmt: skip

_CLASSES = (
    _refused(
        "alter.config.policy.class.name", _CLASS, None, _LOW,
        "A policy that checks changed settings.",
        "it names a class of Java, and there is no Java here: the policy would not be asked",
    ),
    _refused(
        "create.topic.policy.class.name", _CLASS, None, _LOW,
        "A policy that checks new topics.",
        "it names a class of Java, and there is no Java here: the policy would not be asked",
    ),
    _refused(
        "client.quota.callback.class", _CLASS, None, _LOW,
        "A class that decides on quotas.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "config.providers", _LIST, (), _LOW,
        "Providers of values that settings refer to.",
        "it names a class of Java, and there is no Java here: values would be taken as they are written",
        update_mode=_CLUSTER_WIDE,
    ),
    _refused(
        "kafka.metrics.reporters", _LIST, (), _LOW,
        "Classes that report metrics.",
        "it names a class of Java, and there is no Java here (see tidelog.metrics.port)",
    ),
    _refused(
        "metric.reporters", _LIST, ("org.apache.kafka.common.metrics.JmxReporter",), _LOW,
        "Classes that report metrics.",
        "it names a class of Java, and there is no Java here (see tidelog.metrics.port)",
        update_mode=_CLUSTER_WIDE,
    ),
    _refused(
        "principal.builder.class", _CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        _MEDIUM,
        "The class that says who a client is.",
        "it names a class of Java, and there is no Java here (see ssl.principal.mapping.rules)",
        update_mode=_PER_BROKER,
    ),
    _refused(
        "security.providers", _STRING, None, _LOW,
        "Providers of security algorithms.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.client.callback.handler.class", _CLASS, None, _MEDIUM,
        "A class for logging in to other brokers.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.login.callback.handler.class", _CLASS, None, _MEDIUM,
        "A class for logging in.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.login.class", _CLASS, None, _MEDIUM,
        "A class for logging in.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.server.callback.handler.class", _CLASS, None, _MEDIUM,
        "A class that checks who logs in.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.oauthbearer.jwt.retriever.class", _CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        _MEDIUM,
        "A class that gets tokens.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "sasl.oauthbearer.jwt.validator.class", _CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        _MEDIUM,
        "A class that checks tokens.",
        "it names a class of Java, and there is no Java here",
    ),
    _refused(
        "ssl.engine.factory.class", _CLASS, None, _LOW,
        "A class that makes TLS engines.",
        "it names a class of Java, and there is no Java here", update_mode=_PER_BROKER,
    ),
)  # fmt: skip

_SECURITY = (
    _refused(
        "sasl.kerberos.service.name", _STRING, None, _MEDIUM,
        "The name of the service in Kerberos.",
        "Kerberos (GSSAPI) is not offered", update_mode=_PER_BROKER,
    ),
    _refused(
        "sasl.kerberos.principal.to.local.rules", _LIST, ("DEFAULT",), _MEDIUM,
        "How names of Kerberos become users.",
        "Kerberos (GSSAPI) is not offered", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.keymanager.algorithm", _STRING, "SunX509", _MEDIUM,
        "How Java chooses a certificate.",
        "TLS is OpenSSL's here", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.trustmanager.algorithm", _STRING, "PKIX", _MEDIUM,
        "How Java checks certificates.",
        "TLS is OpenSSL's here", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.protocol", _STRING, "TLSv1.3", _MEDIUM,
        "The protocol that Java makes TLS contexts with.",
        "ssl.enabled.protocols says what is spoken", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.provider", _STRING, None, _MEDIUM,
        "The provider of TLS.",
        "TLS is OpenSSL's here", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.secure.random.implementation", _STRING, None, _LOW,
        "Where random numbers for TLS come from.",
        "TLS is OpenSSL's here", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.keystore.password", _PASSWORD, None, _MEDIUM,
        "The password of a keystore.",
        "keystores are PEM files, whose key ssl.key.password opens", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.truststore.password", _PASSWORD, None, _MEDIUM,
        "The password of a truststore.",
        "truststores are PEM files, which have none", update_mode=_PER_BROKER,
    ),
    _refused(
        "ssl.allow.dn.changes", _BOOLEAN, True, _LOW,
        "Whether a new certificate may have another distinguished name.",
        "names are not compared when a certificate is changed",
    ),
    _refused(
        "ssl.allow.san.changes", _BOOLEAN, True, _LOW,
        "Whether a new certificate may have other alternative names.",
        "names are not compared when a certificate is changed",
    ),
)  # fmt: skip

_OAUTH = (
    _refused(
        "sasl.oauthbearer.assertion.algorithm", _STRING, "RS256", _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.aud", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.exp.seconds", _INT, 300, _LOW,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.iss", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.jti.include", _BOOLEAN, False, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", _INT, 60, _LOW,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.claim.sub", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.file", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.private.key.file", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.private.key.passphrase", _PASSWORD, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.assertion.template.file", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.client.credentials.client.id", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
    _refused(
        "sasl.oauthbearer.scope", _STRING, None, _MEDIUM,
        "How a broker gets a token of its own.",
        "brokers do not log in to each other with OAUTHBEARER",
    ),
)  # fmt: skip

_STORAGE = (
    _refused(
        "remote.log.storage.system.enable", _BOOLEAN, False, _MEDIUM,
        "Whether old segments may move to remote storage.",
        "there is no remote storage",
    ),
    _refused(
        "cordoned.log.dirs", _LIST, (), _MEDIUM,
        "Data folders that get no new logs.",
        "new logs go to the folder with the fewest", update_mode=_PER_BROKER,
    ),
)  # fmt: skip

REFUSED_SETTINGS: tuple[Setting, ...] = (
    *_QUORUM,
    *_CLASSES,
    *_SECURITY,
    *_OAUTH,
    *_STORAGE,
)

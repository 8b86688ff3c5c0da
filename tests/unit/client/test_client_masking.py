"""What is hidden of settings and texts, and what stays to be seen."""

import pytest

from tidelog.client.client_settings import OPTIONS
from tidelog.client.masking import MASK, is_secret, masked, masked_text, secrets_of


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "kafka.sasl.password",
        "sasl.jaas.config",
        "kafka.sasl.jaas.config",
        "sasl.oauthbearer.token",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.truststore.password",
        "spark.hadoop.fs.s3a.secret.key",
        "fs.s3a.access.key",
        "api_key",
        "PGPASSWORD",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


def test_names_of_what_may_be_seen() -> None:
    shown = ["sasl.username", "bootstrap.servers", "sasl.oauthbearer.token.callback", "ssl.key.location"]
    assert set(shown) <= {name for row in OPTIONS.values() for name in row.names}
    assert not any(is_secret(name) for name in (*shown, "key", "key_columns", "url", "path", "sql", "topic"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:PW@host:5432/db", "postgresql://u:*****@host:5432/db"),
        ("jdbc:postgresql://u:P@W@host/db", "jdbc:postgresql://u:*****@host/db"),
        ("postgresql://host/db?user=u&password=PW&x=1", "postgresql://host/db?user=u&password=*****&x=1"),
        ("cannot reach 'postgresql://u:PW@host/db': no", "cannot reach 'postgresql://u:*****@host/db': no"),
        ('Module required username="u" password="P W;";', 'Module required username="u" password=*****;'),
        ("host=h user=u password='P W' dbname=d", "host=h user=u password=***** dbname=d"),
        ("postgresql://u@host:5432/db", "postgresql://u@host:5432/db"),
        ("localhost:9092", "localhost:9092"),
        ("http://localhost:8080/path", "http://localhost:8080/path"),
    ],
)
def test_passwords_in_texts(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked(text, "url") == shown


def test_all_depths() -> None:
    settings = {
        "url": "postgresql://u:PW@h/d",
        "to_kafka": {"bootstrap.servers": "h:1", "sasl.password": "PW", "sasl.username": "u"},
        "sinks": [{"options": {"kafka.sasl.jaas.config": 'x password="PW"'}}],
        "token": 12345,
        "password": "",
        "secret": None,
        "rows": 5,
    }
    shown = masked(settings)
    assert "PW" not in repr(shown) and "12345" not in repr(shown)
    assert shown["to_kafka"] == {"bootstrap.servers": "h:1", "sasl.password": MASK, "sasl.username": "u"}
    assert (shown["password"], shown["secret"], shown["rows"]) == ("", None, 5)
    assert masked(shown) == shown
    assert set(secrets_of(settings)) >= {"PW", "12345"}


def test_secrets_that_are_known_are_found_anywhere_in_a_text() -> None:
    assert masked_text("refused: hunter2, hunter22", ["hunter2"]) == "refused: *****, hunter22"

"""Passwords and tokens of an HTTP endpoint: what is let in, files that change, modes."""

import base64
from pathlib import Path

import pytest

from tidelog.security.certificates import write_secret
from tidelog.security.http_credentials import FILE_BYTES_MAX, CredentialsUnusable, HttpCredentials

PASSWORD, TOKEN = "correct horse: battery", "9f86d081884c7d65"


def basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "credentials"
    write_secret(file, f"# for the monitoring\n\nprometheus:{PASSWORD}\n  {TOKEN}  \n")
    return file


def test_passwords_and_tokens_are_let_in(path: Path) -> None:
    credentials = HttpCredentials(path)
    assert credentials.accepts(basic(f"prometheus:{PASSWORD}"))
    assert credentials.accepts(f"Bearer {TOKEN}")
    assert credentials.accepts(f"bearer   {TOKEN} ")


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Bearer",
        "Bearer ",
        basic("prometheus:wrong"),
        basic(f"other:{PASSWORD}"),
        basic(TOKEN),
        basic(f":{TOKEN}"),
        basic("# for the monitoring"),
        f"Basic {TOKEN}",
        f"Bearer prometheus:{PASSWORD}",
        f"Bearer {TOKEN}x",
        f"Digest {TOKEN}",
        "Basic %%%",
        "Bearer \u00e9\u00ff",
    ],
)
def test_nobody_else_is(path: Path, authorization: str) -> None:
    assert not HttpCredentials(path).accepts(authorization)


def test_a_file_that_changes_counts_at_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials = HttpCredentials(path)
    write_secret(path, "other-token-of-today\n")
    assert credentials.accepts("Bearer other-token-of-today") and not credentials.accepts(f"Bearer {TOKEN}")
    path.unlink()
    assert credentials.accepts("Bearer other-token-of-today"), "the one from before goes on"
    assert credentials.accepts("Bearer other-token-of-today")
    assert len(caplog.records) == 1 and "other-token-of-today" not in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither"),
        (b"# nothing\n", "neither"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (FILE_BYTES_MAX + 1), "more than"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "credentials"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CredentialsUnusable, match=reason):
        HttpCredentials(path)
    with pytest.raises(CredentialsUnusable, match="cannot be read"):
        HttpCredentials(tmp_path / "nothing")


def test_a_file_that_everybody_may_read_is_refused(path: Path) -> None:
    path.chmod(0o640)
    assert HttpCredentials(path)
    for mode in (0o644, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(CredentialsUnusable, match="everybody"):
            HttpCredentials(path)
    assert path.stat().st_mode & 0o777 == 0o666, "it is left to its owner to mend"


def test_nothing_is_told_of_secrets(path: Path) -> None:
    assert PASSWORD not in repr(HttpCredentials(path)) and TOKEN not in repr(HttpCredentials(path))
    assert PASSWORD.encode() not in b"".join(HttpCredentials(path)._digests)

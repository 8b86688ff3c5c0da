"""Finding Java and the jars of ZooKeeper; running it is tested with the store (tests/unit/coordination)."""

import socket
from pathlib import Path

import pytest

from tidelog.server.zookeeper_process import (
    JARS_VARIABLE,
    ZookeeperError,
    ZookeeperServers,
    find_jars,
    find_java,
)

JARS = (
    "zookeeper-3.9.5.jar",
    "zookeeper-jute-3.9.5.jar",
    "slf4j-api-2.0.13.jar",
    "metrics-core-4.2.30.jar",
    "snappy-java-1.1.10.7.jar",
)


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = touch(tmp_path / "home" / "bin", "java")
    on_path = touch(tmp_path / "path", "java")
    (on_path / "java").chmod(0o755)
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path)}
    assert find_java(both) == str(home / "java")
    assert find_java({"PATH": str(on_path)}) == str(on_path / "java")


def test_without_java_the_way_to_get_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ZookeeperError, match="needs Java") as missing:
        find_java({"PATH": str(tmp_path)})
    assert "apt-get install" in missing.value.hint


def test_only_the_needed_jars_of_a_large_folder_are_taken(tmp_path: Path) -> None:
    folder = touch(tmp_path, *JARS, "spark-core_2.13-4.3.0.jar", "netty-handler-4.1.130.Final.jar")
    assert {jar.name for jar in find_jars(folder)} == {*JARS, "netty-handler-4.1.130.Final.jar"}


def test_a_named_folder_is_the_only_one(tmp_path: Path) -> None:
    cache = touch(tmp_path / "cache" / "tidelog" / "zookeeper", *JARS)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_jars(None, environment)[0].parent == cache
    with pytest.raises(ZookeeperError, match="jars") as missing:
        find_jars(None, {**environment, JARS_VARIABLE: str(touch(tmp_path / "incomplete", *JARS[1:]))})
    assert JARS_VARIABLE in missing.value.hint


def test_a_port_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(touch(tmp_path / "jars", *JARS)))
    java = touch(tmp_path / "java" / "bin", "java")
    monkeypatch.setenv("JAVA_HOME", str(java.parent))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ZookeeperError, match=str(port)):
            ZookeeperServers(tmp_path / "data", port=port).start()


def test_a_server_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(touch(tmp_path / "jars", *JARS)))
    java = touch(tmp_path / "java" / "bin", "java") / "java"
    java.write_text("#!/bin/sh\necho no heap today; exit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ZookeeperError, match=r"ended with code 3\n.*no heap today"):
        ZookeeperServers(tmp_path / "data", port=port).start()

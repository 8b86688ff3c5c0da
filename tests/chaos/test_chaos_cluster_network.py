"""The private network of the chaos runs: hosts see each other, a cut is silent, may be one-way, and heals."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import network
from tests.support.child_programs import ROOT

SCRIPT = '''
import subprocess, sys
from tests.chaos import network
network.enter(sys.argv)
hosts = network.PrivateNetwork(["one", "two"])
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
while True:
    server.accept()[0].sendall(b"hello")
"""
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 5000), timeout=0.5) as peer:
        print(peer.recv(5).decode())
except OSError as fault:
    print(type(fault).__name__)
"""
def reach(prefix, target):
    command = [*prefix, sys.executable, "-c", CONNECT, hosts.addresses[target]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
servers = [
    subprocess.Popen(
        [*hosts.prefix(host), sys.executable, "-c", LISTEN, hosts.addresses[host]], stdout=subprocess.PIPE
    )
    for host in ("one", "two")
]
for server in servers:
    server.stdout.readline()
try:
    print("whole", reach(hosts.prefix("one"), "two"), reach(hosts.prefix("two"), "one"), reach([], "one"))
    hosts.cut("one", "two")
    print("cut", reach(hosts.prefix("one"), "two"), reach(hosts.prefix("two"), "one"), reach([], "one"))
    hosts.heal()
    print("healed", reach(hosts.prefix("one"), "two"), reach(hosts.prefix("two"), "one"))
    hosts.isolate("two", from_hub=True)
    print("isolated", reach([], "two"), reach([], "one"))
    hosts.heal()
    print("healed", reach([], "two"))
finally:
    for server in servers:
        server.kill()
        server.wait()
'''


def test_cuts_are_silent_and_heal(tmp_path: Path) -> None:
    if (reason := network.missing()) is not None:
        pytest.skip(reason)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        check=False,
    )
    assert done.stdout.splitlines() == [
        "whole hello hello hello",
        "cut TimeoutError TimeoutError hello",
        "healed hello hello",
        "isolated TimeoutError hello",
        "healed hello",
    ], done.stderr

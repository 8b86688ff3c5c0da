"""Network cuts between processes of one machine: each host is a network namespace on a bridge of our own.

    enter(["-m", NAME, *sys.argv[1:]])  # this program again, in a private network, with `hub` as its address
    network = PrivateNetwork(["broker-1", "broker-2"])
    subprocess.Popen([*network.prefix("broker-1"), …])
    network.cut("broker-1", "broker-2")
    network.heal()

A cut is silent, as a dead switch is: packets go to a hardware address that nobody has, so that connections
hang and nobody is told. It may be one-way. Nothing outside the private network is touched, and all of it goes
with the last process in it. Needs root, `ip`, `nsenter` and `unshare`; `missing` says what is not there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HUB = "hub"
HUB_ADDRESS = "10.77.0.254"
NOBODY = "02:00:00:00:00:fe"
INSIDE = "TIDELOG_CHAOS_PRIVATE_NETWORK"


def missing() -> str | None:
    """Why there can be no private network here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    script = "mount -t tmpfs tmpfs /run/netns && ip link add hub type bridge && ip netns add probe"
    script = f"mkdir -p /run/netns && {script}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


def inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def enter(arguments: Sequence[str]) -> None:
    """Start Python anew with these arguments in a private network, in the same process."""
    if inside():
        return
    environment = {**os.environ, INSIDE: "1"}
    command = ["unshare", "--net", "--mount", sys.executable, *arguments]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class PrivateNetwork:
    """Hosts with one address each; all of them, and the hub, see each other until they are cut."""

    def __init__(self, hosts: Sequence[str]) -> None:
        assert inside(), "enter() first: addresses are given in a namespace of our own only"
        Path("/run/netns").mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        self.addresses = {HUB: HUB_ADDRESS}
        self._cuts: set[tuple[str, str]] = set()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", HUB, "type", "bridge")
        _ip("addr", "add", f"{HUB_ADDRESS}/24", "dev", HUB)
        _ip("link", "set", HUB, "up")
        for number, host in enumerate(hosts, 1):
            self._add(host, number)

    def __repr__(self) -> str:
        return f"<PrivateNetwork {sorted(self.addresses)} cut={sorted(self._cuts)}>"

    def _add(self, host: str, number: int) -> None:
        self.addresses[host] = f"10.77.0.{number}"
        _ip("netns", "add", host)
        _ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("link", "set", f"port{number}", "master", HUB, "up")
        _ip("-n", host, "link", "set", "lo", "up")
        _ip("-n", host, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
        _ip("-n", host, "link", "set", "eth0", "up")

    def add_alias(self, host: str, number: int) -> str:
        """One more address of the hub, as a host that others can be cut from, one way; the address."""
        self.addresses[host] = f"10.77.0.{number}"
        _ip("addr", "add", f"{self.addresses[host]}/24", "dev", HUB)
        return self.addresses[host]

    def prefix(self, host: str) -> list[str]:
        """What to put before a command so that it runs on a host."""
        return ["nsenter", f"--net=/run/netns/{host}"]

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that the source sends reaches the target."""
        self._neighbour(source, "replace", self.addresses[target], "lladdr", NOBODY, "nud", "permanent")
        self._cuts.add((source, target))

    def cut(self, one: str, other: str) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, host: str, *, from_hub: bool = False) -> None:
        """Cut a host from every other, and from the clients if wanted."""
        for other in self.addresses:
            if other != host and (from_hub or other != HUB):
                self.cut(host, other)

    def heal(self) -> None:
        """Undo every cut."""
        for source, target in sorted(self._cuts):
            self._neighbour(source, "del", self.addresses[target])
        self._cuts.clear()

    def _neighbour(self, host: str, verb: str, address: str, *words: str) -> None:
        namespace = [] if host == HUB else ["-n", host]
        device = HUB if host == HUB else "eth0"
        _ip(*namespace, "neigh", verb, address, *words, "dev", device)

"""What can be done to a cluster: one method per fault, and a table of them for buttons.

Every fault is told to the event stream before it happens.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.server.cluster_view import NoView

if TYPE_CHECKING:
    from tidelog.lab.lab import Lab

EXPIRE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
SLOW_MS = 200.0


class FaultNotPossible(RuntimeError):
    """This fault cannot be had here and now; the message says why."""


class Fault(NamedTuple):
    """A button: its name, what it does, and to what kind of thing (`broker` or `consumer`)."""

    name: str
    label: str
    target: str


#: in the order of the buttons
FAULTS = (
    Fault("kill", "kill (SIGKILL)", "broker"),
    Fault("start", "start", "broker"),
    Fault("restart", "restart cleanly", "broker"),
    Fault("pause", "pause (SIGSTOP)", "broker"),
    Fault("resume", "resume", "broker"),
    Fault("cut", "cut its network", "broker"),
    Fault("heal", "heal its network", "broker"),
    Fault("slow", "slow by 200 ms", "broker"),
    Fault("fast", "as fast as before", "broker"),
    Fault("expire_session", "expire its session", "broker"),
    Fault("kill_consumer", "kill (SIGKILL)", "consumer"),
    Fault("pause_consumer", "pause (SIGSTOP)", "consumer"),
    Fault("resume_consumer", "resume", "consumer"),
    Fault("stop_consumer", "stop cleanly", "consumer"),
)


class Faults:
    """The faults of one lab."""

    def __init__(self, lab: "Lab") -> None:
        self._lab = lab

    def apply(self, name: str, target: str) -> None:
        """What a button does; raises FaultNotPossible in words."""
        fault = next((row for row in FAULTS if row.name == name), None)
        if fault is None:
            raise FaultNotPossible(f"there is no fault {name!r}")
        try:
            if fault.target == "consumer":
                consumer_act: Callable[[str], None] = getattr(self, name)
                consumer_act(target)
            else:
                broker_act: Callable[[int], None] = getattr(self, name)
                broker_act(self._broker(target))
        except (RuntimeError, LookupError) as fault_here:
            raise FaultNotPossible(str(fault_here)) from fault_here

    def _broker(self, target: str) -> int:
        if not target.isdigit() or int(target) not in self._lab.cluster.broker_ids:
            raise FaultNotPossible(f"there is no broker {target!r}")
        return int(target)

    # Brokers

    def kill(self, broker_id: int) -> None:
        """End it at once, as a crash does."""
        self._tell("kill", f"Broker {broker_id} is killed", broker=broker_id)
        self._lab.cluster.kill(broker_id)

    def start(self, broker_id: int) -> None:
        """Start it again, on its port with its data."""
        self._tell("start", f"Broker {broker_id} is started", broker=broker_id)
        self._lab.cluster.start(broker_id)

    def stop(self, broker_id: int) -> None:
        """Stop it cleanly: it hands its leaderships over first."""
        self._tell("stop", f"Broker {broker_id} is stopped cleanly", broker=broker_id)
        self._lab.cluster.stop(broker_id)

    def restart(self, broker_id: int) -> None:
        """Stop it cleanly and start it again."""
        self.stop(broker_id)
        self.start(broker_id)

    def pause(self, broker_id: int) -> None:
        """It keeps its connections and answers nobody."""
        self._tell("pause", f"Broker {broker_id} is paused", broker=broker_id)
        self._lab.cluster.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        """It goes on where it was."""
        self._tell("resume", f"Broker {broker_id} goes on", broker=broker_id)
        self._lab.cluster.resume(broker_id)

    def cut(self, broker_id: int) -> None:
        """Clients and the other brokers cannot reach it, nor it them; its session lives on."""
        network = self._lab.network
        self._tell("cut", f"The network of broker {broker_id} is cut", broker=broker_id)
        network.cut(broker_id)

    def heal(self, broker_id: int) -> None:
        """Its network works again."""
        network = self._lab.network
        self._tell("heal", f"The network of broker {broker_id} works again", broker=broker_id)
        network.heal(broker_id)

    def slow(self, broker_id: int, delay_ms: float = SLOW_MS) -> None:
        """Whatever passes its gate is late."""
        network = self._lab.network
        self._tell("slow", f"Broker {broker_id} is {delay_ms:g} ms away", broker=broker_id)
        network.slow(broker_id, delay_ms)

    def fast(self, broker_id: int) -> None:
        """It is near again."""
        network = self._lab.network
        self._tell("fast", f"Broker {broker_id} is near again", broker=broker_id)
        network.slow(broker_id, 0)

    def expire_session(self, broker_id: int) -> None:
        """Pause it until the others take it for dead, then let it go on."""
        cluster = self._lab.cluster
        self._tell("expire_session", f"Broker {broker_id} is paused until its session ends", broker=broker_id)
        cluster.pause(broker_id)
        try:
            self._wait_forgotten(broker_id)
        finally:
            cluster.resume(broker_id)

    def _wait_forgotten(self, broker_id: int) -> None:
        cluster = self._lab.cluster
        if not cluster.responsive_ids:
            raise FaultNotPossible(f"nobody else is there to notice that broker {broker_id} is away")
        deadline = time.monotonic() + EXPIRE_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                if broker_id not in cluster.view().addresses:
                    return
            except NoView:
                pass  # whom we asked is busy with the change
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"the session of broker {broker_id} did not end in {EXPIRE_SECONDS_MAX:g} s")

    # Consumers in processes of their own

    def kill_consumer(self, name: str) -> None:
        """End it at once: it says no farewell to its group."""
        self._tell("kill_consumer", f"Consumer {name} is killed", consumer=name)
        self._lab.consumer_process(name).kill()

    def pause_consumer(self, name: str) -> None:
        """It sends no heartbeats any more."""
        self._tell("pause_consumer", f"Consumer {name} is paused", consumer=name)
        self._lab.consumer_process(name).pause()

    def resume_consumer(self, name: str) -> None:
        """It goes on, perhaps without knowing what it missed."""
        self._tell("resume_consumer", f"Consumer {name} goes on", consumer=name)
        self._lab.consumer_process(name).resume()

    def stop_consumer(self, name: str) -> None:
        """It leaves its group and ends."""
        self._tell("stop_consumer", f"Consumer {name} leaves", consumer=name)
        self._lab.consumer_process(name).stop()

    def _tell(self, fault: str, text: str, **fields: object) -> None:
        self._lab.events.emit("fault", text, fault=fault, **fields)

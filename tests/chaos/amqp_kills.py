"""Brokers and gateways killed while AMQP clients publish and consume: nothing that was confirmed is lost.

    python -m tests.chaos.amqp_kills [--messages 3000] [--kills 4]

Three brokers, two gateways, a queue of four partitions. A publisher waits for each confirm and tries again
elsewhere when there was none; two consumers acknowledge what they have noted. In turn a broker and a gateway
are killed and started again. At the end every message that was confirmed was seen; how many came more than
once is told.
"""

import argparse
import threading
import time
from collections import Counter

import pika
from pika.exceptions import AMQPError

from tests.support.amqp_gateway import GatewayProcess
from tidelog.testing.cluster import RunningCluster

QUEUE = "jobs"
SECONDS_MAX = 240.0
ARGUMENTS = {"x-tidelog-partitions": 4}


class Clients:
    """A publisher and consumers, in threads, until everything was seen."""

    def __init__(self, ports: list[int], count: int) -> None:
        self.ports = ports
        self.count = count
        self.confirmed: set[int] = set()
        self.seen: Counter[int] = Counter()
        self.until = time.monotonic() + SECONDS_MAX
        self.failures = 0

    @property
    def done(self) -> bool:
        return len(self.confirmed) == self.count and self.confirmed <= self.seen.keys()

    @property
    def over(self) -> bool:
        return self.done or time.monotonic() > self.until

    def _connected(self, turn: int) -> pika.BlockingConnection:
        port = self.ports[turn % len(self.ports)]
        parameters = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=10, blocked_connection_timeout=10, socket_timeout=5
        )
        return pika.BlockingConnection(parameters)

    def publish(self) -> None:
        turn = number = 0
        while number < self.count and not self.over:
            try:
                channel = self._connected(turn).channel()
                channel.confirm_delivery()
                channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)
                while number < self.count and not self.over:
                    channel.basic_publish("", QUEUE, b"%d" % number, mandatory=True)
                    self.confirmed.add(number)
                    number += 1
            except (AMQPError, OSError):
                self.failures += 1
                turn += 1
                time.sleep(0.2)

    def consume(self, turn: int) -> None:
        while not self.over:
            try:
                channel = self._connected(turn).channel()
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.5):
                    if method is not None and body is not None:
                        self.seen[int(body)] += 1
                        channel.basic_ack(method.delivery_tag)
                    if self.over:
                        channel.connection.close()
                        return
            except (AMQPError, OSError):
                self.failures += 1
                turn += 1
                time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    with (
        RunningCluster(3) as cluster,
        GatewayProcess(cluster.bootstrap) as first,
        GatewayProcess(cluster.bootstrap) as second,
    ):
        gateways = [first, second]
        clients = Clients([each.port for each in gateways], options.messages)
        threads = [threading.Thread(target=clients.publish, daemon=True)]
        threads += [threading.Thread(target=clients.consume, args=(turn,), daemon=True) for turn in (0, 1)]
        for thread in threads:
            thread.start()
        for kill in range(options.kills):
            mark = len(clients.confirmed) + options.messages // (options.kills + 2)
            while len(clients.confirmed) < min(mark, options.messages) and not clients.over:
                time.sleep(0.05)
            if kill % 2:
                gateways[kill // 2 % 2].kill()
                gateways[kill // 2 % 2].start()
            else:
                leader = cluster.leader(QUEUE, 0)
                cluster.kill(leader)
                time.sleep(2.0)
                cluster.start(leader)
                cluster.wait_in_sync()
        for thread in threads:
            thread.join(SECONDS_MAX)
    lost = clients.confirmed - clients.seen.keys()
    again = sum(1 for times in clients.seen.values() if times > 1)
    print(
        f"{len(clients.confirmed)} confirmed, {len(lost)} lost, {again} came more than once,"
        f" {options.kills} kills, clients reconnected {clients.failures} times"
    )
    assert not lost and len(clients.confirmed) == options.messages


if __name__ == "__main__":
    main()

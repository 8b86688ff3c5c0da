"""Brokers as they really are, for the histories of `test_controller_properties`."""

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tidelog.controller.commands import LiveBroker, ReplicaPlacement
from tidelog.model.identifiers import LOST_DIRECTORY
from tidelog.model.image import ClusterImage, PartitionImage

Log = tuple[UUID, int]


@dataclass
class Machine:
    """A broker as it really is, whatever the controller knows of it."""

    broker_id: int
    incarnation: int = 0
    running: bool = False
    #: the log directories that it can use, and all that it ever had: how much of each log is in there
    directories: list[str] = field(default_factory=list)
    logs: dict[str, dict[Log, int]] = field(default_factory=dict)
    #: how much of each log a power cut leaves
    synced: dict[str, dict[Log, int]] = field(default_factory=dict)
    #: directories whose logs lost their ends in a power cut, and the cluster does not know it yet
    unclean: set[str] = field(default_factory=set)
    #: single logs that lost records, with their directories: the broker sees it, the cluster does not yet
    short: set[tuple[str, Log]] = field(default_factory=set)
    #: logs about to move: the target directory, noted where the log is; and the copies begun there
    moving_to: dict[str, dict[Log, str]] = field(default_factory=dict)
    unfinished: dict[str, set[Log]] = field(default_factory=dict)
    #: directories that somebody has given up
    given_up: set[str] = field(default_factory=set)
    made: int = 0
    tidied: int = 0

    def add_directory(self) -> str:
        self.made += 1
        name = f"directory-{self.broker_id}-{self.made}"
        self.directories.append(name)
        self.logs[name], self.synced[name] = {}, {}
        self.moving_to[name], self.unfinished[name] = {}, set()
        return name

    def begin(self, log: Log, directory: str) -> None:
        """Begin a log anew. What an interrupted move left in a directory that is gone is not counted on."""
        self.logs[directory][log] = 0
        self.synced[directory].pop(log, None)
        for notes in self.moving_to.values():
            notes.pop(log, None)

    def remove(self, log: Log) -> None:
        """The replica is not assigned here any more: its log goes, where it can be reached."""
        for name in self.directories:
            self.logs[name].pop(log, None)
            self.moving_to[name].pop(log, None)
            self.unfinished[name].discard(log)

    def home(self, log: Log) -> str | None:
        """The directory that has a log."""
        return next((each for each in self.directories if log in self.logs[each]), None)

    def believed_home(self, log: Log, believed: str) -> str | None:
        """Where the log is that the cluster counts on if it believes it in a directory, reachable or not."""
        if log in self.logs.get(believed, ()):
            return believed
        leaving = [name for name, notes in self.moving_to.items() if notes.get(log) == believed]
        return next((name for name in leaving if log in self.logs[name]), None)

    def lose_directories(self, random: Random) -> None:
        """Some or all directories are replaced by empty ones; sometimes an old one is found again."""
        for name in random.sample(self.directories, random.randint(1, len(self.directories))):
            self.directories.remove(name)
            if random.random() < 0.7 or not self.directories:
                self.add_directory()
        for name in self.logs:
            if name not in self.directories and random.random() < 0.3:
                self.directories.append(name)
        self.given_up = {each for each in self.logs if random.random() < 0.2}
        random.shuffle(self.directories)

    def cut_power(self, random: Random) -> None:
        """What was not synced is gone, or a part of it."""
        self.running = False
        self.unclean.update(self.directories)
        for name in self.directories:
            for log, level in self.logs[name].items():
                self.logs[name][log] = random.randint(min(self.synced[name].get(log, 0), level), level)

    def lose_records(self, random: Random) -> None:
        """Some logs of a broker that does not run are shorter than they were, or gone and begun anew."""
        for name in self.directories:
            for log, level in self.logs[name].items():
                if random.random() < 0.5:
                    self.logs[name][log] = random.choice((0, random.randint(0, level)))
                    self.synced[name][log] = min(self.synced[name].get(log, 0), self.logs[name][log])
                    self.short.add((name, log))

    def registered(self) -> None:
        """The cluster knows what was lost."""
        self.unclean.difference_update(self.directories)
        self.short = {(name, log) for name, log in self.short if name not in self.directories}

    def settle_folders(self, image: ClusterImage) -> None:
        """At start: of several folders of a log the one stays that the cluster counts on."""
        for log in {log for each in self.directories for log in self.logs[each]}:
            holders = [each for each in self.directories if log in self.logs[each]]
            topic = image.topic_by_id(log[0])
            state = None if topic is None else image.partition(topic.name, log[1])
            here = state is not None and self.broker_id in state.replicas
            believed = state.directory_of(self.broker_id) if state is not None and here else ""
            kept = self.believed_home(log, believed)
            for holder in holders:
                if holder != (kept if kept in holders else holders[0]) or not here:
                    del self.logs[holder][log]

    def remove_strays(self, image: ClusterImage) -> None:
        """While it runs: the logs go of which the replica is not here any more."""
        for home in self.directories:
            for log in list(self.logs[home]):
                topic = image.topic_by_id(log[0])
                state = None if topic is None else image.partition(topic.name, log[1])
                if state is None or self.broker_id not in state.replicas:
                    del self.logs[home][log]
                    self.moving_to[home].pop(log, None)

    def placements(self, image: ClusterImage) -> tuple[ReplicaPlacement, ...]:
        """Where logs are that the cluster believes elsewhere, or that are shorter than they were."""
        found = []
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                if self.broker_id in state.replicas:
                    log = (topic.topic_id, index)
                    directory, believed = self._placement(log, state), state.directory_of(self.broker_id)
                    home = directory or (believed if believed in self.directories else None)
                    short = home is not None and (home, log) in self.short
                    if home is not None and (directory is not None or short):
                        found.append(ReplicaPlacement(topic.topic_id, index, home, short))
        return tuple(found)

    def _placement(self, log: Log, state: PartitionImage) -> str | None:
        believed, home = state.directory_of(self.broker_id), self.home(log)
        if home is None:
            unfinished = believed in self.directories and log in self.unfinished[believed]
            return LOST_DIRECTORY if unfinished else None
        target = self.moving_to[home].get(log)
        leaving = home != believed and target is not None and believed in (target, LOST_DIRECTORY)
        return home if leaving else None

    def forget_moves(self) -> None:
        """The cluster knows where every log is: copies that an earlier life did not finish are removed."""
        if self.tidied != self.incarnation:
            self.tidied = self.incarnation
            for name in self.directories:
                self.moving_to[name].clear()
                self.unfinished[name].clear()

    def live(self, image: ClusterImage) -> LiveBroker:
        return LiveBroker(
            self.broker_id,
            str(self.incarnation),
            {},
            f"rack{self.broker_id % 2}",
            directories=tuple(self.directories),
            placements=self.placements(image),
            unclean_shutdown=not self.unclean.isdisjoint(self.directories),
            lost_directories=tuple(sorted(self.given_up.difference(self.directories))),
        )

"""The composition root: one broker without sockets, put together from its parts.

This is the only module that knows all parts; each part names in its constructor what it needs, and none of
them knows the whole. The broker follows the cluster image: a topic that appears gets its logs opened, one
that goes gets them deleted, a setting that changes is obeyed from then on. Everything runs on one event loop;
`background` runs what would block it.
"""

import dataclasses
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.coordinators.coordinated_partitions import CoordinatedPartitions
from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.maintenance.checkpoints import Checkpoints
from tidelog.broker.maintenance.cleaner_checkpoints import CleanerCheckpoints
from tidelog.broker.maintenance.compaction import Compaction
from tidelog.broker.maintenance.dirty_logs import DirtyLogs
from tidelog.broker.maintenance.flusher import Flusher
from tidelog.broker.maintenance.log_maintenance import LogMaintenance
from tidelog.broker.maintenance.removals import Removals
from tidelog.broker.metadata.image_events import tell as tell_of_image
from tidelog.broker.metadata.metadata import LifecycleCallbacks, Metadata
from tidelog.broker.metadata.producer_ids import ProducerIds
from tidelog.broker.metadata.store_session import OpenStore
from tidelog.broker.replicas.fetch_sessions import FetchSessions
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.broker_lifecycle import BrokerLifecycle
from tidelog.broker.replication.directories_at_start import (
    open_directories,
    refuse_lost_metadata,
    set_strays_aside,
)
from tidelog.broker.replication.directory_failure_reports import DirectoryFailureReports
from tidelog.broker.replication.directory_failures import DirectoryFailures
from tidelog.broker.replication.disk_faults import DiskFaults
from tidelog.broker.replication.followed_logs import FollowedLogs
from tidelog.broker.replication.follower_feeds import FollowerFeeds
from tidelog.broker.replication.isr_changes import IsrChanges
from tidelog.broker.replication.log_copies import LogCopies
from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.replication.log_opening import LogOpening
from tidelog.broker.replication.other_brokers import OtherBrokers
from tidelog.broker.replication.placements import Placements
from tidelog.broker.replication.replica_fetcher import ReplicaFetcher, ReplicaFetchers
from tidelog.broker.replication.replica_homes import ReplicaHomes
from tidelog.broker.replication.replica_log_reports import ReplicaLogReports
from tidelog.broker.replication.replication import Replication
from tidelog.broker.replication.roles import Roles
from tidelog.broker.replication.throttling import ReplicationThrottle
from tidelog.broker.requests.dispatch import Calls, Dispatcher
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.long_checks import LongChecks
from tidelog.broker.requests.newcomers import Newcomers
from tidelog.broker.requests.produce_fast_path import ProduceFastPath
from tidelog.broker.requests.produce_templates import KnownTemplates
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.features import (
    ELR_VERSION,
    ELR_VERSION_FEATURE,
    SHARE_VERSION,
    SHARE_VERSION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
)
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.liveness import Liveness
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.peers import NoPeers, Peers
from tidelog.broker.runtime.purgatory import Purgatory
from tidelog.broker.runtime.timers import Timers
from tidelog.broker.runtime.turn import Turn, TurnBackground, TurnPeers
from tidelog.broker.telemetry.leader_watermarks import LeaderWatermarks
from tidelog.coordination import opening
from tidelog.coordination.store import CoordinationStore
from tidelog.model.errors import Refused
from tidelog.model.identifiers import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import ALL_BROKERS, Endpoint, MetadataRecord
from tidelog.model.ports import Clock
from tidelog.model.replication_settings import RACK_AWARE_SELECTOR
from tidelog.model.settings import BrokerSettings
from tidelog.protocol import messages
from tidelog.protocol.api_versions import Feature
from tidelog.protocol.apis import Api
from tidelog.storage.disk import Disk, OsDisk
from tidelog.storage.log_directory import refuse_used

if TYPE_CHECKING:
    from tidelog.broker.coordinators.delays import Delays
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.marker import Marker
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.coordinators.topic_expressions import TopicExpressions
    from tidelog.broker.coordinators.transactions import Transactions
    from tidelog.broker.requests.authentication import Authenticator
    from tidelog.broker.requests.authorization import Authorization
    from tidelog.broker.telemetry.scrape import Scrape

T = TypeVar("T")

log = logging.getLogger(__name__)

#: logs closed at the same time at a clean stop; the disk syncs several as fast as one
CLOSING_THREADS = 8


class Broker:
    """A broker: everything but the sockets.

    To make one is to open it: it loads the metadata, locks the log directories and opens every log, which
    blocks until they are recovered. `register` makes it known to the cluster.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        random: Random,
        background: Background,
        disk: Disk,
        endpoints: Mapping[str, Endpoint],
        store: CoordinationStore | None = None,
        open_store: OpenStore | None = None,
        peers: Peers | None = None,
        authentication_background: Background | None = None,
        store_background: Background | None = None,
        check_background: Background | None = None,
        on_fatal: Callable[[str], None] = log.critical,
        on_lapsed: Callable[[], None] = lambda: None,
        raise_unexpected: bool = False,
    ) -> None:
        """`on_fatal` hears why the broker cannot go on, `on_lapsed` that its session was given up for want of
        progress; simulations `raise_unexpected`.
        """
        self.settings = LiveSettings(settings)
        self.node_id = settings.node_id
        self.clock = clock
        self.random = random
        self.disk = disk
        self.endpoints = endpoints
        self.features: dict[str, Feature] = {
            TRANSACTION_VERSION: TRANSACTION_VERSION_FEATURE,
            ELR_VERSION: ELR_VERSION_FEATURE,
            SHARE_VERSION: SHARE_VERSION_FEATURE,
        }
        self._on_lapsed = on_lapsed

        # What all parts stand on.
        self.metrics = Metrics(clock, self.node_id)
        self.timers = Timers(clock)
        self.purgatory = Purgatory(self.timers, settings.get_int("tidelog.parked.requests.max"))
        self.turn = Turn(clock, self.purgatory)
        self.jobs = BackgroundJobs(
            self.timers,
            self.metrics.events,
            lambda fault, about: self.disk_faults.noticed(fault, about),
            raise_unexpected=raise_unexpected,
        )
        self.background: Background = TurnBackground(background, self.turn)
        #: checks passwords and tokens; has threads of its own, so that trying many keeps nobody else waiting
        self.authentication_background: Background = authentication_background or self.background
        self.peers: Peers = (
            NoPeers(lambda call: self.timers.set(object(), clock.now_ms(), call))
            if peers is None
            else TurnPeers(peers, self.turn)
        )
        self.liveness = Liveness(
            clock,
            self.timers,
            opening.session_timeout_ms(settings),
            on_lapse=self._lapse,
            end_session=lambda: self.metadata.end_session(),
        )

        self.metadata = self._make_metadata(store, open_store, store_background or background)
        try:
            self._put_together(self.metadata.load(), check_background or background, on_fatal)
        except BaseException:
            self.metadata.stop()
            raise

    def _make_metadata(
        self, store: CoordinationStore | None, open_store: OpenStore | None, store_background: Background
    ) -> Metadata:
        # Before anything is written: the store may lie in a directory that is another broker's.
        settings = self.settings.static
        refuse_used(self.disk, settings.log_dirs)
        if store is None and open_store is None:
            refuse_lost_metadata(self.disk, settings)
        return Metadata(
            open_store or (self._open_configured_store if store is None else lambda: store),
            settings,
            # No disk keeps calls of the coordination store waiting.
            TurnBackground(store_background, self.turn),
            self.random,
            self.timers,
            self.peers,
            self.node_id,
            self.metrics.events,
            LifecycleCallbacks(
                may_enter=lambda: self.liveness.disk_answers,
                on_session=self.liveness.granted,
                on_registered=self._registered,
                on_fenced=self._fenced,
            ),
        )

    def _put_together(
        self, image: ClusterImage, check_background: Background, on_fatal: Callable[[str], None]
    ) -> None:
        self.log_directories = open_directories(self.disk, self.settings.static, image, self.node_id)
        self.replicas = Replicas(self.node_id, self.metadata)
        self.replicated_appends = ReplicatedAppends(self.turn, self.purgatory, self.clock)
        self.group_topic = self._internal_topic(GROUP_METADATA_TOPIC, "offsets.topic.num.partitions")
        self.transaction_topic = self._internal_topic(
            TRANSACTION_STATE_TOPIC, "transaction.state.log.num.partitions"
        )
        self.share_state_topic = self._internal_topic(
            SHARE_GROUP_STATE_TOPIC, "share.coordinator.state.topic.num.partitions"
        )
        # Made when they are first asked for: importing them takes a tenth of a start.
        self.groups: Deferred[GroupCoordinator] = Deferred(self._make_groups)
        self.transactions: Deferred[Transactions] = Deferred(self._make_transactions)
        self.shares: Deferred[Sharing] = Deferred(self._make_shares)
        self.delays: Deferred[Delays] = Deferred(self._make_delays)
        self.topic_expressions: Deferred[TopicExpressions] = Deferred(self._make_topic_expressions)
        self.users = BrokerUsers(self.metadata, self.settings, self.clock, self.jobs)
        self.producer_ids = ProducerIds(self.metadata, self.node_id)
        #: who may do what; None where everybody may do everything
        self.authorization: Authorization | None = self._make_authorization(image)
        #: how much of everything clients may
        self.quotas = LiveQuotas(self.metadata, self.settings, self.clock, self.authorization, self.metrics)
        self.leader_watermarks = LeaderWatermarks(self.metadata, self.peers, self.timers)
        self.share_watermarks = LeaderWatermarks(self.metadata, self.peers, self.timers)
        self.scrape: Deferred[Scrape] = Deferred(self._make_scrape)
        self.authenticator: Deferred[Authenticator] = Deferred(self._make_authenticator)
        self.long_checks = LongChecks(self.metadata, self.replicas, check_background)
        self.fetch_sessions = FetchSessions(
            self.settings.get_int("max.incremental.fetch.session.cache.slots"), self.random
        )
        #: whether consumers are sent to a replica in their rack
        self.rack_aware_reads = self.settings.get("replica.selector.class") == RACK_AWARE_SELECTOR
        self.produce_templates = KnownTemplates()
        self.newcomers = Newcomers(self.clock)
        self._make_maintenance()
        self._adopt_settings(image)
        self._make_log_moves()
        self._make_roles()
        self._make_replication(on_fatal)
        set_strays_aside(self.log_directories, self.disk, image, self.node_id, self.random)
        self.replication.open_all()
        self.log_directories.take_back_recovery_points()
        self.metadata.listen(self._image_changed)
        self.produce_templates.follow(image.version)
        self.log_maintenance.start()
        self.compaction.start()
        self.removals.start()
        self.users.start()

    def _make_maintenance(self) -> None:
        directories, disk, replicas, settings = self.log_directories, self.disk, self.replicas, self.settings
        background, clock, timers, jobs = self.background, self.clock, self.timers, self.jobs
        metrics = self.metrics
        self.disk_faults = DiskFaults(directories, disk, timers)
        self.flusher = Flusher(background, self.purgatory, metrics)
        self.flusher.listen(self.disk_faults.flush_failed)
        self.checkpoints = Checkpoints(directories, replicas, settings, background, jobs)
        self.removals = Removals(directories, disk, background, timers, jobs, self.random)
        self.cleaner_checkpoints = CleanerCheckpoints(directories, disk, background, timers, jobs)
        self.dirty_logs = DirtyLogs(replicas, self.cleaner_checkpoints, settings, clock, jobs, metrics)
        open_files, removals = directories.open_files, self.removals
        self.compaction = Compaction(
            self.dirty_logs, disk, open_files, removals, settings, background, timers, jobs, metrics
        )
        flusher, checkpoints, compaction = self.flusher, self.checkpoints, self.compaction
        self.log_maintenance = LogMaintenance(
            replicas,
            flusher,
            checkpoints,
            removals,
            compaction,
            settings,
            clock,
            jobs,
            metrics,
            self.liveness,
            self.turn,
        )

    def _make_log_moves(self) -> None:
        metadata, replicas, directories = self.metadata, self.replicas, self.log_directories
        disk_faults, timers = self.disk_faults, self.timers
        flusher, compaction, checkpoints = self.flusher, self.compaction, self.checkpoints
        self.placements = Placements(metadata, replicas, directories, timers)
        copies = LogCopies(
            directories, self.disk, flusher, compaction, checkpoints, self.removals, self.clock, self.random
        )
        placements, settings, background = self.placements, self.settings, self.background
        self.log_moves = LogMoves(
            metadata, replicas, directories, copies, placements, disk_faults, settings, background, timers
        )

    def _make_roles(self) -> None:
        metadata, replicas, settings = self.metadata, self.replicas, self.settings
        clock, timers, turn, purgatory = self.clock, self.timers, self.turn, self.purgatory
        traffic, events = self.metrics.traffic, self.metrics.events
        self.isr_changes = IsrChanges(
            metadata,
            replicas,
            settings,
            clock,
            timers,
            turn,
            self.jobs,
            learn=lambda partition, state: self.roles.lead(partition, state),
        )
        isr_changes = self.isr_changes
        sent = self._throttle(lambda: settings.get_int("leader.replication.throttled.rate"))
        fetched = self._throttle(lambda: settings.get_int("follower.replication.throttled.rate"))
        self.follower_feeds = FollowerFeeds(
            metadata,
            replicas,
            self.fetch_sessions,
            isr_changes,
            sent,
            settings,
            clock,
            turn,
            purgatory,
            traffic,
        )
        turn.listen(self.follower_feeds.answer_due)
        self.other_brokers = OtherBrokers(metadata, replicas, self.follower_feeds, isr_changes, self.peers)
        maintenance, checkpoints, disk_faults = self.log_maintenance, self.checkpoints, self.disk_faults
        self.followed_logs = FollowedLogs(
            maintenance, checkpoints, self.flusher, disk_faults, fetched, clock, turn, purgatory, events
        )
        logs, peers = self.followed_logs, self.peers
        self.fetchers = ReplicaFetchers(
            logs, lambda leader_id: ReplicaFetcher(leader_id, logs, metadata, settings, peers, timers)
        )
        self.replica_log_reports = ReplicaLogReports(metadata, replicas, timers)
        fetchers, reports = self.fetchers, self.replica_log_reports
        coordinators = CoordinatedPartitions(self.groups, self.transactions, self.shares, self.delays)
        self.roles = Roles(
            metadata, replicas, isr_changes, fetchers, reports, coordinators, turn, purgatory, traffic
        )

    def _throttle(self, rate: Callable[[], int]) -> ReplicationThrottle:
        return ReplicationThrottle(self.node_id, rate, self.clock)

    def _make_replication(self, on_fatal: Callable[[str], None]) -> None:
        metadata, replicas, directories = self.metadata, self.replicas, self.log_directories
        placements, moves, settings, timers = self.placements, self.log_moves, self.settings, self.timers
        homes = ReplicaHomes(metadata, replicas, directories, placements, self.checkpoints)
        log_opening = LogOpening(
            directories, self.removals, self.disk_faults, settings, self.clock, self.liveness
        )
        roles, maintenance = self.roles, self.log_maintenance
        self.replication = replication = Replication(
            metadata, replicas, homes, log_opening, roles, placements, moves, maintenance, timers
        )
        self.flusher.listen(replication.flush_failed)
        settings.listen(replication.adopt_settings)
        self.directory_failures = DirectoryFailures(
            directories,
            replicas,
            moves,
            replication,
            DirectoryFailureReports(metadata, replicas, settings, timers, on_fatal),
            self.background,
            self.metrics.events,
            before_offline=self.produce_templates.forget,
            on_fatal=on_fatal,
        )
        self.disk_faults.listen(self.directory_failures.failed)
        self.lifecycle = BrokerLifecycle(
            metadata, directories, placements, moves, replication, settings, self.endpoints
        )

    def _internal_topic(self, name: str, count_setting: str) -> InternalTopic:
        return InternalTopic(name, count_setting, self.metadata, self.replicas, self.settings)

    def _make_authorization(self, image: ClusterImage) -> "Authorization | None":
        if not self.settings.get("authorizer.class.name"):
            return None
        from tidelog.broker.requests.authorization import Authorization

        return Authorization(image, self.settings.static, self.clock)

    def _make_authenticator(self) -> "Authenticator":
        from tidelog.broker.requests.authentication import Authenticator

        return self.filled(Authenticator)

    def _make_groups(self) -> "GroupCoordinator":
        from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

        return GroupCoordinator(
            self.group_topic,
            self.replicated_appends,
            self.settings,
            self.clock,
            self.timers,
            self.jobs,
            self.metrics.events,
            metadata=self.metadata,
            topic_expressions=self.topic_expressions.get(),
            random=self.random,
            shares=self.shares,
        )

    def _make_shares(self) -> "Sharing":
        from tidelog.broker.coordinators.dead_letter_writer import DeadLetterWriter
        from tidelog.broker.coordinators.log_ends import LogEnds
        from tidelog.broker.coordinators.share_partitions import SharePartitions
        from tidelog.broker.coordinators.share_persister import SharePersister
        from tidelog.broker.coordinators.share_state_coordinator import ShareStateCoordinator
        from tidelog.broker.coordinators.sharing import Sharing
        from tidelog.shares.sessions import ShareSessions

        metadata, settings, clock, timers = self.metadata, self.settings, self.clock, self.timers
        events = self.metrics.events
        coordinator = ShareStateCoordinator(
            self.share_state_topic,
            self.replicated_appends,
            settings,
            clock,
            timers,
            self.jobs,
            events,
            metadata=metadata,
            advance_log_start=self.log_maintenance.advance_log_start,
        )
        persister = SharePersister(coordinator, metadata, self.peers, settings, timers, self.node_id)
        sessions = ShareSessions(settings.get_int("group.share.max.share.sessions"))
        dead_letters = DeadLetterWriter(
            metadata, self.replicas, self.replicated_appends, self.peers, settings, clock
        )
        has_members = sessions.has_members
        partitions = SharePartitions(
            persister,
            dead_letters,
            metadata,
            settings,
            clock,
            timers,
            self.turn,
            events,
            self.metrics.shares,
            has_members,
        )
        log_ends = LogEnds(
            metadata, self.replicas, self.peers, lambda: settings.get_int("request.timeout.ms")
        )
        return Sharing(coordinator, persister, partitions, sessions, log_ends, dead_letters)

    def _make_transactions(self) -> "Transactions":
        from tidelog.broker.coordinators.offset_commit_watch import OffsetCommitWatch
        from tidelog.broker.coordinators.transaction_coordinator import TransactionCoordinator
        from tidelog.broker.coordinators.transaction_markers import MarkerSender, MarkerWriter
        from tidelog.broker.coordinators.transaction_verification import TransactionVerification
        from tidelog.broker.coordinators.transactional_writes import BrokerSurroundings, TransactionalWrites
        from tidelog.broker.coordinators.transactions import Transactions

        metadata, replicas, peers, settings = self.metadata, self.replicas, self.peers, self.settings
        appends, clock, timers = self.replicated_appends, self.clock, self.timers
        writer = MarkerWriter(replicas, metadata, self.groups, self.flusher, appends, settings, clock)
        coordinator = TransactionCoordinator(
            self.transaction_topic,
            appends,
            settings,
            clock,
            timers,
            self.jobs,
            self.metrics,
            producer_ids=self.producer_ids,
            markers=MarkerSender(writer, metadata, peers, settings, self.node_id),
        )
        watch = OffsetCommitWatch(coordinator, metadata, settings, timers, self.newcomers.let_go)
        verification = TransactionVerification(
            coordinator, watch, metadata, replicas, peers, settings, self.node_id
        )
        writes = TransactionalWrites(BrokerSurroundings(verification, replicas, timers, settings))
        coordinator.on_taken_over.append(watch.taken_over)

        def ended(place: TopicPartition, marker: "Marker") -> None:
            verification.guards.transaction_ended(
                place, marker.producer_id, marker.producer_epoch, marker.transaction_version
            )
            writes.transaction_ended(place, marker.producer_id)

        writer.on_written.append(ended)
        return Transactions(coordinator, verification, writes, writer, watch)

    def _make_delays(self) -> "Delays":
        from tidelog.broker.coordinators.delay_client import DelayClient
        from tidelog.broker.coordinators.delay_forwarder import Surroundings
        from tidelog.broker.coordinators.delays import Delays

        client = DelayClient(
            self.metadata, self.peers, self.settings, self.group_topic, self.transaction_topic
        )
        # Beside the log, where there is a folder that others than the disk's port can write to.
        beside_log = isinstance(self.disk, OsDisk)
        return Delays(
            Surroundings(
                client,
                self.metadata,
                self.settings,
                self.clock,
                self.timers,
                self.purgatory,
                self.jobs,
                lambda partition: partition.log.directory if beside_log else None,
            )
        )

    def _make_topic_expressions(self) -> "TopicExpressions":
        from tidelog.broker.coordinators.topic_expressions import TopicExpressions

        return TopicExpressions(self.background)

    def make_dispatcher(self, calls: Calls | None = None) -> Dispatcher:
        """The way in for requests; `calls` says how those are made that may take long."""
        return Dispatcher(
            self.make_handler,
            self.filled(ProduceFastPath),
            metadata=self.metadata,
            settings=self.settings,
            authorization=self.authorization,
            quotas=self.quotas,
            requests=self.metrics.requests,
            newcomers=self.newcomers,
            features=self.features,
            calls=calls or Calls(),
        )

    def make_handler(self, api: Api) -> Any:
        """The handler of an API: the module of its name is imported with the first request."""
        module = importlib.import_module(f"tidelog.broker.requests.handlers.{api.module}")
        return self.filled(module.Handler)

    def filled(self, kind: type[T]) -> T:
        """A dataclass of parts: each field is the part of its name."""
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        return kind(**{field.name: getattr(self, field.name) for field in fields if field.init})

    def _make_scrape(self) -> "Scrape":
        from tidelog.broker.telemetry.scrape import SECTIONS, Scrape

        return Scrape([self.filled(kind) for kind in SECTIONS])

    @staticmethod
    def warm() -> None:
        """Import what the first clients will need; for another thread, once the broker serves."""
        import tidelog.broker.coordinators.group_coordinator
        import tidelog.broker.coordinators.transactions  # noqa: F401

        messages.warm()

    @property
    def image(self) -> ClusterImage:
        """The newest metadata."""
        return self.metadata.image

    def inter_broker_endpoint(self, broker_id: int) -> Endpoint | None:
        """Where another broker listens for its peers, as far as the newest metadata knows."""
        known = self.image.brokers.get(broker_id)
        return None if known is None else known.endpoints.get(self.settings.static.inter_broker_listener_name)

    # -- life

    def _open_configured_store(self) -> CoordinationStore:
        return opening.open_store(self.settings.static)

    def register(self, then: Callable[[Refused | None], None]) -> None:
        """Tell the cluster that this broker is here and where to reach it; `then` when the cluster knows."""
        self.lifecycle.register(then)

    def _registered(self) -> None:
        self.isr_changes.start()
        self.checkpoints.start()
        self.lifecycle.registered()
        self.turn.wake()

    def _lapse(self, cause: str) -> None:
        """No progress for too long: give up the session and the roles, and have all connections closed."""
        self.metadata.lapse(cause)
        self._on_lapsed()

    def _fenced(self) -> None:
        """The session is over: whatever the image says, others may lead what this broker led."""
        self.produce_templates.forget()
        self.replication.give_up_roles()
        self.turn.wake()

    def hand_over(self, then: Callable[[], None]) -> None:
        """Before a clean stop: have the other brokers lead what this one leads, as far as they can."""
        self.lifecycle.hand_over(then)

    def leave_cluster(self) -> None:
        """End the session with the coordination store; blocks, may be called twice."""
        self.metadata.stop()

    def stop_chores(self) -> None:
        """Begin no more work in the background, so that what is under way can be waited for."""
        self.jobs.stop()
        self.liveness.stop()
        self.replication.stop()
        self.placements.stop()
        self.compaction.stop()
        self.cleaner_checkpoints.stop()
        self.removals.stop()

    def close(self) -> None:
        """Make everything durable and leave the mark of a clean stop."""
        self.stop_chores()
        self.leave_cluster()
        self.log_directories.close(high_watermarks=self.replicas.high_watermarks(), threads=CLOSING_THREADS)

    # -- following the image

    def _image_changed(self, old: ClusterImage, new: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        self.produce_templates.follow(new.version)
        if old.broker_configs != new.broker_configs:
            self._adopt_settings(new)
        if self.authorization is not None and old.acls is not new.acls:
            self.authorization.adopt(new)
        if old.client_quotas is not new.client_quotas:
            self.quotas.adopt(new)
        self.other_brokers.image_changed(old, new)
        self.replication.image_changed(old, new)
        decides = self.metadata.is_controller
        sequence = self.metadata.sequence
        tell_of_image(self.metrics.events, self.node_id, old, new, sequence=sequence, decides=decides)
        self.turn.wake()

    def _adopt_settings(self, image: ClusterImage) -> None:
        cluster = image.broker_configs.get(ALL_BROKERS, {})
        own = image.broker_configs.get(str(self.node_id), {})
        self.settings.adopt(cluster, own)

    def __repr__(self) -> str:
        return f"<Broker {self.node_id} {self.replicas!r} waiting={self.purgatory.count}>"

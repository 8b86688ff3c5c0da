"""What a broker counts, and what a scrape makes of it."""

import struct
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.support.placed_topics import place_topic
from tests.support.prometheus_text import ReadFamily, read, value
from tests.support.simulated_store import SimulatedCluster
from tests.unit.broker.node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tidelog.broker.runtime.metrics import ANSWER_PARTS_LOOKED_AT_MAX, Histogram, RequestMetrics
from tidelog.broker.telemetry.exposition import family, histograms, single
from tidelog.broker.telemetry.metric_families import FAMILIES, Kind
from tidelog.broker.telemetry.scrape import Scrape
from tidelog.client.requests import encode_request, flexible_header, frame_prefix
from tidelog.model.errors import ErrorCode
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.apis import APIS

PRODUCE, FETCH, METADATA = 0, 1, 3


def scraped(node: NodeUnderTest, scrape: Scrape | None = None) -> dict[str, ReadFamily]:
    return read("".join((scrape or node.broker.scrape.get()).run()))


def request(node: NodeUnderTest, key: int, version: int, fields: dict[str, Any]) -> Any:
    tags = b"\x00" if flexible_header(key, version) else b""
    header = struct.pack(">hhih", key, version, 1, 4) + b"test" + tags
    return node.handle(header + encode_request(key, version, fields))


@pytest.fixture
def node() -> NodeUnderTest:
    found = NodeUnderTest()
    found.create_topic("t")
    return found


class TestHistogram:
    def test_durations_are_counted_by_their_bits(self) -> None:
        histogram = Histogram()
        for elapsed_ns in (0, 1, 1023, 1024, 1 << 40):
            histogram.observe(elapsed_ns)
        assert (histogram.counts[0], histogram.counts[1]) == (1, 1)
        assert (histogram.counts[10], histogram.counts[11], histogram.counts[41]) == (1, 1, 1)
        assert histogram.sum_ns == 2048 + (1 << 40)

    def test_a_duration_may_count_several_times(self) -> None:
        histogram = Histogram()
        histogram.observe(100, times=5)
        assert (histogram.count, histogram.sum_ns) == (5, 500)

    def test_buckets_hold_what_is_below_their_bound(self) -> None:
        histogram = Histogram()
        for elapsed_ns in (10, (1 << 20) - 1, 1 << 20, 1 << 50):
            histogram.observe(elapsed_ns)
        families = read(histograms("tidelog_flush_seconds", {(): histogram}))
        bound = repr((1 << 20) / 1e9)
        assert value(families, "tidelog_flush_seconds_bucket", le=bound) == 2
        assert value(families, "tidelog_flush_seconds_bucket", le=repr((1 << 21) / 1e9)) == 3
        assert value(families, "tidelog_flush_seconds_bucket", le="+Inf") == 4
        assert value(families, "tidelog_flush_seconds_count") == 4


class TestExposition:
    def test_labels_are_escaped(self) -> None:
        hostile = 'a"b\\c\nd'
        families = read(family("tidelog_group_lag", [((hostile,), 3)]))
        assert value(families, "tidelog_group_lag", group=hostile) == 3

    def test_a_family_outside_the_table_cannot_be_written(self) -> None:
        with pytest.raises(KeyError):
            single("tidelog_invented", 1)

    def test_labels_must_be_those_of_the_table(self) -> None:
        with pytest.raises(AssertionError, match="has the labels"):
            family("tidelog_group_lag", [((), 1)])

    @pytest.mark.parametrize("name", FAMILIES)
    def test_names_follow_prometheus(self, name: str) -> None:
        found = FAMILIES[name]
        assert (found.kind is Kind.COUNTER) == name.endswith("_total")
        if found.kind is Kind.HISTOGRAM:
            assert name.endswith("_seconds")
        assert found.meaning.endswith(".") and "\n" not in found.meaning
        assert name.startswith(("tidelog_", "process_"))


class TestRequests:
    def test_the_long_way_is_counted_at_once(self, node: NodeUnderTest) -> None:
        node.handle(produce_frame(9, batch(b"a")))
        node.handle(fetch_frame("t", 0))
        latencies = node.broker.metrics.requests.latencies
        assert (latencies[PRODUCE].count, latencies[FETCH].count) == (1, 1)

    def test_the_short_way_is_counted_at_the_end_of_the_turn(self, node: NodeUnderTest) -> None:
        requests = node.broker.metrics.requests
        for _ in range(3):
            node.handle(produce_frame(9, batch(b"a"), acks=1))
        assert (requests.latencies[PRODUCE].count, requests.fast_path_count) == (1, 2)
        requests.end_turn()
        assert (requests.latencies[PRODUCE].count, requests.fast_path_count) == (3, 0)

    def test_a_scrape_counts_those_that_no_turn_was_timed_for(self, node: NodeUnderTest) -> None:
        for _ in range(4):
            node.handle(produce_frame(9, batch(b"a"), acks=1))
        latencies = node.broker.metrics.requests.latencies[PRODUCE]
        mean_ns = latencies.sum_ns // latencies.count
        for _ in range(2):
            assert value(scraped(node), "tidelog_request_seconds_count", api="Produce") == 4
        assert latencies.sum_ns // latencies.count == mean_ns

    def test_a_run_counts_every_request_of_it(self, node: NodeUnderTest) -> None:
        frame = produce_frame(9, batch(b"a"), acks=1)
        node.handle(frame)
        data = (struct.pack(">i", len(frame)) + frame) * 4
        buffer = memoryview(bytearray(data))
        served = node.dispatcher.serve(node.context, buffer, 0, len(buffer))
        assert served is not None and served[1] == len(buffer)
        assert node.broker.metrics.requests.fast_path_count == 4

    def test_a_parked_request_is_counted_when_it_is_answered(self, node: NodeUnderTest) -> None:
        latencies = node.broker.metrics.requests.latencies
        pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))
        assert FETCH not in latencies
        assert value(scraped(node), "tidelog_parked_requests") == 1
        node.advance(501)
        assert joined(pending) and latencies[FETCH].count == 1

    def test_an_abandoned_request_is_not_counted(self, node: NodeUnderTest) -> None:
        pending = node.handle(fetch_frame("t", 0, max_wait_ms=500))
        pending.delayed.abandon()
        node.advance(501)
        assert FETCH not in node.broker.metrics.requests.latencies

    def test_errors_of_produce_and_fetch(self, node: NodeUnderTest) -> None:
        node.handle(produce_frame(9, batch(b"a"), topic="absent"))
        node.handle(fetch_frame("t", 99))
        errors = node.broker.metrics.requests.errors
        assert errors == {
            (PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1,
            (FETCH, ErrorCode.OFFSET_OUT_OF_RANGE): 1,
        }

    def test_errors_of_the_short_way(self, node: NodeUnderTest) -> None:
        node.handle(produce_frame(9, batch(b"a"), acks=1))
        damaged = bytearray(produce_frame(9, batch(b"a"), acks=1))
        damaged[-8] ^= 0xFF
        node.handle(bytes(damaged))
        assert node.broker.metrics.requests.errors == {(PRODUCE, ErrorCode.CORRUPT_MESSAGE): 1}

    def test_errors_of_control_requests(self, node: NodeUnderTest) -> None:
        request(node, METADATA, 9, {"topics": [{"name": "absent"}], "allow_auto_topic_creation": False})
        fields = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}
        request(node, 12, 3, fields)
        names = {(APIS[key].name, ErrorCode(code).name) for key, code in node.broker.metrics.requests.errors}
        assert ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION") in names
        assert any(name == "Heartbeat" for name, _ in names)

    def test_looking_for_errors_ends(self) -> None:
        requests = RequestMetrics()
        part = {"error_code": ErrorCode.REQUEST_TIMED_OUT}
        requests.look_for_errors(5, {"error_code": 0, "all": [part] * (3 * ANSWER_PARTS_LOOKED_AT_MAX)})
        assert 0 < requests.errors[5, 7] <= ANSWER_PARTS_LOOKED_AT_MAX

    def test_they_are_exported_by_name(self, node: NodeUnderTest) -> None:
        node.handle(produce_frame(9, batch(b"a"), topic="absent"))
        families = scraped(node)
        assert value(families, "tidelog_request_seconds_count", api="Produce") == 1
        code = "UNKNOWN_TOPIC_OR_PARTITION"
        assert value(families, "tidelog_request_errors_total", api="Produce", error=code) == 1


class TestTraffic:
    def test_what_comes_in_and_goes_out(self, node: NodeUnderTest) -> None:
        records = batch(b"a", b"b", b"c")
        for _ in range(4):
            node.handle(produce_frame(9, records))
        node.handle(fetch_frame("t", 3))
        families = scraped(node)
        assert value(families, "tidelog_topic_bytes_in_total", topic="t") == 4 * len(records)
        assert value(families, "tidelog_topic_messages_in_total", topic="t") == 12
        assert value(families, "tidelog_topic_bytes_out_total", topic="t") == 3 * len(records)
        assert value(families, "tidelog_topic_messages_out_total", topic="t") == 9
        assert value(families, "tidelog_topic_log_size_bytes", topic="t") == 4 * len(records)

    def test_scrapes_do_not_count_twice(self, node: NodeUnderTest) -> None:
        node.handle(produce_frame(9, batch(b"a")))
        scrape = node.broker.scrape.get()
        first, second = (
            value(scraped(node, scrape), "tidelog_topic_messages_in_total", topic="t") for _ in range(2)
        )
        assert first == second == 1

    def test_what_a_poll_read_and_did_not_send_does_not_count(self, node: NodeUnderTest) -> None:
        records = batch(b"a")
        node.handle(produce_frame(9, records))
        node.handle(fetch_frame("t", 0, max_wait_ms=100, min_bytes=1000))
        assert value(scraped(node), "tidelog_topic_bytes_out_total", topic="t") == 0
        node.advance(101)
        assert value(scraped(node), "tidelog_topic_bytes_out_total", topic="t") == len(records)

    def test_what_a_log_held_at_the_start_does_not_count(self) -> None:
        cluster = SimulatedCluster()
        first = NodeUnderTest(store=cluster.open("first"))
        first.create_topic("t")
        first.handle(produce_frame(9, batch(b"a", b"b")))
        first.broker.close()
        again = NodeUnderTest(first.disk, cluster.open("again"))
        assert again.broker.replicas.led["t", 0].high_watermark == 2
        assert value(scraped(again), "tidelog_topic_messages_in_total", topic="t") == 0

    def test_a_deleted_topic_has_no_series(self, node: NodeUnderTest) -> None:
        scrape = node.broker.scrape.get()
        scraped(node, scrape)
        request(node, 20, 3, {"topic_names": ["t"], "timeout_ms": 1000})
        node.advance(1)
        assert scraped(node, scrape)["tidelog_topic_bytes_in_total"].samples == {}

    def test_rolls_are_found_and_told(self) -> None:
        node = NodeUnderTest()
        node.create_topic("t", segment_bytes="300")
        for _ in range(6):
            node.handle(produce_frame(9, batch(b"x" * 100)))
        node.advance(1_000)
        segments = len(node.broker.replicas.led["t", 0].log.segments)
        assert segments > 1
        families = scraped(node)
        assert value(families, "tidelog_topic_segment_rolls_total", topic="t") == segments - 1
        assert value(families, "tidelog_topic_segments", topic="t") == segments
        assert value(families, "tidelog_events_total", kind="segment rolled") == 1


class TestLimits:
    def test_topics_keep_their_series(self) -> None:
        node = NodeUnderTest(tidelog_metrics_topics_max="2")
        scrape = node.broker.scrape.get()
        for name in ("m", "z"):
            node.create_topic(name)
        scraped(node, scrape)
        node.create_topic("a")
        families = scraped(node, scrape)
        shown = {dict(labels)["topic"] for _, labels in families["tidelog_topic_segments"].samples}
        assert shown == {"m", "z"}
        assert value(families, "tidelog_topics_left_out") == 1

    def test_a_label_limit_of_zero_leaves_everything_out(self) -> None:
        node = NodeUnderTest(tidelog_metrics_topics_max="0")
        node.create_topic("t")
        families = scraped(node)
        assert families["tidelog_topic_segments"].samples == {}
        assert value(families, "tidelog_topics_left_out") == 1


class TestScrape:
    def test_every_family_of_the_broker_is_written(self, node: NodeUnderTest) -> None:
        made_by_the_server = {
            name
            for name in FAMILIES
            if name.startswith(("process_", "tidelog_connections", "tidelog_event_loop", "tidelog_receive"))
        } | {"tidelog_scrape_seconds"}
        assert set(scraped(node)) == set(FAMILIES) - made_by_the_server

    def test_a_partition_that_goes_between_steps_does_no_harm(self) -> None:
        node = NodeUnderTest()
        node.create_topic("t", partitions=600)
        steps = node.broker.scrape.get().run()
        text = [next(steps), next(steps)]
        request(node, 20, 3, {"topic_names": ["t"], "timeout_ms": 1000})
        families = read("".join([*text, *steps]))
        assert value(families, "tidelog_partitions_led") == 0

    def test_the_controller_tells_of_the_cluster(self, node: NodeUnderTest) -> None:
        families = scraped(node)
        assert value(families, "tidelog_active_controller") == 1
        assert value(families, "tidelog_controller_epoch") == 1
        assert value(families, "tidelog_cluster_partitions") == 1
        assert value(families, "tidelog_offline_partitions") == 0
        assert value(families, "tidelog_broker_registered") == 1

    def test_flushes_are_timed(self) -> None:
        node = NodeUnderTest()
        node.create_topic("t", flush_messages="1")
        before = node.broker.metrics.flushes.count
        node.handle(produce_frame(9, batch(b"a")))
        assert node.broker.metrics.flushes.count == before + 1

    def test_throttles(self, node: NodeUnderTest) -> None:
        node.broker.metrics.throttled("produce", 250)
        node.broker.metrics.throttled("produce", 500)
        families = scraped(node)
        assert value(families, "tidelog_throttled_total", quota="produce") == 2
        assert value(families, "tidelog_throttle_seconds_total", quota="produce") == 0.75


class TestGroups:
    def commit(self, node: NodeUnderTest, group: str, offset: int, partition: int = 0) -> None:
        """Commit an offset as a client without a group membership does."""
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": partition, "committed_offset": offset}],
                }
            ],
        }
        request(node, 8, 8, fields)

    @pytest.fixture
    def grouped(self) -> NodeUnderTest:
        node = NodeUnderTest(offsets_topic_num_partitions="1")
        node.create_topic("t", partitions=2)
        for _ in range(10):
            node.handle(produce_frame(9, batch(b"a")))
        request(node, 10, 2, {"key": "g", "key_type": 0})
        node.advance(10)
        return node

    def test_lag_per_partition_and_group(self, grouped: NodeUnderTest) -> None:
        self.commit(grouped, "g", 4)
        self.commit(grouped, "g", 0, partition=1)
        families = scraped(grouped)
        assert value(families, "tidelog_group_partition_lag", group="g", topic="t", partition="0") == 6
        assert value(families, "tidelog_group_partition_lag", group="g", topic="t", partition="1") == 0
        assert value(families, "tidelog_group_lag", group="g") == 6
        assert value(families, "tidelog_group_partitions_without_lag", group="g") == 0
        assert value(families, "tidelog_groups", type="classic", state="Empty") == 1

    def test_an_offset_past_the_end_is_no_negative_lag(self, grouped: NodeUnderTest) -> None:
        self.commit(grouped, "g", 1000)
        assert value(scraped(grouped), "tidelog_group_lag", group="g") == 0

    def test_those_with_most_lag_come_first(self, grouped: NodeUnderTest) -> None:
        settings = grouped.broker.settings
        settings.current = settings.static = BrokerSettings.resolve(
            {"log.dirs": "/data", "node.id": "1", "tidelog.metrics.groups.max": "2",
             "tidelog.metrics.group.partitions.max": "1"}
        )  # fmt: skip
        for group, offset in (("near", 9), ("far", 1), ("middle", 5)):
            self.commit(grouped, group, offset)
        families = scraped(grouped)
        shown = {dict(labels)["group"] for _, labels in families["tidelog_group_lag"].samples}
        assert shown == {"far", "middle"}
        assert value(families, "tidelog_groups_left_out") == 1
        assert value(families, "tidelog_group_partition_lag", group="far", topic="t", partition="0") == 9
        assert value(families, "tidelog_group_partitions_left_out") == 2


class TestLagOfPartitionsElsewhere:
    def test_their_leaders_are_asked(self) -> None:
        """The coordinator has no replica of the topic; after one scrape its lag is known all the same."""
        cluster = InMemoryCluster(
            seed=3, offsets_topic_num_partitions="1", offsets_topic_replication_factor="1"
        )
        body = encode_request(10, 3, {"key": "g", "key_type": 0})
        cluster.send(1, frame_prefix(10, 3, 1, b"test", len(body))[4:] + body)
        cluster.run_until(
            lambda: any(node.broker.replicas.leader("__consumer_offsets", 0) for node in cluster.living)
        )
        coordinator = next(n for n in cluster.living if n.broker.replicas.leader("__consumer_offsets", 0))
        elsewhere = next(n for n in cluster.living if n is not coordinator)
        place_topic(cluster, "t", elsewhere.node_id)
        produced = cluster.produce(elsewhere.node_id, "t", b"a", b"b", b"c")
        cluster.run_until(lambda: produced)
        partitions = [{"partition_index": 0, "committed_offset": 1}]
        fields = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": "t", "partitions": partitions}],
        }
        body = encode_request(8, 8, fields)
        answer = cluster.send(coordinator.node_id, frame_prefix(8, 8, 1, b"test", len(body))[4:] + body)
        cluster.run_until(lambda: answer)
        scrape = coordinator.broker.scrape.get()
        families = read("".join(scrape.run()))
        assert value(families, "tidelog_group_partitions_without_lag", group="g") == 1
        assert families["tidelog_group_partition_lag"].samples == {}
        cluster.run_for(100)
        families = read("".join(scrape.run()))
        assert value(families, "tidelog_group_partitions_without_lag", group="g") == 0
        assert value(families, "tidelog_group_partition_lag", group="g", topic="t", partition="0") == 2
        # Whoever led it is gone: what it told last still counts.
        cluster.kill(elsewhere.node_id)
        for _ in range(2):
            cluster.run_for(10_000)
            families = read("".join(scrape.run()))
            assert value(families, "tidelog_group_lag", group="g") == 2

# Two commands set everything up on a machine with Python 3.11 or later and make: `make up` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 9092
DATA ?= tidelog-data
BROKERS ?= 1
WORKERS ?= 2
# What is compiled once is kept, whatever the environment says: else each test run rewrites every test module,
# and each process that a test starts compiles what it imports, in which Spark's workers may miss their 10 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: $(shell awk -F: '/^[a-z0-9-]+:/ {print $$1}' $(firstword $(MAKEFILE_LIST)))

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tidelog needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing Tidelog and its tools into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -q src  # pip does it for what it copies, not for an editable install
	@touch $@

setup: $(STAMP) ## Install into a virtual environment (the other targets do this by themselves)

up: $(STAMP) ## Start a broker on localhost:9092 (PORT=, DATA=, BROKERS=3 for a cluster); Ctrl-C stops it
	@exec $(BIN)/tidelog up --port $(PORT) --data $(DATA) --brokers $(BROKERS)

demo: $(VENV)/.installed-spark ## Orders through three brokers and Spark, a broker killed in the middle, every cent checked (2 minutes, Java 17)
	@$(BIN)/python examples/demo/run.py

tour: $(STAMP) ## A one-minute tour: broker, topic, produce, consume, look at the files
	@$(BIN)/python examples/tour.py

test: $(STAMP) ## The test suite: house rules, units, storage under power cuts, real clients against a real broker (WORKERS=2)
	@tests/conformance/setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m "not slow" --durations=20 --durations-min=5 tests

slow-test: $(STAMP) ## The tests marked as slow, which `make test` leaves out: clients and coordinators over kills, one after the other
	@tests/conformance/setup
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m slow --durations=20 --durations-min=5 tests

check: $(STAMP) ## Lint, format check, types, house rules (quick)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/pytest -q tests/tidy

format: $(STAMP) ## Format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

audit: $(STAMP) ## Look the pinned dependencies up for known vulnerabilities (ADVISORIES=folder: offline)
	@$(BIN)/python .ci/audit.py $(if $(ADVISORIES),--advisories $(ADVISORIES))

attacks: $(STAMP) ## Attacks on a live broker in full: what each did to memory and to others (about 3 minutes)
	@$(BIN)/python -m tests.chaos.attacks

hostile: $(STAMP) ## Every API under a user without rights: the largest requests, on eight connections (API=Name chooses; about half an hour)
	@$(BIN)/python -m tests.chaos.hostile_user $(if $(API),--api $(API))

crash: $(STAMP) ## The long crash test: 400 kill -9 cycles under load (CI runs a short one)
	@$(BIN)/python -m tests.chaos.crash_cycles --cycles 400

fuzz: $(STAMP) ## The long fuzz test: a million hostile frames (CI runs 120,000)
	@$(BIN)/python -m tests.chaos.fuzz_frames --frames 1000000

exactly-once: $(STAMP) ## The long exactly-once test: 200,000 records through transactions, workers and broker killed
	@$(BIN)/python -m tests.chaos.exactly_once --records 200000

coordinator-kills: $(STAMP) ## Kill the coordinator of an exactly-once application's group 200 times with librdkafka, 200 with Java (50 minutes)
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 80
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 50 --protocol consumer
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 50 --pause 3 topic.metadata.refresh.interval.ms=200
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 20 --stop
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 150 --client java
	@$(BIN)/python -m tests.chaos.coordinator_kills --kills 50 --client java --protocol consumer

transactions-long: $(STAMP) ## 200 transactions of each kind, several batches in flight, three brokers, Java and librdkafka (about 4 minutes)
	@$(BIN)/python -m tests.conformance.transactions_long --count 200

delays-long: $(STAMP) ## A million delayed records, two leaders and then all brokers killed: each once, in order, none early (RECORDS=, about 20 minutes)
	@$(BIN)/python -m tests.chaos.delays_long --records $(or $(RECORDS),1000000)

registry-kills: $(STAMP) ## Schema registries killed and paused while 20 clients register, on one broker and on three (about 5 minutes)
	@TIDELOG_REGISTRY_TESTS=1 $(BIN)/pytest -q -n0 tests/conformance/test_conformance_registry_instances.py
	@$(BIN)/python -m tests.chaos.registry_kills --seconds 90 --brokers 1
	@$(BIN)/python -m tests.chaos.registry_kills --seconds 120 --brokers 3

s3-test: $(STAMP) ## Iceberg tables in a bucket of an S3 server from PyPI (moto, installed aside)
	@tests/conformance/setup_s3
	@TIDELOG_S3_TESTS=1 $(BIN)/pytest -q -n0 tests/conformance/test_conformance_lake_s3.py

bench-iceberg: $(STAMP) ## A topic into an Iceberg table beside the same records into plain Parquet (about 2 minutes)
	@$(BIN)/python -m bench.iceberg

share-kills: $(STAMP) ## Members of a share group and leaders killed, 200,000 records accepted, then as many with dead letters (about 8 minutes)
	@$(BIN)/python -m tests.chaos.share_kills
	@$(BIN)/python -m tests.chaos.share_kills --reject

iceberg-kills: $(STAMP) ## A topic into an Iceberg table while the pipeline is killed 30 times, another writer commits and the schema changes
	@$(BIN)/python -m tests.chaos.iceberg_kills --records 100000 --kills 30

mqtt-kills: $(STAMP) ## MQTT with QoS 1 and 2 while gateway and broker are killed: nothing lost, QoS 2 nothing twice (about 5 minutes)
	@$(BIN)/python -m tests.chaos.mqtt_kills --seconds 240 --seed $(or $(SEED),1)

chaos: $(STAMP) ## The long cluster test: leaders killed for 10 minutes, then every fault, on both stores (50 minutes)
	@tests/conformance/setup
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 10 --faults kill-leader
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 3 --faults kill-leader,kill-controller --crowd 3000
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 12 --faults all --verbose
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 10 --faults kill-leader --store zookeeper
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 12 --faults all --store zookeeper --verbose

chaos-short: $(STAMP) ## The same for about a minute and a half: leaders and controllers killed, a diverged tail
	@$(BIN)/python -m tests.chaos.cluster_chaos --minutes 1 --faults kill-leader,kill-controller,diverge,lose-copier
	@$(BIN)/python -m tests.chaos.coordinator_kills --client java --kills 3
	@$(BIN)/python -m tests.chaos.share_kills --records 6000 --seconds 15 --leader-seconds 7 --java 0

simulation: $(STAMP) ## Thousands of seeds of groups, transactions and a whole cluster (1,000 of each world), and every mutant caught
	@TIDELOG_SIMULATION_SEEDS=1000 TIDELOG_SIMULATION_CLUSTER_SEEDS=1000 $(BIN)/pytest -q -n 2 tests/simulation

simulation-long: $(STAMP) ## 20,000 seeds of a whole cluster under faults, in one thread each (SEEDS= chooses; 1,000 take about two minutes and a half)
	@TIDELOG_SIMULATION_CLUSTER_SEEDS=$(or $(SEEDS),20000) $(BIN)/pytest -q -n 2 tests/simulation/test_simulation_cluster.py

conformance: $(STAMP) ## Only the real clients against a real broker
	@tests/conformance/setup
	@$(BIN)/pytest -q tests/conformance

amqp-test: $(STAMP) ## The AMQP gateway with aio-pika and Celery, workers and gateways killed (about a minute and a half)
	@TIDELOG_AMQP_TESTS=1 $(BIN)/pytest -q -n0 tests/conformance/test_conformance_amqp_aio_pika.py tests/conformance/test_conformance_amqp_celery.py

conformance-kombu: $(STAMP) ## kombu's own integration tests of its AMQP transport, from its source release, before the gateway
	@$(BIN)/python -m tests.conformance.kombu_suite

gateways-fuzz: $(STAMP) ## Hostile connections to both gateways, with a bound on their memory (about 2 minutes; SEED=)
	@$(BIN)/python -m tests.chaos.fuzz_gateways --seed $(or $(SEED),1)

amqp-kills: $(STAMP) ## Brokers and AMQP gateways killed while messages are published and consumed (about a minute and a half)
	@$(BIN)/python -m tests.chaos.amqp_kills

oracle: $(STAMP) ## The same sessions on Apache Kafka and on a broker, compared answer by answer (SESSIONS=200, SEED=1; Java and Maven)
	@$(BIN)/python -m tests.oracle --sessions $(or $(SESSIONS),200) --seed $(or $(SEED),1)
	@$(BIN)/python -m tests.oracle --clients java,librdkafka --sessions 12 --seed $(or $(SEED),1)

oracle-clients: $(STAMP) ## Sessions of the Java client and of librdkafka on both, compared outcome by outcome (SESSIONS=100, SEED=1)
	@$(BIN)/python -m tests.oracle --clients $(or $(CLIENTS),java,librdkafka) --sessions $(or $(SESSIONS),100) --seed $(or $(SEED),1)

oracle-record: $(STAMP) ## Record the sessions that the test suite replays without Java anew from Apache Kafka
	@$(BIN)/python -m tests.oracle --record $(or $(SESSIONS),120)
	@$(BIN)/python -m tests.oracle --faults --record $(or $(LOST),16)

oracle-planted: $(STAMP) ## Which differences planted on purpose the recorded sessions notice; fails where one is missed
	@$(BIN)/python -m tests.oracle --planted

browser-test: $(STAMP) ## The console in a real browser (gets Debian's chromium where it is missing)
	@tests/browser/setup
	@TIDELOG_BROWSER_TESTS=1 $(BIN)/pytest -q -n0 tests/browser

browser-spark-test: $(VENV)/.installed-spark ## A pipeline on a real Spark, seen on the console's page and in its metrics (PICTURES=folder draws it)
	@tests/browser/setup
	@TIDELOG_BROWSER_TESTS=1 TIDELOG_SPARK_TESTS=1 TIDELOG_PICTURES=$(PICTURES) $(BIN)/pytest -q -n0 tests/browser/test_browser_pipeline_run.py

conformance-kafka-python: $(STAMP) ## kafka-python's own integration tests, from its source release
	@$(BIN)/python -m tests.conformance.kafka_python_suite

$(VENV)/.installed-spark: $(STAMP)
	@echo "installing Spark into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,connect,postgres]'
	@touch $@

spark-test: $(VENV)/.installed-spark ## Pipelines on a real Spark (installs it, 500 MB, and needs Java 17)
	@tests/spark/setup
	@TIDELOG_SPARK_TESTS=1 $(BIN)/pytest -q -n0 tests/spark

spark-exactly-once: $(VENV)/.installed-spark ## Ten times a million records through Spark, exactly once, under faults; once at least once (40 minutes)
	@$(BIN)/python -m tests.spark.exactly_once_spark run --runs 10 --records 1000000 --contrast-records 1000000

spark-short: $(VENV)/.installed-spark ## The same once, then on a Spark standalone cluster while a broker dies, then the ready pipelines of topics (7 minutes)
	@$(BIN)/python -m tests.spark.exactly_once_spark run --records 1000000 --driver-kills 2 --worker-kills 1 --contrast-records 200000 --seed 4
	@$(BIN)/python -m tests.spark.exactly_once_spark run --standalone --records 200000 --records-per-batch 50000 --driver-kills 0 --worker-kills 0 --executor-kills 1
	@TIDELOG_SPARK_TESTS=1 $(BIN)/pytest -q -n0 --durations=5 tests/unit/pipelines tests/spark/test_spark_ready_topics.py tests/spark/test_spark_cluster_run.py

spark-versions: $(STAMP) ## The same tests on every supported Spark (4.0 to 4.3) that PyPI has, each in an environment of its own (about 15 minutes; MINORS="4.0 4.2" chooses)
	@$(BIN)/python -m tests.spark.version_matrix $(MINORS)

bench-spark: $(VENV)/.installed-spark ## Spark reading, decoding and writing topics beside its own connector, from_avro, a client loop and Parquet (18 minutes)
	@$(BIN)/python -m bench.spark_source
	@$(BIN)/python -m bench.spark_sink
	@$(BIN)/python -m bench.spark_decode

lab-test: $(STAMP) ## Every scenario of the lab unattended, then on systems that were broken on purpose, which they must notice
	@TIDELOG_LAB_TESTS=1 $(BIN)/pytest -q -n0 -s tests/lab

bench: $(STAMP) ## Measure against a floor without protocol work, in one run (about 10 minutes)
	@$(BIN)/python -m bench.run

bench-short: $(STAMP) ## The same, shorter and coarser
	@$(BIN)/python -m bench.run --short

bench-cluster: $(STAMP) ## What three replicas cost, how far followers lag, how fast 2,000 leaders are elected
	@$(BIN)/python -m bench.cluster

bench-kafka: $(STAMP) ## Real clients against Tidelog and Apache Kafka in turns: 38 lines, medians of three (an hour; ONLY= chooses, ROUNDS=; Java and Maven)
	@$(BIN)/python -m bench.beside_kafka --rounds $(or $(ROUNDS),3) --only "$(ONLY)"

bench-transactions: $(STAMP) ## Transactions on three brokers beside Apache Kafka 4.3.1, in one run (Java and Maven; about 5 minutes)
	@$(BIN)/python -m bench.transactions

bench-mqtt: $(STAMP) ## MQTT through a gateway beside mosquitto, and 2,000 idle devices, in one run (Debian's mosquitto; about 2 minutes)
	@$(BIN)/python -m bench.mqtt

bench-tls: $(STAMP) ## What TLS and a login cost: produce and fetch against plaintext, in one run (about a minute)
	@$(BIN)/python -m bench.tls

bench-delays: $(STAMP) ## What delays cost a producer: an ordinary topic and delay topics by turns, in one run (about a minute)
	@$(BIN)/python -m bench.delays

bench-amqp: $(STAMP) ## The AMQP gateway beside RabbitMQ (Debian's rabbitmq-server) in one run (about 2 minutes)
	@$(BIN)/python -m bench.amqp

clean: ## Remove the virtual environment and caches (never data)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

"""Bugs in what operators see and are told: metrics, health, logs, bounds of a node."""

from __future__ import annotations

from tests.mutants.mutant import rows

_METRICS = ("tests/unit/node/test_metrics.py",)

MUTANTS = [
    *rows(
        "sidecar/partition/counted.py",
        ("who is gone takes its counts along", "        self.ended.add(self.labels.of(worker.key.stream), worker)\n", "", "counters fall when a stream is deleted"),
        ("labels of streams are not bounded", "len(self._given) < MOST_LABELS and any", "any", "ten thousand streams make ten thousand series"),
        ("all streams have labels", "any(fnmatchcase(stream, pattern) for pattern in self.patterns)", "True", "a stream that nobody asked for costs series"),
        ("refusals are not summed", "            self.refused.update(ingest.refused)\n", "            pass\n", "nobody is alerted that publishes are refused"),
        tests=_METRICS,
    ),
    *rows(
        "sidecar/partition/set.py",
        ("a partition that is stopped counts nowhere", "        self.counts.has_ended(worker)\n", "        self.counts.ending.remove(worker)\n", "counters fall when a stream is deleted"),
        tests=_METRICS,
    ),
    *rows(
        "sidecar/status/figures.py",
        ("a partition that is being stopped is left out", "        for worker in ending:\n            counts.add(labels.of(worker.key.stream), worker)\n", "", "counters fall while a log is closed"),
        ("gathering keeps the loop", "                await asyncio.sleep(0)\n", "", "a scrape of thousands of partitions delays acks"),
        ("labels have no bound", "            if len(given) >= self._most:\n                return OTHERS\n", "", "a node makes as many series as there are reasons"),
        ("a source that begins anew makes a counter fall", "            self._before += self._last\n", "            pass\n", "a change of role looks like a restart"),
        ("followers count as under-replicated", "        if role is RoleName.LEADER and state is not None:\n", "        if state is not None:\n", "one short ISR counts on each node"),
        ("commits that stand still look well", "row[5] += spare < 0", "row[5] += spare < -1", "the page alert does not fire"),
        ("an ISR with nobody to spare looks whole", "spare == 0 and len", "spare == 1 and len", "the warning comes too late"),
        ("learners are followers", "            if state is not None and state.copy_of(worker.node_id):\n", "            if False:\n", "a copy under way looks like a replica"),
        ("errors of servers have their own words as labels", '"server" if kind.startswith("server: ") else "other"', 'kind', "labels are unbounded free text"),
        ("lag is the last partition's", "row[2] = max(row[2], records)", "row[2] = records", "the slowest follower is not seen"),
        ("messages count as bytes", 'found.put("nats_bytes_total", nats[f"{direction}_bytes"]', 'found.put("nats_bytes_total", 1 + nats[f"{direction}_msgs"]', "graphs of traffic are wrong"),
        tests=_METRICS,
    ),
    *rows(
        "sidecar/status/metrics.py",
        ("buckets are not added up", "map(float, accumulate(histogram.counts))", "map(float, histogram.counts)", "percentiles of graphs are far too low"),
        ("a stream's partitions are not bounded", "shown = partitions[:MOST_PARTITIONS]", "shown = partitions", "one scrape brings a hundred thousand series"),
        ("everybody leads", 'int(row["role"] == "LEADER")', "1", "who leads can't be told"),
        tests=_METRICS,
    ),
    *rows(
        "liftpy/instruments.py",
        ("a value on a bound counts above it", "bisect_left(self.bounds, value)", "bisect_left(self.bounds, value + 1e-9)", "buckets are not Prometheus's"),
        ("a batch counts as one record", "instruments.queued.observe((now_ns - arrived_ns) * _S, record_count)", "instruments.queued.observe((now_ns - arrived_ns) * _S)", "large batches weigh nothing"),
        ("another leader's commits count", "        self._uncommitted.clear()\n", "        pass\n", "commit times of minutes after a fail-over"),
        ("what is above HW counts as committed", "while waiting and waiting[0][0] <= high_watermark:", "while waiting:", "commits look faster than they are"),
        tests=_METRICS,
    ),
    *rows(
        "liftpy/cluster/watched.py",
        ("a hand-over is an election", 'return "transfer" if before and before != new.leader and before in new.isr else "clean"', 'return "clean"', "each planned move raises an alarm"),
        ("unclean elections are clean", 'kind = "unclean" if change.key in self._unclean else _kind(old, new)', "kind = _kind(old, new)", "lost records alert nobody"),
        ("a fail-over lasts no time", "            self._without.setdefault(change.key, now_ns)\n", "            self._without[change.key] = now_ns\n", "slow elections are not seen"),
        ("what is offline stays so", "        for state, step in ((old, -1), (new, 1)):\n", "        for state, step in ((old, 0), (new, 1)):\n", "an alert never ends"),
        tests=("tests/unit/cluster/test_watched.py",),
    ),
    *rows(
        "liftpy/health.py",
        ("a process is restarted for NATS", "    return [\n        Check(\"tasks\", signs.failure),\n", "    return [\n        Check(\"tasks\", signs.failure or (\"\" if signs.nats else \"no NATS\")),\n", "all nodes restart when NATS is away"),
        ("a flush may hang for ever", "hung = signs.longest_flush_s >= HUNG_FLUSH_S", "hung = False", "a node whose disk hangs is never restarted"),
        ("a silent metadata group is well", "late = heard_s is None or heard_s > signs.session_s", "late = heard_s is None", "a fenced node takes traffic"),
        ("synced is forgotten", "        self.done = True\n", "", "a lag takes applications out of service"),
        ("once in sync counts for nothing", "            elif key not in self._were:\n", "            else:\n", "a rolling restart waits for ever under load"),
        ("what is not opened is not waited for", "        if not opened:\n", "        if False:\n", "a restart goes on before the logs are open"),
        tests=("tests/unit/core/test_health.py",),
    ),
    *rows(
        "liftpy/cluster/may_stop.py",
        ("fenced replicas count", "node != node_id and image.is_live(node)", "node != node_id", "a restart takes the last replica but one"),
        ("the group may lose its majority", "left_count < majority", "left_count < majority - 1", "a rolling restart stops the whole cluster"),
        ("elections are not waited for", "        if partition.status is not PartitionStatus.ONLINE:\n", "        if False:\n", "a restart hits a partition in its election"),
        tests=("tests/unit/cluster/test_may_stop.py",),
    ),
    *rows(
        "sidecar/supervisor.py",
        ("a recovery that stands still is given time", "        if status != self._said:\n", "        if status:\n", "a hung start is never ended"),
        ("a node that hangs is said to live", " and all(check.ok for check in live())", "", "the watchdog watches nothing"),
        ("ready is said before it is", "        if all(check.ok for check in checks):\n", "        if True:\n", "a roll goes on while nodes recover"),
        ("a stop is not announced", '        self.tell("STOPPING=1", "STATUS=stopping")\n', "", "systemd takes a stop for a failure"),
        tests=("tests/unit/node/test_supervisor.py",),
    ),
    *rows(
        "sidecar/logs.py",
        ("a flood is logged", "left >= 1\n", "True\n", "a storm of warnings fills the disk"),
        ("errors are left out", "takes = record.levelno >= logging.ERROR or self._takes(key)", "takes = self._takes(key)", "the one error that matters is not there"),
        ("what was left out is never told", "        if told is not None:\n            self._tell(*told)\n", "", "nobody knows that lines are missing"),
        ("all partitions share their lines", "key = event_of(record), partition_of(record)", "key = event_of(record), None", "one noisy partition hides the others"),
        ("a level stays for ever", '        logging.getLogger().setLevel(self._level.upper())\n', "        pass\n", "a node logs debug until somebody notices the disk"),
        ("names are not bounded", "        if len(self._buckets) > MOST_KEYS:\n", "        if False:\n", "memory grows with each partition that ever logged"),
        tests=("tests/unit/node/test_logs.py",),
    ),
    *rows(
        "liftpy/ingest/node_room.py",
        ("a node has no limit", "self.is_limited = used_part >= _FREE", "self.is_limited = False", "a thousand partitions take all memory, and the kernel ends the node"),
        ("all queues are limited alike", "return arrived_bytes + self._queued() < self._own_bytes * self.node.open_part", "return self.node.open_part > 0", "one flood refuses everybody's publishes"),
        ("standbys shut publishes out", "min(held.standby, round(self.limit_bytes * STANDBY_SHARE))", "held.standby", "a follower's memory stops the leaders beside it"),
        ("publishers that wait cost nothing", "            + held.publishers\n", "", "millions of unanswered publishes have no bound"),
        tests=("tests/unit/ingest/test_node_room.py", "tests/unit/bus/test_ingest_edges.py"),
    ),
    *rows(
        "sidecar/cli/health.py",
        ("an answer of no node is one", '    if not answer.startswith(b"HTTP/1.") or len(answer.split(None, 2)) < 3:\n', "    if not answer:\n", "another program on the port is taken for a node"),
        ("an endless answer is read", "while len(answer) < _MOST_BYTES and (more := ", "while (more := ", "a probe never ends"),
        ("whatever is answered is well", 'head.split()[1] == b"200"', "bool(head)", "a node that is not ready gets work"),
        tests=("tests/unit/cli/test_health_by_port.py",),
    ),
    *rows(
        "sidecar/memory.py",
        ("the control group is not asked", "            found.append(int(text))\n", "            pass\n", "a container is killed for what its machine would have had"),
        tests=("tests/unit/ingest/test_node_room.py", "tests/unit/bus/test_ingest_edges.py"),
    ),
]  # fmt: skip

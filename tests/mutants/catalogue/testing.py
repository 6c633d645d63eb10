"""Bugs in ``liftpy/testing/memory``: a cluster in memory that is not what a real one is."""

from __future__ import annotations

from tests.mutants.mutant import rows

_MEMORY = "liftpy/testing/memory/"
_TESTS = ("tests/conformance/test_memory_bus.py", "tests/conformance/test_memory_client.py")

MUTANTS = [
    *rows(
        f"{_MEMORY}bus.py",
        ("a star fits several tokens", 'b"*": rb"[^.]+"', 'b"*": rb".+"', "subscribers hear what is not theirs"),
        ("a greater-than fits one token", 'rb"[^.]+(?:\\.[^.]+)*"', 'rb"[^.]+"', "deeper subjects reach no stream"),
        (
            "every member of a queue group hears",
            "(queues.setdefault(subscription.queue, []) if subscription.queue else plain).append(subscription)",
            "plain.append(subscription)",
            "a shared request is answered twice",
        ),
        (
            "who listens later is not found",
            "        self._subscriptions[made.number] = made\n        self._known.clear()",
            "        self._subscriptions[made.number] = made",
            "a stream made on a subject that was used before hears nothing",
        ),
        (
            "who has left is still called",
            "if self._subscriptions.pop(subscription.number, None) is not None:",
            "if self._subscriptions.pop(subscription.number, None) is None:",
            "a deleted stream goes on answering",
        ),
        (
            "each message is a batch of its own",
            "        if self._reading:\n            self._behind.append(callback)",
            "        if self._reading:\n            callback()",
            "what is published together is appended one by one, and no window ever fills",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}connection.py",
        (
            "nobody is told that nobody listens",
            "if not heard and reply:",
            "if False:",
            "requests to nobody wait for their time-out",
        ),
        (
            "headers are payload",
            "data[begin + header_bytes : stop], data[begin : begin + header_bytes]",
            'data[begin:stop], b""',
            "message ids, conditions and headers are not seen",
        ),
        (
            "half a message is thrown away",
            "        self._left = data[at:]",
            '        self._left = b""',
            "what comes in two pieces is lost",
        ),
        (
            "a reconnect goes on with what was left",
            "        self._reader = asyncio.StreamReader()\n",
            "        self._reader = self._reader or asyncio.StreamReader()\n",
            "a client that was cut off never comes back",
        ),
        (
            "a stopped cluster lets clients in",
            "if not self._server.is_up:",
            "if False:",
            "whoever reconnects after the end waits for ever",
        ),
        (
            "any size is taken",
            "if size_bytes > self._bus.max_payload:",
            "if False:",
            "what a nats-server refuses passes in memory",
        ),
        (
            "the end is not told",
            "            self._is_closed = True\n            self._reader.feed_eof()",
            "            self._is_closed = True",
            "clients don't notice that they were cut off",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}group.py",
        (
            "streams may lie among the inboxes",
            "refusal(door, who, request) or self._among_inboxes(request)",
            "refusal(door, who, request)",
            "a stream takes the answers of others",
        ),
        (
            "an image that brings no news stops leases",
            "            self.changed_index = self.image.index\n",
            "        self.changed_index = self.image.index\n        if self._fsm.last_records:\n",
            "after a refused request no leader has a lease, and nothing is acknowledged",
        ),
        (
            "nobody is the metadata leader",
            "            response.cluster.metadataLeader = self._leader()\n",
            "            pass\n",
            "the cluster describes itself without one",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}node.py",
        (
            "a killed node begins empty",
            "self._storages = {key: storage.crash(power=False) for key, storage in self._storages.items()}",
            "self._storages = {}",
            "a restart loses what was acknowledged",
        ),
        (
            "a deleted stream is served on",
            "        return found is not None and self.node_id in found[1].holders",
            "        return True",
            "records of a deleted stream can be read",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}peers.py",
        (
            "followers never hear of what came later",
            "        asker = self._kept.pop(effect.replica, None)\n",
            "        asker = None\n",
            "each record waits for the next fetch of the followers",
        ),
        (
            "a follower's log grows and nobody flushes it",
            "            self.publishers.fetched(batches)\n            self.commit.appended()",
            "            self.publishers.fetched(batches)",
            "nothing is ever committed",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}replica.py",
        (
            "readers are not told of commits",
            "        self.publishers.committed(effect.high_watermark)\n        self.readers.advanced()",
            "        self.publishers.committed(effect.high_watermark)",
            "a reader at the end waits for its whole long poll",
        ),
        (
            "retention is not told",
            "                self.feed(ev.LogStartMoved(log_start_offset=self.log.log_start_offset))",
            "                pass",
            "the core reads below the log's start",
        ),
        (
            "truncation waits for housekeeping",
            "            self.apply_retention()\n        self.readers.share",
            "            pass\n        self.readers.share",
            "truncated records are there for seconds",
        ),
        (
            "settings reach nobody",
            "        self.publishers.ingest.settings_changed(held.config, held.partition_count)\n",
            "",
            "the largest message of a stream is not looked at",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}readers.py",
        (
            "only the leader answers",
            "        if wanted and self._shared is None:",
            "        if False:",
            "reads that name no node find nobody",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}services.py",
        (
            "nobody reads what a service puts out",
            "self._spawn(Emitter(client, transport, settings, self._outbox, *told).run())",
            "Emitter(client, transport, settings, self._outbox, *told)",
            "outputs are never written, and replies wait for them",
        ),
        (
            "only the first part of a batch is applied",
            "records = [record for record in records if record.offset >= machine.position]",
            "records = []",
            "a service misses records of a large batch",
        ),
        tests=_TESTS,
        fresh=True,
    ),
    *rows(
        f"{_MEMORY}cluster.py",
        (
            "a kill is not noticed",
            "                self._group.apply(pb.ControlRequest(fenceNode=fence))",
            "                pass",
            "a fail-over in memory takes seconds",
        ),
        (
            "a ConfigError is waited out",
            "            except ConfigError:\n                raise\n",
            "",
            "a test with a wrong name waits for a minute",
        ),
        (
            "its thread goes on for ever",
            "                loop.stop()\n                ended.set()",
            "                ended.set()",
            "every test leaves a thread",
        ),
        tests=_TESTS,
        fresh=True,
    ),
]

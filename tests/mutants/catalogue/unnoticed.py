"""Bugs that were drawn by lot from all packages and were noticed by no test; tests for them came afterwards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, rows

MUTANTS: list[Mutant] = [
    *rows(
        "liftpy/client/node_answers.py",
        (
            "a status that is none is used",
            'raise ProtocolError(f"{node_id} answered its status in a form that is not JSON: {error}") from None',
            "pass",
            "the command fails with a name that is not there",
        ),
    ),
    *rows(
        "liftpy/client/consumer.py",
        (
            "nobody waits whether a stream exists",
            "await asyncio.wait([asking], timeout=_HEDGE_S)",
            "pass",
            "a reader of a deleted stream is told to try again for ever",
        ),
        ("one answer counts for ever", "self._existing = None", "pass", "a stream that is deleted later is never found to be"),
    ),
    *rows(
        "liftpy/client/publisher.py",
        (
            "nobody there is taken for an answer, too",
            "            self._send_again(number, waiting, UnavailableError(text))\n            return",
            "            self._send_again(number, waiting, UnavailableError(text))\n            pass",
            "each refused publish raises in nats-py's callback",
        ),
    ),
    *rows(
        "liftpy/client/window.py",
        (
            "who waits behind one that gives up waits on",
            "                    self._waiting.remove(place)\n                self._wake()",
            "                    self._waiting.remove(place)\n                pass",
            "a publisher stands still though there is room",
        ),
    ),
    *rows(
        "liftpy/log/horizon.py",
        (
            "what a compaction has seen ends too early",
            "active.next_offset",
            "active.base_offset",
            "a reader is not told that records are gone",
        ),
    ),
    *rows(
        "liftpy/log/inspect.py",
        (
            "missing committed records are no fault",
            'faults.append(f"committed records are missing: HW {checkpoint.high_watermark}, the log ends before {next_offset}")',
            "pass",
            "log verify calls a log right that lost what was committed",
        ),
    ),
    *rows(
        "liftpy/log/log.py",
        (
            "a compacted segment reads from a closed file",
            "output.segment.file = file",
            "pass",
            "every read after a compaction fails",
        ),
    ),
    *rows(
        "liftpy/log/promises.py",
        ("half a journal stays", "storage.remove(name)", "pass", "what a write left that was cut short is there for ever"),
    ),
    *rows(
        "liftpy/log/proving.py",
        ("half a copy stays", "storage.remove(temporary)", "pass", "a full disk is filled by what could not be copied"),
        (
            "the head of a split forgets its epochs",
            "head.epochs = [(epoch, start) for epoch, start in segment.epochs if start < entry.base_offset]",
            "pass",
            "an epoch query after a crash is answered with another epoch's end",
        ),
    ),
    *rows(
        "liftpy/log/scrub.py",
        (
            "a piece is looked at twice",
            "not done and not self.done",
            "((not done) or (not self.done))",
            "the scrub's figures are wrong, and it reads twice as much",
        ),
    ),
    *rows(
        "liftpy/log/segment.py",
        (
            "every read checks its block again",
            "self.checked_blocks.add(number)",
            "pass",
            "reads of old segments cost a checksum of 16 KiB each",
        ),
    ),
    *rows(
        "liftpy/service/emitter.py",
        (
            "a leader sends before it looked",
            "self._leads() and not self._must_look",
            "(self._leads())",
            "outputs go out beside those of the leader before",
        ),
    ),
    *rows(
        "liftpy/service/feeding.py",
        (
            "a fast service gets all at once",
            "self._chunk_records = min(_MAX_CHUNK_RECORDS, self._chunk_records * 2)",
            "self._chunk_records = max(_MAX_CHUNK_RECORDS, self._chunk_records * 2)",
            "heartbeats stand still while a service catches up",
        ),
        (
            "a failed read is not said",
            'self.problem = f"reading: {error.code}: {error}"',
            "pass",
            "a service stands still, and status says that all is well",
        ),
        (
            "holes end a replay unsaid",
            "        snapshots = self._machine.skip_to(next_offset if stop is None else min(next_offset, stop))\n        self._tell_if_stopped()",
            "        snapshots = self._machine.skip_to(next_offset if stop is None else min(next_offset, stop))\n        pass",
            "a promotion waits for a service that is at its stop",
        ),
    ),
    *rows(
        "liftpy/service/host.py",
        ("every message means that nobody is there", "not message.data", "message.data", "a service never hears an order"),
    ),
    *rows(
        "liftpy/service/outbox.py",
        (
            "a digest from before the cut counts",
            '        self._samples.clear()\n        self._last_read = (-1, b"")',
            "        self._samples.clear()\n        pass",
            "a service that went back below a cut is taken for diverged",
        ),
    ),
    *rows(
        "liftpy/service/sessions.py",
        (
            "a promotion waits for the others",
            "session.service in waiting",
            "session.service not in waiting",
            "status names services that nobody waits for",
        ),
        (
            "who has no order has acknowledged it",
            '"acknowledged": session.order is not None and session.order.acknowledged,',
            '"acknowledged": session.order is None and session.order.acknowledged,',
            "status fails while a service registers",
        ),
    ),
    *rows(
        "liftpy/spark/catalog.py",
        (
            "an end by time goes past what is committed",
            "ending_at=None if ending_at is None else min(ending_at, bounds.end_offset),",
            "ending_at=None if ending_at is None else max(ending_at, bounds.end_offset),",
            "a batch query plans records that are not there",
        ),
    ),
    *rows(
        "liftpy/spark/fetching.py",
        (
            "a whole batch lacks records",
            "header.record_count <= header.last_offset_delta",
            "header.record_count < header.last_offset_delta",
            "every read of a stream that is not compacted fails",
        ),
        (
            "a replica may refuse for ever",
            'raise ProtocolError(\n                f"{progress.next_offset} of {span.planned} is refused although {bounds.leader} says that it has it"\n            )',
            "pass",
            "a task asks the same nodes without end",
        ),
    ),
    *rows(
        "liftpy/spark/options.py",
        (
            "headers can't be asked for twice",
            'include_headers and "headers" not in columns',
            "(include_headers)",
            "includeHeaders with a column headers is refused",
        ),
    ),
    *rows(
        "sidecar/cli/dev.py",
        (
            "a node's end is noticed when it was before",
            "name not in self._ended_s",
            "name in self._ended_s",
            "dev never starts a node again that has ended",
        ),
        (
            "an end is remembered for ever",
            "del self._ended_s[name]",
            "pass",
            "a node is started again at once, however often it ends",
        ),
    ),
    *rows(
        "sidecar/cli/log.py",
        ("a repaired log stays open", "opened.close()", "pass", "its descriptor and its checkpoint are left behind"),
        (
            "other files are shown where there are none",
            "if report.other_files:",
            "if (not (report.other_files)):",
            "what lies beside a log is kept from who looks for it",
        ),
    ),
    *rows(
        "sidecar/cli/main.py",
        ("the interpreter fails at its end", "nobody_reads()", "pass", "a pipe into head ends with a traceback"),
    ),
    *rows(
        "sidecar/cli/node.py",
        (
            "why a node stays is asked of nothing",
            "why_it_stays(state.image, node_id)",
            "why_it_stays(node_id, state.image)",
            "liftpy node remove fails with a traceback",
        ),
        (
            "JSON for people and text for machines",
            "    if as_json:\n        click.echo(json.dumps({",
            "    if not as_json:\n        click.echo(json.dumps({",
            "scripts that read node remove break",
        ),
    ),
    *rows(
        "sidecar/cli/status.py",
        (
            "a member of the group is shown as none",
            'n["controller"]',
            '(not (n["controller"]))',
            "an operator takes a controller for a plain node",
        ),
        (
            "no leader is an empty cell",
            'p["leader"] or "none"',
            '(p["leader"])',
            "an operator can't tell a leaderless partition from a cut table",
        ),
        (
            "the silent are live and the live silent",
            'n["answers"]',
            '(not (n["answers"]))',
            "an operator restarts the wrong node",
        ),
    ),
    *rows(
        "sidecar/dev/cluster.py",
        (
            "Ctrl-C hits the nodes too",
            "start_new_session=True,  # Ctrl-C is for the parent, which stops its nodes in good order",
            "start_new_session=False,  # Ctrl-C is for the parent, which stops its nodes in good order",
            "they hand over to each other while all of them stop",
        ),
        (
            "a cluster that did not come up goes on",
            "            self.stop()\n            raise",
            "            self.stop()\n            pass",
            "nodes run on that nobody stops",
        ),
        ("nothing is started", "node.start()", "pass", "the dev cluster waits for nodes that nobody has started"),
        (
            "the temporary folder stays",
            "self._own_data is not None",
            "self._own_data is None",
            "each run of dev leaves its data behind",
        ),
    ),
    *rows(
        "sidecar/metadata/feed.py",
        (
            "what was fetched is shown when nothing is new",
            "self._subscription.response_received(response)",
            "(not (self._subscription.response_received(response)))",
            "a node without a controller never learns of its first image",
        ),
    ),
    *rows(
        "sidecar/metadata/forwarding.py",
        (
            "questions go on that nobody waits for",
            "asking.cancel()",
            "pass",
            "each change of the metadata leader leaves a request behind",
        ),
    ),
    *rows(
        "sidecar/metadata/joining.py",
        (
            "a bus that is back is not",
            "    async def _reconnected(self) -> None:\n        if self._group is not None:",
            "    async def _reconnected(self) -> None:\n        if self._group is None:",
            "a controller believes for ever that it is off the net",
        ),
    ),
    *rows(
        "sidecar/metadata/membership.py",
        (
            "another process's session is ours",
            "own.incarnation == self.incarnation",
            "own.incarnation != self.incarnation",
            "a node serves before the group knows it",
        ),
        (
            "a drain that was taken in is no drain",
            "        response = await self._group.propose(pb.ControlRequest(drainNode=request), timeout_s)\n        if response.error != pb.ControlResponse.OK:",
            "        response = await self._group.propose(pb.ControlRequest(drainNode=request), timeout_s)\n        if response.error == pb.ControlResponse.OK:",
            "a stopping node leaves before its leaderships have moved",
        ),
        (
            "an id that is taken is asked for without end",
            'raise FencedError(\n                        f"{response.detail}. Stop it, or start this one under another id, with a folder of its own"\n                    )',
            "pass",
            "two nodes with one id: the second one never says so",
        ),
    ),
    *rows(
        "sidecar/partition/driver.py",
        (
            "a stopped replica goes on with its queue",
            '        """Expected conditions are events; an exception here is a bug, and going on might break a promise. ``event``: that was taken."""\n        self._stopped = True\n        self._queue.clear()',
            '        """Expected conditions are events; an exception here is a bug, and going on might break a promise. ``event``: that was taken."""\n        self._stopped = True\n        pass',
            "after a bug was found it acts on what came in the same step",
        ),
    ),
    *rows(
        "sidecar/partition/executor.py",
        (
            "a failed append is flushed",
            "            self._t.log.append_batches(fetched.buffer[:size_bytes], batches, time.time_ns(), compacted=seen)\n        except StorageError as error:\n            self.failed(error)\n            return",
            "            self._t.log.append_batches(fetched.buffer[:size_bytes], batches, time.time_ns(), compacted=seen)\n        except StorageError as error:\n            self.failed(error)\n            pass",
            "the flusher begins on a log that is closed",
        ),
        (
            "a failed cut counts as done",
            "                self.failed(error)\n                return\n            self._t.derived.cut()",
            "                self.failed(error)\n            self._t.derived.cut()",
            "a follower fetches on above what it could not cut",
        ),
    ),
    *rows(
        "sidecar/partition/promises.py",
        (
            "a deleted partition keeps its promise",
            "self._journal.forget(key)",
            "pass",
            "the journal of promises grows with every stream that was",
        ),
    ),
    *rows(
        "sidecar/partition/replication.py",
        ("a closed follower keeps its batches", "self.fetched.clear()", "pass", "the memory of answers that nobody takes"),
        (
            "epoch and HW of a batch in pieces are swapped",
            "answer.leader_epoch, answer.high_watermark",
            "answer.high_watermark, answer.leader_epoch",
            "a follower drops every batch that comes in pieces",
        ),
    ),
    *rows(
        "sidecar/partition/scrub.py",
        (
            "a log that is given up is scrubbed",
            "not worker.storage_failed and not worker.log.closed",
            "True",
            "damage is reported again and again by the process that waits for its restart",
        ),
    ),
    *rows(
        "sidecar/partition/set.py",
        ("who waited for his turn is opened in a stop", "self._deferred.clear()", "pass", "a node that stops opens logs again"),
        (
            "every heartbeat goes to every leader",
            "self._passed_on_ns = sent_ns",
            "pass",
            "a node of thousands of partitions is busy with leases",
        ),
    ),
    *rows(
        "sidecar/partition/timers.py",
        (
            "every earliest deadline leaves a wake-up behind",
            "    def _arm(self, slot_ns: int) -> None:\n        if self._handle is not None:\n            self._handle.cancel()",
            "    def _arm(self, slot_ns: int) -> None:\n        if self._handle is not None:\n            pass",
            "the loop's heap grows with the number of deadlines",
        ),
    ),
    *rows(
        "sidecar/status/desk.py",
        (
            "the page has no address",
            'self.url = f"http://{_HOST}:{await self.serving.open(_HOST, port)}"',
            "await self.serving.open(_HOST, port)",
            "nobody finds the status page on a free port",
        ),
        (
            "status goes out to anybody",
            "not any(rule.allows(reply) for rule in inboxes)",
            "any(rule.allows(reply) for rule in inboxes)",
            "a node publishes where an application listens",
        ),
    ),
    *rows(
        "sidecar/status/report.py",
        ("replicas show the ISR", "snapshot.replicas", "snapshot.isr", "under-replicated partitions look whole"),
        ("LeaderEpoch shows Epoch", "snapshot.leader_epoch", "snapshot.epoch", "an operator compares the wrong epochs"),
        (
            "HW shows the newest offset",
            "snapshot.high_watermark",
            "snapshot.newest_offset",
            "what is not committed looks committed",
        ),
        (
            "the newest offset is one too high",
            "snapshot.log_end_offset - 1",
            "(snapshot.log_end_offset)",
            "lag is shown that is not there",
        ),
    ),
    *rows(
        "sidecar/partition/scrub.py",
        (
            "progress is stored at the end of a pass only",
            "                        await self._in_thread(self._store)",
            "                        pass",
            "a restart in a pass of hours begins the pass again",
        ),
    ),
    *rows(
        "sidecar/partition/set.py",
        (
            "a retry is left behind by the end",
            "            retry.cancel()",
            "            pass",
            "what has ended is held by the event loop's timers",
        ),
    ),
    *rows(
        "sidecar/partition/driver.py",
        (
            "steps are said where nobody asked",
            "                if logger.isEnabledFor(logging.DEBUG):",
            "                if True:",
            "each step of each partition costs a line that nobody reads",
        ),
    ),
    *rows(
        "sidecar/partition/worker.py",
        (
            "services read without a log",
            "            timers=node.timers,\n            log=log,\n            replica",
            "            timers=node.timers,\n            log=None,\n            replica",
            "a service that joins is told of no log end",
        ),
        (
            "publishes are taken whoever leads",
            "            takes=self.replica.takes_publishes,\n",
            "",
            "publishers are not refused apart where the core takes nothing",
        ),
    ),
    *rows(
        "liftpy/cluster/codec.py",
        (
            "a snapshot without controllers",
            "    if image.controllers.index:\n        head.controllers.CopyFrom(list_to_pb(image.controllers))\n    if operations",
            "    if operations",
            "a controller that comes from a snapshot knows the group as it was at the start",
        ),
    ),
    *rows(
        "liftpy/cluster/pages.py",
        (
            "pages without controllers",
            "    if image.controllers.index:\n        page.image",
            "    if False:\n        page.image",
            "commands show the controllers of the settings, not those of today",
        ),
    ),
    *rows(
        "liftpy/cluster/decisions/leadership.py",
        (
            "an unclean candidate stays when it is gone",
            "        if counts or node_id == partition.candidate:",
            "        if counts:",
            "the partition waits for a dead candidate until its time is over",
        ),
    ),
    *rows(
        "liftpy/cluster/duties.py",
        (
            "what is on its way outlives a leadership",
            "        self._in_log.clear()",
            "        pass",
            "a request that never came into the log is said to have an unknown outcome",
        ),
        (
            "preferred leaders are asked with the arguments swapped",
            "self._preferred.due(self._image, now_ns)",
            "self._preferred.due(now_ns, self._image)",
            "leaderships never go back to the first replica",
        ),
        (
            "the rest of a batch is nobody's",
            "operationId=request.operationId, sender=request.sender)",
            "operationId=request.operationId)",
            "what a node may ask in a batch is judged as a stranger's",
        ),
    ),
    *rows(
        "liftpy/ingest/recent_ids.py",
        (
            "a cut brings back forgotten ids",
            "for message_id, older in before.items() if older.ids}",
            "for message_id, older in before.items()}",
            "the next publisher with that id is answered by an error",
        ),
    ),
    *rows(
        "liftpy/client/sync.py",
        (
            "the call that waits expects nothing",
            "                expected_last=expected_last,\n                timeout_s",
            "                timeout_s",
            "two writers who each expect an offset both succeed",
        ),
    ),
    *rows(
        "liftpy/service/appending.py",
        (
            "two outputs that are too large together go together",
            "count > 1:",
            "count > 2:",
            "the output stream refuses them for ever",
        ),
    ),
    *rows(
        "liftpy/service/host.py",
        (
            "a state that failed is stored",
            '        self._refusal = ""\n        self._stopped = False',
            '        self._refusal = ""\n        self._stopped = True',
            "the next process begins with the state that failed",
        ),
    ),
    *rows(
        "liftpy/service/snapshot.py",
        (
            "a peer's name that is no text",
            'decode(errors="replace")',
            "decode()",
            "a forged snapshot ends the service by an error that nobody expects",
        ),
    ),
]

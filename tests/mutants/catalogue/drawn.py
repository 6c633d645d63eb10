"""Bugs at lines that were drawn by lot from all packages, after the tests that should notice them had been written."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DRAWN = {
    "sidecar/bus/inflow.py": [
        (
            "a burst is seen at once",
            "self._large_ns - self._burst_ns < _BURST_NS:\n            return",
            "self._large_ns - self._burst_ns > _BURST_NS:\n            return",
            "the reading thread starts for a single large frame, and never for a burst",
        ),
        (
            "room is said while nothing is read",
            "        if self._reads():\n            self._room.set()",
            "        if not self._reads():\n            self._room.set()",
            "a partition that waited for room goes on waiting",
        ),
        (
            "a turn takes all",
            "while self._chunks and taken_bytes < most_bytes and",
            "while self._chunks and",
            "heartbeats wait for a burst of publishes",
        ),
    ],
    "sidecar/bus/connection.py": [
        (
            "the unheard are asked for again and again",
            "            asking, self._unheard = self._unheard, []",
            "            asking = self._unheard",
            "the loop never ends: the node asks the server without pause",
        ),
        (
            "what was dropped counts as sent",
            '"dropped while disconnected"] += 1\n            return False',
            '"dropped while disconnected"] += 1\n            return True',
            "a publisher of the node believes in what was dropped",
        ),
    ],
    "liftpy/client/receiving.py": [
        (
            "who waits is not woken",
            "            self.transport.pause_reading()\n        self._wake()",
            "            self.transport.pause_reading()\n            self._wake()",
            "bytes that have come lie until the next ones come",
        ),
    ],
    "sidecar/bus/notify.py": [
        (
            "a notice of another epoch",
            "            leader_epoch=notice.leaderEpoch,\n            epoch=notice.epoch,",
            "            leader_epoch=notice.epoch,\n            epoch=notice.leaderEpoch,",
            "a follower refuses the notices of its leader",
        ),
    ],
    "sidecar/bus/parser.py": [
        (
            "a lost sid ends the fast path",
            "            pattern = patterns.get(sid)\n            if pattern is None:",
            "            pattern = None\n            if pattern is None:",
            "a pattern is compiled for each frame: ingest slows down",
        ),
    ],
    "sidecar/cli/log.py": [
        (
            "only the first damage is said",
            "        for fault in report.faults[1:]:",
            "        for fault in report.faults[2:]:",
            "an operator misses a damaged place",
        ),
        (
            "a torn tail is called damage",
            '(("torn tail" if s.torn_tail else "damaged")',
            '(("damaged" if s.torn_tail else "torn tail")',
            "an operator restores a log that has nothing wrong",
        ),
        (
            "the last offset is one too far",
            'offsets = f"{s.summary.base_offset}..{s.summary.next_offset - 1}"',
            'offsets = f"{s.summary.base_offset}..{s.summary.next_offset}"',
            "the table shows an offset that is not there",
        ),
    ],
    "sidecar/cli/publish.py": [
        (
            "a header without a name",
            "        if not header or not equals:",
            "        if not header and not equals:",
            "a line without = is published with a broken header",
        ),
        (
            "an empty key is no key",
            "None if key is None else key.encode()",
            "key.encode() if key else None",
            "records with the empty key are spread over partitions",
        ),
    ],
    "sidecar/cli/service.py": [
        (
            "the same warning each second",
            "                announced = True\n            await asyncio.sleep",
            "                announced = False\n            await asyncio.sleep",
            "the log of a service fills while NATS is away",
        ),
    ],
    "sidecar/cli/controllers.py": [
        (
            "JSON for who did not ask",
            "click.echo(json.dumps(found)) if as_json else _show(found)",
            "_show(found) if as_json else click.echo(json.dumps(found))",
            "scripts get a table, and people JSON",
        ),
    ],
    "liftpy/client/slices.py": [
        (
            "a slice that ends late",
            "self.first_index, self.first_index + first) if first else None",
            "self.first_index, first) if first else None",
            "a reader that is asked to stop at a time gets too few records",
        ),
        (
            "the first that is late by index",
            "return kept, int(self.offsets()[first])",
            "return kept, int(self.offsets()[0])",
            "reading goes on in front of what was delivered: duplicates",
        ),
    ],
    "liftpy/client/progress.py": [
        (
            "out of range on one side only",
            "case _Error.OFFSET_OUT_OF_RANGE if offset < head.logStartOffset:",
            "case _Error.OFFSET_OUT_OF_RANGE if offset <= head.logStartOffset:",
            "a reader ahead of the end is told of a loss at the beginning",
        ),
    ],
    "liftpy/client/client.py": [
        (
            "the connection of others is closed",
            "return Client(Transport(nats), subjects, owns_connection=False, making=making)",
            "return Client(Transport(nats), subjects, owns_connection=True, making=making)",
            "closing a client ends the application's own connection",
        ),
        (
            "our own connection stays open",
            "return Client(Transport(connection), subjects, owns_connection=True, making=making)",
            "return Client(Transport(connection), subjects, owns_connection=False, making=making)",
            "each client leaks a connection",
        ),
        (
            "a principal is left out",
            'principal=credentials.principal if credentials is not None else ""',
            'principal=""',
            "a client with credentials gets no answers at all",
        ),
    ],
    "liftpy/client/consumer.py": [
        (
            "waiting longer than the server",
            '            "wait_s": (0, 30),',
            '            "wait_s": (1, 30),',
            "a consumer that does not want to wait is refused",
        ),
    ],
    "liftpy/client/transport.py": [
        (
            "a closed client is renewed",
            "            self.connection.on_reconnected.remove(self._renewed)",
            "            pass",
            "a borrowed connection keeps all clients that ever used it",
        ),
        (
            "nobody is told of the close",
            "        for callback in callbacks:\n            callback()",
            "        for callback in list(callbacks)[1:]:\n            callback()",
            "an iteration waits for ever after the client was closed",
        ),
        (
            "answers wait for ever",
            "        self._answers.end(ClientClosedError(",
            "        _ = (ClientClosedError(",
            "a call under way does not end when the client is closed",
        ),
    ],
    "liftpy/cluster/operations.py": [
        (
            "no operation ages",
            "replace(operation, age_ns=self._age_ns(operation.time_ns))",
            "replace(operation, age_ns=self._age_ns(0))",
            "the window never lets go of what is old",
        ),
        (
            "too old by the size",
            "too_old = aged.age_ns - MAX_AGE_NS",
            "too_old = aged.age_ns + MAX_AGE_NS",
            "a repeated request is done twice",
        ),
    ],
    "liftpy/cluster/duties.py": [
        (
            "a batch that is answered is ordered",
            "            return here, None\n        told",
            "            return here, rest\n        told",
            "an empty batch goes into the log with each heartbeat",
        ),
    ],
    "liftpy/cluster/feed_subscription.py": [
        (
            "a contradiction is believed",
            "        if self._contradicts(entry):\n            self.start_again()",
            "        if self._contradicts(entry):\n            pass",
            "a node keeps an image that its group never had",
        ),
        (
            "the newest known index falls",
            "self.known_index = max(self.known_index, entry.index)",
            "self.known_index = entry.index",
            "a node that has missed entries thinks that it has them all",
        ),
    ],
    "liftpy/cluster/pages.py": [
        (
            "a page keeps an empty stream",
            "        else:\n            del image.streams[-1]",
            "        else:\n            pass",
            "a listing shows a stream without partitions",
        ),
    ],
    "liftpy/cluster/decisions/nodes.py": [
        (
            "an unknown node is invalid",
            "pb.ControlResponse.INVALID if known else pb.ControlResponse.NOT_FOUND, wrong",
            "pb.ControlResponse.NOT_FOUND if known else pb.ControlResponse.INVALID, wrong",
            "an operator is told that a node does not exist",
        ),
    ],
    "liftpy/cluster/decisions/leadership.py": [
        (
            "elections that were switched off",
            '    if not draft.rules.elections:\n        return ""\n    changed',
            '    if draft.rules.elections:\n        return ""\n    changed',
            "nobody is elected when a node goes",
        ),
    ],
    "liftpy/cluster/codec.py": [
        (
            "who is complete is lost",
            "complete=names.strings(message.complete),",
            "complete=(),",
            "after a restart of the group an election waits for replicas that it need not",
        ),
    ],
    "sidecar/dev/demo_steps.py": [
        (
            "what was sent counts from nothing",
            "at.sent = first + int(line)",
            "at.sent = int(line)",
            "the demo shows fewer records than were sent",
        ),
        (
            "a table that is right differs",
            'table.note = "" if same else',
            'table.note = "" if not same else',
            "the demo says that Spark computed something else",
        ),
    ],
    "sidecar/dev/cluster.py": [
        (
            "any line is ready",
            'and said.get("event") == "ready":',
            'and said.get("event"):',
            "a dev cluster is used before its nodes are ready",
        ),
        (
            "nodes in another namespace",
            '            "--namespace": self.namespace,',
            '            "--namespace": "lift",',
            "two dev clusters on one server mix",
        ),
    ],
    "sidecar/disk/data_folder.py": [
        (
            "the group's folder is the data's",
            'return self.path / "raft"',
            'return self.path / "log"',
            "the journal of the group lies among the partitions",
        ),
        (
            "a new folder is damaged",
            "        if not path.exists():\n            return None\n        try:",
            "        if path.exists():\n            return None\n        try:",
            "a node begins anew at each start",
        ),
    ],
    "sidecar/disk/files.py": [
        (
            "half a write",
            "            while written < wanted:\n",
            "            while written < 0:\n",
            "a short write loses the rest of a batch",
        ),
        (
            "the rest begins at the start",
            'memoryview(b"".join(pieces))[written:]',
            'memoryview(b"".join(pieces))[:-written or None]',
            "a short write damages the batch",
        ),
        (
            "a folder that failed is flushed",
            "                self._failed.add(above)\n",
            "",
            "a failed fsync is taken for durable the next time",
        ),
        (
            "removing what is gone",
            "(self.folder / name).unlink(missing_ok=True)",
            "(self.folder / name).unlink(missing_ok=False)",
            "a deletion that was cut short never ends",
        ),
    ],
    "sidecar/disk/flush_probe.py": [
        (
            "a probe that measures the clock",
            "    return time.monotonic() - began_s",
            "    return began_s - time.monotonic()",
            "every disk is taken for the fastest",
        ),
        (
            "the probe has no end",
            "while len(times_s) < PROBES and time.monotonic() < end_s:",
            "while len(times_s) < PROBES or time.monotonic() < end_s:",
            "a start on a slow disk takes minutes",
        ),
    ],
    "liftpy/ingest/columns.py": [
        (
            "a protocol frame is answered",
            '                columns.publishers.replies[index] = b""\n            elif',
            "                pass\n            elif",
            "two nodes answer each other's frames for ever",
        ),
        (
            "frames of the protocol are not counted",
            "                self.protocol_frames += 1\n",
            "",
            "an operator does not see who sends frames to a subject of data",
        ),
        (
            "an ack for who wants none",
            "if inbox and self._policy is not AckPolicy.NONE and self._inboxes.allows(inbox):",
            "if inbox and self._inboxes.allows(inbox):",
            "a stream without acks sends them",
        ),
    ],
    "liftpy/ingest/in_hand.py": [
        (
            "one message too many in a batch",
            "    return min(len(raw), start + most_records)\n",
            "    return min(len(raw), start + most_records + 1)\n",
            "a batch is larger than its bound",
        ),
    ],
    "liftpy/ingest/ingest.py": [
        (
            "bytes that nobody counted",
            "self._raw_bytes += len(payload) + len(headers) + len(subject) + RECORD_OVERHEAD_BYTES",
            "self._raw_bytes += len(payload)",
            "many small publishes pass the bound of memory",
        ),
        (
            "a batch as large as the wire takes",
            "room = min(self._config.replication_max_bytes, self._shell.max_payload)",
            "room = max(self._config.replication_max_bytes, self._shell.max_payload)",
            "a batch does not fit in a message, and followers never get it",
        ),
    ],
    "liftpy/ingest/acks.py": [
        (
            "the numbers of acks stand still",
            'body = b"%b%d}" % (self._json_prefix, offset + 1)',
            'body = b"%b%d}" % (self._json_prefix, entry.base_offset + 1)',
            "all publishers of a batch get the same number",
        ),
    ],
    "liftpy/log/memory.py": [
        (
            "what was never written is trusted",
            "position <= self.never_written_from:\n            self.never_written_from = None",
            "position >= self.never_written_from:\n            self.never_written_from = None",
            "the tests' disk forgets what a failed flush has lost",
        ),
    ],
    "liftpy/log/segment.py": [
        (
            "a segment's end is one behind",
            "self.next_offset = base_offset + header.last_offset_delta + 1",
            "self.next_offset = base_offset + header.last_offset_delta",
            "two records get the same offset",
        ),
        (
            "records count batches",
            "0 if header.is_remains else header.record_count",
            "1",
            "the status shows fewer records than there are",
        ),
        (
            "a position before the one asked for",
            "            if base_offset <= offset:\n                return position\n            found = position",
            "            if base_offset < offset:\n                return position\n            found = position",
            "a read begins one batch too early",
        ),
    ],
    "liftpy/log/recovery.py": [
        (
            "what was committed is not missed",
            "lost_committed=checkpoint.high_watermark >= log_end_offset,",
            "lost_committed=checkpoint.high_watermark > log_end_offset,",
            "a replica that has lost an acknowledged record votes",
        ),
        (
            "a cut after a clean stop is nothing",
            "lost_flushed=clean and cut > 0,",
            "lost_flushed=clean and cut > 1 << 20,",
            "a replica whose disk lost flushed records is taken for complete",
        ),
        (
            "a damaged start offset",
            "log_end_offset = segments[-1].next_offset if segments else checkpoint.log_start_offset",
            "log_end_offset = segments[-1].next_offset if segments else 0",
            "a log without segments begins at zero again",
        ),
    ],
    "liftpy/log/log.py": [
        (
            "a sealed segment is appended to",
            "        if not segments or segments[-1].sealed:\n",
            "        if not segments:\n",
            "the records of a sealed segment change under its readers",
        ),
    ],
    "sidecar/metadata/control.py": [
        (
            "a stream in the inboxes",
            "if begins_under(subject, MAX_PARTITIONS_PER_STREAM, prefix):",
            "if begins_under(prefix, MAX_PARTITIONS_PER_STREAM, subject):",
            "a stream takes the answers meant for others",
        ),
    ],
    "sidecar/metadata/outgoing.py": [
        (
            "what waits to be sent has no bound",
            "        if self._waiting_bytes + len(payload) > MAX_WAITING_BYTES:",
            "        if len(payload) > MAX_WAITING_BYTES:",
            "a controller's memory fills while NATS is away",
        ),
        (
            "what was not sent still waits",
            "            self._waiting_bytes -= len(payload)\n",
            "",
            "after some hours a controller sends nothing any more",
        ),
    ],
    "sidecar/metadata/orders.py": [
        (
            "nobody steps aside",
            "        if asked is not None:\n            await ask_to_step_aside",
            "        if asked is None:\n            await ask_to_step_aside",
            "a planned transfer loses the answers of publishers",
        ),
        (
            "a time-out is refused",
            "outcome, answer = EntryOutcome.UNKNOWN, None",
            "outcome, answer = EntryOutcome.NEVER, None",
            "an operation that is applied later is said to have failed",
        ),
    ],
    "sidecar/metadata/member.py": [
        (
            "a member that leaves takes duties",
            "        self._member.leave()\n        deadline",
            "        deadline",
            "the member that stops is elected once more",
        ),
        (
            "a barrier that failed",
            "        if response.error != pb.ControlResponse.OK:\n            return False",
            "        if response.error == pb.ControlResponse.OK:\n            return False",
            "a start never sees that it has caught up",
        ),
    ],
    "sidecar/metadata/membership.py": [
        (
            "a lease outruns the image",
            "granted = self._heartbeats.answered(sent_ns, response, self._seen_index)",
            "granted = self._heartbeats.answered(sent_ns, pb.ControlResponse(leaseMs=response.leaseMs), self._seen_index)",
            "a leader that was deposed answers publishers",
        ),
        (
            "two processes share an id",
            "if own is not None and own.incarnation > self.incarnation:",
            "if own is not None and own.incarnation < self.incarnation:",
            "a process that was replaced goes on",
        ),
    ],
    "sidecar/node.py": [
        (
            "the last failure is told",
            "        if self._failure is None:\n            leave_the_process_in",
            "        if self._failure is not None:\n            leave_the_process_in",
            "a node that fails does not stop",
        ),
    ],
    "sidecar/settings.py": [
        (
            "a majority may begin",
            "    bootstrap_majority: bool = False",
            "    bootstrap_majority: bool = True",
            "two groups begin side by side",
        ),
    ],
    "sidecar/tasks.py": [
        (
            "the handler of before is forgotten",
            "        if before is not None:\n            before(loop, context)",
            "        if before is None:\n            before(loop, context)",
            "an error in the background raises another one",
        ),
        (
            "an ended task is not waited for",
            "        await end_tasks(begun)",
            "        pass",
            "heartbeats go on after the stop, and hold the session",
        ),
    ],
    "sidecar/partition/replication.py": [
        (
            "pieces without room are taken",
            "        if not self._router.reserve(self._slot, answer.piece.total_bytes):",
            "        if self._router.reserve(self._slot, answer.piece.total_bytes) is None:",
            "followers put together more than fits in memory",
        ),
        (
            "a fetch of another position",
            'held = Held(request.position, request.batchCrc) if request.HasField("position") else None',
            'held = Held(request.batchCrc, request.position) if request.HasField("position") else None',
            "followers are never served from where they are",
        ),
        (
            "a refusal without its start",
            "pb.ReplicationRefusal(leaderEpoch=effect.leader_epoch, logStartOffset=effect.log_start_offset)",
            "pb.ReplicationRefusal(leaderEpoch=effect.leader_epoch)",
            "a follower that is behind retention begins at zero for ever",
        ),
    ],
    "sidecar/partition/scrub.py": [
        (
            "a pass begins with each look",
            "if abs(now_s - progress.pass_began_s) < self._pass_every_s:",
            "if abs(now_s - progress.pass_began_s) > self._pass_every_s:",
            "the scrub reads the disk without pause",
        ),
        (
            "a pass never began",
            "            progress.pass_began_s = now_s\n",
            "",
            "the scrub reads the disk without pause from the second pass on",
        ),
    ],
    "sidecar/partition/deletions.py": [
        (
            "what was deleted is remembered for ever",
            "        if len(self._gone) > _REMEMBERED:\n",
            "        if len(self._gone) > _REMEMBERED * _REMEMBERED:\n",
            "memory grows with each stream that is deleted",
        ),
        (
            "the newest is forgotten",
            "del self._gone[next(iter(self._gone))]",
            "del self._gone[next(reversed(self._gone))]",
            "a stream is deleted again and again",
        ),
    ],
    "sidecar/partition/set.py": [
        (
            "the difference the wrong way",
            "change = diff(before, new)",
            "change = diff(new, before)",
            "a node starts the partitions that it has lost",
        ),
    ],
    "sidecar/raft/sessions.py": [
        (
            "frames of another session",
            "epoch == peer.epoch and own == peer.own_epoch",
            "epoch == peer.epoch or own == peer.own_epoch",
            "frames of a process that has ended are taken",
        ),
    ],
    "sidecar/raft/hardening.py": [
        (
            "answers of another term count",
            'case "next_node_idx" if term != core.raftCurrentTerm:',
            'case "next_node_idx" if term > core.raftCurrentTerm:',
            "a leader commits what an old answer confirmed",
        ),
        (
            "an answer beyond the log",
            '0 < message["next_node_idx"] <= core.log.last_index + 1:',
            '0 < message["next_node_idx"] <= core.log.last_index:',
            "no member that is up to date is heard",
        ),
    ],
    "sidecar/raft/lineage.py": [
        (
            "a damaged lineage is read",
            "if int(crc, 16) != crc32c.crc32c(body):",
            "if int(crc, 16) == 0:",
            "a member votes with a past that it never had",
        ),
    ],
    "sidecar/raft/journal.py": [
        (
            "a vote is not written",
            'self._term, self._vote, self._meta_changed = term, vote or "", True',
            'self._term, self._vote, self._meta_changed = term, vote or "", self._meta_changed',
            "a member votes twice in one term after a crash",
        ),
        (
            "entries without their heads",
            "        self._entries.append((command, index, term))\n        self.entry_bytes += _RECORD.size + len(command)\n        if command[:1] == CHANGE:\n            self.changes.append((command, index",
            "        self._entries.append((command, index, term))\n        self.entry_bytes += len(command)\n        if command[:1] == CHANGE:\n            self.changes.append((command, index",
            "the journal is compacted too late",
        ),
        (
            "a frame that grows for ever",
            "            if size > _NEW_FRAME_BYTES:\n",
            "            if size > _NEW_FRAME_BYTES << 12:\n",
            "compaction of a large journal needs as much memory as it is large",
        ),
    ],
    "sidecar/raft/transport.py": [
        (
            "sessions are never polled",
            "        self.sessions.poll(self._clock())\n",
            "        pass\n",
            "a member that was away is never connected again",
        ),
    ],
    "liftpy/replica/leader.py": [
        (
            "who is left out by the live",
            "for replica in sorted(slow & held.isr - wanted))",
            "for replica in sorted(slow & held.isr & wanted))",
            "a replica that was removed from the ISR counts as complete",
        ),
        (
            "a lag that is checked by no clock",
            "self._check_lag(late_ns, now_ns, out)",
            "self._check_lag(now_ns, late_ns, out)",
            "slow followers stay in the ISR for ever",
        ),
    ],
    "liftpy/replica/progress.py": [
        (
            "the mark moves one too late",
            "        if self.mark_end_offset <= offset + 1:\n",
            "        if self.mark_end_offset < offset + 1:\n",
            "a follower that keeps up is taken for slow",
        ),
        (
            "progress is any fetch",
            "if self.position is not None and offset > self.position:",
            "if self.position is not None and offset >= self.position:",
            "a follower that stands still is never removed",
        ),
    ],
    "liftpy/replica/fetch_desk.py": [
        (
            "a replica that left keeps its fetch",
            "            self.waiters.forget(replica)\n",
            "",
            "answers go to a replica that is none any more",
        ),
    ],
    "liftpy/replica/local_log.py": [
        (
            "what was cut is flushed",
            "self.flushed_end_offset = min(self.flushed_end_offset, end_offset)",
            "self.flushed_end_offset = max(self.flushed_end_offset, end_offset)",
            "records that are not on disk count as flushed",
        ),
        (
            "the watermark one beyond a cut",
            "self.high_watermark = min(self.high_watermark, end_offset - 1)",
            "self.high_watermark = min(self.high_watermark, end_offset)",
            "readers are shown an offset that was cut",
        ),
    ],
    "liftpy/replica/reads.py": [
        (
            "a waiting read ends too late",
            "if waiting.offset < ends[waiting.request.isolation]:",
            "if waiting.offset < ends[waiting.request.isolation] - 1:",
            "a reader waits for its time-out although its record has come",
        ),
    ],
    "liftpy/replica/follower.py": [
        (
            "a cut that is not asked for",
            "        if self.phase is Following.CUTTING:\n            self._cut_done",
            "        if self.phase is not Following.CUTTING:\n            self._cut_done",
            "a follower stands still after a truncation",
        ),
    ],
    "liftpy/service/snapshot.py": [
        (
            "a timer's size is forgotten",
            "            place += _TIMER.size + size_bytes\n",
            "            place += size_bytes\n",
            "a service with timers can't begin from its snapshot",
        ),
    ],
    "liftpy/service/log_timers.py": [
        (
            "one timer too many",
            "if name not in self._at_ns and len(self._at_ns) >= MAX_TIMERS:",
            "if name not in self._at_ns and len(self._at_ns) > MAX_TIMERS:",
            "a snapshot holds more timers than a reader takes",
        ),
        (
            "a timer can't be moved when all are used",
            "if name not in self._at_ns and len(self._at_ns) >= MAX_TIMERS:",
            "if len(self._at_ns) >= MAX_TIMERS:",
            "a service with all its timers stops when it moves one",
        ),
    ],
    "liftpy/service/outbox.py": [
        (
            "the count stands still",
            "        self.output_count = number + 1\n        theirs",
            "        self.output_count = number\n        theirs",
            "an output gets the number of the one before",
        ),
    ],
    "liftpy/service/sessions.py": [
        (
            "a leader replays one too few",
            'stop_position, kind = view.high_watermark + 1, "catch-up"',
            'stop_position, kind = view.high_watermark, "catch-up"',
            "a service answers before it has seen the last record",
        ),
        (
            "a gate of another epoch",
            "elif gate is not None and gate.leader_epoch == view.leader_epoch:",
            "elif gate is not None:",
            "a follower's service stops at an older leader's position",
        ),
        (
            "anybody ends a session",
            "if session is None or session.instance != hello.instance:\n            return []",
            "if session is None:\n            return []",
            "an instance that ends late takes the next one's place away",
        ),
    ],
    "liftpy/spark/options.py": [
        (
            "a pattern that begins so",
            "if re.fullmatch(self.pattern, name)]",
            "if re.match(self.pattern, name)]",
            "streams are read whose names only begin like the pattern",
        ),
    ],
    "liftpy/spark/link.py": [
        (
            "a key for a certificate",
            "tls_key_file=access.tls_key_file,",
            "tls_key_file=access.tls_cert_file,",
            "no job connects with a certificate of its own",
        ),
    ],
    "liftpy/spark/fetching.py": [
        (
            "the first answer is not the first",
            "next_offset = fetched.next_offset if next_offset is None else next_offset",
            "next_offset = fetched.next_offset",
            "a batch skips the records between two answers",
        ),
        (
            "patience is cut",
            "result_of(flying.popleft(), rules.patience_s * 4)",
            "result_of(flying.popleft(), rules.patience_s / 4)",
            "a job fails during an election",
        ),
    ],
    "liftpy/spark/offsets.py": [
        (
            "a list of offsets",
            "    if not isinstance(document, dict):\n        raise",
            "    if document is None:\n        raise",
            "a wrong option ends in a stack trace",
        ),
    ],
    "liftpy/spark/catalog.py": [
        (
            "a view that is too old",
            "now_s - self._views[0] <= max_age_s and",
            "now_s - self._views[0] >= max_age_s and",
            "a query sees yesterday's end",
        ),
        ("views are never kept", "        self._views = (now_s, asked, views)\n", "", "each partition asks the cluster again"),
    ],
    "liftpy/spark/source.py": [
        (
            "lost data fails nobody",
            "starts, ends, fail_on_data_loss=options.fail_on_data_loss)",
            "starts, ends, fail_on_data_loss=False)",
            "a batch query leaves records out in silence",
        ),
    ],
    "sidecar/status/report.py": [
        (
            "the bytes of one link",
            "**{name: sum(link.stats[name] for link in links) for name in _TRAFFIC},",
            "**{name: max(link.stats[name] for link in links) for name in _TRAFFIC},",
            "a node's traffic is shown too small",
        ),
        (
            "nobody has failed",
            "{str(key): why for key, why in self._partitions.failed.items()},",
            "{},",
            "an operator does not see a partition that has stopped",
        ),
    ],
    "sidecar/status/pages.py": [
        (
            "a node's name is not escaped",
            "<title>{html.escape(title)} ·",
            "<title>{title} ·",
            "a page runs what stands in a name",
        ),
    ],
    "liftpy/wire/batch_columns.py": [
        (
            "bits of validity are cut",
            "self.take((count + 7) // 8) if nulls else None\n        ends",
            "self.take(count // 8) if nulls else None\n        ends",
            "a batch with nulls can't be read",
        ),
        (
            "a dictionary without entries",
            "if not 0 < entry_count <= count:",
            "if not 0 <= entry_count <= count:",
            "a damaged batch is read as empty subjects",
        ),
        (
            "a dictionary larger than its records",
            "if not 0 < entry_count <= count:",
            "if not 0 < entry_count:",
            "a small frame asks for much memory",
        ),
    ],
    "liftpy/wire/frames.py": [
        (
            "any type is taken",
            "_, payload = envelope.decode(frame, _TYPES[expected])",
            "_, payload = envelope.decode(frame, frame[5])",
            "a frame of another kind is read as this one",
        ),
    ],
    "liftpy/wire/subjects.py": [
        (
            "a control subject for all",
            'return f"{self.namespace}.control.node.{node_id}"',
            'return f"{self.namespace}.control.node"',
            "nodes with rights of their own are refused",
        ),
    ],
    "liftpy/config.py": [
        (
            "a buffer in kilobytes",
            "ingest_buffer_bytes: int = 256 * 1024 * 1024",
            "ingest_buffer_bytes: int = 256 * 1024",
            "a node is cut off by its server in each burst",
        ),
    ],
    "liftpy/errors.py": [
        (
            "two errors share a code",
            '    code = "LOG_CLOSED"',
            '    code = "CORRUPTION"',
            "a closed log is taken for a damaged one",
        ),
    ],
}

MUTANTS = [Mutant(name, file, old, new, why, fresh=True) for file, bugs in _DRAWN.items() for name, old, new, why in bugs]

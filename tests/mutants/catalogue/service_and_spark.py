"""Bugs in ``liftpy/service`` and ``liftpy/spark``."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "liftpy/service/appending.py",
        ("any answer is an ack", "if not named or ack.streamUid not in (\"\", to.uid):", "if not named:", "an ack of a stream made again counts as written"),
        ("an offset that differs is written", "    if (ack.offset, ack.recordCount) != (expected_offset, count):\n", "    if ack.offset < 0:\n", "somebody else's record in the output stream goes unnoticed"),
        ("output 0 expects nothing", "expectedOffset=expected_offset,", "expectedOffset=expected_offset or None,", "the first output of two leaders is there twice"),
        ("a message of any size", "    while len(frame) > max_payload and count > 1:", "    while count < 0:", "NATS refuses outputs with many headers for ever"),
    ),
    *rows(
        "liftpy/service/routing.py",
        ("a copy is made again", "        if record.offset > place.last_number:\n", "        if record.offset >= place.last_number:\n", "an output is copied twice after a change of leader"),
        ("everything goes everywhere", "        if record.header(OUTPUT_TO) != wanted:\n            continue\n", "", "outputs for one stream are in another"),
        ("instances share partitions", "return tuple(range(partition, partitions, instances))", "return tuple(range(partitions))", "two instances write to one partition"),
        ("anybody's record is a copy", "if not said.startswith(f\"{source}/\".encode()) or", "if", "outputs are left out after a record of somebody else"),
    ),
    *rows(
        "liftpy/service/router.py",
        ("what is there is not looked at", "places[partition].last_number = number", "places[partition].last_number = -1", "outputs are copied twice"),
        ("where it was is kept", "            except LiftError as error:\n                self._places = {}\n", "            except LiftError as error:\n", "after a lost ack nothing is copied any more"),
    ),
    *rows(
        "liftpy/service/emitter.py",
        ("an output stream made again is written to", "        if bounds.uid != self._address.uid:\n", "        if not bounds.uid:\n", "outputs are lost with the stream that was deleted"),
        ("what was written is not looked at", "        if self._must_look or not self._leads():\n", "        if not self._leads():\n", "a new leader writes what the one before it had written"),
    ),
    *rows(
        "liftpy/service/feeding.py",
        ("the record before is of any epoch", "record.leader_epoch != machine.last_epoch:", "record.leader_epoch < machine.last_epoch:", "a state made of records that were lost goes on"),
        ("a cut at the position cuts", "if error.end_offset < self._machine.position:", "if error.end_offset < self._machine.position - 1:", "a state made of records that were lost goes on"),
        ("a log that begins later is enough", "if _position(snapshot) < self._log_start_offset:\n                raise", "if _position(snapshot) + 1 < self._log_start_offset:\n                raise", "a service begins without a record, and differs from the others"),
        ("the stop is told again and again", "            self._told = True\n", "", "the sidecar is flooded with acknowledgements"),
    ),
    *rows(
        "liftpy/service/host.py",
        ("orders for another instance", "if order.instance != self._instance or (", "if (", "two instances of a service lead"),
        ("an older order is obeyed", "(self._order is not None and order.ackId < self._order.ackId):", "(self._order is not None and order.ackId < 0):", "a service leads after it was told to follow"),
        ("a lease in seconds", "leased = time.monotonic() - self._heard_s < order.leaseMs / 1000", "leased = time.monotonic() - self._heard_s < order.leaseMs", "a service that is cut off leads for a quarter of an hour"),
        ("a replaced service leads on", "self._greeted, self._heard_s = False, -math.inf", "self._greeted = False", "two instances of a service lead"),
    ),
    *rows(
        "liftpy/service/log_timers.py",
        ("a timer that was set again fires twice", "            if self._at_ns.get(name) == at_ns:\n", "            if name in self._at_ns:\n", "a timer that was moved fires at its old time"),
        ("timers at the very time wait", "self._heap[0][0] <= now_ns:", "self._heap[0][0] < now_ns:", "a timer fires one record late, on this version only"),
        ("cancelled timers stay in the heap", "        if len(self._heap) > 64 + 2 * len(self._at_ns):\n", "        if len(self._heap) > 1 << 60:\n", "a service that sets and cancels timers grows without end"),
    ),
    *rows(
        "liftpy/service/machine.py",
        ("log time falls", "now_ns = max(self.now_ns, record.timestamp_ns)", "now_ns = record.timestamp_ns", "timers fire twice or in another order when a leader's clock was behind"),
        ("a record is applied twice", "                if offset < self.position:\n                    continue\n", "", "state differs after a read that overlaps"),
        ("the stop is passed", "if offset >= stop or", "if offset > stop or", "a service sees a record that can still be cut"),
        ("snapshots lie where reads end", "boundary = position // self._snapshot_every * self._snapshot_every", "boundary = position", "nodes' snapshots differ: they can't be copied"),
        ("the next snapshot is counted from the last", "(self._snapshot_position // self._snapshot_every + 1) * self._snapshot_every", "self._snapshot_position + self._snapshot_every", "nodes' snapshots lie at different positions: they can't be compared"),
        ("a leader forgets outputs", "            if self.role is Role.FOLLOWER:\n                self.outbox.trim()", "            self.outbox.trim()", "outputs are never written"),
        ("timers fire for ever", "            if limit < 0:\n", "            if limit < -(1 << 60):\n", "a service that sets a timer in itself hangs its node's service"),
    ),
    *rows(
        "liftpy/service/outbox.py",
        ("the first that is kept is dropped", "while self._kept and self._kept[0].number < self.emitted_end:", "while self._kept and self._kept[0].number <= self.emitted_end:", "an output is never written"),
        ("bytes that are dropped stay counted", "self._kept_bytes -= self._kept.popleft().size_bytes", "self._kept.popleft()", "a service waits for room that it has"),
    ),
    *rows(
        "liftpy/service/replies.py",
        ("a reply waits for no output", "self._kept[0].output_count > emitted_end", "self._kept[0].output_count < 0", "who has the answer does not find the output"),
        ("what has left is sent for ever", "reply.to is None or (reply.leader_epoch, reply.offset) <= self._sent", "reply.to is None", "each replay answers everybody again"),
    ),
    *rows(
        "liftpy/service/replying.py",
        ("followers answer too", "while self._leads() and sent", "while sent", "a state that is not the leader's answers"),
        ("any subject is answered", "if not self._inboxes.allows(to.encode(\"utf-8\", \"surrogateescape\")):", "if not to:", "a publisher has a service publish on a subject of its choice"),
    ),
    *rows(
        "liftpy/service/acting.py",
        ("effects of followers", "self._leads() and not machine.failed", "not machine.failed", "a card is charged by every node"),
        ("effects before their outputs", "effect.output_count > emitted_end:", "effect.output_count < 0:", "what a diverged state asks for is done"),
    ),
    *rows(
        "liftpy/service/effects.py",
        ("other services' results", "known = whose == service and", "known =", "one service's result ends another one's effect"),
    ),
    *rows(
        "liftpy/service/poison.py",
        ("a decision of any epoch counts", "leader_epoch in (0, record.leader_epoch)", "leader_epoch >= 0", "a decision that came late passes over what was applied and written"),
        ("what failed once is passed over", "        if self.tries < 2:\n", "        if self.tries < 1:\n", "a record is lost for a moment without memory"),
    ),
    *rows(
        "liftpy/service/wellness.py",
        ("poison moves a leadership on and on", "there.position > here.position", "there.position >= here.position", "one record moves the leadership round the nodes for ever"),
        ("others are hurt", "if helped and not hurt and", "if helped and", "a service's outputs stop for another one's sake"),
    ),
    *rows(
        "liftpy/service/sessions.py",
        ("an acknowledgement of an earlier order", "or session.instance != ack.instance or ack.ackId != order.ack_id:", "or session.instance != ack.instance:", "a service leads before it has replayed"),
        ("who is heard is replaced", "if now_ns < session.expires_ns - self._session_ns // 2:", "if now_ns < 0:", "a forged hello sets a service back"),
        ("services without bound", "if session is None and len(self._sessions) >= MAX_SERVICES:", "if session is None and len(self._sessions) >= MAX_SERVICES * MAX_SERVICES:", "forged hellos fill a node's memory"),
        ("a service that left holds a promotion up", "            self._gate.names -= {hello.service}\n", "            pass\n", "a partition has no leader until a service comes back"),
        ("the replay's end is past HW", "        stop_position = view.high_watermark + 1\n        names", "        stop_position = view.log_end_offset\n        names", "a service sees records that may be cut"),
    ),
    *rows(
        "liftpy/service/snapshot.py",
        ("another service's state is taken", "    if whose != str(identity):\n", "    if not whose:\n", "a copied folder gives a service another one's state"),
        ("timers that do not add up", "if len(timers) != count or place != len(data):", "if len(timers) != count:", "a damaged snapshot loses a timer"),
    ),
    *rows(
        "liftpy/service/store.py",
        ("a snapshot is not flushed", "            os.fsync(file.fileno())\n", "", "after a power cut the newest snapshot is empty"),
        ("a damaged snapshot stays in the way", "                path.rename(path.with_suffix(\".damaged\"))\n", "", "each start reads and warns of the same damage"),
        ("the one that outputs need is dropped", "if needed is None or position != needed.position:", "if True:", "a service can't produce its outputs again"),
        ("snapshots past a cut stay", "            if found > position:\n", "            if found > position + 1:\n", "a state of lost records is begun from"),
        ("two processes share a folder", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB", "two processes of a service overwrite each other's snapshots"),
    ),
    *rows(
        "liftpy/spark/catalog.py",
        ("bounds of any age", "and not timed and now_s - self._views[0] <= max_age_s:", "and not timed:", "a stream query never sees new records"),
        ("deleted streams are asked for ever", "with suppress(NotFoundError, UnavailableError):", "with suppress(UnavailableError):", "a query fails for a stream that was made again although a pattern names it"),
        ("an end past what is committed", "None if ending_at is None else min(ending_at, bounds.end_offset),", "ending_at,", "a batch query reads uncommitted offsets, and waits"),
        ("views that are behind are taken", "if key in views and views[key].end_offset < end]", "if key not in views]", "a replanned batch says that records are lost"),
    ),
    *rows(
        "liftpy/spark/failures.py",
        ("errors lose their code", "raise SourceError(f\"[{error.code}] {error}\", error.code) from error", "raise SourceError(str(error)) from error", "Spark users can't tell what to do"),
    ),
    *rows(
        "liftpy/spark/fetching.py",
        ("records of a later epoch are taken", "        if epoch > planned.leader_epoch:\n", "        if epoch < 0:\n", "a replanned batch holds other records than before"),
        ("a gap is no loss", "    if span.rules.fail_on_data_loss:\n        raise DataLossError(f\"{text}. Read", "    if not span.rules.fail_on_data_loss:\n        raise DataLossError(f\"{text}. Read", "records are lost in silence"),
        ("a range that lost all reads past its end", "lost_end = min(bounds.log_start_offset, span.end_offset)", "lost_end = bounds.log_start_offset", "a task reads records of the next one"),
        ("spans overlap", "                next_offset = end\n", "                next_offset = end - 1 if end - 1 > next_offset else end\n", "rows come twice in tables"),
        ("all tasks read from one replica", "planned.replicas[(planned.start_offset // _SPREAD_RECORDS + planned.partition) % len(planned.replicas)]", "planned.replicas[0]", "one node serves all of Spark"),
    ),
    *rows(
        "liftpy/spark/link.py",
        ("a forked worker uses its parent's connection", "    _links.clear()\n\n", "    pass\n\n", "tasks in forked workers hang"),
        ("links have no bound", "while len(_links) > MAX_LINKS:", "while len(_links) > MAX_LINKS * MAX_LINKS:", "a driver keeps a connection and a thread for each query ever made"),
        ("secrets keep their line end", ".read_text(encoding=\"utf-8\").strip()", ".read_text(encoding=\"utf-8\")", "a password from a file never fits"),
    ),
    *rows(
        "liftpy/spark/offsets.py",
        ("micro-batches go back", "clamped = {key: max(offset, start.get(key, offset)) for key, offset in end.items()}", "clamped = dict(end)", "after a leader change Spark reads records twice"),
        ("a limit is per partition", "    if total <= limit_records:\n        return dict(end)", "    if max(waiting.values(), default=0) <= limit_records:\n        return dict(end)", "micro-batches are larger than the limit"),
        ("a stream made again is gone on with", "if stream in now and now[stream] != uid}", "if stream in now and not now[stream]}", "a checkpoint goes on in a new stream's offsets"),
        ("so long ago is so long from now", "max(0, now_ns - self.back_ns)", "max(0, now_ns + self.back_ns)", "a query of the last ten minutes waits for the next ones"),
        ("-1 is the last record", "int(text) not in (EARLIEST, LATEST)", "True", "startingOffsets = -1 reads a record that was there, -2 two"),
        ("partition -0 and others", "key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS", "key.isdigit()", "offsets of strange digits are taken"),
    ),
    *rows(
        "liftpy/spark/source.py",
        ("a stream made again is read without being asked for", "        if not self.options.take_recreated:\n            check_uids(known, now)\n", "", "a query goes on in another stream of the same name, silently"),
        ("a stream made again is read from the old offset", "starts = without(begun.next_offsets, self._made_again(begun.uids, end.uids))", "starts = begun.next_offsets if self._made_again(begun.uids, end.uids) else begun.next_offsets", "the first records of the new stream are passed over"),
        ("what is lost of the old stream is not said", "[*losses, *_left_behind(begun, ended, again)]", "losses", "an operator does not hear that records were lost"),
        ("a small micro-batch waits for ever", "if waiting < least and since_s < self.options.max_trigger_delay_s:", "if waiting < least:", "the last records of a quiet stream never come"),
        ("an empty look counts as a micro-batch", "self._triggered_s = now_s if waiting else self._triggered_s", "self._triggered_s = now_s", "a record of a quiet stream waits up to twice maxTriggerDelay"),
        ("AvailableNow waits for more", "if not least or self._target is not None:", "if not least:", "a run that should end with what is there does not read it"),
    ),
    *rows(
        "liftpy/spark/planning.py",
        ("fewer tasks than were asked for", "-(-wanted * whole.record_count // total)", "wanted * whole.record_count // total", "cores of a cluster stay idle"),
        ("tasks of more records than allowed", "-(-whole.record_count // max_records) if max_records else 1", "whole.record_count // max_records if max_records else 1", "a task is larger than its worker bears"),
        ("the strategy error is not kept", "if spec.must_match and found >= view.end_offset:", "if spec.must_match and found > view.end_offset:", "a query that should say that nothing is so new waits"),
    ),
    *rows(
        "liftpy/spark/options.py",
        ("credentials in the URL", "        if \"@\" in url:", "        if \"@@\" in url:", "every plan shows the password"),
        ("milliseconds are microseconds", "_NS_PER_MS = 1_000_000", "_NS_PER_MS = 1_000", "a query from a time begins in 1970"),
        ("names of streams may be part of others", "if re.fullmatch(self.pattern, name)]", "if re.match(self.pattern, name)]", "a query reads streams that were not asked for"),
        ("latest as a batch's start", "if self.starting is not None and (self.starting.word == \"latest\" or LATEST in dict(self.starting.offsets).values()):", "if self.starting is not None and self.starting.word == \"latest\":", "a batch query reads nothing, in silence"),
    ),
    *rows(
        "liftpy/spark/planning.py",
        ("an end that is gone is no loss", "        end = view.end_offset\n    if first", "    if first", "a batch waits for records that were lost"),
        ("ranges are not contiguous", "whole.record_count * i // count for i", "whole.record_count // count * i for i", "the last records of a split range are not read"),
        ("offsets that are not committed", "if offset > views[key].end_offset:", "if offset > views[key].end_offset + 1:", "a batch waits for a record that is not there"),
        ("a partition that is gone is no loss", "if starts.get(key, 0) < ends[key]:", "if starts.get(key, 0) > ends[key]:", "records of a deleted stream are missing in silence"),
    ),
    *rows(
        "liftpy/spark/rows.py",
        ("batches have no bound in bytes", "if group and (rows + more_rows > MAX_ROWS or size_bytes + more_bytes > MAX_BYTES):", "if group and rows + more_rows > MAX_ROWS:", "large records fill a worker's memory"),
        ("the last rows are left out", "        if group:\n            yield self._batch(group)\n", "        if len(group) > 1:\n            yield self._batch(group)\n", "the last rows of a task are missing"),
        ("times in nanoseconds", "fixed(timestamps_ns(group) // _NS_PER_US,", "fixed(timestamps_ns(group),", "timestamps are in the year 50,000"),
    ),
    *rows(
        "liftpy/spark/schema.py",
        ("columns named twice", "if not checked or len(set(checked)) != len(checked):", "if not checked:", "a riddle of Arrow instead of an error"),
    ),
    *rows(
        "liftpy/spark/session.py",
        ("Java 8 is Java 1", "return int(second) if first == 1 and second else first", "return first", "the error names a Java that nobody has"),
    ),
]  # fmt: skip

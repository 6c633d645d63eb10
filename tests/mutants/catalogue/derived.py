"""Bugs in what a leader derives from its log: message ids, last sequences of subjects, conditions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, rows

MUTANTS: list[Mutant] = [
    *rows(
        "liftpy/ingest/recent_ids.py",
        (
            "what is not committed makes ids expire",
            "        self._expire(self._time_ns)\n",
            "        self._expire(self._tail[-1].time_ns if self._tail else self._time_ns)\n",
            "a message is stored twice after a cut",
        ),
        (
            "what a cut id hid is forgotten",
            "            self._by_id.update({message_id: older for message_id, older in before.items() if older.ids})",
            "            pass",
            "a message is stored twice after a cut",
        ),
        (
            "a wall clock that jumps expires ids",
            "return known_ns > self._now_ns() - self.window_ns",
            "return False",
            "a message is stored twice by a leader whose clock is ahead",
        ),
        (
            "log time falls",
            "time_ns = max(self._tail[-1].time_ns if self._tail else self._time_ns, batch.timestamp_ns)",
            "time_ns = batch.timestamp_ns",
            "a leader whose clock is behind keeps ids for too short a time",
        ),
        (
            "the tail is not bounded",
            "        for taken in self._tail:\n            if self.size_bytes <= until_bytes:",
            "        for taken in ():\n            if self.size_bytes <= until_bytes:",
            "memory grows while nothing is committed",
        ),
        (
            "what was let go is new",
            "        if self.is_blind(now_wall_ns):\n            return f",
            "        if self._lost_ns < -1:\n            return f",
            "a leader stores again what it had no room to remember",
        ),
        (
            "what is in hand needs no room",
            "_BATCH_BYTES + size_of(ids), self.in_hand.size_bytes",
            "_BATCH_BYTES + size_of(ids), 0",
            "while nothing is appended a node takes ids without a bound",
        ),
        (
            "an id that a leader took goes for the next one",
            "        return setting and f",
            "        return False and f",
            "a leader forgets ids within their window",
        ),
    ),
    *rows(
        "liftpy/ingest/derived_budget.py",
        (
            "neighbours pay",
            "of_node = min(self._node.size_bytes - self._node.bound_bytes, grown_bytes)",
            "of_node = self._node.size_bytes - self._node.bound_bytes",
            "one partition's flood makes another forget its ids",
        ),
        (
            "a node has no bound",
            "return max(self.size_bytes - self.bound_bytes, of_node, 0)",
            "return max(self.size_bytes - self.bound_bytes, 0)",
            "many partitions with full windows end the process",
        ),
        (
            "leaders fill a node to its end",
            "is_open = node.size_bytes + more_bytes <= node.bound_bytes * _OPEN_NUMERATOR // _OPEN_DENOMINATOR",
            "is_open = node.size_bytes + more_bytes <= node.bound_bytes",
            "followers let go of what leaders elsewhere take",
        ),
        (
            "who joins is not counted",
            "        self._node = node\n        self.hold(size_bytes)",
            "        self._node = node\n        self.size_bytes = size_bytes",
            "what was restored counts for nothing",
        ),
    ),
    *rows(
        "liftpy/ingest/producers.py",
        (
            "a producer that was let go is a new one",
            " or not self.is_whole or not self.share.has_room(STATE_BYTES)",
            " or not self.share.has_room(STATE_BYTES)",
            "a batch is stored twice by a leader that had no room for its producer",
        ),
    ),
    *rows(
        "liftpy/ingest/derived.py",
        (
            "a cut into what is committed keeps what was folded",
            "elif end_offset <= self._high_watermark:",
            "elif end_offset < 0:",
            "ids of records that are gone make duplicates of new ones",
        ),
        (
            "a replay begins at the window of the log's end",
            "            return log.log_start_offset\n        chunks = log.read(log.high_watermark, 1, end_offset=log.log_end_offset).chunks",
            "            return log.log_start_offset\n        chunks = log.read(log.newest_offset, 1, end_offset=log.log_end_offset).chunks",
            "after a cut ids within the window are missing",
        ),
        (
            "a gap in what was fetched is passed over",
            "            if batch.base_offset != self.end_offset:\n                self._is_behind = True",
            "            if batch.base_offset != self.end_offset:\n                continue",
            "what is appended during a replay is taken twice, or the node stops",
        ),
        (
            "an empty log has a last record",
            "return log.newest_offset if subject == self._subject and log.log_end_offset > log.log_start_offset else -1",
            "return log.newest_offset if subject == self._subject else -1",
            "a publish that expects an empty subject is refused when retention has emptied the stream",
        ),
        (
            "nobody notices that the log was asked",
            "    asks, found = _ASKS in names, ids_of(headers, names)",
            "    asks, found = False, ids_of(headers, names)",
            "each fail-over answers conditional publishes with 503 until all of the log is read",
        ),
    ),
    *rows(
        "liftpy/ingest/last_of_subjects.py",
        (
            "a new leader reads on forever",
            "        self.low = low\n",
            "        pass\n",
            "conditional publishes are answered 503 for ever",
        ),
        (
            "what is read backwards hides what is newer",
            "self._keep({subject: offset for subject, offset in found.items() if subject not in self._kept})",
            "self._keep(found)",
            "a lost race is won",
        ),
        (
            "a cut below where it began leaves what was read",
            "if self._began_at is not None and end_offset < self._began_at:",
            "if False:",
            "a subject has a last record that is gone",
        ),
        (
            "what retention took is a last record",
            "        return offset if offset >= self._log_start_offset() else -1\n\n    @property",
            "        return offset\n\n    @property",
            "who expects an empty subject is refused for ever",
        ),
        (
            "what is full stays full",
            "self._log_start_offset() > self._full_until or (self._wants_bytes",
            "(self._wants_bytes",
            "conditional publishes are refused for ever",
        ),
        (
            "the table has no bound",
            "        if not self.share.excess_bytes(grown_bytes):\n            return\n        start",
            "        if True:\n            return\n        start",
            "memory grows with the subjects",
        ),
        (
            "a tail that is folded is counted twice",
            "            self._grow(-size_bytes)\n            for subject",
            "            pass\n            for subject",
            "conditional publishes are refused for want of room that is there",
        ),
    ),
    *rows(
        "liftpy/ingest/conditions.py",
        (
            "an expectation is about the batch's first",
            "        if offset != end_offset + index:",
            "        if offset < end_offset:",
            "exactly-once appends are twice or in the wrong place",
        ),
        (
            "records of the same batch are not seen",
            "        before.update(zip(subjects[seen:index], count(end_offset + seen), strict=False))",
            "        pass",
            "of two that expect the same sequence both are stored",
        ),
        (
            "the id of the record before it in the batch is not seen",
            'stands = ids.get(index - 1, b"") if index else last_id',
            "stands = last_id",
            "an expected last message id is judged by an older record",
        ),
        (
            "a filter is taken for a subject",
            "    if has_wildcards(subject):\n        if len",
            "    if False:\n        if len",
            "the last sequence of a filter is always 0",
        ),
    ),
    *rows(
        "liftpy/ingest/ingest.py",
        (
            "a conditional publish waits with the core",
            "conditional=bound or numbering is not None,",
            "conditional=bool(columns.expected) or numbering is not None,",
            "a publish is stored behind another record than it expected",
        ),
    ),
    *rows(
        "liftpy/ingest/state_file.py",
        (
            "any partition's state is taken",
            "if state.of != of or state_name(end_offset) != name:",
            "if state_name(end_offset) != name:",
            "a stream that was made again begins with the ids of the one before",
        ),
        (
            "a state above HW is taken",
            "if end_offset - 1 > log.high_watermark:",
            "if False:",
            "what is cut later is known on: a message is acknowledged as a duplicate of a record that is gone",
        ),
        (
            "a state of a log that was written anew is taken",
            "if log.epochs.epoch_at(end_offset - 1) != state.leader_epoch:",
            "if False:",
            "after an unclean election messages are left out as duplicates of records that are lost",
        ),
        (
            "a state that ends within a batch is taken",
            "if not chunks or parse_header(chunks[0]).base_offset != end_offset:",
            "if not chunks:",
            "the replay meets a batch that does not follow, and the node stops",
        ),
        (
            "older states stay",
            "        storage.replace(name, pieces)\n        remove_states(storage, keep=name)",
            "        storage.replace(name, pieces)\n        pass",
            "the folder fills with states",
        ),
        (
            "a state has no bound",
            "if size_bytes > MAX_STATE_BYTES:",
            "if False:",
            "a start loads gigabytes",
        ),
    ),
    *rows(
        "liftpy/ingest/state_writer.py",
        (
            "a state is written as often as HW is",
            "return since_ns >= self.every_ns and grown_bytes",
            "return grown_bytes",
            "the disk writes more states than records",
        ),
        (
            "a failed write counts as done",
            "            size_bytes = 0\n",
            "            size_bytes = 1\n",
            "a disk that takes no states is seen nowhere",
        ),
    ),
    *rows(
        "liftpy/ingest/derived.py",
        (
            "a state is written before its log is flushed",
            "< end_offset <= min(self.end_offset, log.durable_end_offset):",
            "< end_offset <= self.end_offset:",
            "after a power cut a state covers records that are gone",
        ),
        (
            "a state that can't be used is half used",
            "        except CorruptionError:\n            self._begin(None)",
            "        except CorruptionError:\n            pass",
            "a leader begins without the ids of its log",
        ),
        (
            "what came since a state is not replayed",
            "        self._high_watermark = state.end_offset - 1\n        self.committed(self._log.high_watermark)",
            "        self._high_watermark = state.end_offset - 1",
            "ids of a log that was opened expire too late",
        ),
    ),
    *rows(
        "liftpy/ingest/recent_ids.py",
        (
            "a state of a shorter window will do",
            "if window_ns < self.window_ns:",
            "if False:",
            "after the window was made longer a message is stored twice",
        ),
        (
            "the columns of a state may be anything",
            "bool((np.diff(last_offsets) > 0).all() and (np.diff(offsets) > 0).all())",
            "True",
            "a state of a version with a bug is taken",
        ),
    ),
    *rows(
        "sidecar/partition/states.py",
        (
            "a state is written before its HW",
            "if self._flusher.checkpoint(self._write) and self._unwritten is None",
            "if self._unwritten is None",
            "states are taken that nobody writes",
        ),
        (
            "a stop writes no state",
            "unwritten = self.writer.begin(closing=True)",
            "unwritten = None",
            "each start reads the window of all logs again",
        ),
        (
            "two states are written at once",
            "self._unwritten is None and self._writing is None:",
            "self._unwritten is None:",
            "an older state replaces a newer one",
        ),
        (
            "a log that was closed is written beside",
            "if unwritten is not None and not self._log.closed:",
            "if unwritten is not None:",
            "a state is stored beside a log that has failed",
        ),
        (
            "one state is all",
            "    def _written(self, _: asyncio.Future[None]) -> None:\n        self._writing = None",
            "    def _written(self, _: asyncio.Future[None]) -> None:\n        pass",
            "a restart replays all since the first state",
        ),
        (
            "a stop does not wait for what is being written",
            "            await asyncio.wait([self._writing])",
            "            pass",
            "the folder is written to when it belongs to another process",
        ),
        (
            "parts that can't be used are begun with",
            "return made if made.restore(found.state) else None",
            "return made if made.restore(found.state) or True else None",
            "a file of a shorter window counts as restored",
        ),
        (
            "what does not fit is not counted",
            "return FoundState(state, len(unfit))",
            "return FoundState(state)",
            "states that are left out at each start are seen nowhere",
        ),
    ),
    *rows(
        "sidecar/partition/replaying.py",
        (
            "reading backwards ends after a slice",
            "        if not complete:\n            self._read_beside",
            "        if False:\n            self._read_beside",
            "conditional publishes are answered 503 for ever",
        ),
    ),
    *rows(
        "liftpy/ingest/unsure.py",
        (
            "what was answered is sent again at each loss",
            "        self._written.clear()\n",
            "",
            "publishers are answered again and again",
        ),
        (
            "what was answered long ago is sent again",
            " or written[0][0] < now_ns - self._age_ns",
            "",
            "after a quiet night all that was answered last is answered twice",
        ),
    ),
    *rows(
        "liftpy/ingest/ingest.py",
        (
            "a leader takes on behind what went past it",
            "        self.leave()\n        return True",
            "        return True",
            "what its followers heard while its NATS server was gone is passed over",
        ),
        (
            "who may not listen by it hands over",
            "not hearing.is_denied and ",
            "",
            "a leadership goes round and round where a subscription is denied",
        ),
    ),
    *rows(
        "liftpy/ingest/standby.py",
        (
            "what was heard before a pause that was missed is kept",
            "stream.optimistic_concurrency, replica.state.pauses",
            "stream.optimistic_concurrency, 0",
            "a publish that was refused is stored by the next leader",
        ),
        (
            "what is being read under other settings is kept",
            "            self._reading = []\n            self.heard.clear()",
            "            self.heard.clear()",
            "a publish that was refused is stored by the next leader",
        ),
        (
            "what was heard under other settings is kept",
            "            self.heard.clear()  # its leader may have refused",
            "            pass  # its leader may have refused",
            "a publish that was refused is stored by the next leader",
        ),
        (
            "what it commits itself counts as answered",
            " and self.replica.role is not RoleName.LEADER:\n            self._marks",
            ":\n            self._marks",
            "who waits for what the leader before has not committed waits for ever",
        ),
        (
            "who leads no more forgets what it had begun to sort",
            "        self.heard.put_back()",
            "        self.heard.held_out = None",
            "a promotion that fails loses what the next one needs",
        ),
        (
            "it sorts in one go",
            "            while self.now_ns() < end_ns:",
            "            while end_ns:",
            "a full buffer stops heartbeats for most of a second",
        ),
        (
            "what comes while it sorts is lost",
            "            taken.fresh += late.messages",
            "            pass",
            "each fail-over under load loses some milliseconds",
        ),
        (
            "who stands by for nobody listens on",
            "        if not replica.stands_by:\n            self.stop()\n            return",
            "        if not replica.stands_by:\n            return",
            "a node that left the ISR keeps what it hears for ever",
        ),
    ),
    *rows(
        "liftpy/ingest/sorting.py",
        (
            "who has been answered is answered again",
            "if stored.last_offset > self.answered_through and columns.publishers.replies[index]:",
            "if columns.publishers.replies[index]:",
            "a request has two answers after each fail-over",
        ),
        (
            "what was passed over is appended",
            "            elif step.passed[index]:",
            "            elif step.passed[index] and not step.messages:",
            "what a leader refused is stored behind what came after it",
        ),
        (
            "a condition is taken for met",
            "            elif step.is_bound(index):",
            "            elif step.is_bound(index) and not step.messages:",
            "a compare-and-set that was refused is stored",
        ),
        (
            "the log shows nothing before it is heard",
            "self.ends.at(steps[0].heard_ns - self.rules.credit_ns)",
            "self.ends.at(steps[0].heard_ns)",
            "a message that was slow to the follower is stored twice",
        ),
    ),
    *rows(
        "liftpy/wire/filters.py",
        (
            "a filter keeps other keys of that length",
            'np.isin(held.view(f"S{length}").ravel(), of_length) if length else True',
            "True",
            "readers by key get other keys' records",
        ),
        (
            "an absent key is an empty one",
            "return found & column.valid() if column.validity is not None else found",
            "return found",
            "records without a key come to readers of the empty one",
        ),
        (
            "subjects or keys",
            "            fits &= _is_one_of(",
            "            fits |= _is_one_of(",
            "a filter by both gives what fits either",
        ),
    ),
    *rows(
        "liftpy/wire/kept.py",
        (
            "what is kept moves up",
            "deltas = (batch.offsets()[mask] - batch.base_offset).astype(np.uint32)",
            "deltas = np.arange(int(mask.sum()), dtype=np.uint32)",
            "filtered records have other offsets than the log's",
        ),
        (
            "what is kept ends early",
            "return reach(sealed, header.next_offset)",
            "return sealed",
            "compaction leaves gaps between batches",
        ),
    ),
    *rows(
        "liftpy/wire/few_headers.py",
        (
            "headers are looked for where the values have no validity",
            "                    position += _padded((count + 7) // 8)",
            "                    position += 0",
            "a tombstone beside a message id makes a follower's log look damaged",
        ),
    ),
    *rows(
        "liftpy/ingest/heard.py",
        (
            "what is heard has no bound",
            "        if self._lacks(size_bytes):\n            return False",
            "        if size_bytes < 0:\n            return False",
            "a flood fills the memory of every follower",
        ),
        (
            "a node has no bound for what is heard",
            " or self.node.size_bytes + size_bytes > self.node.bound_bytes",
            "",
            "a thousand partitions hold a thousand times as much",
        ),
        (
            "the oldest make room while the log stands still",
            "while self._lacks(size_bytes) and self.blocks and self.blocks[0].heard_ns <= grown_ns:",
            "while self._lacks(size_bytes) and self.blocks:",
            "what waits for a leader is pushed out by what came later",
        ),
    ),
]

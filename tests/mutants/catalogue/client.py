"""Bugs in ``liftpy/client``."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "liftpy/client/addressing.py",
        ("one look is all", "now < self._ask_at or (self.task is not None and not self.task.done()):", "now < self._ask_at or self.task is not None:", "a publisher never finds a stream that moved twice"),
        ("doubts do not wait longer", "min(self._wait_s * 2, _LONGEST_WAIT_S)", "self._wait_s", "publishers of a stream that is away flood the metadata group"),
    ),
    *rows(
        "liftpy/client/admin.py",
        ("an answer to another request is taken", "if response.operationId != operation_id:", "if not response.operationId:", "an operator is told of somebody else's request"),
        ("each attempt is a new operation", "        request.operationId = secrets.token_bytes(OPERATION_ID_SIZE_BYTES)\n        payload = frames.sealed(request)\n", "        payload = frames.sealed(request)\n", "a request without an operation id is refused, or applied twice"),
        ("a fenced answer is any error", "    _Error.FENCED: FencedError,\n", "", "applications can't tell who is to blame"),
        ("replicas are partitions", "            replicationFactor=replicas,", "            replicationFactor=partitions,", "a stream has as many replicas as partitions"),
        ("only the first page is read", "        while pages.request is not None:\n            pages.add(await self._read(", "        if pages.request is not None:\n            pages.add(await self._read(", "partitions of large streams are missing"),
    ),
    *rows(
        "liftpy/client/answers.py",
        ("a second answer fails the first", "if asked is not None and not asked.answer.done():", "if asked is not None:", "an answer that comes twice ends the reading task"),
        ("a refused inbox stays open", "            self.is_open = False  # the next", "            pass  # the next", "after a denial a client never gets an answer again"),
        ("denials concern everybody", "if (asked.subject == subject and is_publish) or ours", "if is_publish or ours", "one denied request fails all that are under way"),
    ),
    *rows(
        "liftpy/client/client.py",
        ("a stream of before is published to", "        self._streams.pop(name, None)\n\n    async def list", "\n    async def list", "a deleted stream's subject is published on"),
        ("a stream that a deposed leader does not know is not there", "            found = await self._admin.stream(stream, linearizable=True)", "            raise", "a new stream is said not to exist"),
        ("partition 3 of 3", "if partition >= len(stream.partitions):", "if partition > len(stream.partitions):", "IndexError instead of an error that says which partitions there are"),
        ("status pages end at the first", "        while page.get(\"more\") and page[\"partitions\"]:", "        while page.get(\"more\") and not page[\"partitions\"]:", "liftpy status shows some of the partitions"),
        ("two publishers at once make two", "            found = self._publishers.get((stream, partition))\n            if found is None:\n                found = self._publishers[stream, partition]", "            found = None\n            if found is None:\n                found = self._publishers[stream, partition]", "order between publishes of one client is lost"),
        ("a range ends before it begins", "if not 0 <= start_offset <= end_offset:", "if not 0 <= start_offset:", "a range that is wrong is read as empty"),
    ),
    *rows(
        "liftpy/client/consumer.py",
        ("a reader asks for more than a message", "min(options.max_bytes, transport.max_payload_bytes - _PAYLOAD_RESERVE_BYTES)", "options.max_bytes", "each read is answered in pieces"),
        ("a named node is left", "self.node = self.options.node or progress.node", "self.node = progress.node", "a read from one named node goes elsewhere"),
        ("reading goes on behind what was asked for", "next_offset=offset + 1, last_offset=offset,", "next_offset=offset, last_offset=offset,", "an iteration after a break gives a record twice"),
        ("lineage is forgotten between iterations", "last_offset=offset, leader_epoch=last.leader_epoch)", "last_offset=-1, leader_epoch=0)", "records lost by an unclean election go unnoticed"),
        ("bounds of a follower", "if not self.options.node and head.leader != head.node:", "if not self.options.node and not head.leader:", "a reader is told of an end below what was acknowledged to it"),
        ("complaints are not sent", "                    await self._complain(progress)\n", "", "a node that serves damage goes on"),
        ("reads until a time go on", "            progress.end_offset = end_offset\n            break", "            break", "a read up to a time never ends"),
    ),
    *rows(
        "liftpy/client/credentials.py",
        ("several ways at once", "if sum(ways) > 1:", "if sum(ways) > 2:", "of two credentials one is used, and nobody says which"),
        ("a seed of an account", "    if not is_user:\n", "    if is_user is None:\n", "an account's seed is sent where a user's belongs"),
        ("a certificate alone", "if bool(self.tls_cert_file) != bool(self.tls_key_file):", "if self.tls_key_file and not self.tls_cert_file:", "a riddle of the TLS library instead of an error"),
    ),
    *rows(
        "liftpy/client/iteration.py",
        ("a broken reader ends quietly", "        await ready.put(LiftError(f\"reading {name} failed: {error!r}\"))\n        raise", "        await ready.put(None)\n        raise", "a bug looks like the end of a stream"),
        ("two tasks read in one iteration", "if self._waiting or self.replaced:", "if self.replaced:", "two tasks each get some of the records"),
        ("an iteration that was left goes on fetching", "    def __del__(self) -> None:\n        self._ahead.abandon()", "    def __del__(self) -> None:\n        pass", "a break out of a loop leaves a task that fetches for ever"),
        ("a closed client leaves its readers waiting", "            ready.put_nowait(ClientClosedError(f\"the client was closed while {name} was read\"))", "            pass", "a loop over records hangs when the client is closed"),
    ),
    *rows(
        "liftpy/client/outgoing.py",
        ("an empty key is none", "keyed=key is not None,", "keyed=bool(key),", "records with an empty key are never compacted"),
        ("a value that looks enveloped is sent plainly", "if content.startswith(envelope.MAGIC):", "if content == envelope.MAGIC:", "a plain value is taken for an envelope and dropped"),
        ("line ends in headers", "if text != text.strip() or \"\\r\" in text or \"\\n\" in text:", "if text != text.strip() or \"\\r\" in text:", "a header smuggles others in"),
    ),
    *rows(
        "liftpy/client/parser.py",
        ("subjects are not compared", "if self._check_subjects and not self._belongs(sid, subscription.subject, subject):", "if self._check_subjects and not subject:", "a message of another subject is taken for an answer"),
        ("lines have no bound", "if len(buffer) - position > LONGEST_LINE_BYTES:", "if len(buffer) - position > LONGEST_LINE_BYTES * LONGEST_LINE_BYTES:", "a server that sends garbage fills the memory"),
        ("messages of any size", "return size_bytes if size_bytes <= LARGEST_MESSAGE_BYTES else -1", "return size_bytes", "a forged size makes the parser wait for a gigabyte"),
        ("what belongs to a lost connection is read on", "            if self._resets != resets:\n                return", "            if self._resets < resets:\n                return", "bytes of the old connection are parsed in the new one"),
        ("TLS may be left out", "                raise Error(\"nats: the server offers no TLS, and TLS is wanted here: refused\")", "                return", "passwords are sent in the clear"),
        ("known subjects have no bound", "            if len(self.known) >= _REMEMBERED_SUBJECTS:\n                self.known.clear()\n", "", "a stream of many subjects fills the memory"),
    ),
    *rows(
        "liftpy/client/positions.py",
        ("until takes one record less", "    return until + 1\n", "    return until\n", "the last record that was asked for is missing"),
        ("times without a zone are local", "moment.replace(tzinfo=UTC)", "moment.astimezone()", "a read by time begins hours off"),
        ("minutes are months", "\"m\": 60,", "\"m\": 2_592_000,", "liftpy consume --from -10m reads ten months"),
        ("new begins at the last record", "    if start == \"new\":\n        return bounds.end_offset", "    if start == \"new\":\n        return max(bounds.high_watermark, bounds.log_start_offset)", "a reader of new records gets an old one"),
    ),
    *rows(
        "liftpy/client/progress.py",
        ("records above HW are taken", "if batch.last_offset > head.highWatermark:", "if batch.base_offset > head.highWatermark:", "uncommitted records reach applications"),
        ("epochs may fall", "if batch.leader_epoch < epoch:", "if batch.leader_epoch < 0:", "records of a log that was cut reach applications"),
        ("gaps are passed over", "        if batch.base_offset > position:\n", "        if batch.base_offset > position + 1:\n", "a record is missing and nobody is told"),
        ("one answer is enough to leave offsets out", "        if self.compacted:\n            return\n", "        return\n", "a forged answer makes a reader skip records"),
        ("memory of decompressed batches has no bound", "if taken_bytes > MAX_DECOMPRESSED_BYTES and position > self.next_offset:", "if taken_bytes < 0:", "one answer decompresses to gigabytes"),
        ("HW falls with the answerer", "self.high_watermark = max(self.high_watermark, head.highWatermark)", "self.high_watermark = head.highWatermark", "a reader that changes nodes waits although records are committed"),
        ("nothing is an answer", "if position == self.next_offset and committed >= position and not self.done:", "if position == self.next_offset and committed > position + 1 and not self.done:", "a reader stands still at the last record"),
        ("a stream made again is read on", "head.error == _Error.OK and uid and head.streamUid != uid:", "head.error == _Error.OK and uid and not head.streamUid:", "offsets of a deleted stream are read in the new one"),
    ),
    *rows(
        "liftpy/client/publisher.py",
        ("acks of another stream count", "if (ack.stream, ack.partition) != (self._stream, self._partition):", "if ack.partition != self._partition:", "an application believes an ack that somebody else gave"),
        ("a message that was refused for good is sent again", "        if ack.ackError in _AGAIN:\n", "        if ack.ackError:\n", "a publish that is too large is tried for half a minute"),
        ("windows are never left", "        self._window.leave(message.size_bytes)\n", "", "a publisher stops after its first window"),
        ("a silent ack is a refusal", "self._fail(number, OutcomeUnknownError(self._silence()))", "self._fail(number, UnavailableError(self._silence()))", "an application sends again what was stored"),
        ("a denied publish is known not to be stored", "OutcomeUnknownError(str(denial)) if self._has_right else denial", "denial", "an application sends again what was stored"),
        ("patience has no end", "        if now >= message.give_up:\n", "        if now >= message.give_up + 3600:\n", "publishes to a stream that is gone wait for ever"),
        ("waits do not grow", "message.wait_s = min(message.wait_s * 2, _LONGEST_WAIT_S)", "message.wait_s = _FIRST_WAIT_S", "refused publishers flood a leader that is overloaded"),
    ),
    *rows(
        "liftpy/client/slices.py",
        ("a slice takes its end too", "                end = int(np.searchsorted(offsets, end_offset))", "                end = int(np.searchsorted(offsets, end_offset, side=\"right\"))", "a record past the range is read"),
        ("control records are read", "        if batch.header.control:\n            return None\n", "", "applications get the protocol's own records"),
        ("a record at the time is before it", "np.flatnonzero(self.timestamps_ns() >= timestamp_ns)", "np.flatnonzero(self.timestamps_ns() > timestamp_ns)", "a read up to a time takes the records of that time"),
    ),
    *rows(
        "liftpy/client/transport.py",
        ("a swallowed cancellation", "    if task.cancelling() > before:\n        raise asyncio.CancelledError\n", "", "a cancelled connect goes on in the background"),
        ("another loop's client", "        if asyncio.get_running_loop() is not self._loop:\n            raise ConfigError(", "        if self._loop is None:\n            raise ConfigError(", "a client used from another loop hangs"),
    ),
    *rows(
        "liftpy/client/window.py",
        ("the count of a window is not kept", "self.count += 1", "self.count += 0", "a window of messages has no bound"),
    ),
]  # fmt: skip

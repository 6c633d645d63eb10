"""Bugs in ``liftpy/client`` that no test had noticed, or that were there: closes, quotas, what is in hand, what may be stored."""

from __future__ import annotations

from tests.mutants.mutant import rows

HERE = "tests/unit/client/"
MUTANTS = [
    *rows(
        "liftpy/client/publisher.py",
        (
            "a quota's turn is a search for a leader",
            "self._taken = self._taken and after_s > 0",
            "self._taken = False",
            "beyond a quota each message waits for the ack of the one before",
        ),
        (
            "one that is taken brings quotas forward",
            "other.resend_at = max(now, other.not_before)",
            "other.resend_at = now",
            "a change of leader makes publishers ignore the quota",
        ),
        (
            "the close of a client is not heard",
            ", transport.tell_of_close(self._on_close)]",
            "]",
            "what a publisher of the application's own has in flight is waited for without an end",
        ),
        tests=(f"{HERE}test_client_publisher_steps.py", f"{HERE}test_client_endings.py"),
    ),
    *rows(
        "liftpy/client/publisher.py",
        (
            "an attempt has no longest time",
            "message.attempt_s = min(message.attempt_s * 2, self._options.timeout_s)",
            "message.attempt_s = message.attempt_s * 2",
            "a lost message is asked for again after minutes",
        ),
        tests=(f"{HERE}test_client_message_ids.py",),
    ),
    *rows(
        "liftpy/client/transport.py",
        (
            "the close cancels who waits for an inbox",
            "            await asyncio.wait({opening})\n",
            "            await asyncio.shield(opening)\n",
            "a task of the application ends as if it had been cancelled",
        ),
        tests=(f"{HERE}test_client_endings.py",),
    ),
    *rows(
        "liftpy/client/lane.py",
        (
            "a batch is as old as its last attempt",
            "parcel.first_at = parcel.first_at if parcel.attempt else now",
            "parcel.first_at = now",
            "a producer whose partition is gone tries for ever",
        ),
        tests=(f"{HERE}test_lane.py",),
    ),
    *rows(
        "liftpy/client/producing.py",
        (
            "a renewed connection stays the newest",
            "                renewed = transport.reconnected\n                self.lane.go_back",
            "                self.lane.go_back",
            "after one reconnect a producer sends everything again without a pause",
        ),
        (
            "a batch that no message holds is tried on",
            '            raise PublishRejectedError(str(error), "TOO_LARGE") from None\n        except UnavailableError as error:\n            self._refused',
            "            self._refused(parcel.sequence, parcel.attempt, Refusal.AGAIN, UnavailableError(str(error)), now)\n        except UnavailableError as error:\n            self._refused",
            "a producer behind a server with a smaller bound stands still for its patience",
        ),
        tests=(f"{HERE}test_producer_leavings.py",),
    ),
    *rows(
        "liftpy/client/producer.py",
        (
            "what was sent twice and refused is not stored",
            "unknown = attempts > 1 or (attempts and not isinstance(error, PublishRejectedError))",
            "unknown = attempts and not isinstance(error, PublishRejectedError)",
            "an application sends what is stored once more, by another producer",
        ),
        ("a flush waits out the linger", "            course.lane.hurry()\n", "", "a flush takes as long as batches may wait"),
        (
            "a partitioner that raises takes room",
            "            places = self._shared_out(end - start, some_keys, partition)  # first: a partitioner that raises takes no room\n            if not self._buffer.try_enter(taken, end - start):\n                await self._buffer.enter(taken, end - start)\n                self._must_go_on()\n",
            "            if not self._buffer.try_enter(taken, end - start):\n                await self._buffer.enter(taken, end - start)\n                self._must_go_on()\n            places = self._shared_out(end - start, some_keys, partition)\n",
            "after some bad keys every send waits for ever",
        ),
        tests=(f"{HERE}test_producer_leavings.py", f"{HERE}test_producer_partitions.py"),
    ),
    *rows(
        "liftpy/client/consumer.py",
        (
            "what is at hand is passed over",
            "if iteration is None or not iteration.is_idle or self._fetched is None or self.backwards:",
            "if iteration is None or self._fetched is None or self.backwards:",
            "a group commits records that nobody was given",
        ),
        (
            "seek brings its epoch along",
            "positions.resolved(start, datetime.now(UTC)), 0\n",
            "positions.resolved(start, datetime.now(UTC)), self._after_epoch\n",
            "a reader that goes back is told that the log was cut",
        ),
        (
            "who begins last says where",
            "if self.bounds is None and start is self._start:",
            "if True:",
            "a position that is stored lies behind records that are still to be read",
        ),
        tests=(f"{HERE}test_consuming.py",),
    ),
    *rows(
        "liftpy/client/progress.py",
        (
            "what was left for the next question is passed over",
            "if head.compacted and all_taken:",
            "if head.compacted:",
            "large batches of a compacted stream are lost to readers",
        ),
        (
            "a filter goes past what is committed",
            "and (looked <= head.highWatermark or not self.committed)",
            "",
            "a forged or early answer makes readers leave records out",
        ),
        (
            "a filter goes past what was left",
            "if self.wanted and all_taken and piece is None else -1",
            "if self.wanted and piece is None else -1",
            "large batches are lost to readers with a filter",
        ),
        tests=(f"{HERE}test_client_progress.py",),
    ),
    *rows(
        "liftpy/client/iteration.py",
        (
            "who waits is not told of the close",
            "            self._ready.put_nowait(None)\n",
            "",
            "a task that reads hangs when another one seeks or closes",
        ),
        (
            "what is closed while it begins goes on",
            "        if self.ended:  # closed meanwhile, by another task\n            return None\n",
            "",
            "an iteration that was closed reads on, unseen",
        ),
        tests=(f"{HERE}test_client_iteration.py",),
    ),
    *rows(
        "liftpy/client/many.py",
        (
            "a look that failed was the first",
            "        first = not self._begun  # also where an earlier look has failed, or was cancelled\n",
            "        first, self._begun = not self._begun, True\n",
            "who wanted what is new is given everything",
        ),
        (
            "what can't be had is left behind",
            "            self._unread = taken\n",
            "",
            "records that can't be decompressed are passed over by whoever goes on",
        ),
        tests=(f"{HERE}test_consuming_many.py",),
    ),
    *rows(
        "liftpy/client/group.py",
        (
            "a close commits what is in hand",
            "        self._closed = True\n        self._news.set()\n        await",
            "        self._closed = True\n        self._finish()\n        self._news.set()\n        await",
            "what an application was about to do is never done",
        ),
        (
            "a partition goes before its commit",
            "            if key in self._done and not await self._try_commit(machine, {key: self._done[key]}):\n                continue\n",
            "",
            "each move of a partition gives records again",
        ),
        (
            "a partition goes while it is in hand",
            "held = {key for key, _ in self._in_hand}",
            "held = set[PartitionKey]()",
            "two members work on the same records",
        ),
        (
            "what was lost is done",
            "        if self.generation_of(part.key) == part.generation:\n            self._done",
            "        if True:\n            self._done",
            "a member commits for another",
        ),
        (
            "what was lost is handed on",
            "            while self._ready and self._pumps.get(self._ready[0][0].gained.key) is not self._ready[0][0]:\n                self._ready.popleft()  # given up or lost since\n",
            "",
            "two members work on the same records",
        ),
        (
            "nobody looks whether the session lasts",
            "if self._machine.may_deliver(pump.gained.key, now_ns()):",
            "if True:",
            "a process that was stopped works on what is another's",
        ),
        (
            "who has an identity leaves all the same",
            "goodbye = None if self._instance else machine.leave()",
            "goodbye = machine.leave()",
            "each restart of a static member moves its partitions",
        ),
        (
            "an unanswered heartbeat ends the member",
            '            self.counters["unanswered"] += 1\n            logger.debug("group %s: %s", self.name, error)\n            return\n        self._follow',
            "            raise\n        self._follow",
            "an election of the coordinator ends all members",
        ),
        (
            "what is in hand is passed over",
            "if self._in_hand[key, pump.gained.generation] or pump.consumer is None:",
            "if pump.consumer is None:",
            "what an application works on is committed",
        ),
        tests=(f"{HERE}test_group_heartbeats.py",),
    ),
    *rows(
        "liftpy/client/cursor.py",
        (
            "a newer code is no refusal",
            "{name_of(code)}",
            "{pb.GroupCode.Name(code)}",
            "an application beside a newer coordinator meets a ValueError",
        ),
        tests=(f"{HERE}test_cursor.py",),
    ),
    *rows(
        "liftpy/client/queue.py",
        (
            "partitions that are added are nobody's",
            "        if _now_ns() >= self._look_at_ns:\n            await self._look_for_partitions()\n",
            "",
            "records of added partitions are given to nobody until a worker starts anew",
        ),
        tests=(f"{HERE}test_queue.py",),
    ),
    *rows(
        "liftpy/client/calling.py",
        (
            "a refusal speaks for earlier attempts",
            "                    if maybe_stored:  # what",
            "                    if False:  # what",
            "a command is carried out twice, under two ids",
        ),
        (
            "an address is for ever",
            "doubtful = isinstance(error, MisaddressedError | NobodyListensError)",
            "doubtful = False",
            "who called a service before its stream was made again never reaches it",
        ),
        (
            "every refusal asks the metadata group",
            "doubtful = isinstance(error, MisaddressedError | NobodyListensError)",
            "doubtful = True",
            "while leaders are elected all callers ask the metadata group",
        ),
        tests=(f"{HERE}test_client_calling.py",),
    ),
    *rows(
        "liftpy/client/queue.py",
        (
            "a wait begins with its answer",
            "sent_ns + answer.waitMs * limits.NS_PER_MS",
            "_now_ns() + answer.waitMs * limits.NS_PER_MS",
            "two workers have one record",
        ),
        (
            "the wait of a queue stands still while the machine sleeps",
            "            if now_ns < job.over_ns - _MARGIN_NS:",
            "            if time.monotonic_ns() < job.until_ns - _MARGIN_NS:",
            "a laptop that wakes up works on what others have",
        ),
        (
            "a dead one is another at each burial",
            'name = f"{self.name}/{key.stream}/{key.uid}/{key.partition}/{record.offset}"',
            'name = f"{self.name}/{key.stream}/{key.uid}/{key.partition}/{record.offset}/{part.lease}"',
            "one dead record is several dead letters",
        ),
        (
            "a close does not wait for what comes",
            "            await asyncio.wait({self._coming}, timeout=_LEAVE_S)\n",
            "            pass\n",
            "records that were granted to who closes come again when their wait is over",
        ),
        (
            "what is given back is handed on",
            "jobs, self._ready = list(self._ready), deque()",
            "jobs = list(self._ready)",
            "two workers have one record",
        ),
        tests=(f"{HERE}test_queue.py",),
    ),
    *rows(
        "liftpy/client/settling.py",
        (
            "a defect leaves others waiting",
            "                    some += self._told\n                    self._told.clear()\n",
            "                    pass\n",
            "an acknowledgement is waited for without an end",
        ),
        (
            "a defect looks as a cancellation",
            "error if isinstance(error, Exception) else asyncio.CancelledError()",
            "asyncio.CancelledError()",
            "a worker ends as if it had been cancelled",
        ),
        tests=(f"{HERE}test_settling.py",),
    ),
    *rows(
        "liftpy/client/sync.py",
        (
            "a call begins behind the end",
            "                with self._lock:\n                    self.ended = True\n",
            "                if True:\n                    self.ended = True\n",
            "a thread that calls while another one closes hangs",
        ),
        tests=(f"{HERE}test_sync_calls.py",),
    ),
    *rows(
        "liftpy/client/group.py",
        (
            "one command is all of a commit",
            "for first in range(0, len(news), limits.MAX_POSITIONS):",
            "for first in range(0, min(1, len(news)), limits.MAX_POSITIONS):",
            "a member of a thousand partitions commits some of them",
        ),
        (
            "a session's clock stands still while the machine sleeps",
            'clock = getattr(time, "CLOCK_BOOTTIME", None)',
            "clock = None",
            "a laptop that wakes up works on what others have",
        ),
        tests=(f"{HERE}test_group_heartbeats.py",),
    ),
    *rows(
        "liftpy/client/queue.py",
        (
            "a range between two settlements is nobody's",
            "range(0, len(ranges), MAX_RANGES)",
            "range(0, len(ranges), MAX_RANGES + 1)",
            "an acknowledgement of many records leaves one out",
        ),
        tests=(f"{HERE}test_queue.py",),
    ),
    *rows(
        "liftpy/client/queue_log.py",
        (
            "what is kept is counted in answers",
            "while self._held_bytes > HELD_BYTES and len(self._held) > len(found):",
            "while len(self._held) > 64 and len(self._held) > len(found):",
            "a worker on large records takes gigabytes",
        ),
        (
            "retention ends a take",
            "            except OffsetOutOfRangeError:  # retention was faster\n                start = max(start + 1, (await self.look()).log_start_offset)\n                continue\n",
            "            except ZeroDivisionError:\n                continue\n",
            "a worker behind retention stands still",
        ),
        (
            "one watch is all",
            "if self._watch is None or self._watch.done():",
            "if self._watch is None:",
            "an idle worker asks without a pause",
        ),
        (
            "a watch that fails is over at once",
            "            await asyncio.sleep(_FAILED_S)\n",
            "            pass\n",
            "an idle worker asks without a pause",
        ),
        (
            "who lacks the last one may answer",
            "floor_high_watermark=end - 1, compacted",
            "floor_high_watermark=end - 2, compacted",
            "a take waits for a replica that is behind",
        ),
        tests=(f"{HERE}test_queue_log.py",),
    ),
    *rows(
        "liftpy/client/many.py",
        (
            "a close is not heard by who waits",
            "                if self._closes != closes:\n                    return None\n                if not done:",
            "                if not done:",
            "a task that reads meets a KeyError when another one closes",
        ),
        (
            "a close in a look is not heard",
            "                if self._closes != closes:\n                    return None\n                self._arm()",
            "                self._arm()",
            "what was closed is read on, unseen",
        ),
        tests=(f"{HERE}test_consuming_many.py",),
    ),
    *rows(
        "liftpy/client/producer.py",
        (
            "a send that is cancelled has been taken",
            "            course.newest, self._has_begun = ticket, True\n",
            "            course.newest = ticket\n            await asyncio.sleep(0)\n",
            "a send that is tried again after a time-out is stored twice",
        ),
        (
            "who comes later passes who yields",
            "        if self._has_begun or self._yielding:\n",
            "        if self._has_begun:\n            self._has_begun = False\n",
            "records of two tasks change their order",
        ),
        tests=(f"{HERE}test_producer_leavings.py", f"{HERE}test_producer.py"),
    ),
    *rows(
        "liftpy/client/iteration.py",
        (
            "an error beside what is taken is nobody's",
            "                self._seen.append(found)\n",
            "",
            "an application that takes many records at a time hangs after an error",
        ),
        tests=(f"{HERE}test_taken_together.py",),
    ),
    *rows(
        "liftpy/client/receiving.py",
        (
            "what came with the handshake is lost",
            "        if early := await reader.read():\n            receiver._keep(early)",
            "        await reader.read()",
            "the first messages of a new connection are lost, or the next are misread",
        ),
        (
            "the bound is of all that ever waited",
            "        self._left.clear()\n        self._left_bytes = 0\n        if self._paused",
            "        self._left.clear()\n        if self._paused",
            "after some megabytes a reader pauses its socket at every read",
        ),
        tests=(f"{HERE}test_client_receiving.py",),
    ),
]

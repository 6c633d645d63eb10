"""Bugs in ``sidecar/bus`` and ``liftpy/ingest``."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "sidecar/bus/absence.py",
        ("silence is absence", "    except (nats.errors.TimeoutError, TimeoutError):\n        return Sign.SILENT", "    except (nats.errors.TimeoutError, TimeoutError):\n        return Sign.ABSENT",
         "a paused node is deposed as if it were gone"),
        ("a node is asked for once", "            del self._asking[node_id]\n", "            pass\n", "a follower that dies later is never found absent"),
    ),
    *rows(
        "sidecar/bus/backlog.py",
        ("any connection's backlog", "if connection[\"cid\"] == client_id)", "if connection[\"cid\"] >= client_id)", "a node leaves publishes out because another one is slow"),
        ("questions without an answer pile up", "while len(self._outstanding) >= _OUTSTANDING:", "while len(self._outstanding) >= _OUTSTANDING * _OUTSTANDING * _OUTSTANDING:", "memory grows while the server does not answer"),
        ("a silent server is asked as often", "(_ASK_EVERY_NS if now_ns - self._silent_ns < _SILENT_AFTER_NS else _SILENT_EVERY_NS)", "_ASK_EVERY_NS", "a server without that right is asked fifty times a second"),
    ),
    *rows(
        "sidecar/bus/connection.py",
        ("what waits has no bound", "if self.unsent_bytes + size_bytes > (self._send_buffer_bytes if connected else _KEPT_BYTES if keep else 0):", "if size_bytes > (self._send_buffer_bytes if connected else _KEPT_BYTES if keep else 0):",
         "a slow server fills the node's memory"),
        ("acks have no bound", "if self.unsent_bytes + size_bytes > (self._send_buffer_bytes if self._is_up else _KEPT_BYTES):", "if size_bytes > self._send_buffer_bytes:", "acks fill the memory while NATS is away"),
        ("larger than the server takes", "        if size_bytes > self._max_payload:\n", "        if size_bytes > 2 * self._max_payload:\n", "the server cuts the node off"),
        ("order is lost while some wait", "if outlet is not None and not self._pending and self._is_up:", "if outlet is not None and self._is_up:", "frames overtake others: sessions see gaps"),
        ("a closed listener stays", "        if self._sinks.pop(b\"%d\" % sid, None) is not None:\n            self._unsubscribe(sid)", "        self._sinks.pop(b\"%d\" % sid, None)", "the server goes on sending what nobody takes"),
        ("subscriptions are believed at once", "        for _ in range(2):  #", "        for _ in range(0):  #", "a leader answers before its subscription stands: publishes are lost"),
        ("who was not heard is forgotten", "                self._unheard = asking + self._unheard\n", "", "a leader that starts in a burst never opens its reads"),
        ("reconnects tell nobody", "        for changed in self._on_change:\n            changed(True)", "        for changed in self._on_change:\n            changed(False)", "a leader gives up its leadership after a reconnect"),
    ),
    *rows(
        "sidecar/bus/cuts.py",
        ("what arrived before counts again", "        self._seen = seen\n", "", "losses with a second connection are never counted"),
        ("a server that is silent knows", "        self.unknown += told is None\n", "", "losses that nobody can count are not told"),
    ),
    *rows(
        "sidecar/bus/drops.py",
        ("drops are said and kept", "        self._unsaid.clear()\n", "", "the log counts the same drops every second"),
        ("drops at the end are not said", "        self._say()\n        if self._timer is not None:\n            self._timer.cancel()", "        if self._timer is not None:\n            self._timer.cancel()", "the last second's drops are nowhere"),
    ),
    *rows(
        "sidecar/bus/inflow.py",
        ("what is held does not fill the buffer", "return self.waiting_bytes + self._node.held_bytes >= self._buffer_bytes", "return self.waiting_bytes >= self._buffer_bytes", "memory for publishes is twice its bound"),
        ("an answer about another connection counts", "if told.client_id == self._client_id and not told.reason:", "if not told.reason:", "publishes are left out for a connection that is gone"),
        ("room is left out as well", "await self._leave_out(due_bytes - max(room_bytes, 0))", "await self._leave_out(due_bytes)", "publishes are dropped although there is room"),
        ("the rest of a lost connection is parsed", "            self._parser.reset()\n            self.cuts", "            self.cuts", "half a message of the old connection is joined to the new one"),
        ("a burst's thread outlives its connection", "        self._end_thread()\n        self._gate.cut_off()", "        self._gate.cut_off()", "a thread reads a descriptor that is another's"),
    ),
    *rows(
        "sidecar/bus/leaving_out.py",
        ("who waits for an answer is left out", "if fields is None or fields[2] or not self._is_ours(fields[0], fields[1]):", "if fields is None or not self._is_ours(fields[0], fields[1]):", "publishers that wait get neither ack nor refusal"),
        ("what is left out is not told", "            given_up(count)\n", "            given_up(1)\n", "drops are counted one for a thousand"),
        ("envelopes are left out", "                if buffer.startswith(MAGIC, position + payload):\n                    break\n", "", "addressed publishers are never answered"),
    ),
    *rows(
        "sidecar/bus/notify.py",
        ("notices name no stream", "            streamUid=key.uid,\n        )\n        frame", "        )\n        frame", "a notice of a deleted stream is taken for its namesake's"),
        ("testimony goes anywhere", "if kind in (MessageType.STEP_ASIDE, MessageType.LEADER_QUESTION) and not self._inboxes.allows(reply):", "if kind is MessageType.STEP_ASIDE and not self._inboxes.allows(reply):", "a forged question makes a node publish on a subject of the asker's choice"),
        ("log start and HW change places", "            high_watermark=notice.highWatermark,\n            log_start_offset=notice.logStartOffset,", "            high_watermark=notice.logStartOffset,\n            log_start_offset=notice.highWatermark,", "followers are not woken when HW rises"),
    ),
    *rows(
        "sidecar/bus/parser.py",
        ("a repeated line needs no whole message", "last = len(buffer) - total - 2", "last = len(buffer) - total", "a message is taken before its last bytes came"),
        ("one bad message ends the connection", "            except Exception as error:  # a bug, but", "            except MemoryError as error:  # a bug, but", "whoever finds a bug cuts off a whole node"),
    ),
    *rows(
        "sidecar/partition/quiet.py",
        ("an answer about fewer counts", "if answer.count == len(question.fetches):", "if answer.count:", "an answer to another question confirms quiet partitions"),
        ("a question of any length", "if count > MAX_PER_QUESTION:", "if count > MAX_PER_QUESTION * MAX_PER_QUESTION:", "a forged question keeps a node's loop"),
        ("confirmations of the question before", "        self._confirmed.clear()\n", "", "memory grows with each quiet fetch"),
        ("questions are never asked again", "        self._is_ticking = len(self._quiet) > 0\n        if self._is_ticking:", "        if not self._is_ticking:", "quiet partitions are asked for once"),
    ),
    *rows(
        "sidecar/partition/reads.py",
        ("any inbox may read", "        if self._inboxes.allows(reply):\n", "        if reply:\n", "a node publishes where a reader wants"),
        ("who left the ISR still listens", "            self._shared.close()\n            self._shared = None", "            self._shared = None", "readers are answered by a replica that is behind"),
    ),
    *rows(
        "sidecar/bus/receiving.py",
        ("reading is never resumed", "            if not self.transport.is_closing():\n                self.transport.resume_reading()", "            if self.transport.is_closing():\n                self.transport.resume_reading()", "a connection stands still after a burst"),
        ("two pieces are one", "b\"\".join(self._left)", "self._left[-1]", "bytes of a burst are lost"),
    ),
    *rows(
        "sidecar/partition/replication.py",
        ("askers who are never answered stay", "        if len(self._tokens) > _MAX_TOKENS:\n            del self._tokens[next(iter(self._tokens))]\n", "", "memory grows with fetches that are not answered"),
        ("microseconds are nanoseconds", "flush_ns=request.flushMicros * 1000,", "flush_ns=request.flushMicros,", "a slow disk of a follower is never seen"),
        ("a second answer has no asker", "            self._kept[effect.kept_for] = asker\n", "            pass\n", "idle followers hear of new records half a second late"),
        ("answers may go to anybody", "allowed = self._inboxes.allows(reply) and reply.startswith(f\"{self._subjects.inbox(replica)}.\".encode())", "allowed = self._inboxes.allows(reply)", "a forged fetch sends a partition's records to another node"),
        ("damaged batches are an unreadable answer", "            event = events.RequestFailed(request_id=request_id, reason=str(error), bad_offset=error.offset)", "            event = events.RequestFailed(request_id=request_id, reason=str(error))", "a leader never learns that it serves damage"),
        ("what was fetched is not checked", "split_batches(response.batches, verify=True)", "split_batches(response.batches, verify=False)", "damage spreads from the leader to all replicas"),
        ("memory of pieces has no bound", "if slot not in self._assembling and self._assembling and self.assembling_bytes + size_bytes > ASSEMBLING_BYTES:", "if slot not in self._assembling and self._assembling and size_bytes > ASSEMBLING_BYTES:", "a thousand partitions with large batches fill the memory"),
        ("a fetch that was not sent is waited for", "            self._feed(events.RequestFailed(request_id=request_id, reason=\"not connected\"))", "            pass", "a follower waits for its time-out after each reconnect"),
    ),
    *rows(
        "sidecar/bus/rights.py",
        ("a denial at the start is a line in the log", "            self._is_starting = False\n            self._fatal(error)", "            self._is_starting = False", "a node without rights seems to be up"),
        ("each denial is a line", "            self._said.add((is_publish, subject))\n", "", "the log is full of denials"),
    ),
    *rows(
        "sidecar/bus/socket_thread.py",
        ("a stopped thread reads once more", "            if self._stopping:\n                return -1\n", "", "bytes of a new connection are read by the old one's thread"),
    ),
    *rows(
        "liftpy/ingest/acks.py",
        ("JetStream counts from 0", "seq = entry.base_offset + 1  #", "seq = entry.base_offset  #", "clients of JetStream take the first ack for an error"),
        ("a batch is acknowledged before its end", "            if entry.last_offset > through_offset:\n                break", "            if entry.base_offset > through_offset:\n                break", "records above HW are acknowledged"),
        ("acks of another policy", "            if not reply or own is not policy:\n", "            if not reply:\n", "a publisher is told of LEADER and of ALL"),
        ("the count of waiting ones stays", "            self.count -= entry.last_offset - entry.base_offset + 1\n", "", "after a while all publishers are refused as overload"),
        ("a negative ack names an offset", "            offset=-1,\n", "            offset=0,\n", "a publisher takes a refusal for offset 0"),
    ),
    *rows(
        "liftpy/ingest/columns.py",
        ("a header block of any size", "if block and (len(block) > MAX_HEADER_BYTES or block.count", "if block and (len(block) > 1000 * MAX_HEADER_BYTES or block.count", "a publish with megabytes of headers is stored"),
        ("a tombstone keeps its value", "                columns.values[index] = None\n            elif name == \"Nats", "                pass\n            elif name == \"Nats", "a delete by a plain publisher deletes nothing"),
        ("offset 1 is no expectation", "if published.offset > 0:", "if published.offset > 1:", "a publish that is bound to offset 1 is appended anywhere"),
        ("another partition's publish is stored", "(not published.stream or published.partition in (0, key.partition))", "True", "a record lands in the wrong partition"),
        ("keys that are empty are none", "if published.key or published.keyed:", "if published.key:", "records with an empty key are never compacted"),
    ),
    *rows(
        "liftpy/ingest/ingest.py",
        ("headers are free", "self._raw_bytes += len(payload) + len(headers) + len(subject) + _RECORD_OVERHEAD_BYTES", "self._raw_bytes += len(payload)", "a flood of empty messages has no bound"),
        ("one record more than the bound", "if total > batch_bytes:\n                return max(index, start + 1)", "if total > batch_bytes:\n                return index + 1", "batches are larger than one message"),
        ("whoever was confirmed before", "self.heard = self.heard or listener is self._listener", "self.heard = True", "a leader that came back answers reads before its subscription stands"),
        ("overloads answer without a lease", "            if self._may_refuse():\n                self._acks.reject(columns", "            if True:\n                self._acks.reject(columns", "a publisher is told no although the next leader stored it"),
        ("an expectation is about the batch's first", "if all(expected == end + index for index, expected in columns.expected.items()):", "if all(expected >= end for index, expected in columns.expected.items()):", "exactly-once appends are twice or in the wrong place"),
        ("what was rejected stays", "refused = self._tokens.pop(token, None)", "refused = self._tokens.get(token)", "memory grows with each refusal, and a leader never gets idle"),
        ("dropped publishes are counted as one", "self._count_dropped(reason, publishers.replies.count(b\"\"))", "self._count_dropped(reason, 1)", "losses are told too small"),
        ("a stop keeps what came", "        self._raw = []\n        self._raw_bytes = 0\n        self._tokens.clear()", "        self._tokens.clear()", "publishes of an earlier leadership are appended in the next"),
    ),
]  # fmt: skip

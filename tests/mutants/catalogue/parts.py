"""Bugs of partitions and of connections where something goes wrong half way: a reconnect, a disk, a thread that can't be had."""

from __future__ import annotations

from tests.mutants.mutant import rows

_RECONNECTS = ("tests/unit/bus/test_reconnects.py",)

MUTANTS = [
    *rows(
        "liftpy/client/parser.py",
        (
            "a late PONG makes a second connection",
            "                if asyncio.current_task() is not self._reconnection_task:\n                    raise",
            "                raise",
            "in a flood each publish comes by two connections",
        ),
        (
            "first words end the reconnecting",
            "        except Exception as error:\n            raise ProtocolError(f\"nats: the server's first words",
            "        except MemoryError as error:\n            raise ProtocolError(f\"nats: the server's first words",
            "a proxy that says nonsense once takes a node off NATS for good",
        ),
        (
            "who is left is read on",
            "        made.transport.abort()\n",
            "",
            "a server sends everything to a connection that nobody reads",
        ),
        (
            "half a message of the connection before",
            "        made, self._made = self._made, None\n        if made is None:\n            return\n        self._ps.reset()",
            "        made, self._made = self._made, None\n        if made is None:\n            return",
            "a record holds protocol lines of another connection",
        ),
        tests=_RECONNECTS,
    ),
    *rows(
        "sidecar/bus/connection.py",
        (
            "one who fails keeps the others from hearing",
            '            except Exception as error:\n                unexpected(f"what follows',
            '            except MemoryError as error:\n                unexpected(f"what follows',
            "a leader whose connection is back believes that it is lost",
        ),
        tests=_RECONNECTS,
    ),
    *rows(
        "sidecar/bus/backlog.py",
        (
            "a link that is away is a silent server",
            "            self._silent_ns, self._next_ns = 0, now_ns + _ASK_EVERY_NS",
            "            pass",
            "for 10 s after an outage of one connection the server cuts the other unseen",
        ),
        (
            "the silence of one server is the next one's",
            "if self._about != (server_id, client_id):",
            "if not self._about:",
            "for 10 s after a change of servers nobody asks what the new one holds",
        ),
        tests=("tests/unit/bus/test_what_a_server_holds.py",),
    ),
    *rows(
        "sidecar/bus/cuts.py",
        (
            "each server has client ids of its own",
            "(t.server_id, t.client_id) == named]",
            "t.client_id == cut.client_id]",
            "a restart of NATS is counted as a loss of all that was ever published",
        ),
        (
            "what is said of the next connection counts for the one before",
            "_Cut(server_id, client_id, last)",
            "_Cut(server_id, client_id, None)",
            "the least that was lost with a connection is not told",
        ),
        tests=("tests/unit/bus/test_what_a_server_holds.py",),
    ),
    *rows(
        "sidecar/bus/inflow.py",
        (
            "another server's backlog is this one's",
            "if (told.server_id, told.client_id) == self._identity() and not told.reason:",
            "if told.client_id == self._client_id and not told.reason:",
            "publishes are left out that the new server does not hold",
        ),
        (
            "without a thread nobody reads",
            "            transport.resume_reading()\n            self.errors",
            "            self.errors",
            "a node that is out of descriptors goes deaf with the first burst",
        ),
        tests=("tests/unit/bus/test_who_reads_a_burst.py", "tests/unit/bus/test_inflow_steps.py"),
    ),
    *rows(
        "sidecar/bus/standby_link.py",
        (
            "a missing file ends the node",
            "            except ConfigError as error:",
            "            except MemoryError as error:",
            "a node stops because its credentials were being replaced when it first stood by",
        ),
        tests=("tests/unit/bus/test_standby_link.py",),
    ),
    *rows(
        "sidecar/partition/driver.py",
        (
            "each wake-up of a held replica is kept",
            "_NEWEST_COUNTS = (MetadataHeard, NoticeReceived, WokenUp)",
            "_NEWEST_COUNTS = (MetadataHeard, NoticeReceived)",
            "whoever may publish on a notify subject ends a node whose disk hangs",
        ),
        tests=("tests/unit/partition/test_executor.py",),
    ),
    *rows(
        "sidecar/partition/services.py",
        (
            "a goodbye must have an address",
            'reply.decode(errors="replace")',
            "reply.decode()",
            "a service that leaves is kept, and an error is logged",
        ),
        tests=("tests/unit/service/test_service_desk.py",),
    ),
    *rows(
        "sidecar/partition/worker.py",
        (
            "who left the ISR answers reads",
            "        self.reads.share(self._node.settings.node_id in held.isr)\n",
            "        self.reads.share(self._node.settings.node_id in held.state.replicas)\n",
            "readers are sent to a replica that falls behind",
        ),
        (
            "a state is stored before its log is closed",
            "            self.log.close(clean=healthy and not delete)\n            if healthy and not delete:\n                store_state()",
            "            if healthy and not delete:\n                store_state()\n            self.log.close(clean=healthy and not delete)",
            "a node starts with what is derived from records that were never flushed",
        ),
        (
            "each replica counts changes of the ISR",
            "    if before is not None and after.leader == node_id:",
            "    if before is not None:",
            "operators see three times as many changes as there were",
        ),
        tests=("tests/unit/partition/test_orders_of_the_shell.py",),
    ),
    *rows(
        "sidecar/partition/executor.py",
        (
            "a replica acts on a promise that its log does not know",
            "        self._t.log.promised(leader_epoch)\n        self._t.feed(events.LeaderEpochPersisted(leader_epoch=leader_epoch))",
            "        self._t.feed(events.LeaderEpochPersisted(leader_epoch=leader_epoch))\n        self._t.log.promised(leader_epoch)",
            "a candidate's log is opened again with the epoch before",
        ),
        (
            "a standby does not see what was fetched",
            "        self._t.standby.shown()\n        self._t.flusher.appended()",
            "        self._t.flusher.appended()",
            "a new leader appends what is in its log already",
        ),
        tests=("tests/unit/partition/test_orders_of_the_shell.py",),
    ),
    *rows(
        "sidecar/partition/replication.py",
        (
            "a leader that stops drops what is on its way",
            "        self._bus.retire(self._listeners)\n",
            "        for listener in self._listeners:\n            listener.close()\n",
            "followers wait for a time-out after each election",
        ),
        (
            "half a batch keeps its room",
            "        if not held.position:\n            self._router.release(self._slot)\n",
            "",
            "batches in pieces of other partitions wait for ever",
        ),
        tests=("tests/unit/partition/test_orders_of_the_shell.py",),
    ),
    *rows(
        "sidecar/partition/flushing.py",
        (
            "a state is written behind a HW that was not stored",
            "        if error is None:\n            stored()",
            "        stored()",
            "after a crash the derived state is ahead of the log",
        ),
        (
            "a flush that ends by a bug counts as done",
            "            return 0, error if isinstance(error, Exception) else StorageError(str(error))",
            "            return 0, error if isinstance(error, StorageError) else None",
            "acknowledged records are lost",
        ),
        tests=("tests/unit/partition/test_orders_of_the_shell.py",),
    ),
    *rows(
        "sidecar/partition/timers.py",
        (
            "a deadline that is moved a little is lost",
            "                if wanted_ns > now_ns:\n                    self._push",
            "                if wanted_ns > now_ns + GRID_NS:\n                    self._push",
            "a leader never steps down, a follower never fetches again",
        ),
        (
            "behind the end the rest of a moment fires",
            "        self._due.clear()\n",
            "",
            "a node that stops begins new work",
        ),
        tests=("tests/unit/partition/test_orders_of_the_shell.py",),
    ),
    *rows(
        "sidecar/bus/inflow.py",
        (
            "who takes over is not told what is left out",
            "        super().redirect(sid, sink, given_up)\n        self._parser.tell(sid, given_up)",
            "        super().redirect(sid, sink, given_up)",
            "a new leader counts no drops of its first burst",
        ),
        tests=("tests/unit/bus/test_inflow_steps.py",),
    ),
    *rows(
        "sidecar/partition/housekeeping.py",
        (
            "a log that was closed with its partition has failed",
            "    if worker.has_ended:\n        return  # its log",
            "    if not worker.key:\n        return  # its log",
            "a node starts anew because a stream is deleted while it is compacted",
        ),
        (
            "who has ended has its turn",
            "if worker.has_ended or worker.flusher.stalls:",
            "if worker.flusher.stalls:",
            "what was set aside in a folder that another one has opened is removed",
        ),
        (
            "compaction completes in a log that is being closed",
            "        if worker.has_ended:\n            with contextlib",
            "        if not worker.key:\n            with contextlib",
            "two threads change the files of one log",
        ),
        tests=("tests/unit/partition/test_rounds_of_housekeeping.py",),
    ),
    *rows(
        "sidecar/partition/worker.py",
        (
            "nobody knows that a partition ends",
            "        self.has_ended = True\n",
            "",
            "a node starts anew because a stream is deleted while it is compacted",
        ),
        tests=("tests/unit/partition/test_partitions_driven.py",),
    ),
    *rows(
        "sidecar/partition/services.py",
        (
            "reports of a partition that is gone",
            "        self._timers.cancel(self._report)\n",
            "",
            "a deleted partition's services are reported",
        ),
        (
            "patience of a partition that is gone",
            "        self._timers.cancel(self._patience)\n",
            "",
            "a closed replica is told that its replay has ended",
        ),
        (
            "nobody is looked at after the last one is gone",
            "        self._checks = len(self._sessions) > 0\n",
            "        self._checks = True\n",
            "a service that hangs is believed for ever",
        ),
        (
            "who leads commands one record late",
            "            and high_watermark + 1 >= epoch_start_offset,",
            "            and high_watermark >= epoch_start_offset,",
            "a service of a leader on an empty epoch waits for a publish",
        ),
        tests=("tests/unit/service/test_service_desk.py",),
    ),
    *rows(
        "sidecar/partition/scrub.py",
        (
            "a stop in a segment ends it",
            "                if not asyncio.current_task().cancelling():  # type: ignore[union-attr]\n                    progress.position = -1",
            "                progress.position = -1",
            "a node that restarts often never reads the ends of its segments back",
        ),
        tests=("tests/unit/partition/test_scrub.py",),
    ),
    *rows(
        "sidecar/partition/quiet.py",
        (
            "a question that was not sent is waited for",
            "            if not self._bus.send(self._subjects.notify(question.leader), (self._frame(question),), reply):\n                self._end(self._quiet.failed(question))",
            "            self._bus.send(self._subjects.notify(question.leader), (self._frame(question),), reply)",
            "followers hear of a lost connection two turns later",
        ),
        (
            "who stopped waiting is kept",
            "        self._feeds.pop(key, None)\n\n    def _turn",
            "\n    def _turn",
            "memory of partitions that are gone",
        ),
        (
            "tokens are those of the question before",
            "self._next_token = self._next_token, self._next_token + count",
            "self._next_token = self._next_token, self._next_token + 1",
            "a leader counts a follower that has left",
        ),
        tests=("tests/unit/partition/test_quiet_talk.py",),
    ),
    *rows(
        "sidecar/partition/replaying.py",
        (
            "who can't read tries without end",
            '            self._failed(error if isinstance(error, StorageError) else StorageError(f"its log can\'t be replayed: {error}"))\n            return\n        if not complete',
            '            self._failed(error if isinstance(error, StorageError) else StorageError(f"its log can\'t be replayed: {error}"))\n            complete = False\n        if not complete',
            "a broken disk is read a thousand times a second",
        ),
        tests=("tests/unit/partition/test_replaying.py",),
    ),
    *rows(
        "sidecar/bus/links.py",
        (
            "the standby's connection outlives the node",
            "        await self.standby.stop()\n",
            "",
            "a node that stopped still hears publishes",
        ),
        tests=("tests/unit/bus/test_links.py",),
    ),
]

"""Bugs of nodes of several processes: what keeps them one node, one incarnation, and one truth."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "liftpy/shares.py",
        (
            "a stream is in one process",
            "(zlib.crc32(stream.encode()) + partition) % workers",
            "zlib.crc32(stream.encode()) % workers",
            "more processes serve no stream faster",
        ),
        (
            "a log is another process's than its partition",
            "return self.holds(stream, int(number))",
            "return self.holds(folder, int(number))",
            "damage is found by a process that tells nobody",
        ),
        tests=("tests/unit/core/test_shares.py",),
    ),
    *rows(
        "liftpy/wire/worker_frames.py",
        (
            "damaged frames are taken",
            "            if crc32c.crc32c(bytes(held[_CRC.size : end])) != crc:",
            "            if False:",
            "a lease is extended by a number that nobody said",
        ),
        (
            "a frame of any length",
            "            if length > most_bytes(kind):",
            "            if False:",
            "a process waits for ever for the rest of a frame",
        ),
        tests=("tests/unit/wire/test_worker_frames.py",),
    ),
    *rows(
        "liftpy/cluster/changes.py",
        (
            "an older image is led to by newer records",
            "    if new.index < old.index:\n        return None\n",
            "",
            "a worker holds an image that never was",
        ),
        (
            "an epoch that falls is told as a change",
            "        if now.epoch <= was.epoch or now.leader_epoch < was.leader_epoch:",
            "        if now.leader_epoch < was.leader_epoch:",
            "a worker stops at what its node took in its stride",
        ),
        (
            "nodes that changed are not told",
            "            if old.nodes.get(name) != new.nodes[name]:",
            "            if name not in old.nodes:",
            "workers fetch from a process that is gone",
        ),
        (
            "partitions that came are not told",
            "    if len(after.partitions) > count:",
            "    if False:",
            "new partitions have no replica in workers",
        ),
        tests=("tests/unit/cluster/test_changes.py",),
    ),
    *rows(
        "sidecar/workers/channel.py",
        (
            "a worker outlives its node",
            "        self._leave(EXIT_NODE_ENDED)\n        return [Frame(",
            "        return [Frame(",
            "two processes answer for one node",
        ),
        (
            "a loop that hangs answers pings",
            "        if time.monotonic() - self._turned < self._session_s:",
            "        if self._session_s >= 0:",
            "leaderships stay where nobody serves them",
        ),
        (
            "what a node does not read piles up",
            "        if is_too_much:",
            "        if False:",
            "memory grows for a node that is gone",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/workers/handle.py",
        (
            "a worker may be silent",
            "        if self._unanswered >= self._most_silent:",
            "        if False:",
            "the node's heartbeats keep the leaderships of a process that stands still",
        ),
        (
            "an answer does not end the silence",
            "        self._is_heard, self._unanswered = True, 0",
            "        self._is_heard = True",
            "a node takes itself down after a session",
        ),
        (
            "a silent worker is let go on",
            "            self._process.kill()  # it must not speak",
            "            pass  # it must not speak",
            "it goes on when it is resumed, beside its successor",
        ),
        (
            "the end of a worker is no news",
            "        if not self._is_stopping:\n            self._fail(ended)",
            "",
            "a node lives on with partitions that nobody serves",
        ),
        (
            "pings before it can hear",
            "        if not self._is_heard or self._is_stopping",
            "        if self._is_stopping",
            "a slow start is taken for silence",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/workers/parent.py",
        (
            "leases before the image",
            "        if self._has_begun:\n",
            "        if True:\n",
            "a worker is told of a lease before it knows what it leads",
        ),
        (
            "an image that is no successor is not told",
            "        if entry is None:\n            frame = ",
            "        if entry is None:\n            return\n            frame = ",
            "workers go by an image that was given up",
        ),
        (
            "one process is well, so the node is",
            '        nats=own.nats and signs.get("nats", False),',
            "        nats=own.nats,",
            "a node is ready whose workers are cut off",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/workers/relayed.py",
        (
            "entries in any order",
            "        if entry.previousIndex != self.image.index:",
            "        if False:",
            "a worker misses a leadership that it has lost",
        ),
        (
            "a worker decides what is deleted",
            "        self.decides = False",
            "        self.decides = True",
            "data goes by a word of the feed",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/workers/quiet.py",
        (
            "who is silent has counted everything",
            "        if said is None:\n            return places",
            "        if said is None:\n            return []",
            "followers take a leader that stands still for one that serves",
        ),
        (
            "places of a part are places of the whole",
            "return [places[place] for place in of_part",
            "return [place for place in of_part",
            "other partitions' followers fetch, and those concerned do not",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/workers/merging.py",
        (
            "what all see is summed",
            "        if name not in OWN:\n            row",
            "        if name:\n            row",
            "a cluster has as many streams as there are processes",
        ),
        (
            "the last one's lag counts",
            "        return max(held, figure)\n    if name in LEAST",
            "        return figure\n    if name in LEAST",
            "a follower that lags is not seen",
        ),
        (
            "histograms of workers are left out",
            "        if name not in OWN:\n            _add",
            "        if False:\n            _add",
            "latencies are half of the truth",
        ),
        tests=("tests/unit/node/test_worker_processes.py",),
    ),
    *rows(
        "sidecar/disk/data_folder.py",
        (
            "workers' promises are forgotten",
            "others[key] = max(epoch, others.get(key, 0))",
            "others[key] = 0",
            "a candidate follows an older leader after a restart with another number of processes",
        ),
        (
            "theirs are removed before ours is on the disk",
            "        if journal.is_written:",
            "        if True:",
            "a start on a full disk loses promises",
        ),
        (
            "a worker begins without promises",
            '        return PromiseJournal(self.storage(self.own_folder(share.number) / "promises"), is_held, before)',
            '        return PromiseJournal(self.storage(self.own_folder(share.number) / "promises"), is_held)',
            "a candidate of a worker follows an older leader",
        ),
        tests=("tests/unit/disk/test_promises_of_workers.py",),
    ),
    *rows(
        "sidecar/bus/notify.py",
        (
            "every process steps aside",
            "                if not self._share.holds(request.stream, request.partition):\n                    return  # another process of this node answers\n",
            "",
            "a planned transfer is told that publishers were answered by who does not lead",
        ),
        (
            "every process testifies",
            "                if not self._share.holds(question.stream, question.partition):\n                    return\n",
            "",
            "a leader that serves is deposed by the word of the process beside it",
        ),
        tests=("tests/unit/bus/test_notify_subject.py",),
    ),
    *rows(
        "sidecar/node.py",
        (
            "workers that were not clean are",
            "        clean = await workers and clean\n",
            "        await workers\n",
            "what a worker had not flushed is believed to be there",
        ),
        (
            "the damage of workers is not told",
            'or elsewhere["damaged"] > 0',
            "or False",
            "a node keeps its place in ISRs whose records a worker has lost",
        ),
        tests=("tests/unit/node/test_life_of_a_node.py",),
    ),
    *rows(
        "sidecar/workers/channel.py",
        ("what was read counts for ever", "                self._unsent_bytes -= len(frame)", "                pass", "a worker that has said 64 MiB ends its node"),
        ("a loop turns once", "        self._asked_loop, self._turned = False, time.monotonic()", "        self._asked_loop = False", "a node takes itself down a session after its start"),
        ("a stop that hangs outlives the node", "        while True:\n            if any(frame", "        while False:\n            if any(frame", "a process holds the folder's lock after its node"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/workers/child.py",
        ("an answer speaks of what is over", "count=len(question.fetches))", "count=len(self._quiet.over(question)))", "a worker's quiet fetches are never confirmed"),
        ("every worker stops cleanly", "int(self.was_clean))", "1)", "records that no disk has are believed after a restart"),
        ("closed before it is", "            await self.partitions.close_subjects(timeout_s)\n        self._channel", "            spawn(self.partitions.close_subjects(timeout_s), \"x\")\n        self._channel", "publishes go unanswered in each planned restart"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/workers/handle.py",
        ("the exit code does not matter", "            clean = clean and code == 0\n", "", "a worker that crashed at its end is believed to have flushed"),
        ("questions without answers stay", "        finally:\n            del self._asked[token]", "        finally:\n            pass", "memory grows with each look at a worker that is slow"),
        ("who waits for a worker waits for ever", "                event.set_exception(ended)\n                event.exception()  # nobody may be waiting\n", "                pass\n", "a start hangs where a worker ended"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/workers/parent.py",
        ("the last worker's damage counts", "name: count + said[name]", "name: said[name]", "a node keeps its place in ISRs whose records one worker has lost"),
        ("milliseconds are seconds", "request, timeout_ms / 1000)", "request, timeout_ms)", "a proposal of a worker waits for an hour"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/workers/relayed.py",
        ("proposals that were given up stay", "        finally:\n            self._asked.pop(token, None)", "        finally:\n            pass", "memory grows with each deletion that is called off"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/workers/quiet.py",
        ("questions are never done", "        finally:\n            self._waiting -= 1", "        finally:\n            pass", "after 256 questions none is answered any more"),
        ("questions have no bound", "if question is None or self._waiting >= MOST_AT_ONCE:", "if question is None:", "a flood of questions fills the memory while a worker is slow"),
        ("an answer about fewer counts", "return _places(places, answer.over) if answer.count == len(places) else places", "return _places(places, answer.over)", "followers take fetches for counted that nobody has seen"),
        tests=("tests/unit/node/test_workers_ends.py",),
    ),
    *rows(
        "sidecar/partition/set.py",
        ("who leaves comes back", "        del self._aside[worker.key]\n        if not self._closing:\n            worker", "        del self._aside[worker.key]\n        if True:\n            worker", "a node that leaves takes publishes again, which nobody answers"),
        tests=("tests/unit/partition/test_partition_set.py",),
    ),
]  # fmt: skip

"""Bugs in ``liftpy/cluster``."""

from __future__ import annotations

from tests.mutants.mutant import rows

MUTANTS = [
    *rows(
        "liftpy/cluster/accusations.py",
        ("a report on an earlier term's clock", "report.stampNs, report.stampTerm, report.accusedAsked = now_ns, self._term, False", "report.stampNs, report.accusedAsked = now_ns, False", "reports of two metadata leaders are added up on two clocks"),
        ("testimony of another epoch", "if case is not None and case.report.leaderEpoch == question.leader_epoch:", "if case is not None:", "an answer about an earlier leadership saves or deposes this one"),
        ("a witness that is away proves", "elif witness is Said.ABSENT or (late and witness is None):", "elif witness is Said.ABSENT and late:", "a forged report of a node that is gone deposes a leader"),
    ),
    *rows(
        "liftpy/cluster/batches.py",
        ("the first count wins", "counts[-1])", "counts[0])", "epochs are given twice"),
    ),
    *rows(
        "liftpy/cluster/codec.py",
        ("complete replicas are not written", "        complete=partition.complete,\n    )", "    )", "after a restart nobody may lead although a complete replica is there"),
        ("ages of operations are not written", "timeNs=operation.time_ns, response=operation.response, ageNs=operation.age_ns", "timeNs=operation.time_ns, response=operation.response", "controllers differ after a snapshot"),
        ("reports of a partition: the last one counts", "reports[key] = (*reports.get(key, ()), report_from_pb(report))", "reports[key] = (report_from_pb(report),)", "a controller that comes from a snapshot decides otherwise than the others"),
    ),
    *rows(
        "liftpy/cluster/deletion.py",
        ("a stream made again is another's data", "or response.stream.uid != key.uid or not partitions:", "or not partitions:", "a node keeps or deletes data by another stream's replicas"),
        ("an error is consent", "if response.error == pb.ControlResponse.NOT_FOUND:\n        return True", "if response.error != pb.ControlResponse.OK:\n        return True", "data is deleted when the metadata group is not there"),
    ),
    *rows(
        "liftpy/cluster/doors.py",
        ("a node speaks for another in a batch", "next((reason for reason in reasons if reason), \"\")", "next(iter(reasons), \"\")", "the second request of a batch is not looked at"),
        ("operators register nodes", "if door is Door.ADMIN and asked_by is AskedBy.OPERATORS else", "if door is Door.ADMIN else", "an operator's user deposes nodes"),
    ),
    *rows(
        "liftpy/cluster/draft.py",
        ("leaderships are counted with each change", "begins = bool(partition.leader) and (partition.leader, partition.leader_epoch) != (old.leader, old.leader_epoch)", "begins = bool(partition.leader)", "a new leader waits for leases of leaders that never were"),
        ("answers have no bound", "if len(detail) > MAX_DETAIL_LENGTH:", "if len(detail) > 1000 * MAX_DETAIL_LENGTH:", "a forged request fills all controllers' memory with its answer"),
    ),
    *rows(
        "liftpy/cluster/duties.py",
        ("an operation under way is forecast", "or request.operationId in self._in_log:", "or not request.operationId:", "an answer says that nothing changed, and then something does"),
        ("a forecast needs no majority", "now_ns - confirmed_ns > self._confirmed_within_ns or request", "request", "a metadata leader that was deposed answers"),
        ("a stopped node that runs is removed", "return node is not None and node.fenced and self._sessions.runs(node_id, now_ns)", "return False", "a forged stop and a removal take a running node out of the cluster"),
        ("only the first batch is sent", "for first in range(0, len(requests), SENT_TOGETHER)]", "for first in range(0, len(requests), SENT_TOGETHER)][:1]", "elections beyond eighty wait for their next turn"),
    ),
    *rows(
        "liftpy/cluster/election.py",
        ("the deposed one is elected", "if node_id != partition.deposed and node_id not in partition.passed_over and draft.is_live(node_id)", "if node_id not in partition.passed_over and draft.is_live(node_id)", "a leader that was deposed leads again"),
        ("whoever was passed over is asked again", "if node_id != partition.deposed and node_id not in partition.passed_over and draft.is_live(node_id)", "if node_id != partition.deposed and draft.is_live(node_id)", "an election goes round and round"),
        ("reports of a process before count", "return node is not None and node.incarnation == report.witness_incarnation", "return node is not None", "an election rests on a log that is gone"),
        ("the shorter log leads", "return -position[0], -position[1], another,", "return -position[0], position[1], another,", "committed records are lost (policy quorum)"),
        ("an unclean leader keeps the ISR", "staying = {candidate} if unclean else", "staying =", "replicas that differ stay in the ISR"),
        ("half is a quorum", "return len(partition.replicas) // 2 + 1 if is_quorum(stream) else 1", "return (len(partition.replicas) + 1) // 2 if is_quorum(stream) else 1", "of four replicas two elect a leader without what the other two committed"),
    ),
    *rows(
        "liftpy/cluster/election_timers.py",
        ("progress that is none", "if report.replayedEndOffset <= clock.replayed_end_offset and report.newestOffset <= clock.newest_offset:", "if report.replayedEndOffset < clock.replayed_end_offset and report.newestOffset < clock.newest_offset:", "a candidate that hangs is never passed over"),
        ("patience has no end", "min(max(got_on_ns) + within_ns, clock.began_ns + self._patience_ns)", "max(got_on_ns) + within_ns", "a node that gets on elsewhere holds one partition up for ever"),
        ("a forged witness is waited for", "        if report.witness in clock.partition.replicas:\n", "        if report.witness:\n", "anybody can prolong an election"),
    ),
    *rows(
        "liftpy/cluster/feed.py",
        ("held entries have no bound in records", "or self._held_records > MAX_HELD_RECORDS):", "or self._held_records < 0):", "a controller keeps millions of records"),
        ("an oversize entry leaves what was held", "            self._held.clear()  # a gap", "            pass  # a gap", "subscribers miss an entry"),
        ("who leads again publishes everything", "        self._published_index = self.index\n\n    def take", "        self._published_index = 0\n\n    def take", "a new metadata leader floods the feed"),
        ("snapshots are kept for ever", "            del self._snapshots[index]", "            pass", "a controller keeps every image that it ever served"),
    ),
    *rows(
        "liftpy/cluster/feed_subscription.py",
        ("entries that contradict are believed", "return taken is not None and taken != _digest(entry)", "return False", "a forged feed splits the nodes' images"),
        ("a chunk is not checked", "        if crc32c.crc32c(response.chunk) != response.crc:\n            return\n", "", "a damaged chunk ends a whole transfer"),
        ("an older snapshot is taken", "if image.index and (not self.synced or image.index > self.image.index):", "if image.index:", "an image goes back in time"),
        ("waiting entries have no bound", "return len(self._waiting) < MAX_WAITING_ENTRIES and held_bytes + entry.ByteSize() <= MAX_WAITING_BYTES", "return len(self._waiting) < MAX_WAITING_ENTRIES", "large forged entries fill a node's memory"),
    ),
    *rows(
        "liftpy/cluster/forecast.py",
        ("descriptions are forecast", "if kind_of(request).read_only:", "if request.HasField(\"barrier\"):", "a linearizable read is answered from an old image"),
        ("a request that was done is done again", "    if held is not None:\n        return pb.ControlResponse.FromString(again(image, held))", "    if held is None and kind is None:\n        return None", "a retry is told something else than the first try"),
    ),
    *rows(
        "liftpy/cluster/fsm.py",
        ("time may be anything", "now_ns = request.timeNs if 0 < request.timeNs < MAX_TIME_NS else before.time_ns", "now_ns = request.timeNs", "a request without a time sets the cluster's clock to zero"),
    ),
    *rows(
        "liftpy/cluster/image.py",
        ("a stream's namesake is found", "if found is None or (uid and found.uid != uid) or not 0 <= partition", "if found is None or not 0 <= partition", "a request about a deleted stream changes the new one"),
        ("partition -1 is the last", "or not 0 <= partition < len(found.partitions):", "or not partition < len(found.partitions):", "a forged number changes another partition"),
        ("who lost records stays complete", "difference(members, lost, partition.incomplete)", "difference(members, partition.incomplete)", "a replica without committed records may lead"),
        ("reports outlive a leadership", "kept = () if _leadership(old) != _leadership(changed) else", "kept =", "a new leader is deposed by reports on the one before"),
        ("counts of replicas stay", "replica_counts=_count(self.replica_counts, _replicas(stream, -1)),", "replica_counts=self.replica_counts,", "a node is full of streams that were deleted"),
    ),
    *rows(
        "liftpy/cluster/operations.py",
        ("bytes of operations have no bound", "too_much = self.next_sequence - oldest >= MAX_OPERATIONS or size_bytes > MAX_SIZE_BYTES", "too_much = self.next_sequence - oldest >= MAX_OPERATIONS", "answers fill all controllers' memory"),
        ("evicted bytes stay counted", "evicted, size_bytes = evicted + 1, size_bytes - _size_bytes(held)", "evicted = evicted + 1", "after 32 MiB no retry is recognised"),
        ("a clock that leapt forgets everything", "last.age_ns + min(max(time_ns - last.time_ns, 0), MAX_STEP_NS)", "last.age_ns + max(time_ns - last.time_ns, 0)", "one wrong clock makes retries apply twice"),
    ),
    *rows(
        "liftpy/cluster/pages.py",
        ("a page of any size", "max(_MIN_PAGE_BYTES, min(asked_bytes or DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, max_payload_bytes // 2))", "max(_MIN_PAGE_BYTES, min(asked_bytes or DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES))", "an answer is larger than max_payload"),
        ("the rest of a stream made again is joined", "if goes_on and rest[0].uid == last.uid and _follows(last, rest[0]):", "if goes_on and _follows(last, rest[0]):", "partitions of two streams are shown as one's"),
        ("the next page begins at its first", "response.nextPartition = response.stream.partitions[count].partition", "response.nextPartition = response.stream.partitions[count].partition + 1", "a partition is missing in the description"),
    ),
    *rows(
        "liftpy/cluster/predecessor.py",
        ("a busy bus is nobody", "        if sign is Sign.UNASKED:\n            return Verdict.ASK", "        if sign is Sign.UNASKED:\n            return Verdict.GO_ON", "two processes of one id run at once"),
    ),
    *rows(
        "liftpy/cluster/preferred.py",
        ("leaders move at once", "if key in before][:MOVES_AT_ONCE]", "][:MOVES_AT_ONCE]", "a node that has just come back is given all its leaderships"),
        ("fenced nodes are preferred", "        and image.is_live(partition.replicas[0])\n", "", "leaderships are moved to a node that is not there"),
    ),
    *rows(
        "liftpy/cluster/replay.py",
        ("a witness has two voices", "(*(held for held in reports if held.witness != report.witness), report)", "(*reports, report)", "one follower is a majority"),
        ("a delete of another stream's uid", "held is not None and held.uid == uid, \"M11\"", "held is not None, \"M11\"", "a late delete takes the new stream of the name"),
    ),
    *rows(
        "liftpy/cluster/request_bounds.py",
        ("texts in lists have no bound", "if field.type == FieldDescriptor.TYPE_STRING and len(item.encode()) > MAX_TEXT_BYTES:", "if field.type == FieldDescriptor.TYPE_STRING and len(item) > 60 * MAX_TEXT_BYTES:", "a request with long texts is logged"),
        ("messages within messages are not looked at", "        return _wrong(item, f\"{where}.\")", "        return \"\"", "a batch carries what a request may not"),
    ),
    *rows(
        "liftpy/cluster/session.py",
        ("a lease is as long as a session", "return LeaseAnswer(True, self._lease_ns)", "return LeaseAnswer(True, self._session_ns)", "two leaders at once after a session's end"),
        ("a node that is gone loses its lease too soon", "granted_ns + self._lease_ns + self._lease_ns // _DRIFT_SHARE)", "granted_ns)", "a paused leader and its successor acknowledge at once"),
        ("fenced nodes are overdue", "            if not (session.fenced or session.ending)\n            and", "            if", "nodes that have stopped are asked for ever"),
        ("a fence is proposed with each tick", "if session.proposed_ns == _NEVER or now_ns - session.proposed_ns >= self._retry_ns:", "if True:", "one silent node floods the metadata log"),
        ("sessions end before the first is heard", "        if self._starts_cold(now_ns):\n", "        if self._starts_cold(now_ns) and self._anybody_heard:\n", "after a start of all nodes everybody is fenced"),
    ),
    *rows(
        "liftpy/cluster/snapshot.py",
        ("an image of any size is decompressed", "if size_bytes > MAX_IMAGE_SIZE_BYTES:", "if size_bytes > 1000 * MAX_IMAGE_SIZE_BYTES:", "a forged snapshot fills a node's memory"),
        ("the header is not summed", "crc32c.crc32c(body, crc32c.crc32c(data[: _HEAD.size])) != crc:", "crc32c.crc32c(body, crc32c.crc32c(data[: _HEAD.size - 8])) != crc:", "no snapshot is ever readable again"),
    ),
    *rows(
        "liftpy/cluster/starts.py",
        ("the nonce that registered is forgotten", "            kept = (self.registered, *kept[1:])\n", "            pass\n", "a node that restarted twenty times without NATS is taken for a copy"),
        ("an outlived request deposes", "if request.start < known.start and (request.nonce in known.earlier_nonces or not both_drew):", "if request.start < known.start and not both_drew:", "a request that outlived its process fences the next one"),
    ),
    *rows(
        "liftpy/cluster/stream_config.py",
        ("a deduplication window is lost on the way", "        dedupWindowS=config.dedup_window_s,\n", "", "a setting is ignored"),
        ("delete retention of zero is the default", "message.deleteRetentionS if message.HasField(\"deleteRetentionS\") else _DEFAULT.delete_retention_s", "message.deleteRetentionS or _DEFAULT.delete_retention_s", "tombstones stay a day although they should not"),
    ),
    *rows(
        "liftpy/cluster/subject_index.py",
        ("partition subjects of others are not seen", "    if not rest:\n        yield from (name for name, partitions in branch.streams if _is_number(token, partitions))", "    if not rest:\n        yield from ()", "two streams answer one publisher"),
        ("a star stands for itself", "for key in sorted(branch.below) if token == ANY else (token, ANY):", "for key in (token, ANY):", "two streams answer one publisher"),
    ),
    *rows(
        "liftpy/cluster/trail.py",
        ("a trail of another image is believed", "if self.origin is not earlier.origin or not 0 <= count <= MAX_STEPS:", "if not 0 <= count <= MAX_STEPS:", "a node misses partitions after it fetched the image anew"),
    ),
    *rows(
        "liftpy/cluster/wishes.py",
        ("whoever was superseded is not told", "            before.on_answer(_SUPERSEDED)", "            pass", "an ISR change stays in flight for ever"),
        ("batches have no bound in bytes", "if self._out and size_bytes + added > MAX_BATCH_BYTES:", "if self._out and added > MAX_BATCH_BYTES:", "a batch is larger than a message: nothing is ever decided"),
        ("an unknown outcome is an answer", "wish.on_answer(None if given is None or given.error in _UNKNOWN else given)", "wish.on_answer(given)", "HW rises without a replica that is in the ISR"),
        ("a new request is put behind", "            while waiting and len(self._out) < SENT_TOGETHER:", "            while waiting and len(self._out) <= SENT_TOGETHER:", "one request of each full batch is never decided"),
    ),
    *rows(
        "liftpy/cluster/decisions/elections.py",
        ("one report is enough", "    if len(partition.isr) <= 2:\n        return False\n", "", "a follower that is cut off deposes a leader of two"),
        ("reports of any time are added up", "abs(report.stamp_ns - held.stamp_ns) <= REPORT_WINDOW_NS", "True", "two reports, hours apart, depose a leader"),
        ("a fenced process deposes", "if node is None or node.fenced or node.incarnation != incarnation:", "if node is None or node.incarnation != incarnation:", "a process that was ended gives a leadership up"),
        ("any replica says that a leader lacks", "if request.witness == partition.leader or request.witness not in stream.may_lead(partition):", "if request.witness == partition.leader:", "a replica out of the ISR deposes leaders"),
        ("nobody but the leader is elected", "    if began.status is PartitionStatus.OFFLINE:\n", "    if began.status is PartitionStatus.ELECTION and began.status is PartitionStatus.OFFLINE:\n", "a report takes a partition offline although its leader is there"),
        ("a candidate of an earlier Epoch finishes", "if (*named, request.epoch) != (partition.candidate, partition.leader_epoch, partition.epoch):", "if named != (partition.candidate, partition.leader_epoch):", "a candidate leads with an ISR that it has not heard of"),
    ),
    *rows(
        "liftpy/cluster/decisions/nodes.py",
        ("any stop is clean", "return request.previousIncarnation != 0 and unbroken and (request.cleanStop or request.flushedAlways)", "return request.previousIncarnation != 0 and unbroken", "a replica that lost what it acknowledged stays in the ISR"),
        ("any incarnation before is known", "known_to_it = request.previousIncarnation in (known.incarnation, known.previous_incarnation)", "known_to_it = request.previousIncarnation <= known.incarnation", "an older copy of a folder is taken for whole"),
        ("a node that holds data makes room", "if node.fenced and not draft.image.hosted.get(node.node_id)]", "if node.fenced]", "a node with data is forgotten by the cluster"),
        ("live nodes are removed", "    if not node.fenced:\n        return f\"node {node_id!r} is alive: stop it first\"\n", "", "a running node is taken out of the cluster"),
    ),
    *rows(
        "liftpy/cluster/decisions/streams.py",
        ("a delete of any uid", "if request.uid and request.uid != held.uid:", "if request.uid and not held.uid:", "a late delete takes the new stream of the name"),
        ("reserved names are streams", "    if request.name in RESERVED_NAMES:\n", "    if request.name in ():\n", "a stream called info stores what operators ask"),
        ("budgets count without what is there", "return budget - image.replica_counts.get(node, 0) if budget else unlimited", "return budget if budget else unlimited", "a node is given more partitions than it has descriptors for"),
        ("the next stream begins at the same node", "draft.placement_index = start + count", "draft.placement_index = start", "all leaders are on the first node"),
    ),
    *rows(
        "liftpy/cluster/placement/__init__.py",
        ("nodes in the order of letters", "return sorted(nodes, key=lambda node: (int(node), node))", "return sorted(nodes)", "placement differs from what the protocol says: node 10 before 2"),
    ),
    *rows(
        "liftpy/cluster/placement/round_robin.py",
        ("followers are always the next", "gap = index // count % gaps", "gap = 0", "when a node dies all its leaderships go to one other"),
    ),
    *rows(
        "liftpy/cluster/batches.py",
        ("any request may be in a batch", "        if not kind_of(item.request).batched:", "        if kind_of(item.request).read_only:", "a node's batch deletes streams"),
    ),
    *rows(
        "liftpy/cluster/membership.py",
        ("a lease is told before the image", "        if seen_index >= index:\n", "        if index:\n", "a deposed leader extends its lease before it hears that it was deposed"),
        ("leases wait for an image of the next change", "self._waiting[0][1] <= index:", "self._waiting[0][1] < index:", "leaders lose their lease in a quiet cluster"),
        ("a refusal is asked again", "case pb.ControlResponse.INVALID | pb.ControlResponse.STALE:", "case pb.ControlResponse.STALE:", "a node that can never join asks for ever, in silence"),
    ),
    *rows(
        "liftpy/cluster/forwarding.py",
        ("an unknown outcome becomes unavailable", "self._last.error = pb.ControlResponse.OUTCOME_UNKNOWN", "self._last.error = pb.ControlResponse.UNAVAILABLE", "a request that was applied is said not to have been"),
        ("a time that is over goes on", "return max(self._deadline_ns - now_ns, 0)", "return self._deadline_ns - now_ns", "a request whose time is over is asked for ever"),
    ),
    *rows(
        "liftpy/cluster/member.py",
        ("the head is told with each tick", "now_ns - self._head_at_ns >= HEAD_EVERY_NS:", "now_ns - self._head_at_ns >= 0:", "an idle cluster talks without pause"),
        ("a take-over needs no barrier", "if order.takes_over >= 0 and response.error == pb.ControlResponse.OK:", "if order.takes_over >= 0:", "a metadata leader acts on an image that it has not caught up with"),
        ("heartbeats before the take-over are logged", "if request.HasField(\"batch\") or kind_of(request).looked_at_first:", "if request.HasField(\"batch\"):", "heartbeats fill the metadata log"),
        ("orders have no bound", "and self._own_orders < MAX_DUTY_ORDERS:", "and True:", "a cluster of thousands of partitions floods its metadata log"),
        ("a controller alone describes at once", "if not self._leaderless.for_long or description is None or request.linearizable:", "if description is None or request.linearizable:", "two pictures of the cluster during an election"),
        ("linearizable reads are answered alone", "if not self._leaderless.for_long or description is None or request.linearizable:", "if not self._leaderless.for_long or description is None:", "a linearizable read is old"),
        ("absent ones are asked for without pause", "        self._look_at_ns = now_ns + LOOK_EVERY_NS\n", "", "each tick asks for each silent node"),
        ("one that is asked for is asked for again", "for node_id in self._duties.overdue(now_ns) if node_id not in self._looking]", "for node_id in self._duties.overdue(now_ns)]", "a node's end is told several times, also of the next process"),
        ("orders that are over stay counted", "        self._own_orders -= order.own\n", "", "after a while the metadata leader proposes nothing more"),
    ),
]  # fmt: skip

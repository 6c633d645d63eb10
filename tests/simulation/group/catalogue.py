"""Bugs of groups and queues that the histories have to notice: each is planted in shipped code; its seed is one that sees it."""

from __future__ import annotations

from tests.simulation.group.planting import PlantedBug

MEMBERS = (
    PlantedBug(
        "a partition is granted before it was given up", "group.ConsumerGroup._grant",
        "place not in self.owners]", "self.owners.get(place) != self.targets[place]]", 1, "G1",
    ),
    PlantedBug(
        "no fence behind a session", "group.GroupMember.end_ns",
        "+ commands.FENCE_MS * NS_PER_MS", "- commands.FENCE_MS * NS_PER_MS", 1, "G1",
    ),
    PlantedBug(
        "an outage is time that has passed", "machine.LogClock.advance",
        "min(max(0, stamp_ns - self.stamp_ns), MAX_CLOCK_STEP_MS * NS_PER_MS)", "max(0, stamp_ns - self.stamp_ns)", 1, "G4",
    ),
    PlantedBug(
        "the difference of two leaders' clocks is time that has passed", "machine.LogClock.advance",
        "if leader_epoch == self.leader_epoch:\n        self.now_ns += min(max(0, stamp_ns - self.stamp_ns), MAX_CLOCK_STEP_MS * NS_PER_MS)",
        "self.now_ns += max(0, stamp_ns - self.stamp_ns)", 1, "G4",
    ),
    PlantedBug(
        "time is the greatest stamp", "machine.LogClock.advance",
        "self.stamp_ns, self.leader_epoch = stamp_ns, leader_epoch",
        "self.stamp_ns, self.leader_epoch = max(stamp_ns, self.stamp_ns), leader_epoch", 1, "G6",
    ),
    PlantedBug(
        "any member may commit", "group.ConsumerGroup.commit",
        "known.uid == at.uid and member.held.get(place) == at.generation", "known.uid == at.uid", 17, "G2",
    ),
    PlantedBug(
        "a commit of an earlier incarnation is taken for one of this", "group.ConsumerGroup.commit",
        "known is not None and known.uid == at.uid and member.held.get(place) == at.generation",
        "known is not None and place in member.held", 1, "G3",
    ),
    PlantedBug(
        "a late commit sets the position back", "group.ConsumerGroup.commit",
        "is None or position[0] <= at.position", "is None or position[0] != -2", 1, "G3",
    ),
    PlantedBug(
        "positions outlive their stream", "group.ConsumerGroup.learn",
        "self.positions.pop((name, number), None)", "pass", 40, "G3",
    ),
    PlantedBug(
        "a stream's earlier incarnation comes back", "group.ConsumerGroup.learn",
        "if uid_order(uid) < uid_order(known.uid):", "if False:", 15, "G4",
    ),
    PlantedBug(
        "a snapshot lacks generations", "machine._group_of",
        "members[part.owner - 1].held[place] = part.generation", "members[part.owner - 1].held[place] = 1", 1, "G4",
    ),
    PlantedBug(
        "a snapshot lacks when members were heard", "machine._group_of",
        "MEMBER.from_pb(member) for", "replace(MEMBER.from_pb(member), heard_ns=state.generation) for", 1, "G4",
    ),
    PlantedBug(
        "generations begin anew with a group of the same name", "machine.GroupMachine._weigh",
        "max(self._generations, group.readers.generation)", "0", 2, "G1",
    ),
    PlantedBug(
        "a member delivers for ever", "member.MemberMachine.may_deliver",
        "key in self._owned and now_ns < self._until_ns", "key in self._owned", 1, "G1",
    ),
    PlantedBug(
        "a member keeps what it is to give up", "member.MemberMachine._assignment_changed",
        "elif new is None and key not in self._asked:", "elif False:", 1, "G6",
    ),
    PlantedBug(
        "who was put out goes on under its name", "member.MemberMachine.on_answer",
        "self.stage, self.member, self._due_ns = MemberStage.JOINING, self._new_id(), now_ns", "self._due_ns = now_ns", 40, "G6",
    ),
    PlantedBug(
        "nothing moves to who joins", "group.assign",
        "retained_partitions = {name: have[stream].get(name, [])[: share[name]] for name in readers[stream] if share[name]}",
        "share = {n: max(len(have[stream].get(n, [])), 0 if any(have[stream].values()) else share[n]) for n in share}\n"
        "        retained_partitions = {name: have[stream].get(name, [])[: share[name]] for name in readers[stream] if share[name]}", 1, "G6",
    ),
)  # fmt: skip

QUEUES = (
    PlantedBug(
        "what is settled is forgotten where more is taken", "machine.GroupMachine._carry_out",
        'if command.HasField("settle"):', 'if command.HasField("settle") and not command.HasField("take"):', 1, "Q3",
    ),
    PlantedBug(
        "a take that comes with a settlement is forgotten", "machine.GroupMachine._carry_out",
        'if command.HasField("take"):', 'if command.HasField("take") and not command.HasField("settle"):', 1, "Q5",
    ),
    PlantedBug(
        "an old lease is as good as the newest", "queue.WorkQueue._own",
        "pieces[index].lease == lease", "pieces[index].kind is PieceKind.OUT and pieces[index].member == member", 1, "Q3",
    ),
    PlantedBug(
        "anybody may settle", "queue.WorkQueue._own",
        "pieces[indexes[0]].member == member", "True", 1, "Q3",
    ),
    PlantedBug(
        "what came back is settled by its former lease", "queue.WorkQueue._own",
        "return indexes if indexes and pieces[indexes[0]].member == member else []",
        "return [n for n in range(first, behind) if pieces[n].kind is PieceKind.BACK or (n in indexes and pieces[n].member == member)]",
        1, "Q3",
    ),
    PlantedBug(
        "the whole piece is settled for a part of it", "queue.WorkQueue._settled_parts",
        "piece = piece.between(max(piece.start, start), min(piece.end, end))", "start, end = piece.start, piece.end", 6, "Q3",
    ),
    PlantedBug(
        "leases never run out", "queue.WorkQueue.expire",
        "self._ends[0][0] > now_ns", "self._ends[0][0] > now_ns - (1 << 60)", 1, "Q3",
    ),
    PlantedBug(
        "leases run out early", "queue.WorkQueue.expire",
        "self._ends[0][0] > now_ns", "self._ends[0][0] > now_ns + 1_000_000_000", 1, "Q3",
    ),
    PlantedBug(
        "the rest of a cut piece is never due", "queue.WorkQueue._rest",
        "fresh.append(piece.between(start, piece.end))\n    return fresh[-1]", "return piece.between(start, piece.end)", 1, "Q3",
    ),
    PlantedBug(
        "a delay is not kept", "queue.WorkQueue._settle",
        "now_ns + settlement.delayMs * NS_PER_MS", "now_ns", 1, "Q2",
    ),
    PlantedBug(
        "given for ever", "queue.WorkQueue._return_or_kill",
        "if not dead and deliveries >= self.max_deliveries:", "if False:", 1, "Q6",
    ),
    PlantedBug(
        "one delivery more than allowed", "queue.WorkQueue._return_or_kill",
        "deliveries >= self.max_deliveries", "deliveries > self.max_deliveries", 1, "Q6",
    ),
    PlantedBug(
        "what was given up is done", "queue.WorkQueue._return_or_kill",
        "if not dead and deliveries >= self.max_deliveries:",
        "if not dead and deliveries >= self.max_deliveries:\n        return QueuePiece(piece.start, piece.end, PieceKind.DONE)\n    if dead and False:", 1, "Q6",
    ),
    PlantedBug(
        "an extension counts from the old deadline", "queue.WorkQueue._settle",
        "return piece.extended(now_ns + self.wait_ns)", "return piece", 1, "Q3",
    ),
    PlantedBug(
        "a release counts as a delivery", "queue.WorkQueue._settle",
        "released.deliveries -= not piece.dead", "pass", 1, "Q6",
    ),
    PlantedBug(
        "the bound of all members is not kept", "queue.WorkQueue.lease_records",
        "(take.maxAckPending or commands.MAX_ACK_PENDING) - self.out_count", "commands.MAX_ACK_PENDING", 1, "Q5",
    ),
    PlantedBug(
        "the bound of a member is not kept", "queue.WorkQueue.lease_records",
        "(take.maxMemberPending or commands.MAX_MEMBER_PENDING) - self._out.get(take.member, 0)", "commands.MAX_MEMBER_PENDING", 1, "Q5",
    ),
    PlantedBug(
        "returned records are given twice", "queue.WorkQueue._insert",
        "self._pieces[index] = piece\n", "self._pieces[index] = piece if piece.kind is not PieceKind.OUT else self._pieces[index]\n", 1, "Q3",
    ),
    PlantedBug(
        "the prefix passes over what is out", "queue.WorkQueue._advance",
        "self._pieces[0].kind is PieceKind.DONE", "self._pieces[0].kind is not PieceKind.BACK", 6, "Q3",
    ),
    PlantedBug(
        "a snapshot forgets deadlines", "queue.WorkQueue.from_state",
        "map(PIECE.compiled[1], state.pieces)", "(replace(PIECE.compiled[1](p), due_ns=0) for p in state.pieces)", 1, "G4",
    ),
    PlantedBug(
        "a take that gives nothing else skips to the log's end", "queue.WorkQueue.lease_records",
        "start = self.frontier", "start = max(self.frontier, take.logEnd - room)", 6, "Q6",
    ),
)  # fmt: skip

ORDERED = (
    PlantedBug(
        "new records of a key do not wait", "queue.WorkQueue._lease_in_order",
        "if key == NO_KEY or self._order.add(key, at):", "if self._order.add(key, at) or True:", 1, "Q7",
    ),
    PlantedBug(
        "keyless records wait for each other", "queue.WorkQueue._lease_in_order",
        "if key == NO_KEY or self._order.add(key, at):", "if self._order.add(key or 99, at):", 1, "Q7",
    ),
    PlantedBug(
        "the second record of a key is free too", "queue.KeyOrder.holds",
        "self._lines[key][0] != offset", "offset not in list(self._lines[key])[:2]", 1, "Q7",
    ),
    PlantedBug(
        "what waits for a key is never free", "queue.WorkQueue._free_next",
        "if free is not None and free >= self.prefix:", "if False:", 1, "Q7",
    ),
    PlantedBug(
        "a record that comes again after a delay keeps nobody back", "queue.KeyOrder.holds",
        "return key != NO_KEY and self._lines[key][0] != offset", "return False", 1, "Q7",
    ),
    PlantedBug(
        "a snapshot forgets that there is an order", "queue.WorkQueue.from_state",
        "ordered=state.ordered", "ordered=False", 1, "G4",
    ),
    PlantedBug(
        "keys are taken for those of other records", "queue.WorkQueue._lease_in_order",
        "take.keys[at - take.keysFrom], at + 1", "take.keys[min(at - self.frontier, len(take.keys) - 1)], at + 1", 1, "Q7",
    ),
    PlantedBug(
        "a snapshot forgets keys", "queue.WorkQueue.from_state",
        "map(PIECE.compiled[1], state.pieces)", "(replace(PIECE.compiled[1](p), key=0) for p in state.pieces)", 1, "G4",
    ),
)  # fmt: skip

LEADER_CHANGES = (
    PlantedBug(
        "a view that ends below what was given tells its LeaderEpoch", "queue.WorkQueue.note_epoch",
        "self.taken_epoch or take.logEnd >= self.frontier", "True", 2, "Q8",
    ),
    PlantedBug(
        "what an earlier version was given has the known LeaderEpoch", "queue.WorkQueue.note_epoch",
        "elif self.frontier != frontier_before:", "elif False:", 2, "Q8",
    ),
)  # fmt: skip

BY_KIND = {"members": MEMBERS, "queues": QUEUES, "ordered": ORDERED, "leader-changes": LEADER_CHANGES}
"""Kind of history -> the bugs that it notices."""

"""Bugs in rolling upgrades: feature levels, what is not understood, digests."""

from __future__ import annotations

from tests.mutants.mutant import rows

_LEVELS = ("tests/unit/cluster/test_feature_levels.py",)
_REPLAYED = ("tests/unit/cluster/test_decisions_replayed.py",)

MUTANTS = [
    *rows(
        "liftpy/cluster/decisions/levels.py",
        (
            "finalize with one old node: who registers meanwhile is not looked at",
            "    if unchecked:\n",
            "    if False:\n",
            "an old node decides otherwise than the level",
        ),
        (
            "incarnations do not count",
            "(node_id, node.incarnation) not in checked",
            "node_id not in {name for name, _ in checked}",
            "an old process took the checked one's place",
        ),
        (
            "a level that is not spoken is refused like a wrong request",
            "        raise UnspokenError(",
            "        return refuse(pb.ControlResponse.INVALID, ",
            "the older controller goes on with another image",
        ),
        (
            "the way back is asked of nobody inside apply",
            "        if reasons:\n",
            "        if False:\n",
            "what can't be read by older versions is left for them",
        ),
        (
            "levels may be jumped down",
            "image.feature_level - 1:",
            "image.feature_level - 9:",
            "the levels between are asked for nothing",
        ),
        (
            "the rules stay those of the settings",
            "if request.level >= STRICT else None",
            "if False else None",
            "controllers with other settings decide otherwise",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/level_check.py",
        (
            "finalize with one old node",
            "        elif level not in spoken:\n            reasons.append(\n",
            "        elif False:\n            reasons.append(\n",
            "an old node reads what it does not know",
        ),
        (
            "who is silent speaks everything",
            '        if spoken is None:\n            reasons.append(f"node',
            '        if False:\n            reasons.append(f"node',
            "a node that is down comes back with the old version",
        ),
        ("controllers are not asked", "sorted(controllers.items())", "()", "an old controller applies what it does not know"),
        (
            "a heartbeat of the process before counts",
            "if node is not None and node.incarnation == beat.incarnation:",
            "if node is not None:",
            "the old process is taken for the new one",
        ),
        (
            "what was heard stays over a restart",
            "node.incarnation == incarnation and not",
            "not",
            "a node that was downgraded is taken for what it was",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/fsm.py",
        (
            "unknown field dropped inside apply",
            "if before.feature_level >= STRICT and has_unknown_fields(request):",
            "if False:",
            "an older controller decides on half of an entry",
        ),
        (
            "strict before the level",
            "if before.feature_level >= STRICT and has",
            "if has",
            "versions without levels go on, and this one stops",
        ),
        (
            "a version that can't go on is answered like a bug",
            "        except (MemoryError, UnspokenError):",
            "        except MemoryError:",
            "the older controller goes on with another image",
        ),
        (
            "snapshots of any level are taken",
            "        check_level(image, self.spoken)\n",
            "",
            "decisions are made by a level that is not known",
        ),
        (
            "an entry that is none has no digest",
            "after = yield from _with_digest(replace(before, index=index), ())\n            return _Applied(after, (), _finish(response, b",
            "after = replace(before, index=index)\n            return _Applied(after, (), _finish(response, b",
            "two histories have one digest",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/codec.py",
        (
            "unknown field dropped from an image",
            "    if has_unknown_fields(message):\n",
            "    if False:\n",
            "what a newer version set is lost with the next snapshot",
        ),
        (
            "the digest is not in the snapshot",
            "        head.digest = image.digest\n",
            "",
            "who restores one takes everybody else for diverged",
        ),
        (
            "level 1 writes a level",
            "if image.feature_level > FIRST:",
            "if True:",
            "versions before levels see a field that they drop",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/records.py",
        (
            "unknown field dropped from a record",
            "    if has_unknown_fields(message):\n",
            "    if False:\n",
            "followers of the feed hold half of a change",
        ),
        tests=("tests/unit/cluster/test_records.py",),
    ),
    *rows(
        "liftpy/cluster/snapshot.py",
        (
            "snapshots of a level look like those before",
            "return LEVELLED if level >= STRICT else VERSION",
            "return VERSION",
            "an older version reads one, and drops the level",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/decisions/nodes.py",
        (
            "an old node registers at any level",
            'if draft.image.feature_level >= STRICT else ""',
            'if False else ""',
            "it reads what it does not know",
        ),
        (
            "apply refuses ranges at level 1",
            'if draft.image.feature_level >= STRICT else ""',
            'if True else ""',
            "versions without levels register it: two images",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/features.py",
        (
            "every level has a way back",
            "    if not now.has_way_back:\n",
            "    if False:\n",
            "older versions meet what they can't read",
        ),
        (
            "what is in use is not asked",
            "    return now.in_use(image)\n",
            "    return []\n",
            "an asset needs a level that is gone",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/doors.py",
        (
            "unknown field taken at the door",
            "    if has_unknown_fields(request):\n",
            "    if False:\n",
            "half of what was asked for is done",
        ),
        tests=("tests/unit/cluster/test_doors.py",),
    ),
    *rows(
        "liftpy/cluster/feed_subscription.py",
        (
            "one snapshot that can't be read ends a node",
            "if self._unreadable >= MAX_UNREADABLE:",
            "if True:",
            "a forged answer stops followers",
        ),
        (
            "snapshots that can't be read are asked for for ever",
            "if self._unreadable >= MAX_UNREADABLE:",
            "if False:",
            "a node of an older version hangs without a word",
        ),
        (
            "a level that is not spoken comes by the feed",
            "            check_level(image, self._spoken)\n        except (LiftError",
            "        except (LiftError",
            "a follower goes on at a level that it does not know",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/decisions/nodes.py",
        (
            "unguarded decision change: a better word",
            "there is no node {shown(node_id)}; there are:",
            "no node is called {shown(node_id)}; there are:",
            "two versions keep different answers to one operation",
        ),
        (
            "unguarded decision change: a kind of generosity",
            "request.cleanStop or request.flushedAlways)",
            "True)",
            "two versions have different ISRs",
        ),
        tests=_REPLAYED,
    ),
    *rows(
        "liftpy/cluster/draft.py",
        (
            "unguarded decision change: a number that starts elsewhere",
            "        return self._epoch - count\n",
            "        return self._epoch - count + 1\n",
            "two versions have different Epochs",
        ),
        tests=_REPLAYED,
    ),
    *rows(
        "liftpy/cluster/divergence.py",
        (
            "a plurality is a majority",
            "majority = len(names) // 2 + 1",
            "majority = len(names) // 2",
            "half of the controllers put the other half aside",
        ),
        ("learners count", "if node_id in names and index in held", "if index in held", "a learner makes a majority"),
        (
            "the leader is always right",
            'own_is_beside, self.halted = digest != own, ""',
            'self.halted = ""',
            "a leader beside the majority goes on",
        ),
        (
            "no majority, and it goes on",
            "                self.halted = (\n",
            "                _ = (\n",
            "two images are both written on",
        ),
        (
            "where there is no digest everybody differs",
            "return own is not None and own != agreed[1]",
            "return own != agreed[1]",
            "a controller that was sent a snapshot puts it aside",
        ),
        (
            "what was told before a snapshot stays",
            'own_is_beside, self.halted = digest != own, ""',
            "own_is_beside = digest != own",
            "nothing is ever decided again, though all agree",
        ),
        ("sessions that ended stay", "        self._held.pop(node_id, None)\n", "", "who has a new image still differs"),
        (
            "each is counted with every look",
            "self.found_count += len(found - self._found)",
            "self.found_count += len(found)",
            "one divergence looks like thousands",
        ),
        (
            "checkpoints at every entry",
            "before // self._every != index // self._every",
            "before != index",
            "members compare different places",
        ),
        tests=("tests/unit/cluster/test_divergence.py",),
    ),
    *rows(
        "liftpy/cluster/divergence.py",
        (
            "who has told another place has told",
            "if self.newest[0] not in self._held.get(node_id, ())",
            "if not self._held.get(node_id, ())",
            "halted for ever, as no place of all is ever reached",
        ),
        (
            "agreed with who is gone",
            "        self._held.pop(node_id, None)\n        self.agreed = NONE\n",
            "        self._held.pop(node_id, None)\n",
            "who differs puts its folder aside while the majority's is lost",
        ),
        tests=("tests/unit/cluster/test_halting.py",),
    ),
    *rows(
        "sidecar/raft/transport.py",
        (
            "digests of members on probation count",
            'message["checkpoint"] if message["success"] else NONE)',
            'message["checkpoint"])',
            "who differs puts its folder aside, and too few are left that vote",
        ),
        tests=("tests/simulation/raft/test_mixed_versions.py",),
    ),
    *rows(
        "liftpy/cluster/halting.py",
        (
            "the halted leader logs nothing of its own",
            "    if view.halted and view.untold & view.live:\n",
            "    if False:\n",
            "members without a digest at the place never tell one: halted for ever",
        ),
        (
            "it waits for who is not there",
            "view.untold & view.live:",
            "view.untold:",
            "the log is filled for as long as somebody is down",
        ),
        (
            "as many as ever",
            "range(MAX_BARRIERS - under_way)",
            "range(MAX_BARRIERS)",
            "the leader's queue grows with every tick",
        ),
        (
            "halted, and a controller that catches up waits for ever",
            'return request.HasField("barrier") and',
            "return False and",
            "its digest would be the majority's",
        ),
        (
            "halted, and barriers of nodes are committed",
            "request.sender in view.now.members and ",
            "",
            "a cluster that decides nothing looks healthy",
        ),
        (
            "a halted leader that may have a successor refuses",
            "    if not confirmed:\n",
            "    if False:\n",
            "the successor applies what was refused",
        ),
        (
            "halted, what is logged already is refused",
            "OUTCOME_UNKNOWN if logged else",
            "UNAVAILABLE if logged else",
            "what was refused is applied",
        ),
        tests=("tests/unit/cluster/test_halting.py",),
    ),
    *rows(
        "liftpy/cluster/digests.py",
        (
            "the index is not in it",
            '    chain.update(after.index.to_bytes(8, "big"))\n',
            "",
            "entries that do nothing are not told apart",
        ),
        (
            "records are not in it",
            '        chain.update(len(data).to_bytes(4, "big") + data)\n',
            "",
            "images that differ have one digest",
        ),
        (
            "it begins anew with each entry",
            "hashlib.blake2b(after.digest,",
            'hashlib.blake2b(b"",',
            "what was different once is forgotten",
        ),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/birth.py",
        (
            "a used group is taken for a new one: its nodes have gone",
            " or image.counters != Counters()",
            "",
            "the level of an old cluster is raised by nobody",
        ),
        (
            "nobody waits for a silent controller",
            "    if silent and not waited:\n",
            "    if False:\n",
            "the level depends on who was heard first",
        ),
        (
            "a silent controller speaks what the leader speaks",
            "spoken or LevelRange(FIRST, FIRST)",
            "spoken or own",
            "one of an older version can't take part",
        ),
        (
            "the leader's newest level, whatever the others speak",
            "level = min(spoken.most for spoken in ranges)",
            "level = own.most",
            "an older controller ends at once",
        ),
        (
            "levels in common are not asked for",
            "    if level < max(spoken.least for spoken in ranges):\n",
            "    if False:\n",
            "a controller gets a level that it does not speak",
        ),
        (
            "ordered on every tick",
            "or self._is_ordered or",
            "or",
            "a storm of orders",
        ),
        (
            "ordered while images differ",
            " or view.halted:",
            ":",
            "something is decided on images that differ",
        ),
        tests=("tests/unit/cluster/test_birth.py",),
    ),
    *rows(
        "liftpy/cluster/member.py",
        (
            "nodes register before the level is chosen",
            "        if self._birth.why and _decides(request):\n",
            "        if False:\n",
            "the new cluster begins at the first level",
        ),
        (
            "before the leader is in office anything passes",
            "            if self._birth.is_ahead(log.image) and _decides(request):\n",
            "            if False:\n",
            "a stream is made before the level is chosen",
        ),
        (
            "an order that was lost is never given again",
            "            self._birth.ended()\n",
            "            pass\n",
            "nobody is ever taken in",
        ),
        tests=("tests/unit/cluster/test_birth.py",),
    ),
]

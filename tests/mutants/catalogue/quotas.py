"""Bugs in quotas, and in what their publishers are told."""

from __future__ import annotations

from tests.mutants.mutant import rows

_BUCKETS = ("tests/unit/ingest/test_quota.py",)
_PUBLISHERS = ("tests/unit/bus/test_quota_of_publishers.py",)
_UNREAD = ("tests/unit/bus/test_refused_unread.py",)
_LEVELS = ("tests/unit/cluster/test_feature_levels.py",)

_LATE = ("tests/unit/ingest/test_lateness.py",)

MUTANTS = [
    *rows(
        "liftpy/ingest/ingest_shell.py",
        ("of two ids the first", "found is not None and headers.count(ID_NAME) == 1 and is_new", "found is not None and is_new", "who is told no finds it stored under his first id"),
        ("an unclear id is new", "return found is not None and headers.count(ID_NAME) == 1 and is_new(found[1])", "return found is None or (headers.count(ID_NAME) == 1 and is_new(found[1]))", "who is told no finds it stored under an id that he wrote otherwise"),
        ("every id is read", "    return found is not None and headers", "    return False and headers", "under a flood with message ids little is stored"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/overload.py",
        ("what has come before is not stored", "if message_id in ids.in_hand or ids.waits():", "if message_id in ids.in_hand:", "who is told no finds his first message stored"),
        ("what is in hand is not stored", "if message_id in ids.in_hand or ids.waits():", "if ids.waits():", "who is told no finds his first message stored"),
        ("in hand is not known", "if stored is not None or ids[index] in in_hand}", "if stored is not None}", "who is told no finds his first message stored"),
        ("twice at once is stored", "if stored is not None or ids[index] in in_hand}", "}", "of two publishes of a message that was refused one is never answered"),
        ("a blind node says no", "if ids and self._ids.stored.is_blind(now_wall_ns):", "if False:", "who is told no finds it stored"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/recent_ids.py",
        ("a blind node refuses unread", "return message_id in self._by_id or self.is_blind(now_wall_ns)", "return message_id in self._by_id", "who is told no finds it stored"),
        ("ids are stored unknown", "return message_id in self._by_id or self.is_blind(now_wall_ns)", "return self.is_blind(now_wall_ns)", "who is told no finds it stored"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/apart.py",
        ("each envelope is read alone", "(payload[_KIND] == BATCH and payload.startswith(MAGIC))", "payload.startswith(MAGIC)", "under a flood of the client's publishers little is stored"),
        ("a fast batch hides ids", "reply.endswith(FAST_BATCH_REPLY) or", "", "who is told no finds it stored, since another one beside him asked for a fast batch"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/acks.py",
        ("all get the first one's no", "if (envelope and id(envelope), wait_ms) != alike:", "if alike is None:", "publishers are told no under another one's correlation id"),
        tests=(*_PUBLISHERS, *_UNREAD),
    ),
    *rows(
        "sidecar/bus/parser.py",
        ("plain ones behind an envelope are read", "if pauses and count and (with_headers or not buffer.startswith(MAGIC, start)):", "if False:", "beside envelopes each refusal costs ten times as much"),
        ("each envelope is asked about", "if pauses and count and (with_headers or not buffer.startswith(MAGIC, start)):", "if pauses and count:", "under a flood of the client's publishers less is stored"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/lateness.py",
        ("a queue may stand", "        if self._refused_ns < 0:\n", "        if True:\n", "under a flood who is accepted waits for as long as may be, and so does who is refused"),
        ("short for ever", "self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS", "self._short_ns", "after one flood every burst is refused"),
        ("long at once", "(now_ns - self._refused_ns) // _REGAINS_PARTS", "(now_ns - self._refused_ns)", "under a flood nearly as long a queue stands as before"),
        ("what it was is passed", "min(self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS, self._late_ns)", "self._short_ns + (now_ns - self._refused_ns) // _REGAINS_PARTS", "an hour after a flood nobody is refused any more, however late"),
        ("since it began", "            self._refused_ns = now_ns\n            self.is_late", "            self._refused_ns = max(self._refused_ns, 0)\n            self.is_late", "a flood that lasts has a long queue again and again"),
        ("late until nothing waits", "2 * waited_ns > self._short_ns", "waited_ns > 0", "all are refused in a flood, and nothing is stored for moments"),
        ("late at once and in time at once", "2 * waited_ns > self._short_ns", "waited_ns > self._short_ns", "a node that is late refuses every other publish for as long as it is"),
        ("late without a bound", "        elif self._late_ns:\n", "        else:\n", "a node for which nothing is late refuses what waits"),
        tests=_LATE,
    ),
    *rows(
        "sidecar/bus/inflow.py",
        ("the door stays shut behind the last", "by here.\"\"\"\n        self._look_at_age()\n", "by here.\"\"\"\n", "after a flood a node refuses whoever comes alone, until the next one"),
        ("a turn refuses as few as it takes", "_REFUSING_BYTES if self._look_at_age() else _TURN_BYTES", "_TURN_BYTES if self._look_at_age() else _TURN_BYTES", "the loop's other work comes between each few refusals of a flood, who waits for them hears late"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/node_room.py",
        ("who is refused at a short queue comes at once", "if self.is_late else self.waited_ns", "if False else self.waited_ns", "a flood of those who were refused follows on each flood"),
        tests=_LATE,
    ),
    *rows(
        "liftpy/ingest/quota.py",
        ("nothing is paid", "bucket.left = [left - cost if rate", "bucket.left = [left if rate", "a quota lets everything in"),
        ("a bucket is never full", "[min(most, left + passed_s * rate) for", "[left + passed_s * rate for", "after a quiet hour an hour's worth comes at once"),
        ("a clock that goes back takes", "passed_s = max(now_ns - bucket.seen_ns, 0) / NS_PER_S", "passed_s = (now_ns - bucket.seen_ns) / NS_PER_S", "a stream takes nothing for as long as a clock went back"),
        ("time counts twice", "            bucket.seen_ns = now_ns\n", "            pass\n", "a quota lets more and more in"),
        ("the first token goes", "        self._buckets[token] = bucket\n        return bucket", "        self._buckets = {token: bucket} | self._buckets\n        return bucket", "who publishes all the time has a full bucket all the time"),
        ("any number of tokens", "if len(self._buckets) >= MAX_BUCKETS:", "if False:", "subjects that nobody has used before fill the leader's memory"),
        ("tokens of any length", "if len(token) > _MAX_TOKEN_LENGTH:", "if False:", "long tokens fill the leader's memory"),
        ("all wait alike", "_waits(np.cumsum(cost) - cost - bucket.left[kind], rate)", "_waits(np.cumsum(cost) * 0 - bucket.left[kind], rate)", "all that were refused come again at once"),
        ("the others of a group do not count", "found[order] = sums - sums[firsts][groups[order]]", "found[order] = sums", "one token's publishers pay for another's"),
        ("a quota counts no headers", "list(map(int.__add__, map(len, payloads), map(len, blocks)))", "list(map(len, payloads))", "a quota of bytes is passed by headers"),
        ("a stream's quota for each partition", "terms = (stream.quota_records_per_s / share, stream.quota_bytes_per_s / share)", "terms = (stream.quota_records_per_s / 1, stream.quota_bytes_per_s / 1)", "a stream of ten partitions takes ten times its quota"),
        ("each state fills the bucket", "return held if held is not None and held.terms == terms else Quota(*terms)", "return Quota(*terms)", "each change of the ISR gives a burst"),
        tests=_BUCKETS,
    ),
    *rows(
        "liftpy/ingest/ingest.py",
        ("a part of it is stored, and no is said", "forced = heard or (numbering is not None and numbering.first > 0)", "forced = heard", "a producer is told no of records that are stored"),
        ("what was heard is beyond the quota", "forced = heard or (", "forced = (", "a fail-over with standbys loses publishes"),
        ("heard for ever in a small read", "            self._took(len(raw))\n", "            pass\n", "after a fail-over there is no quota any more"),
        ("heard for ever", "        self._took(start)\n", "", "after a fail-over there is no quota any more"),
        ("a quota says no without a lease", "waits_ms, now=self._may.refuse_for_now(),", "waits_ms, now=True,", "a publisher is told no of what the next leader stores"),
        ("who is within is lost", "            self._submit(within)\n", "            pass\n", "publishes within the quota vanish beside those beyond it"),
        tests=_PUBLISHERS,
    ),
    *rows(
        "liftpy/ingest/acks.py",
        ("who was not told is never told", "        if now:\n            self.say_untold()\n", "        if now:\n", "publishers that a leader refused without a lease run into their time-out"),
        ("any number wait for a no", "elif later and len(self._untold) < MOST_UNTOLD:", "elif later:", "a leader without a lease keeps all it refuses in memory"),
        ("a deposed leader says no", "        self._untold.clear()\n", "", "a publisher is told no of what the next leader stores"),
        ("nobody is told when", "retryAfterMs=wait_ms", "retryAfterMs=0", "publishers beyond a quota come again at once"),
        ("JSON does not say when", "if wait_ms else plain", "if False else plain", "publishers of plain NATS guess when to come again"),
        tests=_PUBLISHERS,
    ),
    *rows(
        "liftpy/cluster/features.py",
        ("a batch is not looked into", "for part in (request, *(item.request for item in request.batch.requests)):\n        if part.HasField(\"setSession", "for part in (request,):\n        if part.HasField(\"setSession", "a controller of an older version stops in the middle of an upgrade"),
        ("quotas do not hold the level", "if stream.config.needs_quotas]", "if False]", "after a way back older versions can't read the image"),
        ("a default quota does not hold the level", "if image.default_quota != NO_QUOTA else []", "if False else []", "after a way back older versions can't read the image"),
        ("who is exempt does not hold the level", "if stream.config.quota_exempt)", "if False)", "after a way back older versions can't read the image"),
        ("a default quota is logged at any level", "if config.quotaExempt or part.HasField(\"setDefaultQuota\"):", "if config.quotaExempt:", "controllers of an older version stop in the middle of an upgrade"),
        ("level 3 lists what came later", "return (*ALTERABLE_AT_FIRST, *QUOTA_SETTINGS) if level >= QUOTAS", "return ALTERABLE if level >= QUOTAS", "controllers of two versions answer one entry differently"),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/decisions/streams.py",
        ("an exempt stream at any level", "if config.quota_exempt and image.feature_level < DEFAULT_QUOTA:", "if False:", "controllers of two versions hold two clusters"),
        ("a quota at any level", "if config.needs_quotas and image.feature_level < QUOTAS:", "if False:", "controllers of two versions hold two clusters"),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/decisions/altering.py",
        ("a quota is altered at any level", "_with_settings(held, request, alterable_at(draft.image.feature_level))", "_with_settings(held, request, alterable_at(99))", "controllers of two versions hold two clusters"),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/decisions/defaults.py",
        ("a default quota at any level", "if image.feature_level < DEFAULT_QUOTA:", "if False:", "controllers of two versions hold two clusters"),
        ("what is not named is forgotten", "whole = quota_to_pb(image.default_quota)", "whole = pb.DefaultQuota()", "who changes the bytes ends the quota of records"),
        ("a default quota of zero is none said", "if request.HasField(name):", "if getattr(request, name):", "a default quota never ends"),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/diff.py",
        ("leaders do not hear of a default quota", "has_same_default = old.default_quota == new.default_quota", "has_same_default = True", "a default quota holds after the next restart only"),
        ("shares of a default quota stay", "is_bound = new.config.has_quota or (now.has_rates and new.takes_default_quota)", "is_bound = new.config.has_quota", "a stream that gets partitions takes more than the default quota"),
        tests=("tests/unit/cluster/test_image_diff.py",),
    ),
    *rows(
        "liftpy/cluster/image.py",
        ("the cluster's own streams have the default quota", "self.config.takes_default_quota and not is_internal(self.name)", "self.config.takes_default_quota", "groups can't commit, events are lost"),
        tests=("tests/unit/cluster/test_image_diff.py",),
    ),
    *rows(
        "liftpy/config.py",
        ("the default adds to a stream's own quota", "return not (self.has_quota or self.quota_exempt)", "return not self.quota_exempt", "a stream with a quota of its own has the cluster's"),
        ("nobody is exempt", "return not (self.has_quota or self.quota_exempt)", "return not self.has_quota", "a stream that is exempt has the cluster's quota"),
        tests=("tests/unit/cluster/test_image_diff.py",),
    ),
    *rows(
        "liftpy/cluster/changes.py",
        ("worker processes do not hear of a default quota", "if old.default_quota != new.default_quota:", "if False:", "with several processes a node holds some partitions to no quota"),
        tests=("tests/unit/cluster/test_changes.py",),
    ),
    *rows(
        "liftpy/cluster/codec.py",
        ("snapshots lack the default quota", "default_quota=quota_from_pb(message.defaultQuota),", "default_quota=NO_QUOTA,", "a node that starts holds its partitions to no quota"),
        tests=_LEVELS,
    ),
    *rows(
        "liftpy/cluster/movements.py",
        ("what is offline is not named", "if place[1].status is PartitionStatus.OFFLINE]", "if False]", "an operator waits for a drain that never ends, and is not told why"),
        tests=("tests/unit/cli/test_cli_moves.py",),
    ),
    *rows(
        "sidecar/cli/stream.py",
        ("a default quota is shown of all", "if found.config_under(quota) is not found.config else NO_QUOTA", "if True else NO_QUOTA", "an operator looks for a quota where there is none"),
        tests=("tests/unit/cli/test_cli_settings.py",),
    ),
    *rows(
        "sidecar/cli/movement.py",
        ("what stays is said at each look", "            if reason not in before:\n", "            if True:\n", "a drain that waits fills the terminal"),
        tests=("tests/unit/cli/test_cli_moves.py",),
    ),
    *rows(
        "liftpy/ingest/node_room.py",
        ("what was looked at is old for ever", "while self._looks and self._looks[0][0] <= done_bytes:", "while False:", "after one slow second a node refuses everybody who waits"),
        tests=("tests/unit/ingest/test_node_room.py",),
    ),
    *rows(
        "liftpy/ingest/node_room.py",
        ("all come again at once", "min(max(wait_ns // 1_000_000, LEAST_WAIT_MS), LONGEST_WAIT_MS)", "LEAST_WAIT_MS", "who is refused asks again twenty times a second while others wait for seconds"),
        ("each turn is a look", "now_ns - self._looks[-1][1] >= apart_ns", "now_ns - self._looks[-1][1] >= 0", "an overload that lasts fills memory with looks at it"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/overload.py",
        ("a late node refuses what it may not", "return self._may.room.node.is_late and self._reader.answers and self._may.refuse_for_now()", "return self._may.room.node.is_late and self._reader.answers", "publishes that a standby would store are dropped"),
        ("nobody is late", "return self._may.room.node.is_late and self._reader.answers and self._may.refuse_for_now()", "return False", "in an overload answers take longer and longer, and memory grows"),
        ("late where nobody is answered", "return self._may.room.node.is_late and self._reader.answers and self._may.refuse_for_now()", "return self._may.room.node.is_late and self._may.refuse_for_now()", "what has a reply is lost in silence in a stream without acks"),
        ("a full queue looks at each", "return self._is_late or (self._is_full() and self._reader.answers and self._may.refuse_for_now())", "return self._is_late", "a node without room spends its time on refusing"),
        ("a full queue refuses what it may not", "(self._is_full() and self._reader.answers and self._may.refuse_for_now())", "(self._is_full() and self._reader.answers)", "who is told no finds it stored"),
        ("unread ones are not counted", "        self._counters.overloaded += len(replies)\n", "", "an overload is not seen in metrics"),
        ("what is stored is refused", "            if known:  # who", "            if False:  # who", "who is told no finds it stored"),
        tests=(*_PUBLISHERS, *_UNREAD, "tests/unit/bus/test_ingest.py"),
    ),
    *rows(
        "sidecar/bus/leaving_out.py",
        ("envelopes are refused unread", "\\r\\n(?!%b)\"\n", "\\r\\n(?:(?!%b)|)\"\n", "an enveloped publisher is answered as JetStream answers, where he does not look"),
        ("half a message is refused", "        if other != head or end > size:", "        if other != head:", "what comes after a cut message is read as a line"),
        ("envelopes behind headers are refused unread", "if buffer.startswith(MAGIC, payload) or not may", "if not may", "an enveloped publisher is answered as JetStream answers, where he does not look"),
        ("ids are not looked at", " or not may_be_told_no(buffer[start:payload], is_new):", ":", "who is told no finds it stored"),
        ("headers of any size", "if not headers or not start < payload < end - 1 or", "if not headers or", "a malformed frame is answered, and not said"),
        ("one door for all", "        if other != head or end > size:", "        if end > size:", "publishes of a stream with room are refused for another's want"),
        ("any subject is refused", "if refuser is None or not self._is_ours(subject, sid) or not refuser.refuses():", "if refuser is None or not refuser.refuses():", "a forged frame has a node publish"),
        ("refused ones were never read", "            self._connection.stats[\"in_msgs\"] += len(replies)\n", "", "metrics lose what an overload brings"),
        tests=_UNREAD,
    ),
    *rows(
        "sidecar/bus/inflow.py",
        ("nobody looks how long bytes wait", "        room.look_at_age(self._arrived_bytes, self._done_bytes, clock.now_ns())\n", "", "for a tenth of a second after an overload everybody is refused"),
        ("a mixed burst is read", "self._parser.pauses = room.is_late or room.is_limited", "self._parser.pauses = False", "one message with headers has its neighbours refused at ten times the price"),
        tests=_UNREAD,
    ),
    *rows(
        "liftpy/ingest/apart.py",
        ("plain ones are late too", "            others.append(message)\n", "            pass\n", "bursts that nobody waits for are dropped instead of stored"),
        tests=_PUBLISHERS,
    ),
    *rows(
        "liftpy/cluster/request_rates.py",
        ("all principals are one", "own = self._of.pop(principal, None)", "own, principal = self._of.pop('', None), ''", "one operator's tool shuts the others out"),
        ("who is refused takes from all", "        if not wait_ms:\n            own.take(now_ns)\n            self._in_all.take(now_ns)", "        self._in_all.take(now_ns)\n        if not wait_ms:\n            own.take(now_ns)", "one operator's tool shuts the others out"),
        ("principals are not forgotten", "if len(self._of) >= MAX_PRINCIPALS:", "if False:", "made-up names fill the metadata leader's memory"),
    ),
    *rows(
        "sidecar/metadata/control.py",
        ("readers are counted as operators", "elif door is Door.ADMIN and (wait_ms", "elif (wait_ms", "status pages are told to wait"),
        tests=("tests/unit/metadata/test_control_desk.py",),
    ),
    *rows(
        "liftpy/client/admin.py",
        ("a wait is not heeded", "if response.retryAfterMs:", "if False:", "tools that ask too much are refused until their deadline"),
        tests=("tests/unit/client/test_client_admin.py",),
    ),
    *rows(
        "liftpy/client/lane.py",
        ("a producer does not wait for its turn", "self.resume_at = now + (after_s or self._pause_s)", "self.resume_at = now + self._pause_s", "producers beyond a quota flood its leader"),
        tests=("tests/unit/client/test_lane.py",),
    ),
    *rows(
        "liftpy/cluster/request_rates.py",
        (
            "who is refused for others pays for it",
            "        if not wait_ms:\n            own.take(now_ns)",
            "        own.take(now_ns)\n        if not wait_ms:",
            "one operator who floods takes the others' rates away",
        ),
        tests=("tests/unit/cluster/test_request_rates.py",),
    ),
]  # fmt: skip

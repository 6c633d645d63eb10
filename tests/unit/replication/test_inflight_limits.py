"""Test the limits of in-flight publishes, and the guard against a disconnect as a slow consumer [A11, D20]."""

from __future__ import annotations

from liftpy.config import ReplicationConfig
from liftpy.core.publish.backpressure import BLIND_RATE_BYTES, FRESH_NS, LIMIT_BYTES, IngestThrottle, LoadShedding
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.combined_fetches import CombinedFetch, CombinedFetches
from liftpy.core.replication.inflight_limits import RECORD_OVERHEAD_BYTES, InflightLimits, NodeInflight, size_in_memory
from liftpy.core.replication.isr import FollowerProgress, wanted_isr
from liftpy.core.wire.rejections import RejectReason
from tests.unit.replication.stepping import KEY, S, Stepped, leader_context, state

KIB = 1024
MIB = 1024 * 1024
SMALL = ReplicationConfig(
    unreplicated_bytes=1000, node_unreplicated_bytes=2000, ingest_queue_bytes=1000, ingest_buffer_bytes=8192
)
BATCH_BYTES = 400
"""In memory."""
STORED_BYTES = BATCH_BYTES - RECORD_OVERHEAD_BYTES
"""In the log: two of them are below the bound, with three it is reached."""


def publish(leader: Stepped, *, plain: bool = True, flush: bool = True) -> int:
    leader.tokens += 1
    leader.step(
        ev.PublishesReceived(
            token=leader.tokens, record_count=1, size_bytes=STORED_BYTES, received_wall_ns=0, plain_count=1 if plain else 0
        )
    )
    token = leader.tokens
    if flush and leader.has(do.AppendBatch):
        leader.step(ev.LogFlushed(end_offset=leader.replica.log.log_end_offset))
    return token


def appended(leader: Stepped) -> list[int]:
    return [effect.token for effect in leader.out if isinstance(effect, do.AppendBatch)]


def test_leader_ahead_of_its_followers_queues_publishes_and_appends_them_in_order() -> None:
    leader = Stepped("a", SMALL).leads()
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    for _ in range(3):
        publish(leader)
    assert leader.replica.log.log_end_offset == 3
    held = [publish(leader, plain=plain) for plain in (True, False)]
    assert leader.sent() == []
    assert leader.replica.held_bytes == 2 * BATCH_BYTES
    leader.fetch("b", 2)
    assert appended(leader) == [], "c has not fetched"
    leader.fetch("c", 0)
    assert leader.replica.high_watermark == 0
    assert appended(leader) == [held[0]]
    publish(leader)
    assert appended(leader) == [], "behind what is held"
    leader.fetch("c", 2)
    assert appended(leader)[0] == held[1]


def test_leader_sends_a_fetch_response_before_it_appends_queued_publishes() -> None:
    """Else a fetch would be answered to which no way back is kept yet."""
    leader = Stepped("a", SMALL).leads()
    leader.fetch("b", -1, awaits_more=True)
    leader.fetch("c", -1, awaits_more=True)
    for _ in range(5):
        publish(leader)
    leader.fetch("b", 2, awaits_more=True)
    leader.fetch("c", 2, awaits_more=True)
    kinds = [type(effect) for effect in leader.sent() if isinstance(effect, do.AppendBatch | do.ParkFetch)]
    assert kinds[0] is do.ParkFetch
    assert do.AppendBatch in kinds


def test_leader_above_its_queue_limit_rejects_or_drops_publishes() -> None:
    leader = Stepped("a", SMALL).leads()
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    for _ in range(5):
        publish(leader)
    token = publish(leader)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.OVERLOADED)]
    token = publish(leader, plain=False)
    assert leader.sent() == [do.RejectPublishes(token=token, reason=RejectReason.OVERLOADED)]
    leader.now_ns += 30 * S
    token = publish(leader, plain=False)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.OVERLOADED)], "without a lease nobody is told"


def test_conditional_publish_at_the_inflight_limit_is_rejected_while_other_publishes_are_queued() -> None:
    leader = Stepped("a", SMALL).leads()
    leader.fetch("b", -1)
    for _ in range(4):
        publish(leader)
    leader.tokens += 1
    leader.step(ev.PublishesReceived(token=leader.tokens, record_count=1, size_bytes=10, received_wall_ns=0, conditional=True))
    assert leader.has(do.DropPublishes), "c has not joined: nobody may be told"
    leader.fetch("c", -1)
    leader.step(ev.PublishesReceived(token=leader.tokens, record_count=1, size_bytes=10, received_wall_ns=0, conditional=True))
    assert leader.sent() == [do.RejectPublishes(token=leader.tokens, reason=RejectReason.OVERLOADED)]


def test_leader_below_min_isr_queues_publishes_without_reply_until_the_isr_grows() -> None:
    leader = Stepped("a", SMALL).leads(state(isr="a", leader_epoch=2))
    held = [publish(leader) for _ in range(2)]
    assert leader.sent() == []
    refused = publish(leader, plain=False)
    assert leader.sent() == [do.RejectPublishes(token=refused, reason=RejectReason.BELOW_MIN_ISR)]
    lost = publish(leader)
    assert leader.sent() == [do.DropPublishes(token=lost, reason=RejectReason.BELOW_MIN_ISR)]
    leader.told(state(isr="ab", leader_epoch=2, epoch=2))
    assert appended(leader) == held


def test_leader_that_may_not_reject_queues_publishes_in_their_order_of_arrival() -> None:
    leader = Stepped("a", SMALL).leads(state(isr="a", leader_epoch=2))
    first = publish(leader)
    leader.now_ns += 30 * S
    second = publish(leader, plain=False)
    assert leader.sent() == [], "no lease: it can't be refused, and it may not overtake [A4]"
    leader.told(state(isr="ab", leader_epoch=2, epoch=2))
    assert appended(leader) == [first, second]


def test_queued_publishes_with_reply_are_rejected_when_the_isr_shrinks_below_min_isr() -> None:
    leader = Stepped("a", SMALL).leads()
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    for _ in range(3):
        publish(leader)
    plain, waiting = publish(leader), publish(leader, plain=False)
    leader.told(state(isr="a", leader_epoch=2, epoch=2))
    assert leader.only(do.RejectPublishes) == do.RejectPublishes(token=waiting, reason=RejectReason.BELOW_MIN_ISR)
    leader.told(state(isr="abc", leader_epoch=2, epoch=3))
    leader.fetch("b", 2)
    leader.fetch("c", 2)
    assert appended(leader) == [plain]


def test_queued_publishes_are_dropped_when_the_leadership_ends() -> None:
    leader = Stepped("a", SMALL).leads()
    node = leader.replica._shared.node.inflight
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    for _ in range(4):
        publish(leader)
    assert (node.unreplicated_bytes, node.held_bytes) == (3 * STORED_BYTES, BATCH_BYTES)
    leader.told(state("b", leader_epoch=3, epoch=2))
    assert leader.only(do.DropPublishes) == do.DropPublishes(token=leader.tokens, reason=RejectReason.NOT_LEADER)
    assert (node.unreplicated_bytes, node.held_bytes, node.full_count) == (0, 0, 0)


def test_inflight_limits_of_a_node_at_its_limit_allow_one_batch_per_partition() -> None:
    node = NodeInflight()
    busy, quiet = InflightLimits(node, SMALL), InflightLimits(node, SMALL)
    others = [InflightLimits(node, SMALL) for _ in range(5)]
    for number, inflight in enumerate(others):
        assert inflight.may_append()
        inflight.appended(number, BATCH_BYTES)
    assert busy.may_append()
    busy.appended(0, BATCH_BYTES)
    assert node.unreplicated_bytes > SMALL.node_unreplicated_bytes
    assert not busy.may_append()
    assert quiet.may_append(), "nothing of it is uncommitted"
    busy.committed(0)
    assert busy.may_append()


def progress(position: int, *, caught_up_ago_s: float, progressed_ago_s: float, now_ns: int) -> FollowerProgress:
    found = FollowerProgress(
        now_ns - round(caught_up_ago_s * S), incarnation=1, live=True, position=position, was_caught_up=True
    )
    found.progressed_ns = now_ns - round(progressed_ago_s * S)
    return found


def wanted(followers: dict[str, FollowerProgress], now_ns: int, *, isr: str = "abc", min_isr: int = 2) -> str:
    shared = leader_context(state(isr=isr, min_isr=min_isr), {"a": 1, "b": 1, "c": 1}, end=1000, hw=5)
    return "".join(sorted(wanted_isr(shared, followers, 0, frozenset(), now_ns)))


def test_follower_that_makes_progress_stays_in_the_isr_despite_its_lag() -> None:
    now_ns = 100 * S
    slow = {r: progress(10, caught_up_ago_s=20, progressed_ago_s=0.1, now_ns=now_ns) for r in "bc"}
    assert wanted(slow, now_ns) == "abc"
    stuck = {**slow, "c": progress(10, caught_up_ago_s=20, progressed_ago_s=6, now_ns=now_ns)}
    assert wanted(stuck, now_ns) == "ab"
    slower = {r: progress(10, caught_up_ago_s=31 + (r == "c"), progressed_ago_s=0.1, now_ns=now_ns) for r in "bc"}
    assert wanted(slower, now_ns) == "ab", "too slow for too long, and min_isr can do without it"
    assert wanted(slower, now_ns, min_isr=3) == "abc"
    assert wanted(slower, now_ns, isr="ab") == "ab", "nobody joins by it"
    gone = {r: progress(10, caught_up_ago_s=20, progressed_ago_s=20, now_ns=now_ns) for r in "bc"}
    assert wanted(gone, now_ns) == "a"


def test_follower_lag_time_is_the_age_of_the_leaders_log_end_that_it_reached() -> None:
    follower = FollowerProgress(caught_up_ns=0)
    for second in range(1, 11):  # the leader appends 100 a second, the follower gets 50 of them
        follower.fetched(50 * second, second, 100 * second, second * S)
    assert follower.caught_up_ns == 4 * S, "at 10 s it has what the leader had at 5 s; it was looked at before"
    assert follower.progressed_ns == 10 * S
    follower.fetched(500, 11, 1100, 11 * S)
    assert follower.progressed_ns == 10 * S


def full(node: NodeInflight) -> IngestThrottle:
    node.full_count = 1
    return IngestThrottle(node)


def test_ingest_gate_stays_closed_while_full_partitions_make_progress() -> None:
    node = NodeInflight()
    gate = full(node)
    for tenths in range(100):
        node.released_bytes += MIB
        assert not gate.may_take(0, False, S + tenths * S // 10)
    node.full_count = 0
    assert gate.may_take(0, True, 12 * S)


def test_ingest_gate_closed_for_long_passes_a_minimum_rate() -> None:
    node = NodeInflight()
    gate = full(node)
    taken, now_ns = 0, S
    for _ in range(1000):
        now_ns += S // 100
        node.released_bytes += 1
        while gate.may_take(taken, True, now_ns):
            taken += 64 * KIB
    least = gate.least_rate_bytes
    assert 8 * least < taken < 11 * least
    gate.connection_lost()
    assert gate.least_rate_bytes == 2 * least
    node.full_count = 0
    assert gate.may_take(taken, False, now_ns + 60 * S)
    assert gate.least_rate_bytes == least, "calm has returned"
    gate.connection_lost()
    assert gate.least_rate_bytes == least, "it was cut for another reason"


def test_ingest_gate_opens_when_full_partitions_make_no_progress_for_two_seconds() -> None:
    node = NodeInflight()
    gate = full(node)
    assert not gate.may_take(0, False, S)
    assert not gate.may_take(0, False, 3 * S - 1)
    assert gate.may_take(0, False, 3 * S)
    node.released_bytes += 1
    assert not gate.may_take(0, False, 3 * S + 1)


def held(size_bytes: int) -> ev.PublishesReceived:
    return ev.PublishesReceived(
        token=1, record_count=1, size_bytes=size_bytes - RECORD_OVERHEAD_BYTES, received_wall_ns=0, plain_count=1
    )


def test_inflight_limits_count_a_partition_as_full_from_three_quarters_of_its_limit() -> None:
    node = NodeInflight()
    one, other = InflightLimits(node, SMALL), InflightLimits(node, SMALL)
    counts = []
    order = (one, one, one, other, one, other, other)
    for inflight in order:
        assert inflight.hold(held(250), 0)
        counts.append(node.full_count)
    assert counts == [0, 0, 1, 1, 1, 1, 2], "three quarters of what it may hold"
    for inflight in order:
        assert inflight.next().size_bytes == held(250).size_bytes
        counts.append(node.full_count)
    assert counts[7:] == [2, 1, 1, 0, 0, 0, 0]
    assert (node.held_bytes, node.released_bytes) == (0, 7 * 250)


def test_inflight_limits_of_a_full_node_count_each_partition_with_queued_bytes_as_full() -> None:
    node = NodeInflight()
    wide = ReplicationConfig(ingest_queue_bytes=1 << 20, ingest_buffer_bytes=8192)
    busy, quiet = InflightLimits(node, wide), InflightLimits(node, wide)
    while not node.full_count:
        assert busy.hold(held(128), 0)
    assert busy.held_bytes == node.held_bytes == 3072, "three quarters of half the buffer"
    assert quiet.hold(held(128), 0)
    assert node.full_count == 2
    quiet.next()
    assert node.full_count == 1
    while busy.hold(held(128), 0):
        assert node.held_bytes <= 4096
    assert node.held_bytes == 4096, "its bound, exactly"
    assert not quiet.hold(held(128), 0)


# ---- bounds ----------------------------------------------------------------------------------------------------------------
def publishes(count: int, size: int, *, plain: bool = True) -> ev.PublishesReceived:
    return ev.PublishesReceived(
        token=1, record_count=count, size_bytes=size, received_wall_ns=0, plain_count=count if plain else 0
    )


def test_inflight_limits_return_to_zero_after_all_bytes_are_replicated() -> None:
    config = ReplicationConfig(ingest_queue_bytes=1 << 20, ingest_buffer_bytes=1 << 22)
    node = NodeInflight()
    all_inflight = [InflightLimits(node, config) for _ in range(2)]
    event = publishes(3, 1000)
    assert size_in_memory(event) == 1000 + 3 * RECORD_OVERHEAD_BYTES
    for inflight in all_inflight:
        assert inflight.hold(event, 0)
        inflight.appended(4, 100)
        inflight.appended(9, 200)
    assert (node.held_bytes, node.unreplicated_bytes) == (2 * size_in_memory(event), 600)
    all_inflight[0].committed(3)
    assert all_inflight[0].uncommitted_bytes == 300
    all_inflight[0].committed(4)
    assert (all_inflight[0].uncommitted_bytes, node.unreplicated_bytes) == (200, 500)
    assert all_inflight[0].next() is event
    assert (node.held_bytes, node.released_bytes, all_inflight[0].held_bytes) == (
        size_in_memory(event),
        size_in_memory(event),
        0,
    )
    for inflight in all_inflight:
        list(inflight.close())
    assert (node.held_bytes, node.unreplicated_bytes, node.full_count) == (0, 0, 0)


def test_slow_consumer_guard_lowers_its_limit_after_a_disconnect_at_or_below_the_limit() -> None:
    overflow = LoadShedding()
    overflow.record_pong(1000, 0, 10)
    overflow.record_pong(5, 0, 9)
    assert overflow.backlog_bytes == 1000
    before = overflow.limit_bytes
    overflow.server_closed_at(1 << 40)
    assert overflow.limit_bytes == before
    overflow.server_closed_at(before)
    lower = overflow.limit_bytes
    assert lower < before
    overflow.server_closed_at(before)
    assert overflow.limit_bytes == lower
    overflow.server_closed_at(0)
    assert 0 < overflow.limit_bytes < lower


def quiet(count: int) -> tuple[CombinedFetches, list[CombinedFetch]]:
    fetches = CombinedFetches(ReplicationConfig())
    made = [CombinedFetch(type(KEY)("s", "u", number), 1, 1 + number) for number in range(count)]
    for fetch in made:
        assert fetches.add(fetch, "n2", 0)
    return fetches, made


def test_combined_fetches_ignore_a_late_failure_of_an_earlier_request() -> None:
    fetches, made = quiet(3)
    first, _ = fetches.start_turn(fetches.interval_ns)
    for question in first:
        fetches.process_answer(question, ())
    fetches.start_turn(2 * fetches.interval_ns)
    assert fetches.process_no_responders(first[0]) is None
    assert len(fetches) == 3
    second, _ = fetches.start_turn(3 * fetches.interval_ns)
    ended = fetches.process_no_responders(second[0])
    assert ended is not None
    assert set(ended.fetches) == set(made)


MS = 1_000_000
START_NS = 1_000_000 * MS
MAX_PENDING = 64 * MIB
GATE = 48 * MIB
BUFFER = 256 * MIB


class Server:
    """A nats-server with fast publishers, and a node that stores so much a second; in steps of a millisecond."""

    def __init__(self, publishers: int, *, stored_rate: int = 25 * MIB, answer_ms: int | None = 20, every_ms: int = 20) -> None:
        self.held_each = publishers * 10 * MIB // 1000
        """In a millisecond, once the publishers are held back."""
        self.free_each = publishers * 60 * MIB // 1000
        self.stored_each = stored_rate // 1000
        self.answer_ms, self.every_ms = answer_ms, every_ms
        self.pending = self.given_up = self.read = self.done = self.most = 0
        self.overflow = LoadShedding()

    def run(self, seconds: float) -> None:
        answers: list[tuple[int, int, int, int]] = []
        for ms in range(int(seconds * 1000)):
            now_ns = START_NS + ms * MS
            self.pending += self.held_each if self.pending > GATE else self.free_each
            if self.answer_ms is not None and ms % self.every_ms == 0:
                answers.append((now_ns + self.answer_ms * MS, self.pending, self.read, now_ns))
            while answers and answers[0][0] <= now_ns:
                _, pending, read, request_ns = answers.pop(0)
                self.overflow.record_pong(pending, read, request_ns)
            self.done = min(self.read, self.done + self.stored_each)
            self._step(now_ns)
            self.most = max(self.most, self.pending)

    def _step(self, now_ns: int) -> None:
        due = 0
        if self.waiting < BUFFER // 2:
            self.overflow.buffer_has_room()
        else:
            room = BUFFER - self.waiting
            due = self.overflow.due_bytes(room <= BUFFER // 16, self.read, self.done, now_ns)
            given_up = min(max(0, due - room), MIB)
            self.given_up += given_up
            self.done += given_up
        if self.waiting < BUFFER // 2 or due or not self.overflow.can_stop_reading(self.read, now_ns):
            size = min(self.pending, BUFFER - self.waiting, MIB)
            self.pending -= size
            self.read += size

    @property
    def waiting(self) -> int:
        return self.read - self.done


def test_slow_consumer_guard_with_few_publishers_drops_nothing() -> None:
    for publishers in (1, 2):
        server = Server(publishers)
        server.run(20)
        assert server.given_up == 0
        assert server.most < MAX_PENDING


def test_slow_consumer_guard_with_many_publishers_drops_only_bytes_above_the_read_rate() -> None:
    for publishers in (4, 6, 12, 20):
        server = Server(publishers)
        server.run(20)
        assert server.most < MAX_PENDING
        excess = (publishers * 10 * MIB - 25 * MIB) * 20
        assert excess * 0.7 - BUFFER < server.given_up < excess * 1.2


def test_slow_consumer_guard_with_late_server_answers_stays_below_the_server_limit() -> None:
    server = Server(6, answer_ms=150)
    server.run(20)
    assert server.most < MAX_PENDING


def test_slow_consumer_guard_of_a_silent_server_reads_at_a_fixed_rate_doubled_per_disconnect() -> None:
    server = Server(4, answer_ms=None)
    server.run(20)
    assert server.most < MAX_PENDING
    assert server.overflow.blind_rate_bytes == BLIND_RATE_BYTES
    server.overflow.connection_lost()
    assert server.overflow.blind_rate_bytes == 2 * BLIND_RATE_BYTES


def test_slow_consumer_guard_drops_the_bytes_above_the_server_limit() -> None:
    overflow = LoadShedding()
    overflow.record_pong(60 * MIB, 7, START_NS)
    assert not overflow.can_stop_reading(7, START_NS + 1)
    assert overflow.due_bytes(False, 7, 0, START_NS + 2) == 60 * MIB - LIMIT_BYTES
    assert overflow.due_bytes(True, 7 + 8 * MIB, 0, START_NS + 3) == 0
    assert overflow.can_stop_reading(7 + 8 * MIB, START_NS + 3)
    assert not overflow.can_stop_reading(7 + 8 * MIB, START_NS + FRESH_NS + 1), "that was long ago"


def test_slow_consumer_guard_never_lets_a_server_write_exceed_its_deadline() -> None:
    """Nothing is stored at all, and the server holds little: it is read through all the same."""
    server = Server(1, stored_rate=0)
    server.held_each = server.free_each = 0
    server.pending, server.read = 40 * MIB, BUFFER
    server.run(8)
    assert server.pending == 0

"""SimIngest: the data subject of one simulated replica; the shipped ``Ingest`` and ``PendingAcks`` over the simulated NATS.

Bytes of messages go in, bytes of acks come out; the checkers look at each answer before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from liftpy.config import AckPolicy, Codec
from liftpy.errors import LiftError, StorageError
from liftpy.ingest.acks import PendingAcks
from liftpy.ingest.derived import derived_state
from liftpy.ingest.ingest import Ingest, Sink
from liftpy.ingest.state_file import state_owner
from liftpy.ingest.state_writer import Pace, StateWriter, restore_state
from liftpy.replica import effects as do
from liftpy.testing.messages import AckFrame, Publish
from liftpy.testing.network import Reply
from liftpy.testing.world import Copy
from liftpy.wire.inboxes import InboxRule

_TO = b"Sim-To: "
"""A header that says where below the partition's own subject a message is published."""
_OF_DEAD_PROCESSES = ("PRODUCER_FENCED", "DIVERGED_PRODUCER")
_INBOXES = InboxRule(("_INBOX.",))


STATE_PACE = Pace(1_000_000_000, 2048, 256, 0)
"""A file each second, where the log has grown at all."""


_LOOK_BACK_NS, _LOOK_BACK_BYTES = 3_000_000, 2048


class SimIngest:
    """The ``IngestShell`` of one replica, and what it is the shell of."""

    def __init__(self, replica: Copy) -> None:
        self._replica = replica
        self._cluster = replica.cluster
        self._sink: Sink | None = None
        self._behind: list[Callable[[], None]] = []
        self._askers: dict[bytes, tuple[Publish, int, Reply]] = {}
        """Inbox -> (publish, index of its message, way back)."""
        self._releasing: do.SendAcks | None = None
        self.acks = PendingAcks(self, replica.key, replica.subject)
        below = f"{replica.subject}.>"
        self.derived = derived_state(replica.log, below, replica.log.config, self._cluster.config, replica.now_ns)
        self._looking_back = False
        self.derived.on_lacking = self._look_back_soon
        owner = state_owner(replica.key)
        with suppress(StorageError):
            for why in restore_state(self.derived, replica.log, owner).values():
                self._cluster.counters[f"derived state left out: {why.partition(' ')[0]}"] += 1
        log, known = replica.log, self.derived.end_offset is not None
        self._cluster.counters["derived states restored"] += known and log.log_end_offset > log.log_start_offset
        self.states = StateWriter(self.derived, replica.log, owner, STATE_PACE, replica.now_ns)
        self.derived.first_look_bytes = 0  # these logs are too short for a first look to leave anything
        self.ingest = Ingest(
            shell=self,
            subject=replica.subject,
            config=self._cluster.config,
            policy=AckPolicy.ALL,
            codec=Codec.NONE,
            inboxes=_INBOXES,
            acks=self.acks,
            feed=replica.feed,
            wall_ns=self._wall_ns,
            log_end_offset=lambda: replica.log.log_end_offset,
            may_refuse=lambda: replica.replica.may_refuse_publishers(replica.now_ns()),
            derived=self.derived,
            takes=replica.replica.takes_publishes,
            on_drop=self._dropped,
        )

    def _look_back_soon(self) -> None:
        if not self._looking_back:
            self._looking_back = True
            self._replica.later(_LOOK_BACK_NS, self._look_back)

    def _look_back(self) -> None:
        self._looking_back = False
        if not (self._replica.failed or self._replica.log.closed):
            with suppress(LiftError):  # damage: the replica has been told
                if not self.derived.look_back(_LOOK_BACK_BYTES):
                    self._look_back_soon()

    def _wall_ns(self) -> int:
        return self._replica.now_ns() + self._replica.process.node.wall_offset_ns

    def _dropped(self, reason: str, count: int) -> None:
        self._cluster.counters[f"messages dropped: {reason.upper()}"] += count

    def release(self, effect: do.SendAcks) -> None:
        """Carry out the effect."""
        self._releasing = effect
        self.acks.release(effect.policy, effect.through_offset, effect.leader_epoch, self._wall_ns())
        self._releasing = None

    # ---- the shell -------------------------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        """Of the simulated NATS, in bytes."""
        return self._cluster.network.max_payload_bytes

    def listen(self, subject: str, sink: Sink, *, given_up: Callable[[int], None]) -> _Subscribed:
        """What one Publish brings arrives in one read."""
        self._sink = sink
        self._cluster.network.subscribe(self._replica.host, subject, self._arrived)
        return _Subscribed(self, subject)

    def close(self, subject: str) -> None:
        """Listen no more."""
        self._sink = None
        self._cluster.network.unsubscribe(self._replica.host, subject)

    def when_heard(self, heard: Callable[[], None]) -> None:
        """When interest has reached every publisher."""
        self._replica.later(self._cluster.network.noise.interest_ns, heard)

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Behind the messages of one Publish."""
        self._behind.append(callback)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """No message of a simulation is one that nobody has thought of."""
        raise error

    def _arrived(self, publish: Publish, reply: Reply) -> None:
        own = self._replica.subject.encode()
        for index, (inbox, payload, block) in enumerate(publish.messages):
            self._askers[publish.inbox(index)] = publish, index, reply
            if self._sink is not None:
                _, mark, rest = block.partition(_TO)
                self._sink(b"%b.%b" % (own, rest.split(b"\r\n", 1)[0]) if mark else own, inbox, payload, block)
        behind, self._behind = self._behind, []
        for callback in behind:
            callback()

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Answers to publishers, each as a line of the NATS protocol with its payload."""
        acked: list[tuple[int, int]] = []
        answers: list[tuple[Reply, AckFrame]] = []
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, inbox, size = head.split()
            publish, index, reply = self._askers.pop(inbox)
            frame = AckFrame(self._replica.node_id, index, rest[: int(size)])
            ack = frame.decoded()
            if ack.reason in _OF_DEAD_PROCESSES:
                pass  # an older process is over, whatever became of what it has sent
            elif ack.reason:
                self._cluster.checkers.rejected(self._replica, publish.ids[index])
            elif ack.duplicate:
                assert self._releasing is not None
                self._cluster.checkers.answered_again(self._replica, publish.ids[index], ack.offset, self._releasing)
            else:
                acked.append((publish.ids[index], ack.offset))
                self._cluster.checkers.answered(self._replica, publish, ack, self._releasing)
            answers.append((reply, frame))
        if acked and self._releasing is not None:
            self._cluster.checkers.acknowledged(self._replica, acked, self._releasing)
        for reply, frame in answers:
            reply(frame)


class _Subscribed:
    """Of the data subject."""

    def __init__(self, shell: SimIngest, subject: str) -> None:
        self._shell = shell
        self._subject = subject

    def close(self) -> None:
        """Nothing comes any more."""
        self._shell.close(self._subject)

    def leave(self) -> None:
        """The same here: what is on its way is lost with the interest."""
        self._shell.close(self._subject)

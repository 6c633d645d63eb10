"""Controllers of two versions in one group, which come and go, until a level is finalized; and one whose image turns out different.

``MixedRun``: each process that starts is of the version before or of the new one. The new one decides ``setNode`` otherwise from
level 6 on, by the flag of ``decides``: unguarded it asks its own version and not the image, which is what must never be. Somebody asks
to finalize again and again; nobody may come through with an old controller, and an old process that meets the level ends.

``DivergedRun``: what a member has applied changes under its hands, once or twice. Within the next checkpoint it is found, whoever it
is, its folder is put aside, and at the end all hold one image by its digest. The second one may turn while the first, or a third one,
is behind: then all three differ, no majority agrees, and a person has to say who is right (docs/upgrades.md), and does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from liftpy.config import NS_PER_S
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.controller import quorum_member
from liftpy.core.metadata.controller.nodes import set_node
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder
from liftpy.core.metadata.controller.requests import REQUESTS
from liftpy.core.metadata.features import FEATURES, NO_LEVEL, Feature, level_range_of
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import IncompatibleVersionError, StorageError
from sidecar.quorum.library import TICK_S, RaftCore
from sidecar.quorum.probation import MARK, mark_diverged
from tests.born import BOTH, NEXT
from tests.simulation.raft.asking import Asking
from tests.simulation.raft.ghost import CheckedFsm, Ghost, Violation
from tests.simulation.raft.group_simulation import CHAOS_S, Run
from tests.simulation.raft.member import SimMember

_TIMEOUT_NS = 2 * NS_PER_S
_OLD_REST_S = 0.12
"""Maximum time between two ticks of the version before, in seconds, in seeds with deadlines."""
_PERSON_S = 5.0
"""So long no majority has agreed, with all controllers up, before a person comes."""


@contextmanager
def decides(*, guarded: bool) -> Iterator[None]:
    """The new version adds 1 to weights, from the next level on; not ``guarded``: whatever the level is."""

    def decide(builder: RecordBuilder, request: pb.SetNode) -> Decision:
        level = builder.image.feature_level if guarded else builder.features[-1].level
        if level >= NEXT.level and request.HasField("weight"):
            raised = pb.SetNode()
            raised.CopyFrom(request)
            raised.weight = request.weight + 1  # each weight stays another one: a request that changes nothing needs no entry
            request = raised
        return set_node(builder, request)

    with patch.dict(REQUESTS, {"setNode": replace(REQUESTS["setNode"], decide=decide)}):
        yield


class _OldCore(RaftCore):
    """Raft node of the version before. Its group is never settled."""

    _is_settled = False


class MixedMember(SimMember):
    """Of one of the two versions."""

    is_old = False

    def state_machine(self) -> CheckedFsm:
        """As the run says."""
        run = self.run_
        assert isinstance(run, MixedRun)
        features = run.version_of(self.node_id)
        self.is_old = features is FEATURES
        return CheckedFsm(run.ghost, self.node_id, self._steps, features)


class MixedRun(Run):
    """One seed of a rolling upgrade that nobody takes care of."""

    make_member = MixedMember

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.first_image = None
        self.spoken_by_nodes = level_range_of(BOTH)
        self._ended: set[str] = set()
        """Whose old version has met the level: a person has installed the new one."""
        self._old_share = self.draws["made with versions"].choice((0.1, 0.3, 0.6))

    def _decided(self, before: ClusterImage, after: ClusterImage, request: pb.ControlRequest) -> None:
        super()._decided(before, after, request)
        if before.feature_level < after.feature_level and not request.setFeatureLevel.checked:
            self.seen[f"born at level {after.feature_level}"] += 1
            if before.nodes:
                raise Violation(f"M5: the level is chosen at {after.index}, as at the bootstrap, and nodes are registered")

    def version_of(self, name: str) -> tuple[Feature, ...]:
        """Of the next process there."""
        old = self.draws["versions"].random() < self._old_share and name not in self._ended
        self.seen[f"processes of the {'old' if old else 'new'} version"] += 1
        return FEATURES if old else BOTH

    def rest_s(self, member: SimMember) -> float:
        """Set the time to the next tick. A process of the old version rests less, and never sends append messages less often."""
        rest_s = super().rest_s(member)
        if isinstance(member, MixedMember) and member.is_old:
            member.log.core.rest_s, member.log.core.__class__ = TICK_S, _OldCore
            rest_s = min(rest_s, _OLD_REST_S)
        return rest_s

    def _work(self, member: SimMember, chaos: bool) -> None:
        super()._work(member, chaos)
        if self.draws["finalizing"].random() < 0.01:
            request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=NEXT.level))
            request.operationId = self.draws["finalizing"].randbytes(16)
            Asking(self, "client", lambda call: call(), request, _TIMEOUT_NS, partial(self._finalized, request))

    def _finalized(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        self.seen[f"finalize: {pb.ControlResponse.Error.Name(response.error)}"] += 1
        self._client_answered(request, response) if response.index and response.error == pb.ControlResponse.OK else None

    def _tick(self, member: SimMember, chaos: bool) -> None:
        try:
            super()._tick(member, chaos)
        except IncompatibleVersionError:
            self.seen["old versions that met the level and ended"] += 1
            self._ended.add(member.node_id)
            member.death = "by the version, within"
            with suppress(StorageError):
                member.log.journal.close()
            self.checks.died(member)
            self.faults.crash(member)


class LooseGhost(Ghost):
    """Holds nobody against who applied first: that may be the one whose image is wrong."""

    def check_restored(self, image: ClusterImage, who: str) -> None:
        """Not here."""

    def check_fed(self, image: ClusterImage, who: str) -> None:
        """Not here."""


class DivergedMember(SimMember):
    """With checkpoints close to each other."""

    def __init__(self, run: Run, node_id: str, joins: object = None) -> None:
        super().__init__(run, node_id, joins)  # type: ignore[arg-type]
        self.log.transport.checkpoints._every = 20


class DivergedRun(Run):
    """One seed in which images turn."""

    make_member = DivergedMember

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.first_image = None
        self.ghost = LooseGhost()
        self.ghost.watch = self._decided
        self._left = 2
        self._turns_from = self.now + CHAOS_S / 2
        """What turns early is put right by a restart before anybody looks."""
        self._halted_from = self.now
        self._put_aside: list[str] = []
        """By a person, who takes another one each time."""

    def execute(self) -> None:
        """As any seed; fewer barriers than lie between two places, as shipped: else each of them begins the next."""
        with patch.object(quorum_member, "MAX_BARRIERS", 8):
            super().execute()

    def _work(self, member: SimMember, chaos: bool) -> None:
        super()._work(member, chaos)
        draw = self.draws["turning images"]
        image = member.log.image
        if image.feature_level == NO_LEVEL:  # somebody asks for a level before the group has one
            if member.log.leads and draw.random() < 0.2:
                request = pb.ControlRequest(
                    setFeatureLevel=pb.SetFeatureLevel(level=NEXT.level), operationId=draw.randbytes(16)
                )
                Asking(self, "client", lambda call: call(), request, _TIMEOUT_NS, lambda _: None)
            return
        everybody_is_well = not self.faults.emptied and set(self.up) == set(self.members) and self._all_agree()
        if chaos and self.now > self._turns_from and self._left and everybody_is_well and draw.random() < 0.02:
            self._left -= 1
            self.seen["images that turn: of the leader" if member.log.leads else "images that turn"] += 1
            member.log.fsm.image = replace(image, digest=draw.randbytes(8))

    def _tick(self, member: SimMember, chaos: bool) -> None:
        super()._tick(member, chaos)
        if member.log.leads and not chaos:
            self._let_a_person_say(member)

    def _let_a_person_say(self, leader: SimMember) -> None:
        """Stop one of them, put its folder aside, start it. What it is sent (a snapshot, or the log alone) may agree with nobody: then
        the next one."""
        counting = all(member.log.probation.over for member in self.up.values())
        if not (leader.log.view().halted and counting and set(self.up) == set(self.members)):
            self._halted_from = self.now
        elif self.now - self._halted_from > _PERSON_S and self._no_majority_agrees():
            self._halted_from = self.now
            name = self.draws["who a person stops"].choice([name for name in self.members if name not in self._put_aside])
            self._put_aside.append(name)
            self.seen["persons who stop the leader" if name == leader.node_id else "persons who stop another one"] += 1
            member = self.up.pop(name)
            self.faults.collect(member)
            member.log.journal.close()
            member.died()
            mark_diverged(self.folder / name, member.log.applied_index)

    def _no_majority_agrees(self) -> bool:
        """In truth: where one does, the group has to find it."""
        images = [member.log.image for member in self.up.values()]
        most = Counter(image.digest for image in images).most_common(1)[0][1]
        return len({image.index for image in images}) == 1 and most <= len(self.members) // 2

    def _all_agree(self) -> bool:
        return len({m.log.image.digest for m in self.up.values() if m.log.image.index == self.ghost.newest.index}) <= 1

    def _start(self, name: str, joins: object = None) -> None:
        if (self.folder / name / MARK).exists():
            self.seen["folders put aside"] += 1
            self.faults.emptied.add(name)
            self.checks.forgotten(name)
        super()._start(name, joins)  # type: ignore[arg-type]

    def _unconverged(self) -> str:
        return super()._unconverged() or ("" if self._equal() else "the members hold different images")

    def _equal(self) -> bool:
        return len({encode_snapshot(member.log.image) for member in self.up.values()}) == 1


__all__ = ["DivergedRun", "MixedRun", "Violation", "decides"]

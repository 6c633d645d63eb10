"""A node that is lost for ever, and the operator who replaces it as the runbook ``node-lost`` says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator

from liftpy.client import Client
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import LiftError, NotFoundError
from tests.simulation.world.load.clients import Clients
from tests.simulation.world.load.ledgers import Ledgers
from tests.simulation.world.load.services import Services
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

_TRY_AGAIN_S = 0.5
_ELECTION_S = 5.0
"""Time for elections by themselves, in seconds. Then a partition without a leader waits for the operator."""
_REPLACED_WITHIN_S = 150.0
"""Maximum time from the end of the faults to the removal of the lost node, in seconds."""
_FORGOTTEN_WITHIN_S = 60.0
Step = Callable[[Client], Awaitable[bool]]
"""One step of the operator. It returns True if the step is done, and is repeated until then."""


class Losses:
    """The loss of one node with its disk, and the steps of the operator."""

    def __init__(self, world: World, clients: Clients, services: Ledgers | Services, lost: NodeProcess) -> None:
        self.world = world
        self.clients = clients
        self.model = clients.model
        self.services = services
        self.lost = lost
        """The node that is lost. No other node loses data, because the others must have every acknowledged record."""
        self.is_done = False
        """True if the operator has removed the lost node."""
        self._faults_ended = False
        self._draw = random.Random(f"losses {world.seed}")
        self._new = ""
        """Id of the node that takes the place of the lost one."""

    def start(self) -> None:
        """Start the operator, who waits for the loss."""
        self.world.run_in(self.world.client_process("loss"), self._run)

    async def finish(self) -> bool:
        """Wait after the faults until the operator has removed the lost node. Return whether this has happened."""
        self._faults_ended = True
        return await self.world.until(f"{self.lost.name} is replaced", lambda: self.is_done, _REPLACED_WITHIN_S)

    async def _run(self) -> None:
        draw, world = self._draw, self.world
        await asyncio.sleep(draw.random() * world.profile.busy_s)
        while self._is_needed():
            await asyncio.sleep(0.1)
        self._lose()
        await asyncio.sleep(draw.choice((0.0, 0.5, 3.0)))
        steps: list[Step] = [self._drain, self._replace_controller]
        draw.shuffle(steps)
        if draw.random() < 0.5:
            self._start_another()
        client = await self.clients.connect()
        for step in (*steps, self._remove):
            await self._repeat(client, step)
        await client.close()
        if not self._new:
            self._start_another()
        world.scheduler.counters["lost nodes that were replaced"] += 1
        self.is_done = True

    # ---- the loss --------------------------------------------------------------------------------------------------------
    def _image(self) -> ClusterImage | None:
        """Return the newest image of a controller that runs."""
        images = [one.node.group.image for one in self.world.nodes if one.node is not None and one.node.group is not None]
        return max(images, key=lambda image: image.index) if images else None

    def _partitions(self) -> Iterator[tuple[str, PartitionState]]:
        image = self._image()
        if image is not None:
            for name in sorted(image.streams):
                for state in image.streams[name].partitions:
                    yield name, state

    def _is_needed(self) -> bool:
        """Return whether some partition may have its newest records only on the node. Then its loss would lose data."""
        return not any(True for _ in self._partitions()) or any(
            self.lost.name in state.replicas and not set(state.isr) - {self.lost.name} - set(state.incomplete)
            for _, state in self._partitions()
        )

    def _lose(self) -> None:
        world = self.world
        world.scheduler.trace("lost for ever", self.lost.name)
        world.scheduler.counters["fault: node lost"] += 1
        self.lost.lose()
        world.nodes.remove(self.lost)
        if world.profile.services:
            self.services.node_lost(self.lost)

    # ---- the operator ----------------------------------------------------------------------------------------------------
    def _start_another(self) -> None:
        node = self.world.add_node()
        self._new = node.name
        node.start()
        if self.world.profile.services:
            self.services.node_joined(node)

    async def _repeat(self, client: Client, step: Step) -> None:
        while True:
            try:
                if await step(client):
                    self.world.scheduler.trace("operator", step.__name__, "done")
                    return
                if self._faults_ended:
                    await self._elect_waiting(client)
            except LiftError as error:
                self.world.scheduler.trace("operator", step.__name__, type(error).__name__, error)
            await asyncio.sleep(_TRY_AGAIN_S)

    async def _drain(self, client: Client) -> bool:
        """Drain the lost node until it holds no replica. Another operator may stop the drain of a node."""
        image = (await client.admin.describe_cluster(linearizable=True)).image
        node = image.nodes.get(self.lost.name)
        if node is not None and not node.leaving:
            await client.admin.set_node(self.lost.name, leaving=True)
            return False
        return not any(self.lost.name in state.holders for stream in image.streams.values() for state in stream.partitions)

    async def _replace_controller(self, client: Client) -> bool:
        """Let the new node take the place of the lost node, if that is a controller. Another operator may have removed it."""
        state = await client.admin.describe_cluster(linearizable=True)
        members = {one.node_id: one for one in state.controllers}
        if self.lost.name not in members:
            return True
        if members[self.lost.name].learner:  # it was lost while it became a controller: end that change first
            await client.admin.change_controllers(remove=self.lost.name)
            return False
        if not self._new:
            self._start_another()
        if self._new in members:
            await client.admin.change_controllers(remove=self.lost.name)
        else:
            await client.admin.change_controllers(add=self._new, remove=self.lost.name)
        return False

    async def _remove(self, client: Client) -> bool:
        try:
            await client.admin.remove_node(self.lost.name)
        except NotFoundError:
            return True
        return False

    async def _elect_waiting(self, client: Client) -> None:
        """Elect a leader for partitions that wait for the lost node, as the runbook ``partitions-offline`` says."""
        waiting = {(name, state.partition) for name, state in self._partitions() if self._waits(state)}
        if not waiting or not all(node.is_ready for node in self.world.nodes):
            return
        await asyncio.sleep(_ELECTION_S)
        for name, state in list(self._partitions()):
            if (name, state.partition) in waiting and self._waits(state):
                there = [node.name for node in self.world.nodes]
                others = [name for name in (*state.isr, *state.replicas) if name in there]
                await client.admin.elect_leader(name, state.partition, others[0], unclean=True)
                self.model.may_lose = True
                self.model.answers["an operator elected a leader in place of a lost node"] += 1

    def _waits(self, state: PartitionState) -> bool:
        return state.status is PartitionStatus.OFFLINE and self.lost.name in state.isr

    # ---- the end ---------------------------------------------------------------------------------------------------------
    async def check(self) -> None:
        """Check that all replicas are on nodes that are there, and that no node shows the lost one."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _FORGOTTEN_WITHIN_S
        async with self.world.connect() as client:
            while True:
                try:
                    wrong = await self._remains(client)
                except LiftError as error:
                    wrong = repr(error)
                if not wrong:
                    return
                if loop.time() >= end_s:
                    self.world.scheduler.violated(
                        f"{self.lost.name} was removed, and {_FORGOTTEN_WITHIN_S:g} s later in a quiet cluster: {wrong}"
                    )
                    return
                await asyncio.sleep(0.5)

    async def _remains(self, client: Client) -> str:
        state = await client.admin.describe_cluster(linearizable=True)
        lost, image = self.lost.name, state.image
        there = {node.name for node in self.world.nodes}
        if set(image.nodes) != there:
            return f"the cluster has the nodes {sorted(image.nodes)}"
        members = [one.node_id for one in state.controllers]
        if not there.issuperset(members):
            return f"the controllers are {members}"
        for name in sorted(image.streams):
            for partition in image.streams[name].partitions:
                if lost in (*partition.holders, *partition.isr, *partition.target, partition.leader):
                    return f"{name}/{partition.partition} is {partition}"
        for node in sorted(there):
            answers = (
                ("status", json.dumps(await client.admin.node_status(node))),
                ("glance", json.dumps(await client.admin.ask_node(node, b'{"glance": true}'))),
                ("metrics", str((await client.admin.ask_node(node, b'{"metrics": {}}'))["metrics"])),
            )
            for what, text in answers:
                if (at := text.find(f'"{lost}"')) >= 0:
                    return f"the {what} of {node} has it: {text[max(at - 150, 0) : at + 50]}"
        return ""

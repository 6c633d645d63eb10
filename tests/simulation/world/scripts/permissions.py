"""Scripts about NATS permissions that an operator takes away from a node that runs, and gives back."""

from __future__ import annotations

import asyncio

from liftpy.errors import LiftError
from tests.simulation.world.machine.nats_server import Rights
from tests.simulation.world.scripts.stage import Stage, script

_NODE = ("node", "secret")
_RETRY_S = 10.0
"""Time after which a node sends a denied subscription again, in seconds."""
_DENIED = (
    "ERROR nats.permission_denied: * error=NATS does not let this node subscribe on orders.x. Give its user the permissions *"
)


def _deny(s: Stage, subject: str) -> None:
    """Let nodes that connect from now on subscribe to ``jobs.x`` and to the subjects of the cluster, and not to ``subject``."""
    rights = s.world.nats.users[_NODE]
    s.world.nats.users[_NODE] = Rights(rights.publish, ("liftpy.>", "_INBOX.>", "$JS.>", "jobs.x"), rights.reply)
    s.world.nats.on_denial = lambda client, text: None


def _allow(s: Stage, name: str, rights: Rights) -> None:
    """Give a connection its permissions back, and those that will come."""
    s.world.nats.users[_NODE] = rights
    for client in s.world.nats.servers[0].clients.values():
        if client.name == name:
            client.rights = rights


async def _reconnect(s: Stage, name: str) -> None:
    s.world.nats.refuse(name)
    await asyncio.sleep(0.1)
    s.world.nats.refuse("")
    await asyncio.sleep(0.5)


@script()
async def script_leader_may_not_receive_publishes_for_a_while(s: Stage) -> None:
    """Given a leader that reconnects without the permission for its data subject, it says so once. Its other streams work.

    It subscribes again every 10 s. So publishes arrive soon after an operator has corrected the permissions.
    """
    await s.create("orders", leader="n2")
    await s.create("jobs", leader="n2")
    rights = s.world.nats.users[_NODE]
    _deny(s, "orders.x")
    s.forget_log()
    await _reconnect(s, "liftpy-n2-ingest")
    s.expect(s.count_log("n2", _DENIED), 1, "log lines about the permission")
    await s.publish("jobs", 2)
    s.expect_in("orders.x", await s.fails(s.publish("orders", 1, timeout_s=1), LiftError))
    await asyncio.sleep(_RETRY_S)
    s.expect(s.count_log("n2", _DENIED), 1, "log lines after the second denial")
    s.expect(await s.metric("n2", "incidents_total", "permission_denied"), 2, "denials")
    _allow(s, "liftpy-n2-ingest", rights)
    await asyncio.sleep(_RETRY_S)
    await s.publish("orders", 3)
    s.expect(await s.metric("n2", "incidents_total", "permission_denied"), 2, "denials after the permission is back")
    s.expect(await s.read("orders"), [b"record-%d" % number for number in range(3)], "records")
    _deny(s, "orders.x")
    await _reconnect(s, "liftpy-n2-ingest")
    await s.stop("n2")  # it leaves no timer that subscribes again
    _allow(s, "", rights)


@script()
async def script_standby_may_not_receive_publishes(s: Stage) -> None:
    """Given a standby without the permission for the data subject, when it becomes leader, it uses its other connection."""
    await s.create("orders", leader="n2", failover_standby=True)
    await s.publish("orders", 2)
    rights = s.world.nats.users[_NODE]
    _deny(s, "orders.x")
    s.forget_log()
    await _reconnect(s, "liftpy-n1-standby")
    s.expect(s.count_log("n1", _DENIED), 1, "log lines about the permission")
    await s.client.admin.elect_leader("orders", 0, "n1")
    await s.becomes(lambda: s.leader("orders") == "n1", what="n1 leads")
    s.expect(await s.publish("orders", 3, first=2), [2, 3, 4], "offsets")
    s.expect((await s.client.admin.stream("orders")).partitions[0].leader, "n1", "leader")
    _allow(s, "liftpy-n1-standby", rights)
    await s.client.admin.elect_leader("orders", 0, "n3")
    await s.becomes(lambda: s.leader("orders") == "n3", what="n3 leads")
    await asyncio.sleep(_RETRY_S)

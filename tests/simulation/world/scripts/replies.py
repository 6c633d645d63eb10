"""Scripts about answers between nodes: to whom a node sends them, and which ones it accepts."""

from __future__ import annotations

import asyncio

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.errors import LiftError
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.scripts.stage import Stage, script


def _kind(message: Message) -> str:
    """Return the subject of a request without names, and the type of the request."""
    names = ("orders", "n1", "n2", "n3", "0")
    subject = ".".join("*" if token in names else token for token in message.subject.split("."))
    try:
        return f"{subject} {envelope.decode(message.content)[0].name}"
    except LiftError:
        return subject


async def _work(s: Stage) -> None:
    """Let the nodes send each other requests of all kinds: a follower returns to an empty log, and a leadership is transferred."""
    await s.create("orders", leader="n2", segment_bytes=4096)
    await s.stop("n1")
    for number in range(60):
        await s.client.publish("orders", (b"record-%d" % number).ljust(200), msg_id=f"id-{number}")
    await s.client.admin.truncate_before("orders", 0, 40)
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names)
    await s.client.admin.elect_leader("orders", 0, "n3")
    await s.becomes(lambda: s.leader("orders") == "n3", what="n3 leads")
    await asyncio.sleep(4)


async def _rejected(s: Stage, *kinds: str) -> int:
    """Return how many messages of some kinds (default: all) all nodes have rejected."""
    rejected = [(await s.status(node))["refused"] for node in s.names]
    return sum(count for counts in rejected for kind, count in counts.items() if not kinds or kind in kinds)


@script(state_checkpoint_bytes=4096)
async def script_request_of_a_node_is_repeated_with_another_reply_subject(s: Stage) -> None:
    """Given a stranger who repeats requests of nodes, no node sends the answer to another node or to a data subject [A5].

    A status is no secret, and a request of the metadata leader may have any node's inbox, because the leader changes. Each request
    that gets no answer is counted once.
    """
    s.allow("refused: invalid reply subject")
    await _work(s)
    requests = {
        _kind(message): message
        for name, message, _ in s.messages
        if name.startswith("liftpy-n") and message.reply.startswith("liftpy.inbox.")
    }
    kinds = {kind.rpartition(" ")[2] for kind in requests}
    replicas = {"REPLICATION_REQUEST", "LEADER_EPOCH_OFFSET_REQUEST", "STATE_REQUEST", "QUIET_FETCHES"}
    s.expect(kinds >= {*replicas, "STEP_ASIDE", "CONTROL_REQUEST"}, True, f"kinds of requests {kinds}")
    answered = set[tuple[str, str]]()
    for kind, message in requests.items():
        begin, _, last = message.reply.rpartition(".")
        asker, name = message.reply.split(".")[2], kind.rpartition(" ")[2]
        replies = [f"liftpy.inbox.{s.others(asker)[0]}.stranger.{last}", f"_INBOX.stranger.{last}", "orders.x"]
        for to in [*replies, f"{begin}.{last}0"] if name in replicas - {"QUIET_FETCHES"} else replies:
            since, before = len(s.messages), await _rejected(s)
            await s.client.transport.connection.publish(message.subject, message.content, reply=to)
            await asyncio.sleep(0.1)
            if any(one.subject == to for _, one, _ in s.messages[since:]):
                answered.add((name, to.partition(".")[0]))
            else:
                s.expect(await _rejected(s) - before, 1, f"rejected messages after {kind} with the reply subject {to}")
    s.expect(answered, {("STEP_ASIDE", "liftpy"), ("STATUS_REQUEST", "liftpy"), ("STATUS_REQUEST", "_INBOX")}, "answers")


@script(state_checkpoint_bytes=4096)
async def script_stranger_answers_the_requests_of_nodes(s: Stage) -> None:
    """Given a stranger who answers each request between replicas with what others were answered, replicas accept none of it.

    They count it, and use the correct answer, which comes later.
    """
    await _work(s)
    contents = {b"garbage": b"garbage"}
    for _, message, _ in s.messages:
        if message.subject.startswith("liftpy.inbox.") and not message.header_bytes:
            contents[_kind(message).rpartition(" ")[2].encode()] = message.content
    expected = {b"REPLICATION_RESPONSE", b"STATE_RESPONSE", b"LEADER_EPOCH_OFFSET_RESPONSE", b"QUIET_FETCHES_ANSWER"}
    s.expect(expected <= set(contents), True, f"kinds of answers {sorted(contents)}")
    replies: list[str] = []

    def asked(name: str, message: Message, receivers: int) -> None:
        is_of_replica = message.subject.endswith((".replicate", ".offset")) or message.subject.startswith("liftpy.notify.")
        if name.endswith("-replication") and message.reply and is_of_replica:
            replies.append(message.reply)

    async def answer() -> None:
        while True:
            for reply in replies:
                for content in contents.values():
                    await s.client.transport.connection.publish(reply, content)
            replies.clear()
            await asyncio.sleep(0.001)

    s.world.nats.watchers.append(asked)
    answering = asyncio.create_task(answer())
    await s.stop("n1")
    await s.publish("orders", 20, first=60, value=b"x" * 200)
    await s.start("n1")
    await s.shows(lambda: s.isr("orders"), s.names, within_s=20)
    await asyncio.sleep(4)
    answering.cancel()
    s.world.nats.watchers.remove(asked)
    found = {kind: await _rejected(s, kind) for kind in ("addressee", "no envelope", "message type", "contents")}
    s.expect(min(found.values()) >= 3, True, f"rejected answers of each kind {found}")
    s.expect(await s.total("incidents_total", "idle_poll_timeout"), 0, "lost answers about idle partitions")
    s.expect(await s.publish("orders", 2, first=80), [80, 81], "offsets afterwards")


@script()
async def script_stranger_says_that_idle_fetches_have_ended(s: Stage) -> None:
    """Given idle followers, when a stranger answers their question with the number of another one, they count it and stay idle."""
    await s.create("orders", leader="n2", replicas=2)
    await s.publish("orders", 1)
    await asyncio.sleep(5)
    questions: list[str] = []

    def asked(name: str, message: Message, receivers: int) -> None:
        if message.subject == "liftpy.notify.n2" and message.reply:
            questions.append(message.reply)

    s.world.nats.watchers.append(asked)
    before, since = await _rejected(s, "addressee"), len(s.messages)
    await s.becomes(lambda: len(questions) == 1, what="a question")
    while len(questions) < 4:
        inbox, _, number = questions[-1].rpartition(".")
        answer = frames.seal(pb.QuietFetchesAnswer(over=[0], count=1, question=int(number)))
        await s.client.transport.connection.publish(f"{inbox}.{int(number) + 1}", answer)
        await asyncio.sleep(0.000_5)
    s.expect(await _rejected(s, "addressee") - before >= 2, True, "false answers are counted")
    fetches = [subject for subject in s.subjects("liftpy.orders.", since) if subject.endswith(".replicate")]
    s.expect(fetches, [], "fetches of followers that were idle")

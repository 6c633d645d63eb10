"""A message reaches a leader that has just been deposed: it sends neither an ack nor an error.

The same message may be on its way to the new leader as well, or be stored there already: publishers send to a subject, and not to a
node. "Not stored" from somebody who does not lead would be a promise that nobody keeps; the publisher waits for its time-out instead.

Shows A2, D22.
"""

from __future__ import annotations

from tests.scripts.stage import Stage
from tests.simulation.replica.messages import Publish
from tests.simulation.replica.network import Reply

KILLS = ("negative ack of a non-leader",)


def read_before(s: Stage, node: str, publish: Publish, reply: Reply) -> None:
    """The core hears of it although the subject is closed by now."""
    shell = s.replica(node).publishers
    for index, (inbox, payload, block) in enumerate(publish.messages):
        shell._askers[publish.inbox(index)] = publish, index, reply
        shell.ingest._check_messages([(b"", inbox, payload, block)])


def test_publish_to_a_former_leader_gets_no_ack_and_no_error() -> None:
    with Stage() as s:
        a, b = s.leader, s.followers[0]
        s.publish(1)
        held = s.hold("publish", receiver=a)
        late = s.send()
        s.until(lambda: held.count > 0)
        s.move_leader(b)
        s.until(lambda: s.role(a) == "FOLLOWER")
        answers: list[object] = []
        read_before(s, a, held.messages[0], answers.append)  # it was in the node's queue when the image came
        held.drop()
        assert s.outcome(late) == "timed out"
        assert answers == []
        s.publish(1)

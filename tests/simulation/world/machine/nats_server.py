"""A NATS cluster in memory: it speaks the protocol's bytes, so that nats-py and the node's parsers run as they ship.

Subjects and wildcards, queue groups, requests and "no responders", headers, max_payload, slow consumers, users with permissions,
several servers with routes between them that can be cut, restarts with loss of all that was held, and lost messages.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.core.wire.subjects import SERVER_CONNECTIONS
from tests.simulation.world.machine.network import Connection, Network
from tests.simulation.world.machine.scheduler import NS_PER_US

MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_PENDING = 64 * 1024 * 1024
_ROUTE_NS = (100 * NS_PER_US, 500 * NS_PER_US)
_LONGEST_LINE = 64 * 1024
_MOST_CACHED = 50_000
_MOST_REPLIES = 10_000


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of a user: patterns to publish to and subscribe on. ``reply``: whether it may answer requests.

    ``denied``: patterns to which it may not subscribe, although ``subscribe`` contains them.
    """

    publish: tuple[str, ...] = (">",)
    subscribe: tuple[str, ...] = (">",)
    reply: bool = False
    denied: tuple[str, ...] = ()


class Subscription:
    """Subscription of one connection."""

    __slots__ = ("client", "left", "order", "pattern", "queue", "sid", "tokens")

    def __init__(self, client: Client, pattern: str, queue: str, sid: str, order: tuple[int, int, int]) -> None:
        self.client = client
        self.pattern = pattern
        self.tokens = pattern.split(".")
        self.queue = queue
        self.sid = sid
        self.order = order
        """Servers deliver a message to its subscriptions in this order: number of the server, of the client, of the subscription."""
        self.left = 0
        """Number of messages after which it ends. 0: never."""


def matches(tokens: list[str], subject: list[str]) -> bool:
    """Return whether a pattern, split at its dots, matches a subject."""
    for number, token in enumerate(tokens):
        if token == ">":
            return len(subject) > number
        if number >= len(subject) or (token != "*" and token != subject[number]):
            return False
    return len(tokens) == len(subject)


def _prefix_of(pattern: str) -> str:
    """Return the tokens of a pattern before its first wildcard, each with a dot."""
    return "".join(f"{token}." for token in itertools.takewhile(lambda token: token not in ("*", ">"), pattern.split(".")))


class Client:
    """State of a connection in the server."""

    def __init__(self, server: NatsServer, connection: Connection, number: int) -> None:
        self.server = server
        self.connection = connection
        self.number = number
        self.name = ""
        self.rights = Rights()
        self.subscriptions: dict[str, Subscription] = {}
        self._buffer = b""
        self._no_responders = False
        self._echo = True
        self.is_known = False
        self._may_publish: dict[str, bool] = {}
        """Subject -> whether the permissions of its user allow publishes to it."""
        self._may_answer: dict[str, None] = {}
        self.delivered = 0
        """Number of messages that the server has sent or buffered."""
        self.delivered_bytes = 0
        """Size of their header blocks and payloads."""
        self.published = 0
        """Number of messages that the client has sent."""
        self.end_reason = ""
        """Reason why the server has closed the connection."""

    # ---- from the connection ---------------------------------------------------------------------------------------------
    def received(self, data: bytes) -> None:
        """Parse complete commands."""
        buffer = self._buffer + data
        position = 0
        while self.connection.is_open:
            end = buffer.find(b"\r\n", position)
            if end < 0:
                break
            line = buffer[position:end]
            verb, _, rest = line.partition(b" ")
            verb = verb.upper()
            if verb in (b"PUB", b"HPUB"):
                fields = rest.split()
                size_bytes = int(fields[-1])
                behind = end + 2 + size_bytes
                if len(buffer) < behind + 2:
                    break
                self._published(verb == b"HPUB", fields, buffer[end + 2 : behind])
                position = behind + 2
                continue
            position = end + 2
            self._command(verb, rest)
        self._buffer = buffer[position:]

    def _command(self, verb: bytes, rest: bytes) -> None:
        if verb == b"PING":
            self.send(b"PONG\r\n")
        elif verb == b"SUB":
            fields = rest.decode().split()
            self._subscribe(fields[0], fields[1] if len(fields) == 3 else "", fields[-1])
        elif verb == b"UNSUB":
            fields = rest.decode().split()
            self._unsubscribe(fields[0], int(fields[1]) if len(fields) > 1 else 0)
        elif verb == b"CONNECT":
            self._connect(json.loads(rest))
        elif verb not in (b"PONG", b"INFO", b""):
            self.error("Unknown Protocol Operation")
            self.connection.close()

    def _connect(self, options: dict[str, object]) -> None:
        self.name = str(options.get("name", ""))
        if self.server.cluster.refuses(self):
            self.connection.cut()
            return
        self._no_responders = bool(options.get("no_responders")) and bool(options.get("headers"))
        self._echo = bool(options.get("echo", True))
        users = self.server.cluster.users
        if users:
            known = users.get((str(options.get("user", "")), str(options.get("pass", ""))))
            if known is None:
                self.error("Authorization Violation")
                self.connection.close()
                return
            self.rights = known
            self._may_publish.clear()
        self.is_known = True

    def _allowed(self, patterns: tuple[str, ...], subject: str) -> bool:
        tokens = subject.split(".")
        return any(matches(pattern.split("."), tokens) for pattern in patterns)

    def _subscribe(self, pattern: str, queue: str, sid: str) -> None:
        allowed = self._allowed(self.rights.subscribe, pattern) and not self._allowed(self.rights.denied, pattern)
        if self.server.cluster.users and not allowed:
            self.error(f'Permissions Violation for Subscription to "{pattern}"')
            return
        cluster = self.server.cluster
        former = self.subscriptions.get(sid)
        if former is not None:
            cluster.interest.remove(former)
        order = cluster.interest.next_order(self) if former is None else former.order
        self.subscriptions[sid] = Subscription(self, pattern, queue, sid, order)
        cluster.interest.add(self.subscriptions[sid])

    def _unsubscribe(self, sid: str, after: int) -> None:
        subscription = self.subscriptions.get(sid)
        if subscription is not None and after:
            subscription.left = after
        elif subscription is not None:
            del self.subscriptions[sid]
            self.server.cluster.interest.remove(subscription)

    def _published(self, has_headers: bool, fields: list[bytes], content: bytes) -> None:
        self.published += 1
        header_bytes = int(fields[-2]) if has_headers else 0
        subject = fields[0].decode()
        reply = fields[1].decode() if len(fields) == (4 if has_headers else 3) else ""
        if len(content) > self.server.cluster.max_payload_bytes:
            self.error("Maximum Payload Violation")
            self.connection.close()
            return
        if self.server.cluster.users and subject not in self._may_answer and not self._publish_allowed(subject):
            self.error(f'Permissions Violation for Publish to "{subject}"')
            return
        self.server.cluster.published(self, Message(subject, reply, content, header_bytes), self._no_responders, self._echo)

    def _publish_allowed(self, subject: str) -> bool:
        known = self._may_publish.get(subject)
        if known is None:
            if len(self._may_publish) >= _MOST_CACHED:
                self._may_publish.clear()
            known = self._may_publish[subject] = self._allowed(self.rights.publish, subject)
        return known

    def lost(self) -> None:
        """The connection has ended."""
        self.server.clients.pop(self.number, None)
        self.server.closed[self.number] = self
        self.end_reason = self.end_reason or "Client Closed"
        for subscription in self.subscriptions.values():
            self.server.cluster.interest.remove(subscription)
        self.subscriptions.clear()

    # ---- to the connection -----------------------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        """Send data, or close a connection that reads too slowly."""
        self.connection.send(data)
        if len(self.connection.down.waiting) > self.server.cluster.max_pending:
            self.server.cluster.count("slow consumers")
            self.server.cluster.trace("slow consumer", self.server.name, self.name)
            self.end_reason = "Slow Consumer (Pending Bytes)"
            self.connection.cut()

    def error(self, text: str) -> None:
        """Send an error as nats-server does."""
        self.server.cluster.trace("-ERR", self.name, text)
        self.server.cluster.count(f"-ERR {text.split(' for ')[0]}")
        if text.startswith("Permissions"):
            self.server.cluster.on_denial(self.name, text)
        elif self.is_known:
            self.server.cluster.on_protocol_error(self.name, text)
        self.send(f"-ERR '{text}'\r\n".encode())

    def deliver(self, subscription: Subscription, message: Message) -> None:
        """Deliver a message to one of its subscriptions."""
        if self.rights.reply and message.reply:
            self._may_answer[message.reply] = None
            if len(self._may_answer) > _MOST_REPLIES:
                del self._may_answer[next(iter(self._may_answer))]
        reply = f" {message.reply}" if message.reply else ""
        size_bytes = len(message.content)
        if message.header_bytes:
            line = f"HMSG {message.subject} {subscription.sid}{reply} {message.header_bytes} {size_bytes}\r\n"
        else:
            line = f"MSG {message.subject} {subscription.sid}{reply} {size_bytes}\r\n"
        self.delivered += 1
        self.delivered_bytes += size_bytes
        self.send(line.encode() + message.content + b"\r\n")
        if subscription.left:
            subscription.left -= 1
            if not subscription.left:
                self._unsubscribe(subscription.sid, 0)


@dataclass(frozen=True, slots=True)
class Message:
    """A published message."""

    subject: str
    reply: str
    content: bytes
    """Header block and payload."""
    header_bytes: int


class Interest:
    """Index of all subscriptions of the servers."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Subscription, None]] = {}
        """Subject -> its subscriptions."""
        self._wild: dict[str, dict[Subscription, None]] = {}
        """Pattern with wildcards -> its subscriptions."""
        self._prefixes: dict[str, dict[str, list[str]]] = {}
        """Text before the first wildcard -> patterns of ``_wild`` with this text -> their tokens."""
        self._matching: dict[str, list[str]] = {}
        """Subject -> patterns of ``_wild`` that match it."""
        self._found: dict[str, list[Subscription]] = {}
        """Subject -> its subscriptions, in order."""
        self._count = 0

    def next_order(self, client: Client) -> tuple[int, int, int]:
        """Return the order of a new subscription of the client."""
        self._count += 1
        return client.server.number, client.number, self._count

    def add(self, subscription: Subscription) -> None:
        """Add a subscription."""
        pattern = subscription.pattern
        if "*" not in pattern and ">" not in pattern:
            self._exact.setdefault(pattern, {})[subscription] = None
            self._found.pop(pattern, None)
            return
        if pattern not in self._wild:
            self._wild[pattern] = {}
            self._prefixes.setdefault(_prefix_of(pattern), {})[pattern] = pattern.split(".")
            self._matching.clear()
        self._wild[pattern][subscription] = None
        self._found.clear()

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        pattern = subscription.pattern
        is_exact = pattern in self._exact
        index = self._exact if is_exact else self._wild
        of_pattern = index.get(pattern, {})
        of_pattern.pop(subscription, None)
        if not of_pattern:
            index.pop(pattern, None)
            self._prefixes.get(_prefix_of(pattern), {}).pop(pattern, None)
        if is_exact:
            self._found.pop(pattern, None)
        else:
            self._found.clear()

    def of(self, subject: str) -> list[Subscription]:
        """Return the subscriptions that match the subject."""
        found = self._found.get(subject)
        if found is None:
            patterns = self._matching.get(subject)
            if patterns is None:
                tokens = subject.split(".")
                patterns = [
                    pattern
                    for prefix in itertools.accumulate(tokens, "{}{}.".format, initial="")
                    for pattern, split in self._prefixes.get(prefix, {}).items()
                    if matches(split, tokens)
                ]
                if len(self._matching) >= _MOST_CACHED:
                    self._matching.clear()
                self._matching[subject] = patterns
            found = list(self._exact.get(subject, ()))
            for pattern in patterns:
                found += self._wild.get(pattern, ())
            found.sort(key=lambda subscription: subscription.order)
            if len(self._found) >= _MOST_CACHED:
                self._found.clear()
            self._found[subject] = found
        return found


class NatsServer:
    """One server of the simulated NATS cluster."""

    def __init__(self, cluster: NatsCluster, name: str, port: int, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = self.host = name
        self.port = port
        self.is_up = True
        self.life = 1
        self.clients: dict[int, Client] = {}
        self.closed: dict[int, Client] = {}
        """Connections that have ended."""

    def accept(self, connection: Connection) -> Client:
        """Return a client connects: the server speaks first."""
        client = Client(self, connection, self.cluster.next_client())
        self.clients[client.number] = client
        info = {
            "server_id": f"{self.name}-{self.life}",
            "server_name": self.name,
            "version": "2.10.20",
            "proto": 1,
            "headers": True,
            "max_payload": self.cluster.max_payload_bytes,
            "client_id": client.number,
            "auth_required": bool(self.cluster.users),
        }
        connection.send(b"INFO " + json.dumps(info).encode() + b"\r\n")
        return client

    def statistics(self, number: int) -> bytes:
        """Return what the server says about one connection, as nats-server does (CONNZ). Without it, the list is empty."""
        client = self.clients.get(number) or self.closed.get(number)
        found = []
        if client is not None:
            pending_bytes = len(client.connection.down.waiting)
            found = [{"cid": number, "pending_bytes": pending_bytes, "out_msgs": client.delivered, "reason": client.end_reason}]
        return json.dumps({"data": {"server_id": f"{self.name}-{self.life}", "connections": found}}).encode()

    def stop(self) -> None:
        """Stop: all clients are disconnected and its data is lost."""
        self.is_up = False
        self.cluster.trace("nats server stops", self.name)
        for client in list(self.clients.values()):
            client.connection.cut()
        self.closed.clear()

    def start(self) -> None:
        """Start again without any state."""
        self.life += 1
        self.is_up = True
        self.cluster.trace("nats server starts", self.name)


class NatsCluster:
    """Servers that exchange their interest over routes."""

    def __init__(self, network: Network, names: list[str]) -> None:
        self.network = network
        self.scheduler = network.scheduler
        self.users: dict[tuple[str, str], Rights] = {}
        """Empty: everybody may do everything."""
        self.max_payload_bytes = MAX_PAYLOAD_BYTES
        self.max_pending = MAX_PENDING
        self.lose_one_in = 0
        """One of this number of messages is lost. 0: none."""
        self.loses: Callable[[str, Message], bool] = lambda client, message: False
        """Whether a message of this client is lost on its way to all receivers."""
        self.refused = ""
        """Name of the client, or of the process, that may not connect. '': all may."""
        self.on_denial: Callable[[str, str], None] = lambda client, text: None
        """Told of each violation of permissions."""
        self.on_protocol_error: Callable[[str, str], None] = lambda client, text: None
        """Told of each command that a known client must not send: a message above the maximum size, or an unknown command."""
        self.watchers: list[Callable[[str, Message, int], None]] = []
        """Told each publish: name of the client, message, number of receivers."""
        self._clients = 0
        self._cut_routes: set[frozenset[str]] = set()
        self._route_due_ns: dict[tuple[str, str], int] = {}
        self.interest = Interest()
        self.servers = [NatsServer(self, name, 4222, number) for number, name in enumerate(names)]
        for server in self.servers:
            network.servers[server.name, server.port] = server

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of all servers."""
        return tuple(f"nats://{server.name}:{server.port}" for server in self.servers)

    def next_client(self) -> int:
        """Return a number that no client has had."""
        self._clients += 1
        return self._clients

    @property
    def is_faulty(self) -> bool:
        """True if a server is down, a route is cut, or a client is refused."""
        return bool(self.refused or self._cut_routes) or not all(server.is_up for server in self.servers)

    def trace(self, *what: object) -> None:
        """Add a line to the history."""
        self.scheduler.trace(*what)

    def count(self, what: str) -> None:
        """Count an event for the report."""
        self.scheduler.counters[what] += 1

    def refuses(self, client: Client) -> bool:
        """Return whether the client may not connect."""
        return bool(self.refused) and self.refused in (client.name, client.connection.process.name)

    def refuse(self, name: str) -> None:
        """Cut the connections of the client or the process ``name``, and refuse new ones. '': refuse none."""
        self.refused = name
        self.trace("refuse", name)
        for server in self.servers:
            for client in [one for one in server.clients.values() if self.refuses(one)]:
                client.connection.cut()

    def cut_route(self, one: str, other: str) -> None:
        """Cut the route between two servers."""
        self._cut_routes.add(frozenset((one, other)))
        self.trace("route cut", one, other)

    def heal_routes(self) -> None:
        """Restore all routes."""
        self._cut_routes.clear()

    def _interested(self, at: NatsServer, subject: str) -> list[Subscription]:
        found = self.interest.of(subject)
        if not self._cut_routes:
            return found
        return [
            subscription
            for subscription in found
            if frozenset((at.name, subscription.client.server.name)) not in self._cut_routes
        ]

    def published(self, client: Client, message: Message, no_responders: bool, echo: bool) -> None:
        """Deliver a message to all subscribers."""
        draw = self.scheduler.random
        receivers: list[Subscription] = []
        groups: dict[tuple[str, str], list[Subscription]] = {}
        for subscription in list(self._interested(client.server, message.subject)):
            if subscription.client is client and not echo:
                continue
            if subscription.queue:
                groups.setdefault((subscription.pattern, subscription.queue), []).append(subscription)
            else:
                receivers.append(subscription)
        for members in groups.values():
            local = [one for one in members if one.client.server is client.server] or members
            receivers.append(local[draw.randrange(len(local))])
        size_bytes, crc = len(message.content), zlib.crc32(message.content)
        self.trace("pub", client.number, message.subject, message.reply or "-", size_bytes, crc, len(receivers))
        self.count("messages")
        for watcher in self.watchers:
            watcher(client.name, message, len(receivers))
        if message.subject == SERVER_CONNECTIONS and message.reply:
            self._send_statistics(client, message)
        elif not receivers and no_responders and message.reply:
            self._nobody_there(client, message.reply)
        for subscription in receivers:
            if (self.lose_one_in and draw.randrange(self.lose_one_in) == 0) or self.loses(client.name, message):
                self.count("messages lost")
            elif subscription.client.server is client.server:
                subscription.client.deliver(subscription, message)
            else:
                self._send_over_route(client.server, subscription, message)

    def _send_statistics(self, client: Client, message: Message) -> None:
        """Each server that the asker reaches answers about its own connection with this number."""
        number = json.loads(message.content)["cid"]
        for server in self.servers:
            if server.is_up and frozenset((client.server.name, server.name)) not in self._cut_routes:
                answer = Message(message.reply, "", server.statistics(number), 0)
                for subscription in list(client.subscriptions.values()):
                    if matches(subscription.tokens, message.reply.split(".")):
                        client.deliver(subscription, answer)
                        break

    def _nobody_there(self, client: Client, reply: str) -> None:
        header = b"NATS/1.0 503\r\n\r\n"
        for subscription in list(client.subscriptions.values()):
            if matches(subscription.tokens, reply.split(".")):
                client.deliver(subscription, Message(reply, "", header, len(header)))
                return

    def _send_over_route(self, source: NatsServer, subscription: Subscription, message: Message) -> None:
        """Send a message over a route, in order."""
        route = source.name, subscription.client.server.name
        now_ns = self.scheduler.now_ns
        due_ns = max(now_ns + self.scheduler.draw_int(*_ROUTE_NS), self._route_due_ns.get(route, 0))
        self._route_due_ns[route] = due_ns
        self.scheduler.after(due_ns - now_ns, self._over_route, source, subscription, message)

    def _over_route(self, source: NatsServer, subscription: Subscription, message: Message) -> None:
        client = subscription.client
        is_whole = frozenset((source.name, client.server.name)) not in self._cut_routes
        if is_whole and client.connection.is_open and client.subscriptions.get(subscription.sid) is subscription:
            client.deliver(subscription, message)

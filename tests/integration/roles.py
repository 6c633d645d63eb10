"""The users of a nats-server under which the tests of roles run: one for each role, with what ``liftpy permissions`` prints for it."""

from __future__ import annotations

from liftpy.client import Credentials
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, combined_rights, rights_of

NS, STREAM, SUBJECT, OUT = "acme", "orders", "shop.orders", "shop.out"
SCOPES = {
    AccessRole.NODE: Scope(NS, data_subjects=("shop.>",), replies=("_INBOX_member", "_INBOX_administrator")),
    AccessRole.PUBLISHER: Scope(NS, data_subjects=(SUBJECT,), inbox_prefix="_INBOX_publisher"),
    AccessRole.READER: Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_reader", services=("echo", "groups")),
    AccessRole.OPERATOR: Scope(NS, inbox_prefix="_INBOX_operator", principal="bob"),
    AccessRole.MEMBER: Scope(NS, streams=(STREAM,), inbox_prefix="_INBOX_member"),
    AccessRole.STATUS: Scope(NS, inbox_prefix="_INBOX_status"),
    AccessRole.SERVICE: Scope(
        NS, streams=(STREAM, "out"), data_subjects=(OUT,), inbox_prefix="_INBOX_service", services=("echo",)
    ),
}

ADMINISTRATOR = (AccessRole.OPERATOR, AccessRole.READER, AccessRole.MEMBER)
"""Roles of the user ``administrator``, who has several."""
ADMINISTRATOR_SCOPE = Scope(NS, inbox_prefix="_INBOX_administrator", principal="ann", services=("groups",))


def configuration() -> str:
    users = [f"{{ user: {r.value}, password: {r.value}-secret, {as_nats_conf(rights_of(r, s))} }}" for r, s in SCOPES.items()]
    everything = as_nats_conf(combined_rights(ADMINISTRATOR, ADMINISTRATOR_SCOPE))
    users.append(f"{{ user: administrator, password: administrator-secret, {everything} }}")
    return "authorization: { users: [\n" + "\n".join(users) + "\n] }\n"


def credentials(role: AccessRole) -> Credentials:
    scope = SCOPES[role]
    return Credentials(
        user=role.value, password=f"{role.value}-secret", inbox_prefix=scope.inbox_prefix, principal=scope.principal
    )

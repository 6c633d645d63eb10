"""``liftpy permissions``: print the NATS permissions of a user, for the configuration of nats-server or for nsc."""

from __future__ import annotations

import click

from liftpy.client import Client
from liftpy.core.base.ids import check_name, check_publisher_subject
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, as_nsc, combined_rights, partition_subjects
from liftpy.core.wire.subjects import check_inbox_prefixes
from liftpy.errors import ConfigError
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy permissions --role reader --stream orders")
@click.option(
    "--role",
    "role_names",
    required=True,
    multiple=True,
    type=click.Choice([role.value for role in AccessRole]),
    help="Purpose of the user. May be repeated, for a user with several purposes.",
)
@click.option(
    "--stream", "streams", type=STREAM, multiple=True, metavar="NAME", help="Allow only this stream. May be repeated."
)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="SUBJECT",
    help=(
        "Data subject, with wildcards: of a publisher, or of the streams of a node. May be repeated.  "
        "[default: the subjects of --stream, for a node all]"
    ),
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME",
    help=(
        "Replicated service that a reader or an operator may query, or that a service user runs. '*' means "
        "all. May be repeated.  [default: none, for a service all]"
    ),
)
@click.option(
    "--reply-prefix",
    "replies",
    multiple=True,
    metavar="PREFIX",
    help="Inbox prefix of the clients that a service or a node replies to, such as _INBOX. May be repeated.",
)
@click.option(
    "--jetstream-api",
    is_flag=False,
    flag_value="liftpy",
    default="",
    metavar="[DOMAIN]",
    help="Also allow the JetStream read API: to answer it (node), or to use it for all streams (reader).",
)
@click.option(
    "--format",
    "form",
    default="nats-conf",
    type=click.Choice(["nats-conf", "nsc"]),
    show_default=True,
    help="Output format: for the NATS server configuration, or nsc commands.",
)
@connection_options
def permissions(
    role_names: tuple[str, ...],
    streams: tuple[str, ...],
    subjects: tuple[str, ...],
    services: tuple[str, ...],
    replies: tuple[str, ...],
    jetstream_api: str,
    form: str,
    target: Target,
) -> None:
    """Print the NATS permissions of one user.

    With --inbox-prefix, the user receives replies under its own prefix. Its client needs the same option. With --principal, the
    changes of an operator carry this name. The command contacts the cluster only for a publisher with --stream and without --subject.
    """
    wanted = [AccessRole(name) for name in dict.fromkeys(role_names)]
    for name in streams:
        check_name(name, "stream")
    for name in services:
        if name != "*":
            check_name(name, "service")
    if AccessRole.PUBLISHER in wanted and not subjects:
        if not streams:
            raise ConfigError("Missing option: --subject, or --stream (for the subjects of a stream).")
        subjects = with_client(target, lambda client: _subjects_of(client, streams))
    for prefix in replies:
        check_inbox_prefixes((f"{prefix}.",))
        if "*" in prefix:
            raise ConfigError(
                f"Invalid value for --reply-prefix: {prefix}. NATS permissions cannot match a part of a token. Name each prefix."
            )
    if replies and not {AccessRole.SERVICE, AccessRole.NODE} & set(wanted):
        raise ConfigError("--reply-prefix is only for the roles service and node. Remove it.")
    for subject in subjects:  # also those of the cluster, because users paste the output into a shell
        check_publisher_subject(subject)
    if AccessRole.NODE in wanted and not subjects:
        subjects = (">",)
    scope = Scope(
        target.namespace,
        streams,
        subjects,
        target.credentials.inbox_prefix or "_INBOX",
        target.credentials.principal,
        services,
        replies,
        jetstream_api and check_name(jetstream_api, "domain"),
    )
    permission_rules = combined_rights(wanted, scope)
    click.echo(
        as_nats_conf(permission_rules)
        if form == "nats-conf"
        else as_nsc(permission_rules, target.credentials.principal or "-".join(role.value for role in wanted))
    )


async def _subjects_of(client: Client, streams: tuple[str, ...]) -> tuple[str, ...]:
    described = [await client.stream(name) for name in streams]
    return tuple(s for stream in described for s in partition_subjects(stream.subject, stream.partition_count))

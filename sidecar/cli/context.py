"""``liftpy context``: named ways to reach a cluster, so that commands need no connection options."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from liftpy.errors import ConfigError
from liftpy.nats.urls import check_urls, without_secrets
from sidecar.cli.help import SHARED_OPTIONS, HelpGroup, complete_context, options_before
from sidecar.cli.options import add_shared_options, json_option
from sidecar.cli.output import print_json, print_table
from sidecar.runtime.contexts import SECRETS, Contexts, check_values, from_nats_cli, lock_contexts, nats_cli_file
from sidecar.runtime.settings import DEFAULT_NAMESPACE, config_home, contexts_file, named_context


@click.group(
    cls=HelpGroup,
    example="""
    liftpy context add prod --nats tls://nats.example:4222 --creds prod.creds --select
    liftpy --context prod stream list
    """,
)
def context() -> None:
    """Add, select, list and remove contexts: named ways to reach a cluster.

    Commands use the context of --context, else of LIFTPY_CONTEXT, else the selected one. The selected context is not used
    where --nats or LIFTPY_NATS names the servers. The file contexts.json in ~/.config/liftpy holds the contexts. Only you
    can read it.
    """


def _path() -> Path:
    path = contexts_file()
    if path is None:
        raise ConfigError("Cannot find the directory of the contexts. Set HOME or XDG_CONFIG_HOME.")
    return path


@context.command(example="liftpy context add prod --nats tls://nats.example:4222 --creds prod.creds --select")
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password of --user from the standard input.")
@click.option("--from-nats", metavar="NAME", help="Take the values from this context of the NATS command line.")
@click.option("--select", "select_it", is_flag=True, help="Use the new context from now on.")
@click.option("--replace", "may_replace", is_flag=True, help="Replace a context of the same name.")
@add_shared_options
@click.pass_context
def add(
    ctx: click.Context,
    /,
    name: str,
    password_stdin: bool,
    from_nats: str | None,
    select_it: bool,
    may_replace: bool,
    **_: object,
) -> int:
    """Add context NAME with the connection options of this command.

    Options win over the values of --from-nats. Paths of files are stored as absolute paths.
    """
    values_given = {
        **options_before(ctx),
        **{key: value for key in SHARED_OPTIONS if (value := ctx.params.get(key)) is not None},
    }
    if "context" in values_given:
        raise click.UsageError(
            f"--context chooses an existing context, but this command adds context {name!r}. Remove --context.", ctx
        )
    values: dict[str, str] = {}
    unused: list[str] = []
    if from_nats is not None:
        home = config_home()
        if home is None:
            raise ConfigError("Cannot find the directory of the NATS contexts. Set HOME or XDG_CONFIG_HOME.")
        values, unused = from_nats_cli(nats_cli_file(from_nats, home))
    values |= values_given
    values = {key: str(Path(value).absolute()) if key.endswith("_file") else value for key, value in values.items()}
    if password_stdin:
        values["password"] = sys.stdin.readline().rstrip("\r\n")
    if not values:
        raise click.UsageError("A context needs at least one value. Give --nats URL, or --from-nats NAME.", ctx)
    check_values(name, values)
    if "nats" in values:
        check_urls(tuple(url.strip() for url in values["nats"].split(",")))
    with lock_contexts(_path()) as contexts:
        if name in contexts.values and not may_replace:
            raise click.UsageError(f"Context {name!r} exists already. Use --replace to replace it.", ctx)
        selected = name if select_it else contexts.selected
        replace(contexts, values={**contexts.values, name: values}, selected=selected).save()
    if unused:
        click.echo(
            f"liftpy does not support these settings of the NATS context and ignores them: {', '.join(unused)}.", err=True
        )
    click.echo(f"Context {name} was added{' and selected' if select_it else ''}.")
    return 0


@context.command(example="liftpy context select prod")
@click.argument("name", required=False, shell_complete=complete_context)
@click.option("--none", is_flag=True, help="Select no context.")
def select(name: str | None, none: bool) -> None:
    """Let commands use context NAME where no option and no variable names another one."""
    if (name is None) != none:
        raise click.UsageError("Give the name of a context, or --none.")
    with lock_contexts(_path()) as contexts:
        if name is not None:
            contexts.values_of(name)
        replace(contexts, selected=name or "").save()
    click.echo(f"Context {name} is selected." if name else "No context is selected.")


@context.command(example="liftpy context remove old")
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Remove context NAME. Files that it names stay."""
    with lock_contexts(_path()) as contexts:
        contexts.values_of(name)
        left = {key: values for key, values in contexts.values.items() if key != name}
        replace(contexts, values=left, selected="" if contexts.selected == name else contexts.selected).save()
    click.echo(f"Context {name} was removed.")


@context.command("list", example="liftpy context list")
@json_option
def list_(as_json: bool) -> None:
    """List the contexts. The one in use has a star. Passwords and tokens are not shown."""
    contexts = Contexts.load(_path())
    used = named_context() or contexts.selected
    if as_json:
        rows = [
            {
                "name": name,
                "used": name == used,
                **{key: "***" if key in SECRETS else shown_value(key, each[key]) for key in each},
            }
            for name, each in sorted(contexts.values.items())
        ]
        print_json(rows)
        return
    if not contexts.values:
        click.echo("no contexts yet: liftpy context add NAME --nats URL")
        return
    print_table(
        ("context", "NATS", "namespace", "credentials"),
        [
            (
                f"{name} *" if name == used else name,
                shown_value("nats", each.get("nats", "")),
                each.get("namespace", DEFAULT_NAMESPACE),
                ", ".join(key for key in each if key not in ("nats", "namespace")),
            )
            for name, each in sorted(contexts.values.items())
        ],
    )


def shown_value(key: str, value: str) -> str:
    """Return ``value``, the value ``key`` of a context, as it may be shown: without the password that a URL may have."""
    return ",".join(map(without_secrets, value.split(","))) if key == "nats" else value

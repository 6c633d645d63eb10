"""The runbooks as pages: the project's own Markdown, of which they use headings, lists, code, links and paragraphs."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.resources import files

_INLINE = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([\w-]+)\.md\)|\[([^\]]+)\]\([^)]*\)|\*\*([^*]+)\*\*")


_FOLDER = files("sidecar.status").joinpath("static", "runbooks")
_ITEM = re.compile(r"(?:\d+\.|-) ")


@cache
def names() -> frozenset[str]:
    """Of all runbooks."""
    return frozenset(one.name[:-3] for one in _FOLDER.iterdir() if one.name.endswith(".md"))


def runbook(name: str) -> str:
    """The page of the runbook ``name``, which is one of ``names()``."""
    body = as_html(_FOLDER.joinpath(f"{name}.md").read_text(encoding="utf-8"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)} · liftpy</title>'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/static/page.css"></head>'
        '<body><header><span class="brand">liftpy</span>'
        f'<nav><a href="/">Cluster</a><a href="/events">Events</a></nav></header><main class="prose">{body}</main></body></html>'
    )


def as_html(text: str) -> str:
    """Of Markdown as the runbooks use it; all else is text."""
    made: list[str] = []
    for block in re.split(r"\n\s*\n(?=\S)", text.strip()):
        if block.startswith("```"):
            made.append(f"<pre>{html.escape(block.split(chr(10), 1)[1].rsplit('```', 1)[0].rstrip())}</pre>")
        elif found := re.match(r"(#{1,3}) (.*)", block):
            made.append(f"<h{len(found[1])}>{_inline(found[2])}</h{len(found[1])}>")
        elif _ITEM.match(block):
            kind = "ul" if block.startswith("-") else "ol"
            items = [_inline(_ITEM.sub("", item, count=1)) for item in re.split(r"\n(?=(?:\d+\.|-) )", block)]
            made.append(f"<{kind}>" + "".join(f"<li>{item}</li>" for item in items) + f"</{kind}>")
        else:
            made.append(f"<p>{_inline(block)}</p>")
    return "".join(made)


def _inline(text: str) -> str:
    made, at = [], 0
    for found in _INLINE.finditer(text):
        made.append(html.escape(text[at : found.start()]))
        code, title, page, elsewhere, strong = found.groups()
        if code:
            made.append(f"<code>{html.escape(code)}</code>")
        elif title:
            made.append(f'<a href="/runbook/{html.escape(page)}">{html.escape(title)}</a>')
        else:
            made.append(f"<em>{html.escape(elsewhere)}</em>" if elsewhere else f"<strong>{html.escape(strong)}</strong>")
        at = found.end()
    return "".join(made) + html.escape(text[at:])

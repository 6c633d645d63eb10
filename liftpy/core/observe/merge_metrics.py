"""Merges the metrics of several nodes into one text for Prometheus. Each sample has a label ``node``. Pure.

Each metric is described once. Lines that do not have the exposition format are left out, so that no node can change the
samples of another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOLD = re.compile(r"# (HELP|TYPE) ([A-Za-z_:][\w:]*) [^\n]*")
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:[A-Za-z_]\w*="(?:[^"\\\n]|\\.)*",?)*)\})? (-?[\d.eE+-]+|NaN|[+-]Inf)')
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_PARTS = ("_total", "_bucket", "_count", "_sum", "_created")


def together(texts: Mapping[str, str]) -> str:
    """Merge the metrics of all nodes into one text in Prometheus format, sorted by metric and node.

    ``texts``: metrics of each node in Prometheus format, by node.
    """
    told: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for node, text in sorted(texts.items()):
        label = f'node="{node.translate(_ESCAPES)}"'
        for line in text.split("\n"):
            if found := _TOLD.fullmatch(line):
                told.setdefault(found[2], {}).setdefault(found[1], line)
                samples.setdefault(found[2], [])
            elif found := _SAMPLE.fullmatch(line):
                name, labels, value = found.groups()
                parts = [part for part in (labels or "").rstrip(",").split(",") if part]
                own = next((part for part in parts if part.startswith('node="')), label)
                if own == label:  # otherwise the sample would name another node
                    labels = ",".join(parts if label in parts else [*parts, label])
                    samples.setdefault(_metric(name, samples), []).append(f"{name}{{{labels}}} {value}")
    lines = [line for name, found in samples.items() for line in (*told.get(name, {}).values(), *found)]
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, known: Mapping[str, object]) -> str:
    """Return the metric to which the sample ``name`` belongs, for example ``x`` for ``x_bucket``. ``known``: known metrics."""
    bare = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
    return name if name in known or bare not in known else bare

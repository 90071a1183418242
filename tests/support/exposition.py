"""A strict parser of Prometheus's text format, written from its specification and not from prometheus_client."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL: Final = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE: Final = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*,?)\}})? (\S+)(?: (-?\d+))?")
HELP: Final = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\[\\n])*)")
TYPE: Final = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram|summary|untyped)")
SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}

Labels = frozenset[tuple[str, str]]


@dataclass
class Metric:
    """A metric: its type, its help, and its samples by name and labels."""

    name: str
    type: str = "untyped"
    help: str | None = None
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Metric]:
    """Return the metrics by name. Raise `ValueError` at the first line that breaks a rule of the format."""
    if not text.endswith("\n"):
        raise ValueError("the last line must end with a line feed")
    metrics: dict[str, Metric] = {}
    current: Metric | None = None
    for line in text[:-1].split("\n"):
        if line.startswith(("# HELP ", "# TYPE ")):
            current = _header(line, metrics, current)
        elif line and not line.startswith("#"):
            current = _sample(line, metrics, current)
    for metric in metrics.values():
        if metric.type == "histogram":
            _check_histogram(metric)
    return metrics


def _header(line: str, metrics: dict[str, Metric], current: Metric | None) -> Metric:
    found = HELP.fullmatch(line) or TYPE.fullmatch(line)
    if found is None:
        raise ValueError(f"malformed: {line}")
    name, value = found.groups()
    metric = metrics.setdefault(name, Metric(name))
    if metric.samples or (metric is not current and (metric.help is not None or metric.type != "untyped")):
        raise ValueError(f"lines of one metric must be together, headers first: {line}")
    if line.startswith("# HELP "):
        if metric.help is not None:
            raise ValueError(f"second HELP: {line}")
        metric.help = value
    else:
        if metric.type != "untyped":
            raise ValueError(f"second TYPE: {line}")
        metric.type = value
    return metric


def _sample(line: str, metrics: dict[str, Metric], current: Metric | None) -> Metric:
    found = SAMPLE.fullmatch(line)
    if found is None:
        raise ValueError(f"malformed: {line}")
    name, labels_text, value = found.group(1), found.group(2) or "", found.group(7)
    pairs = [(key, text) for key, text in re.findall(LABEL, labels_text)]
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError(f"repeated label: {line}")
    metric = current
    if metric is None or name not in {metric.name + suffix for suffix in SUFFIXES.get(metric.type, ("",))}:
        if name in metrics:
            raise ValueError(f"lines of one metric must be together: {line}")
        metric = metrics[name] = Metric(name)
    key = name, frozenset(pairs)
    if key in metric.samples:
        raise ValueError(f"repeated sample: {line}")
    metric.samples[key] = float(value)
    return metric


def _check_histogram(metric: Metric) -> None:
    """Buckets are cumulative and end at +Inf, which is the count."""
    series: dict[Labels, dict[float, float]] = {}
    for (name, labels), value in metric.samples.items():
        if name.endswith("_bucket"):
            bounds = [float(text) for key, text in labels if key == "le"]
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, {})[bounds[0]] = value
    for labels, buckets in series.items():
        counts = [count for _, count in sorted(buckets.items())]
        if math.inf not in buckets or counts != sorted(counts):
            raise ValueError(f"buckets of {metric.name} are not cumulative: {labels}")
        if metric.samples[f"{metric.name}_count", labels] != buckets[math.inf]:
            raise ValueError(f"the count of {metric.name} is not its last bucket: {labels}")
        if (f"{metric.name}_sum", labels) not in metric.samples:
            raise ValueError(f"{metric.name} has no sum: {labels}")

"""What is printed: Markdown tables, and on what machine the figures came about."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from audit.embedded import EmbeddedServer
from bench.server import client


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned in plain text too: words left, figures right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (head, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def millis(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def mebibytes(size: float) -> str:
    return f"{size / 2**20:,.2f}"


def environment() -> dict[str, str]:
    """What a reader must know to judge the figures, by name."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: version(name) for name in ("celery", "kombu", "redis", "opentelemetry-sdk")},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "CPU": _processor(),
        "cores": str(os.cpu_count()),
        "load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        **_server(),
    }


def _processor() -> str:
    """Its name, where the system tells one."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _server() -> dict[str, str]:
    with EmbeddedServer() as server:
        info = client(server.url).info("server")
        valkey = info.get("valkey_version")
        name = f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
        return {"server": name, "its files on": _file_system(server.directory)}


def _file_system(directory: Path) -> str:
    """The kind of file system: on one in RAM, forcing a file to disk costs nothing."""
    mounts = [
        part
        for part in psutil.disk_partitions(all=True)
        if directory.resolve().is_relative_to(part.mountpoint)
    ]
    nearest = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return nearest.fstype if nearest is not None else "unknown"

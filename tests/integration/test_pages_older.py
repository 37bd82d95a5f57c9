"""A history of several windows: each page of the overview looks at one of them, and goes on."""

from __future__ import annotations

import html
import re
from pathlib import Path

import redis

from tests.integration.flower import start_flower
from tests.integration.stack import Stack
from tests.support import TENANT, completed, make_identity

ENTRIES = 6_000
#: More than a page looks at (docs/pages.md, docs/performance.md).
WINDOW = 2_500


def test_every_overview_looks_at_one_window(tmp_path: Path) -> None:
    """By its link each further back, until every entry was looked at once; never more at once."""
    stack = Stack(tmp_path)
    with redis.Redis.from_url(stack.memory_url) as client:
        pipeline = client.pipeline()
        pipeline.sadd("audit:tenants", TENANT)
        for _ in range(ENTRIES):
            row = completed(make_identity(skill_id="far.back")).to_bytes()
            pipeline.xadd(f"audit:{{{TENANT}}}:rows", {"row": row})
        pipeline.execute()
    flower = start_flower(stack, tmp_path)
    try:
        path, looked, pages = f"/audit?tenant={TENANT}", [], []
        while path:
            page = flower.ask(path)
            assert page.status == 200
            pages.append(page.text)
            (found,) = re.findall(r"Looked at ([\d,]+) entries", page.text)
            looked.append(int(found.replace(",", "")))
            link = re.search(r'id="audit-older" rel="next" href="([^"]+)"', page.text)
            path = html.unescape(link[1]) if link else ""
            assert not path or f"tenant={TENANT}" in path
        assert sum(looked) == ENTRIES
        assert max(looked) <= WINDOW
        assert "Running now</h2>" in pages[0]
        assert all("Running now</h2>" not in page for page in pages[1:])
        assert all(f'id="audit-newest" href="/audit?tenant={TENANT}"' in page for page in pages[1:])
        for path in (
            "/audit?look=40000",
            "/audit?tenant=&look=40000",
            "/audit?look=" + 5_000 * "9",
        ):
            found = re.findall(r"Looked at ([\d,]+) entries", flower.ask(path).text)
            assert int(found[0].replace(",", "")) <= WINDOW
        nobody = "/audit/invocation/01KB8Z5T3MZJ9Y2V4Q6R8S0TAW?look="
        assert flower.ask(nobody + 5_000 * "9").status == 404
        for path in ("/audit?cursor=nonsense", "/audit/list?cursor=nonsense"):
            page = flower.ask(path)
            assert page.status == 400
            assert "no place in the audit" in page.text
    finally:
        flower.end()
        stack.close(check=False)

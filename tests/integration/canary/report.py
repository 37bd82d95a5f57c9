"""What of the secrets was found where, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from tests.integration.canary.channels import Document
from tests.integration.canary.host import Host
from tests.integration.canary.secrets import Detector, Hit, Mint

#: What was found, by channel and by the name of the path that the secret went along.
Hits = defaultdict[tuple[str, str], list[tuple[Document, Hit]]]


def report(found: Host, documents: Iterable[Document]) -> str:
    """Which secrets were found where; empty where there are none."""
    detector = _detector(found.seed, len(found.paths))
    hits: Hits = defaultdict(list)
    for document in documents:
        for hit in detector.hits(document.text):
            hits[document.channel, found.paths[hit.path]].append((document, hit))
    return "\n".join(_lines(hits))


def _lines(hits: Hits) -> Iterator[str]:
    """One line for all ways of a channel that give the same places away, and one example."""
    alike: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (channel, way), found in hits.items():
        alike[channel, ", ".join(sorted({hit.place for _, hit in found}))].append(way)
    for (channel, places), ways in sorted(alike.items()):
        document, hit = hits[channel, ways[0]][0]
        yield f"{channel}: [{places}] of [{'; '.join(sorted(ways))}]"
        yield f"    e.g. {document.name}, line {hit.line}, {hit.form}: ...{hit.before}"


@lru_cache(maxsize=1)
def _detector(seed: str, paths: int) -> Detector:
    """It takes a moment to make, and is asked again and again about one host."""
    return Detector(Mint(seed), range(paths))

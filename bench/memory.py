"""What a worker holds over many invocations: memory, descriptors, connections.

A bare worker runs the same, for Celery's own growth is no leak of the audit. Every process collects
its garbage before a sample: a task that fails leaves some 0.1 MB of cycles behind (its traceback's
frames, in bare Celery too), and Python lets hundreds of them come together before it collects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.crew import Crew, Variant, crews
from bench.report import mebibytes, table
from bench.stats import slope

VARIANTS: Final = (Variant.BARE, Variant.AUDITED)
#: For every round of the throughput section.
BATCHES_PER_ROUND: Final = 2
#: Batches until caches, pools and arenas have their size; at least one more is made.
WARM_UP_BATCHES: Final = 5
#: Every so many invocations ends in an error.
FAIL_EVERY: Final = 5
FLAT: Final = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What main process and children hold together after so many invocations.

    Attributes:
        uss: bytes that belong to these processes alone.
        rss: resident bytes; what the processes share is counted in each.
        descriptors: open file descriptors.
        connections: of the whole server, those of publisher and bench among them.
    """

    invocations: int
    uss: int
    rss: int
    descriptors: int
    connections: int


Samples = Mapping[Variant, Sequence[Sample]]


def measure(rounds: int, tasks: int) -> Samples:
    """Run the variants one after the other; a sample after each batch of that many tasks."""
    batches = max(BATCHES_PER_ROUND * rounds, WARM_UP_BATCHES + 1)
    return {variant: _run(variant, batches, tasks) for variant in VARIANTS}


def _run(variant: Variant, batches: int, tasks: int) -> list[Sample]:
    samples = []
    with crews([variant]) as (crew,):
        for number in range(1, batches + 1):
            crew.batch(tasks, fail_every=FAIL_EVERY)
            samples.append(_sample(crew, number * tasks))
    return samples


def _sample(crew: Crew, invocations: int) -> Sample:
    processes = crew.processes()
    crew.collect_garbage()
    held = [process.memory_full_info() for process in processes]
    return Sample(
        invocations=invocations,
        uss=sum(part.uss for part in held),
        rss=sum(part.rss for part in held),
        descriptors=sum(process.num_fds() for process in processes),
        connections=crew.connections(),
    )


def report(samples: Samples) -> str:
    head = ("held by a worker", "after", "USS MiB", "RSS MiB", "descriptors", "connections")
    rows, words = [], []
    for variant, found in samples.items():
        warm = found[WARM_UP_BATCHES - 1 :]
        rows += [[variant.label, *_cells(sample)] for sample in (warm[0], warm[-1])]
        words.append(f"{variant.label}: {_verdict(warm)}")
    return "\n\n".join([table(head, rows), *words])


def raw(samples: Samples) -> dict[str, Any]:
    """Every sample."""
    return {
        variant.label: [asdict(sample) for sample in found] for variant, found in samples.items()
    }


def _cells(sample: Sample) -> list[str]:
    return [
        f"{sample.invocations:,}",
        mebibytes(sample.uss),
        mebibytes(sample.rss),
        str(sample.descriptors),
        str(sample.connections),
    ]


def _verdict(warm: Sequence[Sample]) -> str:
    growth = warm[-1].uss - warm[0].uss
    each = slope([sample.invocations for sample in warm], [sample.uss for sample in warm])
    word = "flat (under 1 MiB)" if growth < FLAT else "NOT flat"
    return (
        f"{growth / 1024:+,.0f} KiB USS after warm-up, slope {each * 1000 / 1024:+,.1f} KiB per"
        f" 1,000 invocations: {word}."
    )

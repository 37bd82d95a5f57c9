"""audit/memory/redis_url.py: the parts of a URL, and that none tells a password."""

from __future__ import annotations

import pytest

from audit.errors import MemoryUrlError
from audit.memory.redis import RedisMemory
from audit.memory.redis_nodes import slots_of
from audit.memory.redis_url import RedisUrl, Topology, parse_url

SECRET = "hunter2%2F"


@pytest.mark.parametrize(
    ("url", "seeds", "at", "name"),
    [
        (
            "redis+cluster://a:1,b:2",
            (("a", 1), ("b", 2)),
            "redis://h:9/0?",
            "a:1,b:2 audit",
        ),
        (
            f"rediss+cluster://u:{SECRET}@b,[::1]:7/?prefix=p&ssl_cert_reqs=none",
            (("b", 6379), ("::1", 7)),
            f"rediss://u:{SECRET}@h:9/0?ssl_cert_reqs=none",
            "[::1]:7,b:6379 p",
        ),
        (
            f"redis+sentinel://:{SECRET}@a,b:2/audit/3?replicas=2&sentinel_password=x%40",
            (("a", 26379), ("b", 2)),
            f"redis://:{SECRET}@h:9/3?",
            "a:26379,b:2/audit/3 audit",
        ),
    ],
)
def test_of_several_hosts_each_is_reached_as_the_url_says(
    url: str, seeds: object, at: str, name: str
) -> None:
    """User, password, database and redis-py's own parameters hold for every server; the name of
    the memory has no secret and does not hang on the order of the hosts."""
    parts = parse_url(url)
    assert parts.seeds == seeds
    assert parts.at(("h", 9)) == at
    assert RedisMemory(url).name == name
    assert "hunter2" not in parts.shown + name


def test_sentinels_have_a_login_of_their_own() -> None:
    """They do not get the master's password, nor it theirs."""
    parts = parse_url(
        f"redis+sentinel://u:{SECRET}@a/audit?sentinel_username=s&sentinel_password=x%40y"
    )
    assert parts.sentinel_at(("a", 1)) == "redis://s:x%40y@a:1/0?"
    assert "x%40y" not in parts.at(("a", 1))
    assert parse_url(f"redis+sentinel://u:{SECRET}@a/audit").sentinel_at(("a", 1)) == (
        "redis://a:1/0?"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"redis+cluster://u:{SECRET}@a:1/3", "database 0 alone"),
        (f"redis+cluster://u:{SECRET}@a:x", "cannot tell user"),
        (f"redis+cluster://u:{SECRET}@", "names hosts"),
        (f"redis+cluster://u:{SECRET}@a:1,,b:2", "names hosts"),
        (f"redis+sentinel://u:{SECRET}@a:1", "service is missing"),
        (f"redis+sentinel://u:{SECRET}@a:1/audit/x", "database is a number"),
        (f"redis+sentinel://u:{SECRET}@a:1/audit?retry=1", "sets retry itself"),
        (f"redis://u:{SECRET}@a:1/0?replicas=x", "replicas is a number"),
        (f"redis://u:{SECRET}@a:1/0?replicas=-1", "replicas is a number"),
        (f"redis+cluster://u:{SECRET}@a:1/?nonsense=1", "memory URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str, said: str) -> None:
    """The text says what is wrong."""
    with pytest.raises(MemoryUrlError, match=said) as caught:
        RedisMemory(url)
    assert "hunter2" not in str(caught.value)


def test_one_server_is_as_it_was() -> None:
    """Beside replicas nothing is new there."""
    assert parse_url("redis://u:p@a:1/2?replicas=2&durability=always&prefix=x") == RedisUrl(
        url="redis://u:p@a:1/2?",
        shown="redis://a:1/2",
        durability="always",
        prefix="x",
        replicas=2,
        trace_seconds=30 * 86_400,
        topology=Topology.SINGLE,
    )


def test_a_node_that_does_not_know_its_name_is_reached_under_the_one_that_was_asked() -> None:
    """CLUSTER SLOTS gives nothing or "?" then; what nobody serves is known as such."""
    reply = [[0, 1, [b"", 7, b"id"]], [2, 2, [b"?", 8]], [4, 16383, [b"c", 9], [b"d", 9]]]
    slots = slots_of(reply, "asked")
    assert slots[:5] == [("asked", 7), ("asked", 7), ("asked", 8), None, ("c", 9)]
    assert len(slots) == 16384
    assert slots[-1] == ("c", 9)

"""``obs.probe-endpoints``: which TCP endpoints accept a connection, asked all at once.

An ``async def`` skill: the host runs its coroutine to the end, in every pool.
"""

from __future__ import annotations

import asyncio

from tasks import skill


@skill("obs.probe-endpoints", version="1.0.0", soft_time_limit=60, time_limit=70)
async def probe_endpoints(endpoints: list[str], timeout: float = 2.0) -> dict[str, str]:
    """Try to connect to every endpoint.

    Args:
        endpoints: ``"host:port"`` each.
        timeout: seconds each may take.

    Returns:
        Endpoint to ``"open"``, ``"closed"`` or ``"silent"`` (no answer in time).

    Raises:
        ValueError: an endpoint is not of the form ``host:port``.
    """
    states = await asyncio.gather(*(_probe(endpoint, timeout) for endpoint in endpoints))
    return dict(zip(endpoints, states, strict=True))


async def _probe(endpoint: str, timeout: float) -> str:
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError("an endpoint is spelled host:port")
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, int(port))
    except TimeoutError:
        return "silent"
    except OSError:
        return "closed"
    writer.close()
    return "open"

"""Tenants of a cluster, whose list is on a node of its own: it has the name before there is a row.

What is guaranteed: no row of a tenant is sent before the node with the list has answered once that
it has the name, to this memory. Each connection says it again every second, so that a name which
somebody took out comes back. That much may fail: the list's node being away takes such an emit one
part in :data:`SHARES` of its deadline, once a second in all, and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from audit.errors import MemoryDamagedError, MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.connection import Line
from audit.memory.redis_keys import naming
from audit.memory.redis_talk import Doubt, Talk

#: Seconds until a connection names a tenant again, which is a command more.
NAMED_FOR: Final = 1.0
#: Of the time that is left, one part in so many goes to a name that the list had before.
SHARES: Final = 10


class Names:
    """The list of tenants, as the emits of a cluster's memory see to it.

    Args:
        talk: to the servers.
        prefix: of the keys.
        replicas: how many must have a name before there is a row.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        talk: Talk,
        prefix: str,
        replicas: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._talk = talk
        self._prefix = prefix
        self._replicas = replicas
        self._clock = clock
        #: The tenants whose name the list had, and until when no name is said again.
        self._had: set[str] = set()
        self._quiet_until = -math.inf

    def see_to(self, line: Line, tenant_id: str, deadline: float) -> None:
        """Name the tenant, unless this connection did so within the last second.

        Raises:
            AuditMemoryError, RedisError, OSError: the list never had the name, or is damaged.
        """
        now = self._clock()
        if now - line.named.get(tenant_id, -math.inf) < NAMED_FOR:
            return
        if tenant_id not in self._had:
            self._name(tenant_id, deadline, self._replicas)
            self._had.add(tenant_id)
        elif not self._again(tenant_id, deadline, now):
            return
        line.named[tenant_id] = now

    def _again(self, tenant_id: str, deadline: float, now: float) -> bool:
        """Whether the list has it still; whoever had to wait for the replicas did so before."""
        if now < self._quiet_until:
            return False
        try:
            self._name(tenant_id, now + (deadline - now) / SHARES, 0)
        except MemoryDamagedError:
            raise
        except (RedisError, OSError, MemoryUnavailableError, MemoryUnsuitableError):
            self._quiet_until = self._clock() + NAMED_FOR
            return False
        return True

    def _name(self, tenant_id: str, deadline: float, replicas: int) -> None:
        command = naming(self._prefix, tenant_id, replicas)
        self._talk.ask([command], deadline, Doubt(), twice=True, replicas=replicas)

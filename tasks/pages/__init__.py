"""The audit as pages inside Flower: ``/audit``, the list, one invocation.

``flowerconfig.py`` puts them in. They stand behind Flower's own login, only read, and show what the
rows hold: hashes, never an argument or a result.
"""

from __future__ import annotations

"""The sample skills: each shows one thing a skill can be."""

from __future__ import annotations

from tasks.skills.payroll_draft import payroll_draft
from tasks.skills.probe_endpoints import probe_endpoints
from tasks.skills.queue_depth import queue_depth
from tasks.skills.triage_alert import triage_alert

__all__ = ["payroll_draft", "probe_endpoints", "queue_depth", "triage_alert"]

"""``obs.triage-alert``: how bad an alert group is, who gets it, and what it is grouped by.

A skill is a plain function of JSON values. What it raises is its ending: a document that is no
Alertmanager notification ends as ``error`` and the caller gets the ``ValueError``.
"""

from __future__ import annotations

from typing import Any, Final

from tasks import skill

#: From harmless to bad, as Prometheus users label them; what is unknown counts as a warning.
SEVERITIES: Final = ("none", "info", "warning", "error", "critical", "page")
UNKNOWN: Final = "warning"


@skill("obs.triage-alert", version="1.0.0", soft_time_limit=20, time_limit=30)
def triage_alert(alert: dict[str, Any]) -> dict[str, Any]:
    """Triage one Alertmanager notification.

    Args:
        alert: the webhook document of Alertmanager, version 4.

    Returns:
        ``severity`` (the worst of the firing alerts, ``resolved`` when none fires), ``route``
        (``pager``, ``ticket`` or ``log``), ``grouping_key`` and the number ``firing``.

    Raises:
        ValueError: the document is no Alertmanager notification of version 4.
    """
    if alert.get("version") != "4" or not isinstance(alert.get("alerts"), list):
        raise ValueError("not an Alertmanager webhook document of version 4")
    firing = [single for single in alert["alerts"] if single.get("status") == "firing"]
    severity = max(map(_severity, firing), key=SEVERITIES.index, default="resolved")
    return {
        "severity": severity,
        "route": _route(severity),
        "grouping_key": _grouping_key(alert),
        "firing": len(firing),
    }


def _severity(single: dict[str, Any]) -> str:
    label = str(single.get("labels", {}).get("severity", UNKNOWN)).lower()
    return label if label in SEVERITIES else UNKNOWN


def _route(severity: str) -> str:
    if severity in ("critical", "page"):
        return "pager"
    return "ticket" if severity in ("warning", "error") else "log"


def _grouping_key(alert: dict[str, Any]) -> str:
    """Alertmanager's own key where it sends one, else the common labels in a stable order."""
    labels = alert.get("groupLabels") or alert.get("commonLabels") or {}
    spelled = ",".join(f"{name}={labels[name]}" for name in sorted(labels))
    return str(alert.get("groupKey") or f"{{{spelled}}}")

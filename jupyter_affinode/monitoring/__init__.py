"""What operators load into their own tools: a Grafana dashboard, Prometheus alert rules, an autoscaler's example.

`jupyter affinode monitoring NAME` prints them. Every metric and label that they name is held against a real
scrape by a test.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "dashboard": ("dashboard.json", "a Grafana dashboard, to be imported as JSON"),
    "alerts": ("alerts.yaml", "alert rules for Prometheus (`rule_files`)"),
    "autoscaler": ("autoscaler.yaml", "an example for KEDA: GPU nodes by the length of the queue"),
}


def text(name: str) -> str:
    """One of FILES."""
    return (Path(__file__).parent / FILES[name][0]).read_text(encoding="utf-8")

"""What Helm makes of the controller's chart."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import yaml

if platform.machine() != "x86_64":
    pytest.skip("Helm as a Python package is made for x86-64 alone", allow_module_level=True)
import helm_python as helm

CHART = Path(__file__).resolve().parents[2] / "hub_spawner" / "chart"


def rendered(
    values: dict[str, Any], chart: Path = CHART, name: str = "gpus", namespace: str = "jhub"
) -> list[dict[str, Any]]:
    """Return the resources that an installation makes. Raises helm.HelmValuesError."""
    with helm.Chart.load(chart) as loaded:
        files = loaded.render(values, name=name, namespace=namespace)
    texts = [text for name, text in files.items() if not name.endswith(".txt")]
    return [resource for text in texts for resource in yaml.safe_load_all(text) if resource]


def of_kind(resources: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return those of one kind."""
    return [resource for resource in resources if resource["kind"] == kind]


def pod(values: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the controller's pods."""
    (daemons,) = of_kind(rendered(values), "DaemonSet")
    found: dict[str, Any] = daemons["spec"]["template"]["spec"]
    return found


def controller(values: dict[str, Any]) -> dict[str, Any]:
    """Return the controller's container."""
    (found,) = pod(values)["containers"]
    return found


def settings_file(values: dict[str, Any]) -> str:
    """Return the controller's settings as the chart writes them."""
    texts = [each["data"] for each in of_kind(rendered(values), "ConfigMap")]
    (text,) = [each["jupyter_affinode_config.py"] for each in texts if "jupyter_affinode_config.py" in each]
    return str(text)

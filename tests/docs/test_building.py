"""What takes more than Python to look at: Sphinx builds the pages without a warning, and Helm takes what they set."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml
from clean_place import REPOSITORY
from shown_commands import COMMANDS


def test_it_builds_without_a_warning(tmp_path):
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--keep-going",
        REPOSITORY / "docs",
        tmp_path,
    ]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "hub" / "index.html").exists()


def values_of(command: str) -> dict[str, Any]:
    """Return the values that a line of Helm's sets."""
    values: dict[str, Any] = {}
    words = shlex.split(command)
    for option, text in itertools.pairwise(words):
        if option in ("--set", "--set-file"):
            path, _, value = text.partition("=")
            *folders, last = (name.replace("\\.", ".") for name in re.split(r"(?<!\\)\.", path))
            where = functools.reduce(lambda inner, name: inner.setdefault(name, {}), folders, values)
            where[last] = value.strip("{}").split(",") if value.startswith("{") else yaml.safe_load(value)
    return values


def test_helm_takes_the_values_that_are_set():
    helm = pytest.importorskip("helm_python")  # there is none for aarch64
    first, *later = (command for command in COMMANDS if command.startswith("helm upgrade"))
    installed = values_of(first)
    key = installed["grants"]["publicKeys"]
    assert key == {"hub-1.pem": "hub-1.pem"}
    key["hub-1.pem"] = "-----BEGIN PUBLIC KEY-----\n"
    with helm.Chart.load(REPOSITORY / "hub_spawner" / "chart") as chart:
        for values in (installed, *(installed | values_of(command) for command in later)):
            assert chart.render(values, name="affinode", namespace="affinode")
        with pytest.raises(helm.HelmValuesError):
            chart.render(installed | {"parkedGiB": 1}, name="affinode", namespace="affinode")

"""The dashboard, the alert rules and the autoscaler's example name only what a real scrape has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_nvml import FakeNvml
from fake_shim import BUSY, MIB
from scraping import scraped

from jupyter_affinode.cli import main
from jupyter_affinode.monitoring import FILES, text
from jupyter_affinode.node.metrics.history_options import HistoryOptions

NAME = re.compile(r"\baffinode_[a-z_]+")
SELECTOR = re.compile(r"\b(affinode_[a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
FROM_PROMETHEUS = {"instance", "job"}


def expressions():
    """(where, PromQL) of everything that is shipped."""
    dashboard = json.loads(text("dashboard"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"dashboard: {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"dashboard: ${variable['name']}", variable["query"]["query"]
    for group in yaml.safe_load(text("alerts"))["groups"]:
        for rule in group["rules"]:
            yield f"alerts: {rule['alert']}", rule["expr"]
    for trigger in yaml.safe_load(text("autoscaler"))["spec"]["triggers"]:
        yield "autoscaler", trigger["metadata"]["query"]


@pytest.fixture
def scrape(node, machine, shim, wait_until):
    """A machine on which there is something of everything: moves, waits, refusals, memory in use."""
    node(nvml=FakeNvml(7 << 30, 8 << 30), history=HistoryOptions(machine.folder / "history" / "l"))
    kernel = shim("k1", resident=300 * MIB)
    machine.ask("POST", "/kernels/k1/park", {})
    kernel.touch()
    wait_until(lambda: machine.kernel("k1")["residency"] == "resident")
    kernel.park_status = BUSY
    machine.ask("POST", "/kernels/k1/park", {})
    wait_until(lambda: "affinode_gpu_memory_byte_seconds_total" in scraped(machine))
    return scraped(machine)


def test_everything_that_is_named_is_in_a_scrape(scrape):
    checked = 0
    for where, expression in expressions():
        for name in NAME.findall(expression):
            assert name in scrape, f"{where}: there is no {name}"
            checked += 1
        for name, selector in SELECTOR.findall(expression):
            known = {label for sample in scrape[name] for label, _ in sample} | FROM_PROMETHEUS
            for label, operator, value in MATCHER.findall(selector):
                assert label in known, f"{where}: {name} has no label {label}"
                if operator == "=":
                    values = {dict(sample).get(label) for sample in scrape[name]}
                    is_rare = (label, value) in {("move", "resume")} or label in FROM_PROMETHEUS
                    assert value in values or is_rare, f"{where}: {name} has never {label}={value}"
        labels = {
            label for name in NAME.findall(expression) for sample in scrape[name] for label, _ in sample
        }
        for grouping in GROUPING.findall(expression):
            for label in filter(None, re.split(r"[\s,]+", grouping)):
                assert label in labels | FROM_PROMETHEUS, f"{where}: nothing has a label {label}"
    assert checked > 30


def test_every_metric_of_ours_follows_the_conventions(scrape):
    """https://prometheus.io/docs/practices/naming: a prefix, base units, _total for what only grows."""
    for name, found in scrape.items():
        if not name.startswith("affinode_"):
            continue
        assert not re.search(r"_(ms|minutes|hours|kib|mib|gib|percent)\b", name), name
        for sample in found:
            labels = {label for label, _ in sample}
            assert labels <= {"gpu", "kind", "simulated", "residency", "use", "move", "cause", "depth"} | {
                "outcome",
                "reason",
                "answer",
                "version",
                "le",
            }, f"{name} has an unknown label: {labels}"


def test_the_rules_are_whole():
    rules = [rule for group in yaml.safe_load(text("alerts"))["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus's own checker is not installed")
def test_prometheus_itself_takes_everything_and_the_alerts_fire_when_they_should(tmp_path):
    (tmp_path / "alerts.yaml").write_text(text("alerts"))
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    promql = [
        expression.replace("$instance", ".*").replace("$__rate_interval", "5m")
        for where, expression in expressions()
        if "label_values" not in expression
    ]
    rules = [{"record": f"ours:{number}", "expr": each} for number, each in enumerate(promql)]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"groups": [{"name": "ours", "rules": rules}]}))
    for words in (
        ["check", "rules", "alerts.yaml"],
        ["check", "rules", "all.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ):
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_one_that_grafana_imports():
    dashboard = json.loads(text("dashboard"))
    assert dashboard["title"] and dashboard["schemaVersion"] >= 36 and "id" not in dashboard
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["description"] and panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", FILES)
def test_the_command_prints_the_file(name, capsys):
    assert main(["monitoring", name]) == 0
    printed = capsys.readouterr().out
    assert printed == text(name) and printed.endswith("\n")


def test_the_command_says_what_there_is():
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_affinode.cli", "monitoring", "nothing"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "dashboard" in done.stderr

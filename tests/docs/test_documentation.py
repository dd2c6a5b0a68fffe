"""The documentation builds without a warning, and what it tells readers to type is right."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
from pathlib import Path, PurePath

import pytest
from clean_place import FENCE, REPOSITORY, blocks
from shown_commands import CODE, COMMANDS, PAGES, TOP, Place, shown
from traitlets import HasTraits
from traitlets.config import Config

from hub_spawner.spawner_mixin import GpuPolicy
from jupyter_affinode.cli import _parser
from jupyter_affinode.node.app import NodeController
from jupyter_affinode.server.extension import AffinodeExtension

ROOT = REPOSITORY
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PLACEHOLDERS = {"SIZE": "1GiB", "…": ""}


@functools.cache
def configured() -> dict[str, type[HasTraits]]:
    """Return the classes that pages configure, by name; the Hub is imported where it is needed alone."""
    from jupyterhub.app import JupyterHub
    from jupyterhub.auth import Authenticator
    from jupyterhub.spawner import LocalProcessSpawner
    from jupyterhub_idle_culler import IdleCuller

    return {
        "AffinodeExtension": AffinodeExtension,
        "NodeController": NodeController,
        "GpuPolicy": GpuPolicy,
        "JupyterHub": JupyterHub,
        "Authenticator": Authenticator,
        "IdleCuller": IdleCuller,
        "Spawner": type("SpawnerWithPolicy", (GpuPolicy, LocalProcessSpawner), {}),
    }


def arguments_of(command: str) -> list[str]:
    """Return a command's arguments up to what a shell would take."""
    words = shlex.split(command, comments=True)[2:]
    words = list(itertools.takewhile(lambda word: word not in (">", "|", "&&", ";"), words))
    return [PLACEHOLDERS.get(word, word) for word in (word.strip("[]") for word in words)]


OURS = sorted(
    {
        (page.name, command)
        for page in PAGES
        for command in shown(page)
        if command.startswith("jupyter affinode ")
    }
)


def test_every_command_is_run_or_said_why_not():
    known, seen = set(COMMANDS), {command for page in PAGES for command in shown(page)}
    assert seen - known == set(), "tests/docs/shown_commands.py does not have these"
    assert known - seen == set(), "no page has these any more"
    assert all(command.because or command.place is not Place.NOWHERE for command in COMMANDS.values())


@pytest.mark.parametrize("page, command", OURS)
def test_every_command_is_one(page, command, capsys):
    arguments = [each for each in arguments_of(command) if each]
    if not arguments:
        return
    try:
        if arguments[0] == "node":
            NodeController().parse_command_line(arguments[1:])
        elif "|" in arguments[-1]:  # status | park | …
            pytest.fail("write one command")
        else:
            _parser().parse_args(arguments)
    except SystemExit as end:
        assert not end.code, f"{page}: {command}: {capsys.readouterr().err}"


def test_there_are_commands_to_look_at():
    names = {arguments_of(command)[0] for _, command in OURS}
    assert {
        "status",
        "park",
        "doctor",
        "report",
        "plan",
        "monitoring",
        "node",
        "grant",
        "systemd-unit",
    } <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles_and_settings_load(page):
    for block in blocks(page, "python"):
        code = compile(block, page.name, "exec")
        if not re.search(r"^c\.", block, re.MULTILINE):
            continue
        config = Config()
        exec(code, {"c": config, "get_config": lambda config=config: config})
        for name, values in config.items():
            known = configured().get(name)
            for trait, value in values.items() if known else ():
                assert known.class_traits(config=True).get(trait), f"{page.name}: there is no {name}.{trait}"
                if known in (AffinodeExtension, NodeController, GpuPolicy):
                    known(config=Config({name: {trait: value}}))


SETTING = re.compile(r"[a-z]+(_[a-z]+)+")
OTHERS = {
    "jupyter_client",
    "jupyter_server_config",
    "jupyter_affinode",
    "hub_spawner",
    "default_provisioner_name",
    "kernel_provisioner",
    "add_service",
    "max_age",
    "options_form",
    "group_overrides",
    "pre_spawn_hook",
    "modify_pod_hook",
    "kubespawner_override",
    "mem_limit",
    "admin_users",
    "compute_share",
    "cuda_malloc_async",
    "cpu_limit",
    "dynamic_users",
    "isolate_devices",
    "isolate_tmp",
    "unit_extra_properties",
    "cleanup_servers",
    "start_timeout",
    "child_class",
    "spawner_class",
    "extra_host_config",
    "extra_create_kwargs",
    "delete_grace_period",
    "read_only_volumes",
    "client_kwargs",
    "jupyterhub_cookie_secret",
}


@functools.cache
def settings() -> set[str]:
    """Every setting's name. The client of Kubernetes takes a second, which other processes of pytest need not take."""
    from hub_spawner.docker import DockerGpuPolicy
    from hub_spawner.kubernetes import KubernetesGpuPolicy

    owners = (AffinodeExtension, NodeController, GpuPolicy, DockerGpuPolicy, KubernetesGpuPolicy)
    return {name for each in owners for name in each.class_traits(config=True)}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent in (ROOT / "docs", ROOT / "docs" / "hub")],
    ids=lambda page: page.stem,
)
def test_every_setting_that_is_named_exists(page):
    for span in CODE.findall(FENCE.sub("", page.read_text())):
        owner, dot, name = re.sub(r"(^c\.)|( = .*)", "", span).rpartition(".")
        if owner in ("AffinodeExtension", "NodeController", "GpuPolicy") and name not in ("NAME", "…"):
            assert name in settings(), f"{page.name}: {span}"
        elif not dot and SETTING.fullmatch(name):
            assert name in settings() | OTHERS or name.startswith("affinode_"), f"{page.name}: {span}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" not in link:
            assert page.parent.joinpath(link).exists(), f"{page.name}: {link}"


def test_troubleshooting_has_each_headline_of_the_panel():
    source = (ROOT / "labextension" / "src" / "panel" / "Empty.tsx").read_text()
    headlines = re.findall(r"return trans\.__\('([^']+)'\);", source)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert headlines and [each for each in headlines if f"| *{each}* |" not in page] == []


PATH = re.compile(r"[\w-]+\.(py|c|h|cc|md|mk|rules|tsv|ts|tsx|css|json|yaml|svg)|([\w.*-]+/)+[\w.*-]*")
MADE = {"build", "lib", "node_modules", "__pycache__"}  # folders of what is built


@functools.cache
def sources() -> list[PurePath]:
    """Return all files and folders of the checkout but what is hidden or built."""
    found: list[PurePath] = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not name.startswith(".") and name not in MADE]
        found += (Path(folder, name).relative_to(ROOT) for name in (*names, *files))
    return found


@pytest.mark.parametrize(
    "page", [*TOP, *sorted((ROOT / "docs" / "development").glob("*.md"))], ids=lambda page: page.stem
)
def test_files_that_are_named_exist(page):
    for span in CODE.findall(FENCE.sub("", page.read_text())):
        if PATH.fullmatch(span) and not re.search(r"^affinode/|^dist/|build/|/ID$", span):
            assert any(path.match(span) for path in sources()), f"{page.name}: {span}"


def test_no_page_tells_to_install_what_is_not_released():
    written = [*PAGES, *(path for path in (ROOT / "binder").iterdir() if path.is_file())]
    found = [
        path.name
        for path in written
        if re.search(r"pip install (-\S+ )*jupyter[-_]affinode\b", path.read_text())
    ]
    assert found == []

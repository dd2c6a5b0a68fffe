"""The commands that the documentation shows, and where each of them is run.

Each command of a page has a line here: `python tests/docs/commands.py` runs it, or the line says why it cannot be run
on any machine and what is looked at instead. A test compares the lines with the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from clean_place import FENCE, REPOSITORY, blocks

TOP = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")]
PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), *TOP]
CODE = re.compile(r"`([^`\n]+)`")
PROGRAM = re.compile(
    r"(\. |[A-Z_]+=\S+ |(docker|export|git|helm|install|jlpm|jupyter|kubectl|make|npm|pip|pytest|python3?|rm|ruff|ssh"
    r"|sudo|systemctl|tljh-config|useradd) )"
)
SPOKEN_OF = {  # names of programs rather than something to type
    *("jupyter affinode …", "jupyter affinode grant keys", "jupyter affinode kernelspec wrap"),
    *(
        "jupyter affinode run",
        "jupyter affinode warm add",
        "jupyter console",
        "jupyter execute",
        "jupyter server stop",
        "pip install",
    ),
}


class Place(Enum):
    """Where a command is run."""

    NEWCOMER = "newcomer.py"
    ONE_MACHINE = "one_machine.py"
    BINDER = "binder.py"  # no page shows what Binder runs
    DEMO = "a clone, before anything is installed"
    USER = "an environment with JupyterLab, a server, and a notebook on a simulated GPU"
    CLONE = "a clone, in its .venv with what tests need"
    NOWHERE = "not run"


@dataclass(frozen=True)
class Command:
    """What becomes of a command."""

    place: Place
    typed: str = ""  # where that is not what the page shows: without placeholders and questions
    because: str = ""  # of NOWHERE: why; `typed` is run in the clone and looks at the command without it


def run(place: Place, typed: str = "") -> Command:
    """Return what is run there."""
    return Command(place, typed)


def not_run(because: str, looked_at: str = "") -> Command:
    """Return what cannot be run, and what looks at it instead."""
    return Command(Place.NOWHERE, looked_at, because)


REAL_GPU, SYSTEMD, CLUSTER, TLJH = (
    "needs a GPU",
    "needs systemd as process 1",
    "needs a cluster",
    "needs a TLJH",
)
LONG, CI = "takes hours", "is what CI runs"
UNIT = "/etc/systemd/system/affinode.service"
HELM_IN_PROCESS = "needs a cluster; test_documentation.py renders the chart with these values"
VENV = ". .venv/bin/activate"

# In the order in which they are run.
COMMANDS: dict[str, Command] = {
    "make demo": run(Place.NEWCOMER),
    "make demo-headless": run(Place.DEMO),
    "make demo-hub": run(Place.DEMO, "make demo-hub HUB_OPTIONS=--headless"),
    # docs/hub/one-machine.md
    "git clone REPOSITORY jupyter-affinode && cd jupyter-affinode": run(Place.ONE_MACHINE),
    "python3 -m venv /opt/jupyterhub": run(Place.ONE_MACHINE),
    "/opt/jupyterhub/bin/pip install jupyterlab '.[hub]'": run(Place.ONE_MACHINE),
    "npm install -g --prefix /opt/jupyterhub configurable-http-proxy": run(Place.ONE_MACHINE),
    "export PATH=/opt/jupyterhub/bin:$PATH": run(Place.ONE_MACHINE),
    "useradd -m gina && useradd -m hugo": run(Place.ONE_MACHINE),
    "AFFINODE_SIM_MEMORY=1GiB jupyter affinode simulate --all-users -- "
    "jupyterhub -f /opt/jupyterhub/jupyterhub_config.py": run(Place.ONE_MACHINE),
    'curl -H "Authorization: token $JUPYTERHUB_API_TOKEN" '
    '"http://127.0.0.1:8000/services/affinode/room?bytes=21474836480"': run(Place.ONE_MACHINE),
    f"jupyter affinode systemd-unit > {UNIT}": run(Place.ONE_MACHINE),
    f"rm {UNIT}": run(Place.ONE_MACHINE),
    "/opt/jupyterhub/bin/pip uninstall jupyter-affinode": run(Place.ONE_MACHINE),
    "rm -r /var/lib/affinode": run(Place.ONE_MACHINE),
    # a user's
    "pip install .": run(Place.USER),
    "jupyter affinode doctor": run(Place.USER),
    "jupyter affinode status": run(Place.USER),
    "jupyter affinode hold KERNEL 1h": run(Place.USER, "jupyter affinode hold $NOTEBOOK 1h"),
    "jupyter affinode release KERNEL": run(Place.USER, "jupyter affinode release $NOTEBOOK"),
    "jupyter affinode park KERNEL": run(Place.USER, "jupyter affinode park $NOTEBOOK"),
    "jupyter affinode resume KERNEL": run(Place.USER, "jupyter affinode resume $NOTEBOOK"),
    "jupyter affinode kept": run(Place.USER),
    "jupyter affinode warm add NAME": run(Place.USER, "jupyter affinode warm add twin"),
    "jupyter affinode warm list": run(Place.USER),
    "jupyter affinode warm remove NAME": run(Place.USER, "jupyter affinode warm remove twin"),
    "jupyter console --kernel my-model": not_run("needs a terminal: tests/server/keeping"),
    "jupyter run --kernel my-model < cells.py": not_run("needs a model: tests/server/keeping"),
    "jupyter affinode hibernate KERNEL": not_run("needs CRIU: tests/server/keeping"),
    "jupyter affinode wake KERNEL": not_run("needs CRIU: tests/server/keeping"),
    "jupyter affinode clean": run(Place.USER),
    "jupyter affinode clean [KERNEL]": run(Place.USER, "jupyter affinode clean"),
    "jupyter affinode clean KERNEL": run(Place.USER, "jupyter affinode clean $NOTEBOOK"),
    "jupyter affinode room SIZE": run(Place.USER, "jupyter affinode room 100MiB"),
    "jupyter affinode room 20GiB --timeout 10": run(Place.USER, "jupyter affinode room 100MiB --timeout 10"),
    "jupyter affinode report": run(Place.USER),
    "jupyter affinode report --by user --since 30d": run(Place.USER),
    "jupyter affinode report --by gpu --csv": run(Place.USER),
    "jupyter affinode report --by account": run(Place.USER),
    "jupyter affinode report --by job --csv": run(Place.USER),
    "jupyter affinode slurm files /etc/affinode/slurm --nodes 'gpu[01-04]' --type a100 --gpus 4 --gpu-memory 80"
    " --host-memory 1024": run(
        Place.USER, "jupyter affinode slurm files site --nodes 'gpu[01-04]' --gpus 4 --shards 4"
    ),
    "srun --gres=shard:1 --mem=32G --time=8:00:00 --job-name=jupyter jupyter lab --no-browser --ip=0.0.0.0": not_run(
        "needs Slurm: tests/slurm"
    ),
    "jupyter affinode monitoring dashboard > affinode-dashboard.json": run(Place.USER),
    "jupyter affinode monitoring alerts > affinode-alerts.yaml": run(Place.USER),
    "jupyter affinode monitoring autoscaler": run(Place.USER),
    "jupyter affinode systemd-unit": run(Place.USER),
    "jupyter affinode node": run(Place.USER, "jupyter affinode node --help"),  # a server starts it itself
    "jupyter affinode run -- COMMAND": run(Place.USER, "jupyter affinode run -- true"),
    "jupyter affinode simulate -- COMMAND": run(Place.USER, "jupyter affinode simulate -- true"),
    "jupyter affinode bench": run(
        Place.USER,
        "jupyter affinode bench --quick --sizes 1 --json bench.json",
    ),
    "jupyter affinode plan": run(Place.USER, "jupyter affinode plan --days 1"),
    "jupyter affinode plan --gpus 8 --users 60": run(Place.USER),
    "jupyter affinode plan --gpus 8 --users 60 --hibernate-after 0": run(
        Place.USER, "jupyter affinode plan --days 1 --hibernate-after 0"
    ),
    "jupyter affinode plan --gpus 8 --search 5 --set idle_timeout_s=60": run(Place.USER),
    "jupyter affinode plan --trace cells.csv --bench bench.json": run(
        Place.USER,  # it refuses speeds of a simulated GPU
        'sed -i \'s/"simulated": true/"simulated": false/\' bench.json && '
        "jupyter affinode plan --trace cells.csv --bench bench.json",
    ),
    "install -d -m 1777 /scratch/affinode": run(Place.USER, "install -d -m 1777 scratch/affinode"),
    "export JUPYTER_DEFAULT_PROVISIONER_NAME=affinode-provisioner": run(
        Place.USER,
        "export JUPYTER_DEFAULT_PROVISIONER_NAME=affinode-provisioner && jupyter execute status.ipynb",
    ),
    "jupyter affinode kernelspec wrap NAME": run(Place.USER, "jupyter affinode kernelspec wrap python3"),
    "jupyter affinode kernelspec wrap python3": run(Place.USER, "jupyter kernelspec list | grep affinode"),
    "jupyter kernelspec list": run(Place.USER),
    "jupyter affinode kernelspec wrap NAME --remove": run(
        Place.USER, "jupyter affinode kernelspec wrap python3 --remove"
    ),
    "python -m pip wheel --no-deps .": run(Place.USER, "python -m pip wheel --no-deps $CLONE"),
    "pip uninstall jupyter-affinode": run(Place.USER, "pip uninstall --yes jupyter-affinode"),
    # a contributor's
    VENV: run(Place.CLONE, "true"),  # each of the next ones begins with it
    "make docs": run(Place.CLONE),
    "pytest tests/docs": run(Place.CLONE),
    "make native": run(Place.CLONE),
    "make -C shim CONTEXT_DEPTH=0": run(Place.CLONE),
    "make lint": run(Place.CLONE),
    "ruff format": run(Place.CLONE),
    "jlpm lint": run(Place.CLONE),
    "jlpm test": run(Place.CLONE),
    "jlpm build && jupyter labextension develop . --overwrite": run(Place.CLONE),
    "python docs/generate.py": run(Place.CLONE),
    "python docs/take_pictures.py": run(Place.CLONE),
    "python shim/tools/entry_points.py --headers FOLDER": run(
        Place.CLONE, "python shim/tools/entry_points.py --headers $CUDA_HEADERS && git diff --exit-code shim"
    ),
    "make dist": run(Place.CLONE),
    "CC=aarch64-linux-gnu-gcc _PYTHON_HOST_PLATFORM=linux-aarch64 python -m build --wheel": run(
        Place.CLONE,
        "CC=aarch64-linux-gnu-gcc _PYTHON_HOST_PLATFORM=linux-aarch64 python -m build --wheel && make native",
    ),
    "python tests/upstream/run.py jupyter_client": run(
        Place.CLONE, "python tests/upstream/run.py jupyter_client --only-ours"
    ),
    "python tests/upstream/run.py jupyterhub": run(
        Place.CLONE, "python tests/upstream/run.py jupyterhub --only-ours -- -k test_user"
    ),
    "python tests/server/provisioning/measure_starts.py --rounds 15": run(
        Place.CLONE, "python tests/server/provisioning/measure_starts.py --rounds 2"
    ),
    "python tests/chaos/chaos.py --faults 1000": run(
        Place.CLONE, "python tests/chaos/chaos.py --help | grep -- --faults"
    ),
    "python tests/chaos/keeping.py --faults 200": run(
        Place.CLONE, "python tests/chaos/keeping.py --help | grep -- --faults"
    ),
    "jupyter affinode grant keys . hub-1": run(Place.CLONE),
    "jupyter affinode grant keys /etc/affinode hub-1": run(
        Place.CLONE, "mkdir -p etc && jupyter affinode grant keys etc hub-1"
    ),
    "jupyter affinode grant sign --help": run(Place.CLONE),
    "make build/z2jh": run(Place.CLONE),
    "python tests/docs/commands.py": not_run("is what runs this", "python tests/docs/commands.py --help"),
    "make test": not_run(CI, "make help | grep 'make test '"),
    "pytest tests/node": not_run(CI, "pytest tests/node --collect-only --quiet --quiet"),
    "make test-all": not_run(LONG, "make help | grep 'make test-all '"),
    "make test-apart": not_run(CI, "make help | grep 'make test-apart '"),
    "make test-oldest": not_run(LONG, "make --dry-run test-oldest"),
    "make test-oldest-lab": not_run(LONG, "make --dry-run test-oldest-lab"),
    "make -C shim test TEST_STRIDE=1 TEST_ROUNDS=10": not_run(
        LONG, "make --dry-run -C shim test TEST_STRIDE=1 TEST_ROUNDS=10"
    ),
    "jupyter affinode bench --exchange --sizes 20": not_run(
        REAL_GPU, "jupyter affinode bench --help | grep -- --exchange"
    ),
    "python tests/gpu run": not_run(REAL_GPU, "python tests/gpu run --help"),
    "python tests/gpu moves": not_run(REAL_GPU, "python tests/gpu moves --help | grep -- --depth"),
    "python tests/gpu spill --dir /scratch": not_run(
        REAL_GPU, "python tests/gpu spill --help | grep -- --dir"
    ),
    # an administrator's, on other machines
    "systemctl enable --now affinode": not_run(SYSTEMD),
    "systemctl disable --now affinode": not_run(SYSTEMD),
    "systemctl restart affinode": not_run(SYSTEMD),
    "systemctl status affinode": not_run(SYSTEMD),
    "sudo systemctl disable --now affinode": not_run(SYSTEMD),
    "python -m jupyterhub_idle_culler --timeout=3600": not_run(
        "needs a Hub's token; tests/hub/test_idle_cullers.py runs it for the Hub",
        "python -m jupyterhub_idle_culler --help-all | grep -- --timeout",
    ),
    "ssh -N -o ExitOnForwardFailure=yes -o StreamLocalBindUnlink=yes "
    "-L /run/affinode-gpu2.sock:/run/affinode/node.sock root@gpu2": not_run(
        "needs a second machine",
        "ssh -G -o ExitOnForwardFailure=yes -o StreamLocalBindUnlink=yes "
        "-L /run/affinode-gpu2.sock:/run/affinode/node.sock root@gpu2 | grep localforward",
    ),
    "docker build --file hub_spawner/image/Dockerfile --tag registry.example.org/jupyter-affinode:0.1.0 .": not_run(
        "needs Docker's daemon", "test -f hub_spawner/image/Dockerfile"
    ),
    "kubectl --namespace jhub create secret generic affinode-hub-key --from-file=hub-1.key": not_run(
        CLUSTER,
        "kubectl --namespace jhub create secret generic affinode-hub-key --from-file=hub-1.key --dry-run=client",
    ),
    "kubectl create namespace affinode": not_run(
        CLUSTER, "kubectl create namespace affinode --dry-run=client -o yaml > namespace.yaml"
    ),
    "kubectl label namespace affinode pod-security.kubernetes.io/enforce=privileged": not_run(
        CLUSTER,
        "kubectl label --local -f namespace.yaml pod-security.kubernetes.io/enforce=privileged -o name",
    ),
    "kubectl label namespace affinode resource.kubernetes.io/admin-access=true": not_run(
        CLUSTER, "kubectl label --local -f namespace.yaml resource.kubernetes.io/admin-access=true -o name"
    ),
    "kubectl logs POD -c affinode": not_run(CLUSTER, "kubectl logs --help | grep -- '-c, --container='"),
    "helm upgrade --install affinode hub_spawner/chart --namespace affinode "
    "--set image.repository=registry.example.org/jupyter-affinode "
    "--set-file 'grants.publicKeys.hub-1\\.pem=hub-1.pem' --set parkedMemoryGiB=64": not_run(HELM_IN_PROCESS),
    "helm upgrade affinode hub_spawner/chart --reuse-values --set dra.enabled=true "
    "--set 'dra.namespaces={jhub}' --set gpu.access=claim": not_run(HELM_IN_PROCESS),
    "helm uninstall affinode": not_run(CLUSTER),
    "sudo -E /opt/tljh/hub/bin/python -m tljh.installer "
    "--plugin /srv/jupyter_affinode-0.1.0-py3-none-linux_x86_64.whl": not_run(TLJH),
    "sudo tljh-config set services.cull.timeout 3600": not_run(TLJH),
    "tljh-config set services.cull.timeout 3600": not_run(TLJH),
    "sudo tljh-config reload hub": not_run(TLJH),
}


def shown(page: Path) -> Iterator[str]:
    """Yield the commands that a page shows, in its order, each as one line without its comment."""
    text = page.read_text()
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if command := " ".join(re.sub(r"(^|\s)#.*", "", line).split()):
                yield command
    prose = FENCE.sub("", text)
    yield from (span for span in CODE.findall(prose) if PROGRAM.match(span) and span not in SPOKEN_OF)
    yield from in_tables(prose)


def in_tables(text: str) -> Iterator[str]:
    """Yield the commands of tables whose heading says what each begins with."""
    heading, column = "in a terminal: `jupyter affinode", None
    for line in text.splitlines():
        cells = line.strip().strip("|").split("|")
        if heading in line:
            column = next(number for number, cell in enumerate(cells) if heading in cell)
        elif not line.startswith("|"):
            column = None
        elif column is not None and (span := CODE.search(cells[column])):
            yield f"jupyter affinode {span[1]}"

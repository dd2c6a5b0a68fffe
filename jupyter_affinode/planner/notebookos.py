"""Traces in the format of NotebookOS: its workload templates, one JSON object with `sessions`.

Source of the format: `driver-backend/internal/domain/session.go` and `configs/workload_templates` of
https://github.com/ds2-lab/NotebookOS-Dashboard; the paper is named in workload.py. No trace is part of this project.

| field of a session | |
|---|---|
| `id` | the kernel |
| `start_tick`, `stop_tick` | when it is started and shut down |
| `trainings` | its cells, each with the fields below |

| field of a cell | |
|---|---|
| `start_tick`, `duration_in_ticks` | when it runs, and for how long |
| `vram` | GPU memory of the session in GB, 10^9 bytes |
| `gpu_utilizations` | for each GPU, an object with `utilization` in percent; empty: the cell uses no GPU |

Other fields are ignored. What the format does not say is taken as follows:

- A tick is 60 s: the templates of two days have 2,880 ticks at most.
- `vram` is the memory on all GPUs together; a GPU cell without any holds 1 MiB.
- A cell on several GPUs runs on one GPU here and uses the sum of their utilisations, at most 1.
- Utilisation 0 is below the trace's resolution and is taken as `LEAST_SHARE`.
- Cells without a GPU are time between GPU cells, and sessions without a GPU cell are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .model.machine import MIB
from .model.sessions import Session
from .trace import TraceError, sessions_of

TICK_S = 60.0
GB = 10**9
LEAST_SHARE = 0.001


def read_notebookos(path: Path) -> list[Session]:
    """Return the sessions that use a GPU. Raises OSError and TraceError."""
    try:
        template = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TraceError(f"{path} is not JSON: {error}") from None
    if not isinstance(template, dict) or not isinstance(template.get("sessions"), list):
        raise TraceError(f"{path} is not in the format of NotebookOS: it has no list `sessions`")
    return sessions_of(enumerate(_rows(template["sessions"], path), 1), path)


def _rows(sessions: list[Any], path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield a record of trace.py for each cell that uses a GPU."""
    for number, session in enumerate(sessions, 1):
        where = f"{path}: session {number}"
        begins, ends = _number(session, "start_tick", where), _number(session, "stop_tick", where)
        trainings = _field(session, "trainings", where)
        if not isinstance(trainings, list):
            raise TraceError(f"{where}: trainings must be a list")
        for count, training in enumerate(trainings, 1):
            cell = f"{where}, training {count}"
            gpus = _field(training, "gpu_utilizations", cell)
            if not isinstance(gpus, list):
                raise TraceError(f"{cell}: gpu_utilizations must be a list")
            percent = math.fsum(_number(gpu, "utilization", cell) for gpu in gpus)
            if not gpus:
                continue
            yield {
                "session": str(_field(session, "id", where)),
                "session_start_s": begins * TICK_S,
                "session_end_s": ends * TICK_S,
                "start_s": _number(training, "start_tick", cell) * TICK_S,
                "gpu_s": _number(training, "duration_in_ticks", cell) * TICK_S,
                "bytes": max(round(_number(training, "vram", cell) * GB), MIB),
                "compute_share": min(max(percent / 100, LEAST_SHARE), 1.0),
            }


def _field(record: Any, name: str, where: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise TraceError(f"{where}: {name} missing")
    return record[name]


def _number(record: Any, name: str, where: str) -> float:
    value = _field(record, name, where)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise TraceError(f"{where}: {name} must be a number that is not negative, not {value!r}")
    return float(value)

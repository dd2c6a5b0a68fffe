"""A synthetic workload in the format of NotebookOS: made by a seed, with no figure of a real trace in it.

`python tests/planner/notebookos_sample.py FILE [SESSIONS [SEED]]` writes one.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any


def synthetic_template(sessions: int = 6, seed: int = 1, percent: float = 8.5) -> dict[str, Any]:
    """Return a workload template; each GPU cell uses about `percent` of a GPU's compute."""
    chance = random.Random(f"synthetic NotebookOS {seed}")
    return {"workloadTitle": "synthetic", "sessions": [_session(chance, n, percent) for n in range(sessions)]}


def _session(chance: random.Random, number: int, percent: float) -> dict[str, Any]:
    tick = start = chance.randint(0, 30)
    trainings = []
    for place in range(chance.randint(2, 6)):
        tick += chance.randint(2, 20)
        gpus = 0 if place == 1 else chance.choice([1, 1, 2])
        length = chance.randint(1, 10)
        used = [{"utilization": percent * chance.uniform(0.5, 1.5) / gpus} for _ in range(gpus)]
        trainings.append(
            {
                "start_tick": tick,
                "duration_in_ticks": length,
                "cpus": 1.0,
                "memory": 4.0,
                "vram": round(chance.uniform(1, 30), 3) if gpus else 0.0,
                "gpus": gpus,
                "gpu_utilizations": used,
            }
        )
        tick += length
    stop = tick + chance.randint(1, 60)
    return {"id": f"synthetic-{number}", "start_tick": start, "stop_tick": stop, "trainings": trainings}


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    Path(path).write_text(json.dumps(synthetic_template(*map(int, numbers)), indent=1) + "\n")

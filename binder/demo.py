"""`make demo`: JupyterLab on the demo notebook. Further arguments go to JupyterLab."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

from demo_place import demo_place

IDLE_TIMEOUT_S = 10


def main() -> int:
    """JupyterLab's exit status."""
    with demo_place() as place:
        print(f"\n{place.gpu_words}\n", flush=True)
        lab = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                *place.server_options(IDLE_TIMEOUT_S),
                *sys.argv[1:],
            ],
            cwd=place.work,
            env=place.environment,
        )
        # Ctrl-C reaches JupyterLab too, which asks whether it is meant.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: lab.send_signal(received))
        with contextlib.suppress(KeyboardInterrupt):
            return lab.wait()
    return 130


if __name__ == "__main__":
    sys.exit(main())

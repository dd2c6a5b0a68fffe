"""A CRIU that stops in the midst of its work where the file `stop-criu` in $STOPPING says so.

It says "dump PID" or "restore PID". The file begins with the command that it calls, `CRIU`; CRIU stops until there is a
file `go`.
"""

from __future__ import annotations

CRIU_THAT_STOPS = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder, action = Path(os.environ["STOPPING"]), sys.argv[1:]
told = folder / "stop-criu"
which = next((each for each in ("dump", "restore") if each in action), "")
criu = subprocess.Popen([*CRIU, *action], close_fds=False)
if which and told.exists() and told.read_text().split()[0] == which:
    pid = told.read_text().split()[1]
    def is_in_midst():
        if which == "restore":
            return os.path.exists(f"/proc/{pid}")
        image = Path(action[action.index("-D") + 1])
        return any(path.stat().st_size for path in image.glob("pages-*.img"))
    while not is_in_midst() and criu.poll() is None:
        pass
    if criu.poll() is None:
        os.kill(criu.pid, signal.SIGSTOP)
    told.unlink()
    (folder / "criu-pids").write_text(f"{criu.pid} {os.getpid()}")
    (folder / "stopped").touch()
    while not (folder / "go").exists():
        time.sleep(0.002)
    os.kill(criu.pid, signal.SIGCONT)
status = criu.wait()
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""

"""Take the pictures of README and the documentation anew, by the tests that look at them.

`python docs/take_pictures.py` needs the built JupyterLab extension and Chromium (CONTRIBUTING.md).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (
    "tests/lab/test_pictures.py::test_a_full_panel_in_both_themes",
    "tests/lab/test_last_hour.py::test_the_panel_with_its_last_hour_fits_into_a_picture",
    "tests/lab/test_notebook_pictures.py::test_a_wait_around_a_notebook_in_both_themes",
)
PICTURES = {  # by the name that the tests give them
    "lab-light": ROOT / "labextension" / "screenshots" / "panel-light.png",
    "lab-past-light": ROOT / "labextension" / "screenshots" / "last-hour-light.png",
    "notebook-freed-light": ROOT / "docs" / "pictures" / "freed.png",
    "notebook-waiting-light": ROOT / "docs" / "pictures" / "waiting.png",
}


def main() -> int:
    """Return the tests' exit status; the pictures are replaced only if all were taken."""
    with tempfile.TemporaryDirectory(prefix="affinode-pictures-") as folder:
        environment = {**os.environ, "AFFINODE_SCREENSHOTS": folder}
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=environment)
        if done.returncode:
            return done.returncode
        for name, picture in PICTURES.items():
            shutil.copyfile(Path(folder, f"{name}.png"), picture)
            print(picture.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())

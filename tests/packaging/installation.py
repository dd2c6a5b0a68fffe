"""An environment that a wheel is installed in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Installation:
    """An environment of its own."""

    prefix: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.prefix / "lib" / version / "site-packages"

    def pip(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run pip in it, without the network."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

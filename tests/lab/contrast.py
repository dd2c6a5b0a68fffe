"""Prints the contrast of every text and picture of the Lab's GPU part, in every theme, as computed from what is drawn.

    python tests/lab/contrast.py

WCAG 2.2 AA asks for 4.5 of text and 3 of what a picture says. Disabled controls are exempt, and are printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import lab_cells  # noqa: E402
import recorded  # noqa: E402
from lab_page import LabPage  # noqa: E402
from lab_server import BUILT, VIEWPORT, start_lab  # noqa: E402
from live_browser import chromium  # noqa: E402
from live_machine import new_machine  # noqa: E402
from live_server import JupyterServer  # noqa: E402
from recorded_page import AROUND, PANEL, THEMES, Looks, RecordedPanel  # noqa: E402

LEAST = {"text": 4.5, "graphic": 3.0, "disabled": 0.0}
Pair = dict[str, Any]


def table(page: LabPage, theme: str) -> list[Pair]:
    """Each different pair of colours in a theme, the weakest first."""
    page.theme(THEMES[theme])
    notebook = page.open_notebook(f"looked-at-{theme}.ipynb", lab_cells.CPU)
    panel, looks = RecordedPanel(page), Looks(page)
    found: dict[tuple[str, ...], Pair] = {}

    def add(pairs: list[Pair]) -> None:
        for pair in pairs:
            found[tuple(pair[key] for key in ("kind", "what", "text", "background"))] = pair

    for answer in recorded.states().values():
        panel.show(answer)
        add(looks.pairs(PANEL))
        looks.hover(True)
        add(looks.pairs(PANEL))
        looks.hover(False)
    for _ in panel.each_failure():
        add(looks.pairs(PANEL))
    panel.open_calls(recorded.states()["resident"])
    add(looks.pairs(PANEL))
    for answer in recorded.around().values():
        panel.show_popover(notebook, answer)
        add(looks.pairs(AROUND))
        looks.hover(True)
        add(looks.pairs(AROUND))
        looks.hover(False)
    panel.fail("stale")
    add(looks.pairs(f"{PANEL}, {AROUND}"))
    return sorted(found.values(), key=lambda pair: (pair["kind"], pair["ratio"]))


def too_weak(pairs: list[Pair]) -> list[Pair]:
    """Those below what is asked for."""
    return [pair for pair in pairs if pair["ratio"] < LEAST[pair["kind"]]]


def main() -> int:
    """Print the tables; 1 where a pair is too weak."""
    weak = 0
    with chromium() as browser, new_machine() as machine:
        machine.simulate(memory="256MiB")
        server = JupyterServer(machine)
        start_lab(server, BUILT)
        page = LabPage(browser.new_context(viewport=VIEWPORT).new_page(), server, Path(tempfile.gettempdir()))
        page.load()
        for theme in THEMES:
            pairs = table(page, theme)
            weak += len(too_weak(pairs))
            least = {
                kind: min(pair["ratio"] for pair in pairs if pair["kind"] == kind)
                for kind in ("text", "graphic")
            }
            print(
                f"\n{theme}: {len(pairs)} pairs; text at least {least['text']:.2f}, pictures {least['graphic']:.2f}"
            )
            for pair in pairs:
                mark = "TOO WEAK" if pair in too_weak(pairs) else ""
                colours = f"{pair['text']} on {pair['background']}"
                print(f"{pair['ratio']:6.2f}  {pair['kind']:8}  {colours}  {pair['what']}  {mark}")
        page.page.context.close()
        server.stop()
    return min(weak, 1)


if __name__ == "__main__":
    sys.exit(main())

"""Sphinx's configuration: `make docs` builds these pages into build/docs."""

from pathlib import Path

project = "jupyter-affinode"
copyright = "the jupyter-affinode developers"
release = Path(__file__).parents[1].joinpath("jupyter_affinode", "_version.py").read_text().split('"')[1]
extensions = ["myst_parser"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_prev_next": False}
myst_heading_anchors = 3
nitpicky = True

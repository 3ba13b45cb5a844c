"""Sphinx's settings: `make docs` renders these pages into build/docs."""

project = "mpi-tf-harness"
copyright = "the authors of mpi-tf-harness, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
html_show_sourcelink = False

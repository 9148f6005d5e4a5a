"""The documentation site; `make docs` builds it into site/ with nothing from other hosts."""

project = "PubSwap"
html_title = "PubSwap"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

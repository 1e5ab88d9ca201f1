# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the documentation. `scripts/docs` gives it a copy of docs/ with the API's pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "Khorovod"
author = "The Khorovod authors"
copyright = "the Khorovod authors. Apache License 2.0"
html_title = "Khorovod"

extensions = ["myst_parser", "sphinx_copybutton", "site_links"]
exclude_patterns = ["site"]
root_doc = "index"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# site_links checks every link and anchor of the finished pages, also those that Markdown writes as HTML. Headings of a
# decision may begin at any level. Several APIs have a `Compressor`, to which annotations refer.
suppress_warnings = ["myst.xref_missing", "myst.header", "ref.python"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["khorovod.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "top_of_page_buttons": [],
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
python_maximum_signature_line_length = 88
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"

# Where links outside docs/ lead, and where pages went that once existed.
repository_url = "https://github.com/khorovod/khorovod/blob/main/"
moved_pages = {
    "performance-notes": "decisions/README.html",
    "performance-tables": "performance.html",
}

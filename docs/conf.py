"""How Sphinx builds the documentation: `python3 testproject docs`."""

import os
from typing import Any

import django
from pygments.lexers.special import TextLexer

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()  # autodoc imports models; the settings start no server

project = "pgbroker"
author = "pgbroker contributors"
project_copyright = "2026, pgbroker contributors"
release = "0.1.0"

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["changelog.d"]

html_theme = "furo"
html_title = "pgbroker"
nitpicky = True


def setup(app: Any) -> None:
    """Show the source of diagrams as text: a renderer would come from another host."""
    app.add_lexer("mermaid", TextLexer)

"""The settings of Sphinx for the documentation site. `make docs` builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from taskharbor import __version__  # noqa: E402  the path must be set first

project = "TaskHarbor"
copyright = "the TaskHarbor contributors"  # noqa: A001  the name of the setting
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tools.docs_site"]
exclude_patterns = ["figures"]
default_role = "py:obj"
highlight_language = "text"
smartquotes = False  # quotes in help texts are typed as they are
suppress_warnings = ["misc.highlighting_failure"]  # examples of HTTP end with the status that is expected

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"TaskHarbor {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it reads pages by fetch, which browsers refuse for files
html_theme_options = {"navigation_with_keys": True}

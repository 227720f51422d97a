"""How Sphinx builds the site, from the pages that ``docs.tools.build`` has put beside this file."""

import inspect
from importlib.metadata import version as version_of

import prepbench as pb

project = "prepbench"
author = "The prepbench developers"
copyright = author
version = release = version_of("prepbench")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["tools", "README.md"]

# notebooks are shown as they were committed, and tested elsewhere
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False

# pb.capture and pb.search are packages and functions: here they are the functions, as for who calls them
for _name in pb.__all__:
    _value = getattr(pb, _name)
    if not inspect.isclass(_value) and hasattr(_value, "_call_home"):
        setattr(pb, _name, _value.__wrapped__)

python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_title = "prepbench"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css", "diagram.css"]
html_js_files = [("prepbench-site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # a page that was opened from a file may read no other file
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "monokai"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#58a6ff", "color-brand-content": "#58a6ff"},
}

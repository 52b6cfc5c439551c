"""Sphinx configuration: MyST pages, numpydoc API reference, executed gallery."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from commands import write_commands
from experiments._page import write_pages
from experiments.stored import RESULTS

from bagwise import __version__

project = "bagwise"
author = "the bagwise authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "py:obj"  # a name in single backquotes is a link
nitpicky = True
# Only the names that are used, in files of their own, so that a build needs no network.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "_inventories/python.txt"),
    "scikit-learn": ("https://scikit-learn.org/stable", "_inventories/scikit-learn.txt"),
    "pandas": ("https://pandas.pydata.org/docs", "_inventories/pandas.txt"),
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "gallery_order.BeginnersFirst",
    "backreferences_dir": "reference/api/generated",
    "doc_module": ("bagwise",),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
}
warnings.filterwarnings("ignore", category=DeprecationWarning)

html_theme = "pydata_sphinx_theme"
html_title = "bagwise"
html_static_path = ["_static"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False
html_math_renderer = "mathml"
# The site must work from disk: no request leaves the reader's machine for fonts or icons.
suppress_warnings = ["config.cache"]


def _skip(app, what, name, obj, skip, options):
    # What scikit-learn gives every estimator is its own documentation's matter.
    from_sklearn = str(getattr(obj, "__module__", "")).startswith("sklearn.")
    is_request = name.startswith("set_") and name.endswith("_request")
    return True if from_sklearn or is_request else None


# Formulas become MathML, which browsers draw themselves: no script, no network. What docutils
# does not know of LaTeX is rewritten: sizes of brackets, \dots, fractions without braces, and a
# minus of sets that few fonts have.
_LATEX = [
    (r"\\[bB]igg?[lr]?(?=\W)", ""),
    (r"\\dots\b", r"\\ldots"),
    (r"\\(t?frac)\s*(\d|\\[a-z]+)\s*(\d|[A-Za-z])(?![A-Za-z{])", r"\\\1{\2}{\3}"),
    (r"\\setminus\b", r"\\backslash"),
]


def _mathml(node, as_block):
    from docutils.utils.math.latex2mathml import tex2mathml

    tex = node.astext().strip()
    for pattern, by in _LATEX:
        tex = re.sub(pattern, by, tex)
    return tex2mathml(tex, as_block=as_block)


def _visit_inline(self, node):
    from docutils import nodes

    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _visit_block(self, node):
    from docutils import nodes

    self.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _write_pages(app):
    write_pages(RESULTS, Path(app.srcdir) / "results")
    write_commands(Path(app.srcdir) / "reference" / "generated" / "commands.md")


def _link_by_last_name(app, env, node, contnode):
    """A public name is a link in the docstrings of other packages, too."""
    known = env.domains["py"].objects
    ending = "." + node["reftarget"].removeprefix("bagwise.")
    names = sorted((name for name in known if name.endswith(ending)), key=len)
    if not names or node.get("refdomain") != "py":
        return None
    entry = known[names[0]]
    from sphinx.util.nodes import make_refnode

    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, names[0]
    )


def _link_citations(app, docname, source):
    """A key of the bibliography is a link to it: [Haussmann2017] in prose."""
    if not str(app.env.doc2path(docname)).endswith(".md"):
        return
    papers = (Path(app.srcdir) / "reference" / "bibliography.rst").read_text(encoding="utf-8")
    keys = "|".join(re.findall(r"^\.\. \[(\w+)\]", papers, re.MULTILINE))
    parts = re.split(r"(```.*?```|`[^`\n]*`)", source[0], flags=re.DOTALL)
    link = r"[\\[\1\\]](/reference/bibliography.rst)"
    parts[::2] = [re.sub(rf"(?<!\[)\[({keys})\](?!\()", link, part) for part in parts[::2]]
    source[0] = "".join(parts)


def _leave_cards_out_of_the_search(app, doctree):
    if app.env.docname.startswith("results/"):
        app.env.metadata[app.env.docname]["nosearch"] = True


def setup(app):
    app.connect("source-read", _link_citations)
    app.connect("doctree-read", _leave_cards_out_of_the_search)
    app.connect("missing-reference", _link_by_last_name)
    app.connect("builder-inited", _write_pages)
    app.connect("autodoc-skip-member", _skip)
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    app.add_css_file("bagwise.css")
    return {"parallel_read_safe": True}

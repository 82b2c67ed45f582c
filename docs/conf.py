"""How Sphinx makes the site from the pages in this folder.

Run with: python -m sphinx -W docs site
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import hybrid_predict

logger = logging.getLogger(__name__)

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent

project = "hybrid_predict"
author = copyright = "The hybrid_predict authors"
release = version = hybrid_predict.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["results", "_build"]
highlight_language = "none"  # pages name the language of every block that has one

# The notebook is shown as it was committed; a test executes it, with fewer steps.
nb_execution_mode = "force" if "TUTORIAL_STEPS" in os.environ else "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 1800  # seconds; a busy machine is slow

myst_heading_anchors = 4
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target"]
suppress_warnings = ["myst.header"]  # a page that is included begins with its own title

autodoc_member_order = "bysource"
autodoc_mock_imports = ["jax", "optax"]  # an extra that building the site does not need
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"hybrid_predict {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "static" / "scorer.js")
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"

PAGES = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing" / "index.md",
    ROOT / "examples" / "README.md": DOCS / "examples.md",
    ROOT / "examples" / "by_feature": DOCS / "examples.md",
}
"""Pages of the repository that stand outside this folder, and the page that includes each."""

LINK = re.compile(r"\[([^\]\[]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")

ACCENT = re.compile(r"\\(?:bar|hat|tilde) ?(?:\\?[A-Za-z]+|\{[^{}]*\})(?=_)")
"""An accented sign with an index, which docutils puts below unless a group stands around them."""


def rebased(text: str, origin: Path, page: Path) -> str:
    """The text of ``origin`` with links that lead to the same places from ``page``.

    Folders lead to their README; a folder without one is named, since the site does not have it.
    """

    def link(found: re.Match[str]) -> str:
        said, target, anchor = found[1], found[2], found[3] or ""
        path = (origin.parent / target).resolve()
        if not path.exists():
            return found[0]
        path = PAGES.get(path, path)
        if path.is_dir():
            if not (path / "README.md").exists():
                named = f"`{path.relative_to(ROOT)}/`"
                return named if said.strip("`/") in named else f"{said} ({named})"
            path = PAGES.get(path / "README.md", path / "README.md")
        return f"[{said}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(link, text)


def read(app: Sphinx, page: str, content: list[str]) -> None:
    """Rebase the links of a page; the navigation has the pages beside a README below it.

    They stand in the order in which the README links to them, others after them.
    """
    path = DOCS / f"{page}.md"
    if not path.exists():  # the notebook, whose links are those of this folder
        return
    content[0] = rebased(content[0], path, path)
    if path.name in ("README.md", "index.md") and path.parent != DOCS:
        linked = [target for _, target, _ in LINK.findall(content[0])]
        beside = sorted(f.name for f in path.parent.glob("*.md") if f != path)
        beside.sort(key=lambda f: linked.index(f) if f in linked else len(linked))
        content[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(beside) + "\n```\n"


def include(app: Sphinx, origin: Path, page: str, content: list[str]) -> None:
    """Rebase the links of a page that another one includes; ``page`` lacks its folder here."""
    content[0] = rebased(content[0], (DOCS / origin).resolve(), DOCS / f"{app.env.docname}.md")


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, said: nodes.Element
) -> nodes.Element | None:
    """Lead references to where a class is defined to the public name that the reference has."""
    if node.get("refdomain") != "py":
        return None
    domain, parts = env.get_domain("py"), node["reftarget"].split(".")
    for tail in (parts[-1:], parts[-2:]):
        for module in ("", ".audit", ".errors", ".forecast.predictors", ".record", ".updates"):
            name = ".".join([f"hybrid_predict{module}", *tail])
            if name in domain.objects:  # type: ignore[attr-defined]
                return domain.resolve_xref(
                    env, node["refdoc"], app.builder, "obj", name, node, said
                )
    return None


def public_bases(app: Sphinx, name: str, obj: type, options: Any, bases: list[type]) -> None:
    """Name the bases of a private base in its place."""
    for base in [b for b in bases if b.__name__.startswith("_")]:
        at = bases.index(base)
        bases[at : at + 1] = base.__bases__


def list_references(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Make a list of the sources of a docstring: each ends with an address or a full stop."""
    if "References:" not in lines:
        return
    ended = True
    for at in range(lines.index("References:") + 1, len(lines)):
        text = lines[at].strip()
        if not text:
            break
        lines[at] = f"    {'* ' if ended else '  '}{text}"
        ended = "https://" in text or text.endswith(".")


def mathml(writer: Any, node: nodes.math | nodes.math_block, *, block: bool) -> None:
    """Write a formula as MathML, which browsers draw without any script.

    Raises:
        SkipNode: Always; the formula has no children left to write.
    """
    formula = ACCENT.sub(r"{{}\g<0>}", node.astext())
    try:
        writer.body.append(tex2mathml(formula, as_block=block))
    except MathError as error:
        logger.warning("%s", error, location=node)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect what this file adds."""
    app.add_html_math_renderer(
        "mathml", (partial(mathml, block=False), None), (partial(mathml, block=True), None)
    )
    app.connect("autodoc-process-docstring", list_references, priority=100)  # before napoleon
    app.connect("autodoc-process-bases", public_bases)
    app.connect("source-read", read)
    app.connect("include-read", include)
    app.connect("missing-reference", resolve)

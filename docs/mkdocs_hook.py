"""Hook of mkdocs: the site is the repository's folder, and each source file is a page whose lines have anchors."""

import re
from pathlib import Path

import mkdocs.config.config_options as options
from mkdocs.structure.files import File
from nbconvert import HTMLExporter
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

SOURCES = (".py", ".toml", ".txt", ".yml")
WIDE = ("benchmarks/RESULTS.md", "benchmarks/GPU.md")  # pages with tables of 13 columns
STYLE = "<style>.md-grid { max-width: none } .md-typeset table:not([class]) th { min-width: 0 }</style>"

# mkdocs refuses a folder of pages that holds mkdocs.yml or the site; exclude_docs leaves the site out.
options.DocsDir.post_validation = options.SiteDir.post_validation = lambda *_, **__: None


def on_files(files, config):
    """A link to ppo.py#L12 opens line 12 of the highlighted source, a link to a notebook the notebook with outputs."""
    for file in list(files):
        is_source = Path(file.src_uri).suffix in (*SOURCES, ".ipynb")
        if file.inclusion.is_excluded() or not is_source:
            continue
        home = "../" * file.src_uri.count("/") + "index.html"
        page = File.generated(config, file.src_uri, content=to_html(Path(file.abs_src_path), home))
        page.dest_uri += ".html"
        files.remove(file)
        files.append(page)
    return files


def on_page_markdown(markdown, page, **_):
    """Give a wide page the width of the window."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
        return f"{markdown}\n{STYLE}\n"
    return markdown


def to_html(path: Path, home: str) -> str:
    """A source file or a notebook as a page of its own, with a link to `home`."""
    if path.suffix == ".ipynb":
        html = HTMLExporter().from_filename(str(path))[0].replace('href="README.md"', 'href="index.html"')
    else:
        formatter = HtmlFormatter(full=True, title=path.name, linenos="inline", linespans="L")
        html = highlight(path.read_text(), get_lexer_for_filename(path.name), formatter)
        html = re.sub(r'id="L-(\d+)"', r'id="L\1"', html)
        html = html.replace("</style>", "span:target { background: #ffef9e }\n</style>", 1)
    return re.sub("<body.*?>", rf'\g<0>\n<p><a href="{home}">All pages</a></p>', html, count=1)

"""The pages work as they stand there: links, links to lines, Python blocks and commands."""

import importlib
import json
import re
import shlex
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

import jax
import pytest
from helpers import ROOT, call, capture, small_run
from matplotlib import pyplot

from common.presets import preset
from common.suites import suites
from docs.relink import LINK, pages, relink
from runner import evaluate, render
from runner.compare import __main__ as compare
from runner.export import __main__ as export
from runner.main import parse_command_line
from runner.options.sweep import read_axes

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
WALKTHROUGH = ROOT / "docs" / "walkthrough.py"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE)

PLACEHOLDERS = {"<name>": "NAME", "<script>": "ppo", "<env(ironment)?>": "CartPole-v1", r"(?<= )[A-Z](?= |$)": "2"}
NOT_OURS = ("venv", "pip", "pytest", "mkdocs", "jupytext", "jupyter")  # python -m NAME


# -- Markdown ----------------------------------------------------------------------------------------------------------


@cache
def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return FENCE.findall(PAGES[page].read_text())


@cache
def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", PAGES[page].read_text())


@cache
def targets(page: str) -> list[str]:
    """The targets of all links and pictures; neither code nor mathematics has any."""
    text = SPAN.sub("``", prose(page))
    text = re.sub(r"\$\$.+?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    return [next(filter(None, groups)) for groups in TARGET.findall(text)]


@cache
def anchors(page: str) -> set[str]:
    """The names under which GitHub links to the headings of a page, and the anchors that it sets itself."""
    slugs = []
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", prose(page), re.MULTILINE):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text.replace("*", "")).strip().replace(" ", "-")
        slugs.append(slug)
    numbered = {f"{slug}-{i}" for slug in slugs for i in range(1, slugs.count(slug))}
    return {*slugs, *numbered, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", prose(page))}


def commands(page: str) -> list[str]:
    """Every `python ...` of the bash blocks and of the text, in one line each."""
    lines = [line for kind, text in blocks(page) if kind == "bash" for line in text.replace("\\\n", " ").splitlines()]
    spans = [" ".join(span.split()) for _, span in SPAN.findall(prose(page))]
    parts = [part.strip() for text in lines + spans for part in re.split(r"&&|;|\||(?<!\S)&(?!\S)", text)]
    return [
        match[0]
        for match in map(re.compile(r"(?<![\w/.-])python (-m [\w.]+|[\w/]+\.py)(?!\S).*").search, parts)
        if match
    ]


PYTHON = [
    pytest.param(page, text, id=f"{page}-{i}")
    for page in PAGES
    for i, (kind, text) in enumerate(blocks(page))
    if kind == "python" and "onnxruntime" not in text  # which test_export.py runs
]
COMMANDS = sorted({command for page in PAGES for command in commands(page)})


def test_there_is_something_to_run():
    assert len(PYTHON) >= 2
    assert len(COMMANDS) >= 20
    assert sum(len(targets(page)) for page in PAGES) >= 50


# -- Links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in targets(page):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (PAGES[page].parent / unquote(path)).resolve() if path else PAGES[page]
        assert file.is_relative_to(ROOT), f"{target} leaves the repository"
        assert file.exists(), f"{target} does not exist"
        if anchor and not re.fullmatch(r"L\d+", anchor):
            assert str(file.relative_to(ROOT)) in PAGES, f"{target}: only pages have headings"
            assert anchor in anchors(str(file.relative_to(ROOT))), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_links_to_lines_name_the_line_that_has_their_text(page):
    """Numbers that are old are mended here, and said: an edit of the code is no error of a page."""
    text, errors = relink(PAGES[page])
    assert not errors
    if text != PAGES[page].read_text():
        PAGES[page].write_text(text)
        warnings.warn(f"{page}: the numbers of lines are renewed; commit them", stacklevel=1)
    to_lines = [target for target in targets(page) if "#L" in target]
    assert len(to_lines) == len(LINK.findall(prose(page))), "the text of a link to a line is code of that line"


@pytest.mark.parametrize("page", PAGES)
def test_no_picture_stands_in_a_table(page):
    """A column is too narrow for it."""
    assert not re.search(r"^\|.*(!\[|<img)", prose(page), re.MULTILINE)


def test_relink_finds_the_nearest_line(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.relink.ROOT", tmp_path)
    (tmp_path / "code.py").write_text("x = 1\ny = 2\nx = 1\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[`y = 2`](code.py#L9) [`x = 1`](code.py#L1) [`x = 1`](code.py#L7) [`z`](code.py#L1) [`y`](no.py#L1)"
    )
    text, errors = relink(page)
    assert [match["line"] for match in LINK.finditer(text)] == ["2", "1", "3", "1", "1"]
    assert errors == ["page.md: no line of code.py contains `z`", "page.md: no line of no.py contains `y`"]


# -- Python ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run as the pages name it."""
    folder = tmp_path_factory.mktemp("docs")
    assert call("ppo", *small_run("ppo", out=str(folder / "runs"), name="NAME")).status == 0
    return folder


@pytest.fixture
def same_jax():
    """JAX as it was before the test."""
    before = dict(jax.config.values)
    yield
    for name, value in jax.config.values.items():
        if value != before[name]:
            jax.config.update(name, before[name])


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), PYTHON)
def test_python_blocks_print_a_result(page, block, folder, same_jax, monkeypatch):
    """Presets are shortened."""
    monkeypatch.chdir(folder)
    short = lambda *args, **changes: preset(*args, **{"total_timesteps": 10_240} | changes)
    monkeypatch.setattr("common.presets.preset", short)
    result = capture(lambda: exec(compile(block, page, "exec"), {"__name__": "__main__"}), page)
    assert (result.status, result.stderr) == (0, "")
    assert "nan" not in result.stdout
    assert re.search(r"\d", result.stdout), "it prints a result"


# -- The notebook ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_walkthrough_runs(folder, same_jax, tmp_path, monkeypatch):
    """Runs are shortened."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = WALKTHROUGH.read_text().replace("total_timesteps=12_000", "total_timesteps=2_560")
    assert "2_560" in text
    result = capture(lambda: exec(compile(text, "walkthrough.py", "exec"), {"__name__": "__main__"}), "walkthrough.py")
    pyplot.close("all")
    sys.modules.pop("my_ppo", None)
    assert (result.status, result.stderr) == (0, "")
    assert "new metrics: ['penalty']" in result.stdout
    assert re.search(r"P\(penalty > clip\) = \d", result.stdout)


@cache
def notebook() -> dict[str, list[dict]]:
    """Code of each cell -> its outputs."""
    cells = json.loads(WALKTHROUGH.with_suffix(".ipynb").read_text())["cells"]
    return {"".join(cell["source"]).strip(): cell["outputs"] for cell in cells if cell["cell_type"] == "code"}


def test_notebook_is_the_walkthrough_with_outputs():
    """The head of walkthrough.py has the command that makes it."""
    kinds = re.split(r"^# %%(.*)\n", WALKTHROUGH.read_text(), flags=re.MULTILINE)[1:]
    code = [text.strip() for kind, text in zip(kinds[::2], kinds[1::2], strict=True) if not kind]
    assert list(notebook()) == code
    outputs = [output for outputs in notebook().values() for output in outputs]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert not any(re.search(r"\bnan\b", "".join(output.get("text", ""))) for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 6
    assert WALKTHROUGH.with_suffix(".ipynb").stat().st_size < 600_000


@pytest.mark.parametrize("start", ["config = preset(", "source = inspect.getsource("])
def test_notebook_shows_the_preset_and_the_loss_of_today(start, tmp_path, monkeypatch):
    """Nothing is trained; after another preset or loss, the head of the notebook says how to make it again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    imports = next(iter(notebook()))
    (cell,) = (code for code in notebook() if code.startswith(start))
    result = capture(lambda: exec(f"{imports}\n{cell}", {}), "walkthrough.py")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout == "".join("".join(output["text"]) for output in notebook()[cell])


# -- Commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_read(command, folder, monkeypatch):
    """Read as far as to the point where training would start."""
    monkeypatch.chdir(folder)
    for placeholder, value in PLACEHOLDERS.items():
        command = re.sub(placeholder, value, command)
    _, program, *words = shlex.split(command, comments=True)
    if program == "-m":
        check_module(*words)
    elif Path(program).parent.name in ("", "variants"):
        check_script(program, *words)
    else:
        check_file(program, *words)


def check_script(program: str, *words: str) -> None:
    """The flags and values of a run; a run to resume may be another than that of the folder."""
    assert (ROOT / program).is_file()
    module = importlib.import_module(Path(program).stem)

    def read() -> None:
        try:
            config, options, _ = parse_command_line(module.__file__, module.Config)
        except ValueError as error:
            if "--resume" in words and str(error).startswith(("no run in", "--rank-by has no effect")):
                return  # the run here is no sweep
            raise
        read_axes(options.sweep, options.sweep_samples, config)
        check_environment(config.env)

    result = capture(read, program, *words)
    assert (result.status, result.stderr) == (0, "")


def check_environment(name: str) -> None:
    """Whether there is an environment of this name, options left aside."""
    suite, _, rest = name.partition("/")
    suite = suite if rest else "gymnax"
    assert name.partition(":")[0] in environments(suite), name


@cache
def environments(suite: str) -> list[str]:
    """Names of a suite's environments as --env takes them."""
    names = importlib.import_module(f"common.suites.{suite}").names()
    return [name if suite == "gymnax" else f"{suite}/{name}" for name in names]


def check_module(module: str, *words: str) -> None:
    """python -m MODULE; a module that is named alone is no command."""
    if module == "common.suites":
        for word in words:
            assert word in suites() or check_environment(word) is None
    elif module == "runner.compare":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compare, "read_methods", stop)
            result = capture(compare.main, module, *words)
        assert not words or (result.status, result.stderr) == (2, f"{STOPPED}\n")
    elif module in ("runner.render", "runner.evaluate", "runner.export"):
        program = {"runner.render": render, "runner.evaluate": evaluate, "runner.export": export}[module]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "load", stop)
            result = capture(program.main, module, *words)
        assert not words or (result.status, result.stderr) == (2, f"{STOPPED}\n")
    elif module == "cProfile":
        script = next(i for i, word in enumerate(words) if word.endswith(".py"))
        check_script(*words[script:])
    else:
        assert module in NOT_OURS
        check_paths(*words)


def check_file(program: str, *words: str) -> None:
    """Programs of benchmarks/ and docs/: the file has these flags; hidden_velocity.py takes a command of a script."""
    assert (ROOT / program).is_file()
    if words and words[0].endswith(".py"):
        flags = [word for word in words[1:] if "hidden" not in word]
        return check_script(words[0], *flags[flags.index("--env") + 1 :])
    source = (ROOT / program).read_text()
    assert all(f'"{word}"' in source for word in words if word.startswith("--")), words
    check_paths(*words)


def check_paths(*words: str) -> None:
    """Words that look like files of the repository are some, but for a copy (my_*), and pytest's tests are in them."""
    for word in words:
        file, *names = word.split("::")
        if re.fullmatch(r"(?!my_)[\w/.-]+\.(py|txt|toml|md|ipynb|yml)", file):
            assert (ROOT / file).exists(), word
            text = (ROOT / file).read_text()
            assert all(f"def {name.partition('[')[0]}(" in text or f"class {name}" in text for name in names), word


@pytest.mark.parametrize("page", PAGES)
def test_pip_takes_files_that_exist(page):
    for _, text in blocks(page):
        assert all((ROOT / file).is_file() for file in re.findall(r"(?:-r|--requirement) (\S+)", text))


STOPPED = "error: it would read the run"


def stop(*_) -> None:
    raise ValueError(STOPPED.removeprefix("error: "))


def test_readme_sets_up_in_one_line_and_tests_as_ci_does():
    texts = [text.strip() for kind, text in blocks("README.md") if kind == "bash"]
    train, tests = (text.split(" && ") for text in texts)
    assert train[:2] == tests[:2] == ["python -m venv .venv", ". .venv/bin/activate"]
    assert not any("\n" in text for text in texts)
    ci = (ROOT / ".ci" / "run").read_text().replace("python3", "python").replace(" --quiet", "").splitlines()
    assert [line for line in ci if line in tests] == tests


# -- The site ----------------------------------------------------------------------------------------------------------


def test_the_menu_names_what_has_no_heading_of_its_own():
    """mkdocs takes the title of a page from its first heading, and calls a notebook None."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    assert all(re.search(r"\w: $", before) for before in re.split(r"[\w/]+\.ipynb", menu)[:-1])


@pytest.fixture
def hook(monkeypatch):
    """docs/mkdocs_hook.py without the packages of docs/requirements.txt."""
    for name in ("mkdocs.config.config_options", "mkdocs.structure.files", "nbconvert"):
        packages = name.split(".")
        for i in range(len(packages)):
            monkeypatch.setitem(sys.modules, ".".join(packages[: i + 1]), mock.MagicMock())
    monkeypatch.delitem(sys.modules, "docs.mkdocs_hook", raising=False)
    return importlib.import_module("docs.mkdocs_hook")


def test_a_source_page_marks_the_line_of_a_link_and_leads_back(hook):
    html = hook.to_html(ROOT / "common" / "loops.py", "../index.html")
    style, _, body = html.partition("</style>")
    assert style.rpartition("<style")[2].count("span:target {") == 1
    assert 'id="L1"' in body
    assert '<a href="../index.html">' in body


@pytest.mark.parametrize("page", PAGES)
def test_a_page_with_a_table_of_many_columns_has_the_width_of_the_window(page, hook):
    rules = re.findall(r"^\|(?: ?-+ ?\|)+$", prose(page), re.MULTILINE)
    most = max((rule.count("|") - 1 for rule in rules), default=0)
    meta = {}
    hook.on_page_markdown("text", mock.Mock(meta=meta, **{"file.src_uri": page}))
    assert ("hide" in meta) == (most > 10)


# -- Numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readme_counts_the_environments_of_all_suites():
    text = PAGES["README.md"].read_text()
    rows = re.findall(r"`--env (?:(\w+)/)?\S+` \| (\d+) \|", PAGES["docs/environments.md"].read_text())
    for suite, number in rows:
        if suite:  # other tests add environments to gymnax
            assert len(importlib.import_module(f"common.suites.{suite}").names()) == int(number)
    assert len(rows) == len(suites())
    assert f"[{sum(int(number) for _, number in rows)} environments](docs/environments.md)" in text

"""Hooks of mkdocs: they add pages from outside of docs/ and pages that are made from the code, fill the tables, and
lead the links to these pages. The text of a page stays where it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import posixpath
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import make_rules_table  # noqa: E402

from habana_mp import cli  # noqa: E402

#: Modules whose public functions and classes have an entry.
MODULES = ("habana_mp", "habana_mp.kernels") + tuple(
    f"habana_mp.frameworks.{name}" for name in ("transformers", "accelerate", "lightning", "ignite")
)
#: Pages with one table, which is also in a page of docs/. The search finds it there.
TABLES = {"operations": ("Operations", "rules.md"), "reasons": ("Reasons", "log.md")}
#: Where files and folders outside of docs/ are in the site.
PLACES: dict[Path, str] = {
    **{path: f"{path.stem.lower()}.md" for path in ROOT.glob("*.md")},
    ROOT / "README.md": "index.md",
    **{path: "examples/index.md" for path in (ROOT / "examples", ROOT / "examples/how_to")},
    **{
        path: path.relative_to(ROOT).with_suffix(".md").as_posix()
        for path in sorted((ROOT / "examples").rglob("*"))
        if path.suffix in (".py", ".ipynb")
    },
}


# ---- links and tables ----------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    pages = {PLACES[path]: path.read_text("utf-8") for path in ROOT.glob("*.md")}
    for uri, text in {**pages, **dict(_examples()), **dict(_reference())}.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    source = next((path for path, place in PLACES.items() if place == uri), DOCS / uri)

    def in_site(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / link[1]))
        place = PLACES.get(path)
        if place is None and path.exists() and path.is_relative_to(DOCS):
            path = path / "README.md" if path.is_dir() else path
            place = path.relative_to(DOCS).as_posix()
        return link[0] if place is None else f"]({posixpath.relpath(place, posixpath.dirname(uri))}"

    return re.sub(r"\]\(([^)#:\s]+)", in_site, make_rules_table.filled(markdown, make_rules_table.TABLES.get(uri, {})))


# ---- examples ------------------------------------------------------------------------------------------------------


def _examples() -> Iterator[tuple[str, str]]:
    index = "# Examples\n\nA test runs each of them.\n"
    for path, uri in PLACES.items():
        if uri.startswith("examples/") and path.is_file():
            name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            index += f"\n- [{name}]({name})"
            yield uri, _of_notebook(text) if path.suffix == ".ipynb" else f"# {path.name}\n\n{_code(text, name)}"
    yield "examples/index.md", index


def _of_notebook(text: str) -> str:
    """Returns the cells of a notebook, with what they printed and showed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _code(source))
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "text/html" in data:
                parts.append(f'<div class="cell-output">{"".join(data["text/html"])}</div>')
            else:
                parts.append(_code("".join(data["text/plain"]), language="text"))
    return "\n\n".join(parts)


def _code(text: str, title: str = "", language: str = "python") -> str:
    title = title and f' title="{title}"'
    return f"````{language}{title}\n{text.rstrip()}\n````"


# ---- the reference -------------------------------------------------------------------------------------------------


def _reference() -> Iterator[tuple[str, str]]:
    yield "reference/functions.md", "# Functions and classes\n\n" + "\n\n".join(_modules())
    yield "reference/command-line.md", "# The command line\n\n" + "\n\n".join(_commands())
    for name, (title, page) in TABLES.items():
        table = make_rules_table.TABLES[page][name]()
        text = f"[{page.removesuffix('.md').capitalize()}](../{page}) has the explanation."
        yield f"reference/{name}.md", f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n\n{text}\n\n{table}\n"


def _commands(*words: str) -> Iterator[str]:
    """Yields the help of a command, then that of those below it."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        os.environ["COLUMNS"] = "90"
        cli.main([*words, "--help"])
    yield f"{'##' if len(words) < 2 else '###'} {' '.join(('habana-mp', *words))}\n\n" + _code(
        shown.getvalue(), language="text"
    )
    below = re.search(r"\{([a-z,]+)\} \.\.\.", shown.getvalue())
    for word in below[1].split(",") if below else ():
        yield from _commands(*words, word)


def _modules() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            key for key, one in vars(module).items() if key[0] != "_" and getattr(one, "__module__", "") == name
        ]
        of_module = [(key, getattr(module, key)) for key in public if not inspect.ismodule(getattr(module, key))]
        yield f"## {name}"
        for key, one in sorted(of_module, key=lambda pair: (inspect.isclass(pair[1]), pair[0])):
            yield f"### {key}\n\n{_entry(key, one)}"


class _Bare(str):
    """A text that a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        one.replace(
            annotation=_Bare(one.annotation) if isinstance(one.annotation, str) else one.annotation,
            default=_Bare("...") if " at 0x" in repr(one.default) else one.default,
        )
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    shown = name + str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    if len(shown) > 90:
        lines = [*map(str, parameters)]
        keywords = next((at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
        if keywords is not None and all(one.kind is not one.VAR_POSITIONAL for one in parameters):
            lines.insert(keywords, "*")
        shown = f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")"
    return _code(shown)


def _entry(name: str, one: Any) -> str:
    if not inspect.isclass(one):
        return f"{_signature(name, one)}\n\n{_text(inspect.getdoc(one))}"
    parts = [_text(one.__dict__.get("__doc__"))]
    fields = {field.name: field.type for field in dataclasses.fields(one)} if dataclasses.is_dataclass(one) else {}
    if shown := [f"    {field}: {type_}" for field, type_ in fields.items() if field[0] != "_"]:
        parts.append(_code("\n".join((f"class {name}:", *shown))))
    for key, member in vars(one).items():
        if key[0] == "_" or key in fields or not getattr(member, "__doc__", None):
            continue
        function = getattr(member, "__func__", member)
        head = _signature(key, function) if inspect.isfunction(function) else ""
        parts.append(f"#### {name}.{key}\n\n{head}\n\n{_text(inspect.cleandoc(member.__doc__))}")
    return "\n\n".join(parts)


def _text(docstring: str | None) -> str:
    """Returns a docstring as Markdown."""

    def block(found: re.Match[str]) -> str:
        return _code(textwrap.dedent(found[1])) + "\n\n"

    def section(found: re.Match[str]) -> str:
        items = re.split(r"\n(?! )", textwrap.dedent(found[2]).strip())
        if found[1] != "Returns":
            items = [re.sub(r"^([\w.*]+):", r"`\1`:", item) for item in items]
        return f"**{found[1]}**\n\n" + "\n".join(f"- {item}" for item in items) + "\n\n"

    text = re.sub(r"(?::\w+:)?(`+)([^`]+)\1", r"`\2`", inspect.cleandoc(docstring or "") + "\n")
    text = re.sub(r"^::\n\n((?:    .*\n|\n)+)", block, text, flags=re.MULTILINE)
    return re.sub(r"^(Args|Returns|Raises):\n((?:    .*\n|\n(?=    ))+)", section, text, flags=re.MULTILINE)

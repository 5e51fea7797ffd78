"""Hooks of mkdocs: they add pages from outside of docs/ and pages made from the code, and fill the tables."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
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

from make_rules_table import TABLES, filled  # noqa: E402

from habana_mp import cli  # noqa: E402

FRAMEWORKS = (f"habana_mp.frameworks.{name}" for name in ("transformers", "accelerate", "lightning", "ignite"))
MODULES = ("habana_mp", "habana_mp.kernels", *FRAMEWORKS)
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*")) if path.suffix in (".py", ".ipynb")]
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
#: The pages of files and folders.
PLACES: dict[Path, str] = {
    **{path: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*")},
    **{path: f"{path.stem.lower()}.md" for path in ROOT.glob("*.md")},
    ROOT / "README.md": "index.md",
    **dict.fromkeys((ROOT / "examples", ROOT / "examples/how_to"), "examples/index.md"),
    **{path: path.relative_to(ROOT).with_suffix(".md").as_posix() for path in EXAMPLES},
}


def on_files(files: Any, config: Any) -> None:
    for uri, text in (*_outside(), *_reference()):
        files.append(File.generated(config, uri, content=text))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    if uri.startswith("decisions/"):  # the search shows pages for users first; a title counts 1000 times there
        page.meta["search"] = {"boost": 1e-3}
    source = next((path for path, place in PLACES.items() if place == uri), DOCS / uri)

    def in_site(link: re.Match[str]) -> str:
        words, path = link[1], Path(os.path.normpath(source.parent / link[2]))
        if path in PLACES and words.endswith(".md"):  # the site shows titles instead of names of files
            words = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        return link[0] if path not in PLACES else f"[{words}]({os.path.relpath(PLACES[path], os.path.dirname(uri))}"

    return re.sub(r"\[([^\[\]]*)\]\(([^)#:\s]+)", in_site, filled(markdown, TABLES.get(uri, {})))


def on_page_content(html: str, **_: Any) -> str:
    place = r"(?<=[._])(?=[a-zA-Z][^<>]*</code>)"  # where a name in a table may break
    return re.sub(r"(?s)<td.*?</td>", lambda cell: re.sub(place, "<wbr>", cell[0]), html)


def _outside() -> Iterator[tuple[str, str]]:
    yield from ((PLACES[path], path.read_text("utf-8")) for path in ROOT.glob("*.md"))
    index = "# Examples\n"
    for path in EXAMPLES:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        index += f"\n- [{name}]({name})"
        script = f"{UNSEARCHED}# {path.name}\n\n{_code(text)}"
        yield PLACES[path], script if path.suffix == ".py" else _notebook(text)
    yield "examples/index.md", index


def _notebook(text: str) -> str:
    """Returns the cells of a notebook, with what they printed and showed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _code(source))
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            plain = _code("".join(data["text/plain"]), "text")
            parts.append(f"<div>{''.join(data['text/html'])}</div>" if "text/html" in data else plain)
    return "\n\n".join(parts)


def _code(text: str, language: str = "python") -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _reference() -> Iterator[tuple[str, str]]:
    yield "reference/functions.md", "# Functions and classes\n\n" + "\n\n".join(_modules())
    yield "reference/command-line.md", "# The command line\n\n" + "\n\n".join(_commands())
    for name, page in (("operations", "rules.md"), ("reasons", "log.md")):  # the search finds the tables there
        text = f"# {name.capitalize()}\n\nThe explanation: [{page}](../{page}).\n\n{TABLES[page][name]()}"
        yield f"reference/{name}.md", UNSEARCHED + text


def _commands(*words: str) -> Iterator[str]:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        os.environ["COLUMNS"] = "80"
        cli.main([*words, "--help"])
    yield f"{'###' if words[1:] else '##'} {' '.join(('habana-mp', *words))}\n\n{_code(shown.getvalue(), 'text')}"
    below = re.search(r"\{([a-z,]+)\} \.\.\.", shown.getvalue())
    for word in below[1].split(",") if below else ():
        yield from _commands(*words, word)


def _modules() -> Iterator[str]:
    for module in map(importlib.import_module, MODULES):
        name = module.__name__
        own = [key for key, one in vars(module).items() if key[0] != "_" and getattr(one, "__module__", "") == name]
        public = [(key, getattr(module, key)) for key in sorted(getattr(module, "__all__", own)) if key != "hmp"]
        yield f"## {name}"
        for key, one in sorted(public, key=lambda pair: inspect.isclass(pair[1])):
            yield f"### {key}\n\n{_entry(key, one)}"


def _entry(name: str, one: Any) -> str:
    if not inspect.isclass(one):
        return f"{_signature(name, one)}\n\n{_markdown(inspect.getdoc(one))}"
    fields = vars(one).get("__dataclass_fields__", {})
    shown = "".join(f"\n    {key}: {field.type}" for key, field in fields.items() if key[0] != "_")
    head = _code(f"class {name}:{shown}") if shown else _signature(name, one) if "__init__" in vars(one) else ""
    parts = [_markdown(vars(one).get("__doc__")), head]
    for key, member in vars(one).items():
        if key[0] != "_" and key not in fields and member.__doc__:
            head = _signature(key, getattr(one, key)) if callable(getattr(one, key)) else ""
            parts += [f"#### {name}.{key}", head, _markdown(member.__doc__)]
    return "\n\n".join(parts)


def _signature(name: str, function: Any) -> str:
    text = re.sub(r" -> .*|(?<=\()(self|cls)(, )?", "", str(inspect.signature(function)))
    text = re.sub(r"""(?<=: )(['"])(.*?)\1(?= =|[,)])""", r"\2", re.sub(r"<.* at 0x\w+>", "...", text))
    if len(name + text) > 80:
        text = "(\n    " + re.sub(r", (?=\*|\w+[:=])", ",\n    ", text[1:-1]) + ",\n)"
    return _code(name + text)


def _markdown(docstring: str | None) -> str:
    def section(found: re.Match[str]) -> str:
        items = re.split(r"\n(?! )", re.sub(r"(?m)^([\w.*]+):", r"`\1`:", textwrap.dedent(found[2]).strip()))
        return "\n".join((f"**{found[1].replace('Args', 'Arguments')}**\n", *(f"- {item}" for item in items), "\n"))

    text = re.sub(r"(?::\w+:)?(`+)([^`]+)\1", r"`\2`", inspect.cleandoc(docstring or "") + "\n")
    text = re.sub(r"(?m)^::\n\n((?:    .*\n|\n)+)", lambda block: _code(textwrap.dedent(block[1])) + "\n\n", text)
    return re.sub(r"(?m)^(Args|Returns|Raises):\n((?:    .*\n|\n(?=    ))+)", section, text)

"""Names may hold anything. No line of a text ends by them, no terminal obeys them, and files of data give them back."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import Report, Row, _core, hmp
from habana_mp.reporting.log import close_log, open_log
from habana_mp.reporting.page import html_page
from helpers.log_lines import emit, line_of, read, records
from helpers.page_parts import Parts

ANYTHING = st.text(st.characters(exclude_categories=()))
ODD = "a\n\r\t\x1b[31m\x07\x7f\x85\x9b\u2028\u2029\u202e\ufeff\ud800\udcff\"'\\</script><b>&\x00z"

any_text = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_harmless(text: str) -> bool:
    """Nothing in it controls a terminal or ends a line."""
    kinds = {unicodedata.category(c) for c in text}
    return not kinds & {"Cc", "Zl", "Zp", "Cs"} and not re.search(
        "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]", text
    )


@any_text
@given(text=ANYTHING)
@example(text=ODD)
def test_text_is_spelled_out_in_one_way(text: str) -> None:
    shown = _core.printable(text)
    assert is_harmless(shown)
    assert _core.printable(shown) == shown
    if is_harmless(text):
        assert shown == text


def test_what_is_spelled_out_can_be_read() -> None:
    assert _core.printable("a\n\t\x1b\x85\u2028\u202e\udcffé日\\") == "a\\n\\t\\x1b\\x85\\u2028\\u202e\\udcffé日\\"


@any_text
@given(text=ANYTHING)
@example(text=ODD)
def test_a_line_of_the_log_stays_one_line(tmp_path: Path, text: str) -> None:
    open_log(tmp_path / "casts.log")
    emit(text)
    _core._log_event(text)
    first, second, end = read(tmp_path / "casts.log").split("\n")
    close_log()
    assert end == ""
    assert is_harmless(first)
    assert is_harmless(second)
    assert first == line_of(second)


@any_text
@given(text=st.text())
@example(text=ODD.encode("utf-8", "replace").decode())
def test_json_lines_give_the_text_back_and_hold_nothing_that_controls_a_terminal(tmp_path: Path, text: str) -> None:
    open_log(tmp_path / "casts.jsonl")
    emit(text)
    (record,) = records(tmp_path / "casts.jsonl")
    assert record["function"] == text
    assert is_harmless(read(tmp_path / "casts.jsonl").removesuffix("\n"))
    close_log()


def report_of(text: str) -> Report:
    row = Row(text, "bf16", 2, 1, 4, "list", rule=text, module=text, file=text, line=1, function=text, seconds=0.5)
    return Report((row,), detail="lines", seconds=1.0, environment={"script": text})


@any_text
@given(text=ANYTHING)
@example(text=ODD)
def test_every_form_of_a_report_takes_any_name(tmp_path: Path, text: str) -> None:
    report = report_of(text)
    assert all(map(is_harmless, str(report).split("\n")))
    assert len(str(report).split("\n")) == len(str(report_of("a")).split("\n"))
    assert all(map(is_harmless, (*report.words, *(one.text for one in report.findings))))
    report.to_json(tmp_path / "report.json")
    # JSON makes one character of two surrogates that stand beside each other.
    assert Report.from_json(tmp_path / "report.json").rows == report_of(json.loads(json.dumps(text))).rows
    report.to_dot(tmp_path / "report.dot")
    for line in (tmp_path / "report.dot").read_text("utf-8").splitlines():
        assert is_harmless(line)
        assert len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0, line
    made, plain = (Parts(html_page(one.to_dict())) for one in (report, report_of("a")))
    assert [tag for tag, *_ in made.attributes] == [tag for tag, *_ in plain.attributes]
    assert {tag: len(one) for tag, one in made.texts.items()} == {tag: len(one) for tag, one in plain.texts.items()}
    data = made.texts["script"][0]
    assert data.isascii()
    assert not set(data) & set("<>&")
    assert json.loads(data)["rows"][0]["module"] == json.loads(json.dumps(text))
    assert made.texts["title"][0].encode()


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("detail", ["operations", "modules", "lines"])
def test_names_that_programs_give_reach_the_report_as_they_are(detail: Any, tmp_path: Path) -> None:
    class Odd(nn.Module):
        pass

    Odd.__name__ = ODD.translate(dict.fromkeys((0, 0xD800, 0xDCFF)))  # Python takes no other name of a class
    name = ODD.replace(".", "")
    model = Odd()
    inner = nn.Linear(4, 4)
    model.add_module(name, inner)
    Odd.forward = lambda self, x: self._modules[name](x)  # type: ignore[method-assign]  # replaced for this test

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    function.__name__ = function.__qualname__ = ODD
    hmp.convert(report=detail, log=tmp_path / "casts.log")
    wrapped = hmp.op_wrap(function, to="bf16")
    scope: dict[str, Any] = {}
    file = ODD.replace("\x00", "").replace("\ud800", "")  # as Python names a file whose name is no text
    exec(compile("def called(f, x):\n    return f(x)\n", file, "exec"), scope)
    scope["called"](model, torch.ones(4, 4))
    scope["called"](wrapped, torch.ones(4, 4))
    report = hmp.report(show=False)
    hmp.restore()
    assert ODD in {row.operation for row in report}
    if detail != "operations":
        assert f"{Odd.__name__}.{name}" in {row.module for row in report}
    if detail == "lines":
        assert file in {row.file for row in report}
    assert all(map(is_harmless, str(report).split("\n")))
    assert all(map(is_harmless, (tmp_path / "casts.log").read_text("utf-8").removesuffix("\n").split("\n")))
    report.to_chrome_trace(tmp_path / "trace.json")
    json.loads((tmp_path / "trace.json").read_text("utf-8"))

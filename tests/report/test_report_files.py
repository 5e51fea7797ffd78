"""What a report is written to: JSON, a graph, a trace in time, a data frame; and reports that are put together."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from habana_mp import Report, _core, hmp
from habana_mp.reporting.merging import merged
from helpers.any_reports import any_report

COUNTED = ("calls", "casts", "bytes", "hits")


@pytest.fixture
def recorded(counted: None) -> Report:
    """Of a model that ran, with a ping-pong in it."""
    hmp.convert(report="lines")
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    for _ in range(3):
        layers[1](layers[0](torch.randn(4, 8)).softmax(-1))
    return hmp.report(show=False)


# ---- JSON -----------------------------------------------------------------------------------------------------------


@given(any_report())
def test_plain_data_and_back(made: Report) -> None:
    data = made.to_dict()
    assert Report.from_dict(data) == made
    assert Report.from_dict(json.loads(json.dumps(data))).to_dict() == data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", 'it is no report: a report has "format": "habana-mp report"'),
        ('{"format": "something else"}', 'it is no report: a report has "format"'),
        (
            '{"format": "habana-mp report", "version": 2}',
            "it is a report of version 2 of the format; this package reads 1",
        ),
        ('{"format": "habana-mp report", "version": 1}', "it is no whole report: it has no 'rows'"),
        ('{"format": "habana-mp rep', "it is no JSON: Unterminated string"),
        ("", "it is no JSON: Expecting value"),
    ],
)
def test_what_is_no_report_is_refused_with_its_file(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {says}')}"):
        Report.from_json(path)


def test_what_is_no_text_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: "):
        Report.from_json(path)


# ---- a graph --------------------------------------------------------------------------------------------------------

#: The words of Graphviz' language, as its reference has them: https://graphviz.org/doc/info/lang.html
TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\]=,;]|[A-Za-z_][A-Za-z_0-9]*|-?\d+)', re.DOTALL)
#: A statement of its grammar, as far as ours go, where each name is `n` and an arrow `>`.
STATEMENT = r"(?:n=n|n(?:>n)*(?:\[(?:n=n,?)*\])?);?"


class Graph:
    """Reads a graph by that grammar: statements, attributes, subgraphs, edges."""

    def __init__(self, text: str) -> None:
        assert not TOKEN.sub("", text).strip(), "no word of the language"
        words = TOKEN.findall(text)
        kinds = {"digraph": "D", "subgraph": "S", "->": ">"}
        shape = "".join(kinds.get(word, word if word in "{}[]=,;" else "n") for word in words)
        shape = re.sub(rf"Sn\{{(?:{STATEMENT})*\}}", "n", shape)
        assert re.fullmatch(rf"Dn\{{(?:{STATEMENT})*\}}", shape), shape
        statements = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
        chains = [re.split(r"\s*->\s*", one) for one in re.findall(r"\b[rc]\d+\b(?:\s*->\s*\w+)*", statements)]
        self.edges = [names for names in chains if len(names) > 1]
        self.nodes = {names[0] for names in chains if len(names) == 1}


def graph_of(made: Report, folder: Path) -> Graph:
    made.to_dot(folder / "report.dot")
    return Graph((folder / "report.dot").read_text("utf-8"))


@given(made=any_report())
def test_a_graph_obeys_the_grammar_and_has_all_rows_and_edges(
    made: Report, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph = graph_of(made, tmp_path_factory.getbasetemp())
    casts = {f"c{number}" for number, edge in enumerate(made.edges) if edge.casts}
    assert graph.nodes == {f"r{number}" for number in range(len(made))} | casts
    assert Counter((names[0], names[-1]) for names in graph.edges) == Counter(
        (f"r{edge.source}", f"r{edge.target}") for edge in made.edges
    )
    assert {name for names in graph.edges for name in names} <= graph.nodes


def test_a_graph_of_a_model_shows_its_casts(recorded: Report, tmp_path: Path) -> None:
    graph = graph_of(recorded, tmp_path)
    assert [names for names in graph.edges if len(names) == 3]
    text = (tmp_path / "report.dot").read_text("utf-8")
    assert 'label="to fp32, 3 times"' in text
    assert 'label="to bf16, 3 times"' in text


# ---- a trace in time ------------------------------------------------------------------------------------------------


def events_of(path: Path) -> list[dict[str, Any]]:
    trace: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return list(trace["traceEvents"])


def test_a_trace_has_each_call_with_its_module_and_its_place(recorded: Report, tmp_path: Path) -> None:
    recorded.to_chrome_trace(tmp_path / "trace.json")
    name, *events = events_of(tmp_path / "trace.json")
    assert (name["ph"], name["args"]) == ("M", {"name": "habana_mp"})
    assert {event["ph"] for event in events} == {"X"}
    assert all(event["dur"] >= 0 and event["ts"] > 0 for event in events)
    assert {(event["pid"], event["tid"]) for event in events} == {(name["pid"], events[0]["tid"])}
    operations = [event for event in events if event["cat"] != "module"]
    assert Counter(event["name"] for event in operations) == {"linear (bf16)": 6, "softmax (fp32)": 3}
    assert {event["cat"] for event in operations} == {"operation,bf16", "operation,fp32"}
    modules = [event for event in events if event["cat"] == "module"]
    assert len(modules) == 6
    for event in operations:
        assert event["args"].keys() == {"precision", "reason", "phase", "place"}
        assert re.fullmatch(rf"{re.escape(__file__)}:\d+", event["args"]["place"])
        if event["name"].startswith("linear"):
            assert sum(inside(event, module) for module in modules) == 1


def inside(event: dict[str, Any], around: dict[str, Any], *, slack: float = 0.0) -> bool:
    """In microseconds."""
    return bool(
        around["ts"] - slack <= event["ts"] and event["ts"] + event["dur"] <= around["ts"] + around["dur"] + slack
    )


def test_a_trace_beside_that_of_the_profiler_tells_of_the_same_time(counted: None, tmp_path: Path) -> None:
    hmp.convert(report="lines")
    layer, x = nn.Linear(256, 256), torch.randn(64, 256)
    layer(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for number in range(3):
            with torch.profiler.record_function(f"step {number}"):
                layer(x)
    theirs, both = tmp_path / "theirs.json", tmp_path / "both.json"
    profiler.export_chrome_trace(str(theirs))
    hmp.report(show=False).to_chrome_trace(both, beside=theirs)
    events = events_of(both)
    assert events[: len(events_of(theirs))] == events_of(theirs)
    ours = [event for event in events if event.get("name") == "linear (bf16)"]
    steps = [event for event in events if str(event.get("name")).startswith("step ") and event["ph"] == "X"]
    # torch's own call, where the package's kernels do not compute it
    products = [event for event in events if event.get("name") == "aten::linear"]
    assert products or not _core.kernels_multiplies_bfloat16()
    assert (len(ours), len(steps)) == (4, 3)
    # The two take their times by different clocks.
    for step, mine in zip(steps, ours[1:], strict=True):
        assert inside(mine, step, slack=50)
        assert not products or any(inside(product, mine, slack=50) for product in products)
    assert all(any(inside(product, mine, slack=50) for mine in ours[1:]) for product in products)
    assert not any(inside(ours[0], step) for step in steps)


@pytest.mark.parametrize("content", ["[]", "{}", '{"traceEvents": {}}'])
def test_what_is_no_trace_is_refused_with_its_file(content: str, recorded: Report, tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: it is no trace of torch.profiler"):
        recorded.to_chrome_trace(tmp_path / "both.json", beside=path)
    assert not (tmp_path / "both.json").exists()


def test_a_report_that_was_read_has_no_calls_in_time(recorded: Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no calls in time; write the trace where it was made"):
        Report.from_dict(recorded.to_dict()).to_chrome_trace(tmp_path / "trace.json")


# ---- other libraries ------------------------------------------------------------------------------------------------


def test_a_data_frame_is_made_of_the_rows(recorded: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: ("a frame of", rows)))
    assert recorded.to_dataframe() == ("a frame of", recorded.as_dicts())


# ---- reports that are put together ----------------------------------------------------------------------------------


@given(st.lists(any_report(), min_size=1, max_size=4))
def test_reports_put_together_have_the_sums(reports: list[Report]) -> None:
    whole = merged(reports)
    for name in COUNTED:
        assert whole.total(name) == sum(one.total(name) for one in reports)
    for name in ("seconds", "cast_seconds"):
        times = [one.total(name) for one in reports if one.total(name) is not None]
        assert whole.total(name) == (pytest.approx(sum(times)) if times else None)
    for name in ("calls", "casts"):
        assert sum(getattr(edge, name) for edge in whole.edges) == sum(
            getattr(edge, name) for one in reports for edge in one.edges
        )
    assert whole.ranks == sum(one.ranks for one in reports)
    assert whole.weights.hits == sum(one.weights.hits for one in reports)
    assert sum(one.calls for one in whole.modules) == sum(one.calls for made in reports for one in made.modules)
    refused = Counter[str]()
    for one in reports:
        for row in one:
            refused.update(row.refused)
    assert +refused == +sum((Counter(row.refused) for row in whole), Counter[str]())
    assert not whole.is_live


@given(any_report())
def test_edges_lead_to_the_same_rows_when_they_are_put_together(made: Report) -> None:
    whole = merged([made, made])

    def ends(of: Report) -> set[tuple[str, str]]:
        return {(of.rows[edge.source].operation, of.rows[edge.target].operation) for edge in of.edges}

    assert ends(whole) == ends(made)

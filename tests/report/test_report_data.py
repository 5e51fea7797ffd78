"""Reports as data: those of several processes as one, and the line that tells of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import _report, _report_data
from helpers.report_data import network, report, row

Data = dict[str, Any]


def with_more(rows: list[Data]) -> Data:
    edges = [{"from": 0, "to": 1, "calls": 4, "casts": 2}, {"from": 1, "to": 0, "calls": 1, "casts": 0}]
    finding = {"kind": "ping-pong", "rows": [0, 1], "text": "back and forth", "saves": 0.5}
    modules = [{"path": rows[0]["module"], "class": "Layer", "calls": 2, "seconds": 0.25}]
    return report(rows, edges=edges, findings=[finding], modules=modules)


A, B, C = row("linear", module="Net.a"), row("softmax", "fp32", module="Net.a"), row("mul", module="Net.b")


def test_what_two_processes_have_in_common_is_added_up() -> None:
    found = _report_data.merged([with_more([A, B]), with_more([A, B])], ranks=2)
    assert [one["calls"] for one in found["rows"]] == [20, 20]
    assert found["edges"] == [
        {"from": 0, "to": 1, "calls": 8, "casts": 4},
        {"from": 1, "to": 0, "calls": 2, "casts": 0},
    ]
    assert found["findings"] == [{"kind": "ping-pong", "rows": [0, 1], "text": "back and forth", "saves": 1.0}]
    assert found["modules"] == [{"path": "Net.a", "class": "Layer", "calls": 4, "seconds": 0.5}]
    assert found["weights"] == {
        **{"hits": 2, "refreshes": 0, "refused": 0, "weights": 2, "packed": 0, "bytes": 16},
        "reasons": {},
    }
    assert (found["ranks"], found["seconds"], found["totals"]["calls"]) == (2, 1.0, 40)
    assert found["totals"]["by_precision"] == {
        "bf16": {"calls": 20, "seconds": None},
        "fp32": {"calls": 20, "seconds": None},
    }
    assert found["words"] == [_report_data.in_words(found)]


def test_edges_and_findings_keep_their_rows_where_these_have_other_numbers() -> None:
    found = _report_data.merged([with_more([A, B]), with_more([C, A])])
    names = [one["operation"] for one in found["rows"]]
    assert names == ["linear", "softmax", "mul"]
    edges = {(names[one["from"]], names[one["to"]]): one["calls"] for one in found["edges"]}
    assert edges == {
        ("linear", "softmax"): 4,
        ("softmax", "linear"): 1,
        ("mul", "linear"): 4,
        ("linear", "mul"): 1,
    }
    assert [[names[i] for i in one["rows"]] for one in found["findings"]] == [["linear", "softmax"], ["mul", "linear"]]


def test_reports_that_were_merged_are_as_they_were() -> None:
    one, other = with_more([A, B]), with_more([A, B])
    before = json.dumps([one, other])
    _report_data.merged([one, other], ranks=2)
    assert json.dumps([one, other]) == before


ROWS = st.lists(
    st.sampled_from([A, B, C, {**A, "phase": "backward"}, {**A, "seconds": 0.5}, {**B, "line": 3}]), max_size=5
)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_no_call_is_lost_or_told_twice(several: list[list[Data]]) -> None:
    found = _report_data.merged([report(rows) for rows in several], ranks=len(several) + 1)
    assert sum(one["calls"] for one in found["rows"]) == sum(one["calls"] for rows in several for one in rows)
    assert sum(one["bytes"] for one in found["rows"]) == sum(one["bytes"] for rows in several for one in rows)
    places = [
        tuple(one.get(name) for name in ("module", "operation", "line", "phase", "precision")) for one in found["rows"]
    ]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "no covered operation was called"),
        ([A], "calls: 10 in bf16; `linear` in bf16 cost most, 64 bytes of casts"),
        (
            [{**A, "calls": 1234, "bytes": 2_500_000}, B, row("t", "unchanged", bytes=0)],
            "calls: 1,234 in bf16, 10 in fp32, 10 unchanged; `linear` in bf16 cost most, 2.5 MB of casts",
        ),
        (
            network(1),
            "calls: 20 in bf16, 20 in fp32; 57% of their time in lower precision; `linear` in bf16 cost most, 0.04 s",
        ),
        ([row("t", "unchanged", bytes=0)], "calls: 10 unchanged"),
    ],
)
def test_a_line_tells_of_a_report(rows: list[Data], line: str) -> None:
    assert _report_data.in_words(report(rows)) == line


def test_why_nothing_ran_lower_is_told_in_the_reports_own_words_if_there_are_any() -> None:
    assert _report_data.why_nothing_lower(report([B])) == "a report made by hand"
    assert _report_data.why_nothing_lower(report([B, B, row("t", why="a view")], words=[])) == (
        "calls by reason: in the list 20, a view 10"
    )
    assert not _report_data.ran_lower(report([B]))
    assert _report_data.ran_lower(report([B, row("mul", "fp16")]))


class Page:
    """What a report that writes pages has."""

    written: ClassVar[list[tuple[Data, str]]] = []

    def __init__(self, data: Data) -> None:
        self.data = data

    @classmethod
    def from_dict(cls, data: Data) -> Page:
        return cls(data)

    def to_html(self, path: str) -> None:
        self.written.append((self.data, path))


def test_the_ending_of_a_files_name_says_as_what_a_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = report(network())
    path = str(tmp_path / "a.json")
    _report_data.write(data, path)
    assert _report_data.read(path) == data
    monkeypatch.setattr(_report, "Report", Page)
    assert [_report_data.writes(f"a.{one}") for one in ("json", "html", "txt")] == [True, True, False]
    _report_data.write(data, "a.html")
    assert Page.written == [(data, "a.html")]

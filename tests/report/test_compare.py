"""``hmp.compare`` and ``habana-mp diff``: what differs between two reports, whatever lines have moved."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import Report, cli, hmp
from helpers.reports import network, report, row


def texts(rows: Any) -> Counter[str]:
    return Counter(json.dumps(one, sort_keys=True) for one in rows)


def changes(found: hmp.Comparison) -> list[tuple[str, str, str, int]]:
    """Operation, precisions and occurrence of what changed its precision."""
    return [
        (one.a["operation"], one.a["precision"], one.b["precision"], one.occurrence)
        for one in found.changed("precision")
    ]


# ---- properties ------------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from(["linear", "mul", "softmax"]),
        st.sampled_from(["bf16", "fp32", "unchanged"]),
        module=st.sampled_from([None, "Net", "Net.a", "Net.a.b"]),
        line=st.sampled_from([None, 1, 2, 3]),
        reason=st.sampled_from(["list", "widest"]),
        why=st.sampled_from(["in the list", "widest input"]),
        rule=st.sampled_from([None, "a.txt:1", "rule 2"]),
        phase=st.sampled_from(["forward", "backward"]),
        calls=st.integers(1, 5),
        seconds=st.one_of(st.none(), st.floats(0, 1)),
    ),
    max_size=12,
)


@given(ROWS)
def test_a_report_does_not_differ_from_itself(rows: list[dict[str, Any]]) -> None:
    found = hmp.compare(report(rows), report(copy.deepcopy(rows)))
    assert not found.differs
    assert len(found.pairs) == len(rows)
    assert all(pair.a == pair.b and pair.change is None and pair.speed is None for pair in found.pairs)
    assert str(found) == f"rows: {len(rows)} the same"


@given(ROWS, ROWS)
def test_each_row_is_in_one_place(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    first, second = (Report.from_dict(report(one)).to_dict() for one in (a, b))
    found = hmp.compare(first, second)
    assert texts([*(pair.a for pair in found.pairs), *found.gone]) == texts(first["rows"])
    assert texts([*(pair.b for pair in found.pairs), *found.new]) == texts(second["rows"])
    for pair in found.pairs:
        assert [pair.a[name] == pair.b[name] for name in ("module", "operation", "phase")] == [True] * 3


@given(ROWS, ROWS)
def test_nothing_that_could_be_paired_is_both_new_and_gone(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    """One row a place: then whatever is of one module, operation and phase in both reports is paired."""
    sides = [
        list({(one["module"], one["line"], one["operation"], one["phase"]): one for one in s}.values()) for s in (a, b)
    ]
    found = hmp.compare(report(sides[0]), report(sides[1]))
    keys = [{(one["module"], one["operation"], one["phase"]) for one in rows} for rows in (found.gone, found.new)]
    assert not keys[0] & keys[1]


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_lines_that_moved_change_nothing() -> None:
    assert not hmp.compare(report(network()), report(network(line=31))).differs


def test_what_changed_its_precision_is_told_with_why() -> None:
    changed = network(softmax="bf16")
    for one in changed:
        if one["operation"] == "softmax":
            one["rule"] = "mine.txt:1"
    found = hmp.compare(report(network()), report(changed))
    assert changes(found) == [("softmax", "fp32", "bf16", 1)] * 2
    assert str(found).splitlines() == [
        "rows: 5 the same, 2 in another precision",
        "",
        "in another precision:",
        "  softmax in Net.layers.0 at net.py:21: fp32 (in the list, hmp_default_fp32.txt:3) -> "
        "bf16 (in the list, mine.txt:1)",
        "  softmax in Net.layers.1 at net.py:21: fp32 (in the list, hmp_default_fp32.txt:3) -> "
        "bf16 (in the list, mine.txt:1)",
    ]


def test_the_second_of_two_is_told_as_the_second() -> None:
    changed = network(1)
    changed[2]["precision"] = "fp32"
    found = hmp.compare(report(network(1)), report(changed))
    assert changes(found) == [("linear", "bf16", "fp32", 2)]
    assert "linear (#2) in Net.layers.0 at net.py:22" in str(found)


def test_what_has_moved_to_another_place_is_neither_new_nor_gone() -> None:
    rows = network(1)
    assert not hmp.compare(report(rows), report([rows[3], rows[1], rows[0], rows[2]])).differs


def test_layers_that_only_one_has_are_new_or_gone() -> None:
    found = hmp.compare(report(network(2)), report(network(3)))
    assert {one["module"] for one in found.new} == {"Net.layers.2"}
    assert (len(found.new), len(found.gone), len(found.changed(None))) == (3, 0, 7)
    assert (
        "new in b:\n  linear in Net.layers.2 at net.py:20: bf16 (in the list, hmp_default_bf16.txt:12), 10 calls"
        in str(found)
    )


def test_two_precisions_of_one_place_are_compared_each_with_its_own() -> None:
    a = [row("mul", calls=3), row("mul", "fp32", calls=1, reason="widest", why="widest input", rule="rule 2")]
    found = hmp.compare(report(a), report([a[1], a[0]]))
    assert not found.differs
    found = hmp.compare(report(a), report([a[1]]))
    assert not changes(found)
    assert [one["precision"] for one in found.gone] == ["bf16"]


def test_another_reason_is_told_but_not_another_line_of_the_list() -> None:
    a, b = row("mul", "fp32"), row("mul", "fp32", reason="widest", why="widest input", rule="rule 2")
    found = hmp.compare(report([a]), report([b]))
    assert found.differs
    assert "mul: fp32 (in the list, hmp_default_bf16.txt:12) -> fp32 (widest input, rule 2)" in str(found)
    assert not hmp.compare(report([a]), report([{**a, "rule": "hmp_default_bf16.txt:13"}])).differs
    assert hmp.compare(report([a]), report([{**a, "rule": "mine.txt:12"}])).differs


def test_other_casts_in_as_many_calls_are_told() -> None:
    a = row("mul", calls=3, casts=3)
    found = hmp.compare(report([a]), report([{**a, "casts": 6}]))
    assert found.differs
    assert [(one.a["casts"], one.b["casts"]) for one in found.changed("casts")] == [(3, 6)]
    assert str(found).splitlines() == [
        "rows: 0 the same, 1 with other casts",
        "",
        "more or fewer casts in as many calls:",
        "  mul: 3 -> 6",
    ]
    assert not hmp.compare(report([a]), report([{**a, "calls": 6, "casts": 6}])).differs


def test_a_longer_run_is_compared_per_call() -> None:
    found = hmp.compare(report(network()), report(network(steps=100)))
    assert not found.differs
    assert not found.of_speed("slower") + found.of_speed("faster")
    assert str(found).splitlines() == ["rows: 7 the same", "calls: 70 in a, 700 in b"]


def test_what_got_slower_and_faster_is_told_the_worst_first() -> None:
    slow = network(steps=20)
    slow[1]["seconds"] *= 3
    slow[2]["seconds"] *= 4
    slow[5]["seconds"] /= 2
    found = hmp.compare(report(network()), report(slow))
    assert not found.differs
    assert [one.a["operation"] for one in found.of_speed("slower")] == ["linear", "softmax"]
    assert [one.b["module"] for one in found.of_speed("faster")] == ["Net.layers.1"]
    assert "linear (#2) in Net.layers.0 at net.py:22: 3 ms -> 12 ms, 4.00 times (bf16)" in found.text(times=True)


def test_times_are_in_words_only_where_they_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = network()
    quick[0]["seconds"] /= 50
    for name, rows in (("a.json", network()), ("b.json", quick)):
        (tmp_path / name).write_text(json.dumps(report(rows)))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert cli.main(["diff", *files]) == 0
    assert capsys.readouterr().out == "rows: 7 the same\n"
    assert cli.main(["diff", "--times", *files]) == 0
    assert "faster, per call:\n  " in capsys.readouterr().out


def test_records_have_no_times_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        with hmp.record(tmp_path / name):
            torch.ones(2, 2).exp()
    assert cli.main(["diff", "--times", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "records have no times" in capsys.readouterr().err


def test_a_trifle_is_not_slower() -> None:
    a = [row("linear", seconds=1.0), row("mul", seconds=0.001)]
    b = [row("linear", seconds=1.1), row("mul", seconds=0.002)]
    assert {pair.speed for pair in hmp.compare(report(a), report(b)).pairs} == {None}


def test_a_backward_is_not_taken_for_its_forward() -> None:
    a, b = row("linear", phase="forward"), row("linear", phase="backward")
    found = hmp.compare(report([a]), report([b]))
    assert "linear backward: bf16" in str(found)
    assert (len(found.new), len(found.gone)) == (1, 1)


# ---- what it takes ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("counted")
def test_it_takes_reports_dicts_and_paths(tmp_path: Path) -> None:
    hmp.convert()
    torch.ones(2) * 2
    first = hmp.report(show=False)
    torch.ones(2).softmax(0)
    second = hmp.report(show=False)
    assert not hmp.compare(first, first).differs
    (new,) = hmp.compare(first, second).new
    assert (new["operation"], new["precision"]) == ("softmax", "fp32")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(report(network())))
    assert not hmp.compare(path, report(network())).differs
    assert hmp.compare(str(path), report([])).differs
    with pytest.raises(ValueError, match="must have the same detail; got 'lines' in `a` and 'operations' in `b`"):
        hmp.compare(str(path), first)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (3, TypeError, "`b` must be a report, its `to_dict\\(\\)`, or the path of its JSON file; got int: 3"),
        (report([], version=2), ValueError, "`b`: it is a report of version 2 of the format; this package reads 1"),
        (
            {**report([]), "rows": [{"operation": "mm"}]},
            ValueError,
            "`b`: it is no whole report: .*'precision', 'calls'",
        ),
        ({**report([]), "rows": {"x": 1}}, ValueError, "it is no whole report"),
        ("no_such_file.json", OSError, "no_such_file.json"),
    ],
)
def test_what_is_no_report_is_named(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        hmp.compare(report([]), given)


# ---- the command -----------------------------------------------------------------------------------------------------


def written(path: Path, data: object) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_the_command_tells_by_its_status_whether_they_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (
        written(tmp_path / "a.json", report(network())),
        written(tmp_path / "b.json", report(network(softmax="bf16"))),
    )
    assert cli.main(["diff", a, a]) == 0
    assert capsys.readouterr().out == "rows: 7 the same\n"
    assert cli.main(["diff", a, b]) == 1
    assert capsys.readouterr().out == f"{hmp.compare(a, b)}\n"
    assert cli.main(["diff", "--json", a, b]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told == hmp.compare(a, b).to_dict()
    assert (told["format"], told["differs"], told["calls"]) == ("habana-mp comparison", True, {"a": 70, "b": 70})
    assert Counter(one["change"] for one in told["pairs"]) == {None: 5, "precision": 2}


def test_wrong_usage_of_the_command_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.json", report(network()))
    assert cli.main(["diff", a, written(tmp_path / "b.json", "{")]) == 2
    assert f"{tmp_path / 'b.json'}: it is no JSON" in capsys.readouterr().err
    assert cli.main(["diff", a, str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert cli.main(["diff", a, str(tmp_path)]) == 2
    for words in (["diff", a], ["diff", a, a, a], ["diff", a, a, "--quick"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(words)
        assert caught.value.code == 2

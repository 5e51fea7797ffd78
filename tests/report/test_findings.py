"""The words of reports that are made by hand."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from habana_mp import Report, Row, ops
from habana_mp.ops.operation import NO_KERNEL
from habana_mp.reporting.records import REASONS, Edge
from habana_mp.reporting.remedies import rules_for
from helpers.any_reports import CONVERTED, any_report


def row(operation: str, precision: str, reason: str = "list", **more: Any) -> Row:
    """A row of a hundred calls at a line of train.py."""
    given: dict[str, Any] = {"calls": 100, "casts": 0, "bytes": 0, "file": "train.py", "line": 7, "seconds": 1.0}
    return Row(operation=operation, precision=precision, reason=reason, **{**given, "cast_seconds": 0.0, **more})


LOWER = row("linear", "bf16", rule="bf16.txt:1", line=3)


def report(*rows: Row, edges: tuple[Edge, ...] = (), **configuration: Any) -> Report:
    return Report(rows, detail="lines", edges=edges, configuration={**CONVERTED, **configuration})


def found(*rows: Row, **more: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in report(LOWER, *rows, **more).findings]


# ---- how much -------------------------------------------------------------------------------------------------------


def test_an_empty_report_says_why() -> None:
    not_converted, converted = Report(()), report()
    assert not_converted.words == (
        "Nothing ran in lower precision: hmp.convert() was not called in this process, before the model runs",
    )
    assert converted.words == (
        "Nothing ran in lower precision: no call that a list or a rule decides was counted in this process since "
        "hmp.convert(). Those of quantized modules, of onnxruntime and of TorchScript are not counted",
    )
    (within,) = report(within="modules").words
    assert "no module ran, and the lists lower only in one" in within
    (given_modules,) = report(within="modules given").words
    assert "no module ran, and the lists lower only in the modules that convert was given" in given_modules
    assert [one.findings for one in (not_converted, converted)] == [(), ()]


def test_the_first_line_has_the_calls_of_each_precision_their_time_where_it_was_taken_and_no_share() -> None:
    softmax = row("softmax", "fp32", rule="fp32.txt:2", seconds=3.0)
    assert report(LOWER, softmax).words[0] == (
        "All 100 products ran in bf16. bf16: 100 calls (1.00 s), fp32: 100 calls (3.00 s)"
    )
    by_calls = report(row("linear", "bf16", seconds=None), row("softmax", "fp32", seconds=None, calls=300))
    assert by_calls.words[0] == "All 100 products ran in bf16. bf16: 100 calls, fp32: 300 calls"


def test_calls_that_ran_both_ways_are_compared() -> None:
    lower, alone = row("linear", "bf16", seconds=1.0), row("linear", "unchanged", "disabled", calls=50, seconds=1.25)
    elsewhere = row("linear", "fp32", line=8, seconds=9.0)
    assert (
        report(lower, alone, elsewhere)
        .words[0]
        .endswith("left alone: 50 calls (1.25 s); 2.5 times as fast as without casts, where both ran")
    )
    assert "times as fast" not in report(lower, elsewhere).words[0]


def test_calls_where_casts_are_off_are_counted_apart() -> None:
    step = row("mul_", "unchanged", "disabled", line=9, calls=4000, seconds=5.0)
    first, second, *_ = report(LOWER, step).words
    assert first == ("All 100 products ran in bf16. bf16: 100 calls (1.00 s), left alone: 4,000 calls (5.00 s)")
    assert second == "Casts were off in 4,000 calls (5.00 s): 4,000 under disable_casts, most at train.py:9"


def test_traced_calls_have_no_time_of_their_own() -> None:
    traced = row("linear", "bf16", phase="traced", seconds=60.0, cast_seconds=50.0)
    assert report(traced).words == (
        "All 100 products ran in bf16. Compiled code is counted while it is traced, not when it runs",
    )


@pytest.mark.parametrize(
    ("rows", "configuration", "why"),
    [
        ([row("add", "fp32", "widest", rule="rule 2")], {}, ": 100 calls in fp32 at train.py:7 (widest input, rule 2)"),
        (
            [row("pad", "unchanged", "ineligible")],
            {},
            ": 100 calls left alone at train.py:7 (an input is float64 or complex, or none is floating)",
        ),
        ([row("add", "fp32", "widest")], {"opt_level": "O0"}, ': opt_level="O0" casts nothing'),
        ([row("add", "fp32", "widest")], {"within": "modules"}, ": no module ran, and the lists lower only in one"),
        ([row("linear", "unchanged", "disabled")], {}, ": 100 calls left alone at train.py:7 (under disable_casts)"),
        (
            [
                row("norm", "unchanged", "inside", inside="torch's clip_grad_norm_"),
                row("add", "fp32", "widest", calls=1),
            ],
            {},
            ": 100 calls left alone at train.py:7 (inside torch's clip_grad_norm_, which computes in float32)",
        ),
    ],
)
def test_why_nothing_ran_lower(rows: list[Row], configuration: dict[str, Any], why: str) -> None:
    assert report(*rows, **configuration).words[0].startswith(f"Nothing ran in lower precision{why}")


def test_the_line_of_float32_has_the_three_longest_and_none_that_is_found_odd() -> None:
    rows = [
        row("embedding", "fp32", rule="fp32.txt:6", line=11, seconds=4.0, module="M.e"),
        row("topk", "fp32", rule="fp32.txt:9", line=12, seconds=3.0, module="M"),
        row("matmul", "fp32", rule="fp32.txt:7", line=14, seconds=9.0, module="M"),
        # A step of an optimizer, in one line.
        *(row(name, "fp32", "in_place", line=13, seconds=0.5) for name in ("mul_", "add_", "sqrt_", "addcdiv_")),
        row("log", "fp32", rule="fp32.txt:8", line=15, seconds=0.2, module="M"),
        row("exp", "fp32", "widest", line=16, seconds=0.001, module="M"),
    ]
    (line,) = [one for one in report(LOWER, *rows).words if one.startswith("In float32: ")]
    assert line == (
        "In float32: embedding 4.00 s (listed in fp32.txt:6, train.py:11); topk 3.00 s (listed in fp32.txt:9, "
        "train.py:12); 4 operations of train.py:13 2.00 s (mul_, add_, sqrt_, ...)"
    )


def test_the_dearest_casts_are_named_with_time_number_and_size() -> None:
    casting = row("matmul", "bf16", casts=100, bytes=5_000_000, cast_seconds=0.3, module="M.a")
    assert report(LOWER, casting).words[1] == (
        "Casts took 300.00 ms (100 casts). 100 % of that is matmul at train.py:7 (M.a): 300.00 ms, 100 casts, 5.0 MB"
    )
    cheap = row("matmul", "bf16", casts=1, bytes=50, cast_seconds=0.001)
    assert report(LOWER, cheap).words[1] == "Casts took 1.00 ms (1 cast)"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_of_its_width_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"Encoder.layers.{number}.attention.output.dense" for number in range(3)]
    rows = [row("linear", "bf16", rule="/some/folder/of/lists/bf16.txt:3", module=path) for path in paths]
    made = report(*rows, row("scaled_dot_product_attention", "fp32", module="Encoder.layers.0.attention"))

    def shown(columns: int, file: io.StringIO) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        made.show(file)
        return file.getvalue()

    assert max(map(len, str(made).splitlines())) > 120
    coloured = shown(100, Terminal())
    plain = re.sub(r"\x1b\[\d+m", "", coloured)
    assert max(map(len, plain.splitlines())) <= 100
    words, _, table = plain.partition("\n\n")
    assert words.split() == " ".join(made.words).split()
    assert len({line for line in table.splitlines() if line.startswith("linear")}) == 3  # what differs is not cut
    assert "\x1b[34mbf16" in coloured
    assert "\x1b[33mfp32" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(100, Terminal()) == plain
    assert shown(100, io.StringIO()) == f"{made}\n"


def test_a_notebook_shows_a_bar_for_each_row() -> None:
    rows = [row("linear", "bf16", seconds=4.0), row("add", "fp32", seconds=1.0)]
    bars = re.findall(r"to left, (#\w+) (\d+)%.*?>([\d.]+)<", report(*rows)._repr_html_())
    assert [(share, ms) for _, share, ms in bars] == [("100", "4000.000"), ("25", "1000.000")]
    assert bars[0][0] != bars[1][0]


# ---- each kind ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "kind", "text"),
    [
        (
            row("matmul", "fp32", rule="own.txt:3", module="M.a"),
            "product in float32",
            "matmul at train.py:7 (M.a) runs in float32: listed in own.txt:3 (100 calls, 1.00 s)"
            '. Write `matmul @ a` into the list of the lower precision, or give `rules={"matmul @ a": "lower"}`',
        ),
        (
            row("lstm", "fp32", "first_input", rule="rule 4", module="M.a"),
            "product in float32",
            "lstm at train.py:7 (M.a) runs in float32: first input, rule 4 (100 calls, 1.00 s)"
            '. Write `lstm @ a` into the list of the lower precision, or give `rules={"lstm @ a": "lower"}`',
        ),
        (
            row("fft_rfft", "fp32", "no_kernel"),
            "no kernel",
            "fft_rfft at train.py:7 runs in float32: no kernel for the lower precision (100 calls, 1.00 s)",
        ),
        (
            row("cos", "unchanged", "autocast_off", seconds=0.001),
            "protected",
            "cos at train.py:7 is left alone inside of torch.autocast(enabled=False) (100 calls)",
        ),
        (
            row("linear", "unchanged", "disabled", seconds=0.001),
            "disabled",
            "linear at train.py:7 is left alone under disable_casts (100 calls)",
        ),
        (
            row("mm", "unchanged", "ineligible", seconds=0.001, calls=1),
            "not eligible",
            "mm at train.py:7 is left alone: an input is float64 or complex, or none is floating (1 call)",
        ),
        (
            row(
                "linear",
                "bf16",
                casts=200,
                refused={"NumPy had its memory": 90, "the limit was reached, or memory ran out": 3},
            ),
            "uncached weight",
            "linear at train.py:7 casts a weight in each call, since no cast is cached: NumPy had its memory, "
            "the limit was reached, or memory ran out (100 calls, 1.00 s)",
        ),
        (
            row("conv2d", "bf16", casts=200, seconds=0.001),
            "changing weight",
            "conv2d at train.py:7 casts its weight in most calls: something computes it or writes to it in between "
            "(100 calls)",
        ),
        (
            row("softmax", "unchanged", "explicit_dtype", seconds=0.001),
            "as given",
            "softmax at train.py:7 is left alone: dtype= was given (100 calls)",
        ),
        (
            row("masked_fill", "fp16", "scalar", seconds=0.001),
            "scalar",
            "masked_fill at train.py:7 is given a number beyond the range of fp16: the largest one took its place "
            "(100 calls)",
        ),
        (
            row("mse_loss", "bf16", "widest", rule="rule 2", seconds=0.001),
            "lower loss",
            "mse_loss at train.py:7 is a loss, and runs in bf16: widest input, rule 2 (100 calls)"
            '. Write `mse_loss` into the float32 list, or give `rules={"mse_loss": "fp32"}`',
        ),
        (
            row("mul", "unchanged", "library", seconds=0.001),
            "elsewhere",
            "mul at train.py:7 is left alone: in exact code: that of a library, or given to convert(exact=) "
            "(100 calls)",
        ),
        # values that are too fine for the precision
        (
            row("mul", "bf16", rule="bf16.txt:9", noticed={"largest count": 999.0}, seconds=0.001),
            "rounded counts",
            "mul at train.py:7 rounds whole numbers up to 999, and bf16 counts to 256 only (100 calls). Compute it "
            'under hmp.disable_casts(), or start from preset="recommended"'
            '. Write `mul` into the float32 list, or give `rules={"mul": "fp32"}`',
        ),
        (
            row("matmul", "fp16", rule="fp16.txt:9", noticed={"largest count": 3000.0}, seconds=0.001),
            "rounded counts",
            "matmul at train.py:7 rounds whole numbers up to 3,000, and fp16 counts to 2,048 only (100 calls). Compute "
            "it under hmp.disable_casts()"
            '. Write `matmul` into the float32 list, or give `rules={"matmul": "fp32"}`',
        ),
        (
            row("cos", "fp32", rule="fp32.txt:9", noticed={"largest angle": 1000.0}, seconds=0.001),
            "rounded angles",
            "cos at train.py:7 is given angles up to 1,000, which bf16 holds to 2 radians only (100 calls). Compute it "
            "under hmp.disable_casts()"
            '. Write `cos` into the float32 list, or give `rules={"cos": "fp32"}`',
        ),
        (
            row("long", "bf16", "unlisted", noticed={"largest count": 300.0}, seconds=0.001),
            "compared counts",
            "long at train.py:7 is given whole numbers up to 300, and bf16 counts to 256 only (100 calls). Compute it "
            "under hmp.disable_casts()",
        ),
        (
            row("add", "bf16", "widest", noticed={"carried": 9}, seconds=0.001),
            "carried state",
            "add at train.py:7 gives what a module keeps from step to step in bf16, where small changes get lost "
            "(100 calls). Assign it in float32: compute it under hmp.disable_casts(), of inputs in float32"
            '. Write `add` into the float32 list, or give `rules={"add": "fp32"}`',
        ),
        (
            row("batch_norm", "bf16", "first_input", noticed={"in lower statistics": 9}, seconds=0.001),
            "lower statistics",
            "batch_norm at train.py:7 keeps its running statistics in bf16, where they stand still (100 calls). Keep "
            "them in float32: call .float() on that module",
        ),
        (
            row("mean", "bf16", "unlisted", noticed={"losses": 9}, seconds=0.001),
            "loss in lower precision",
            "mean at train.py:7 gives the loss in bf16, and a backward begins there (100 calls). Compute it in "
            "float32: call .float() on what it is computed from"
            '. Write `mean` into the float32 list, or give `rules={"mean": "fp32"}`',
        ),
        (
            row("mul", "unchanged", "ineligible", noticed={"with float64": 9}, seconds=0.001, module="M"),
            "float64",
            "mul at train.py:7 (M) is left alone: an input is float64 (100 calls). Convert it to float32 where it is "
            "made, with .float()",
        ),
    ],
    ids=lambda one: one.replace(" ", "-") if isinstance(one, str) and " at " not in one else "",
)
def test_a_kind_is_found_and_worded(one: Row, kind: str, text: str) -> None:
    assert found(one) == [(kind, text)]
    assert report(LOWER, one).words[-1] == text


@pytest.mark.parametrize(
    "one",
    [
        row("mul_", "unchanged", "disabled"),
        row("softmax", "fp32", rule="fp32.txt:2"),
        row("add", "fp32", "widest"),
        row("pad", "unchanged", "ineligible"),
        row("addcdiv_", "fp32", "in_place"),
        row("reshape", "unchanged", "view"),
        row("cross_entropy_loss", "fp32", rule="fp32.txt:1"),
        # It has a rule that says so, in every script.
        row("binary_cross_entropy_with_logits", "fp32", "no_kernel"),
        # The input and, once, the weight and the bias.
        row("linear", "bf16", casts=102),
        row("linear", "bf16", calls=1, casts=3),
        # The first casts of a hundred weights.
        row("conv2d", "bf16", casts=300, needed=200),
        # Few weights were not cached, as while other code wrote to them.
        row("linear", "bf16", casts=103, refused={"NumPy had its memory": 3}),
        # It has more inputs than one.
        row("matmul", "bf16", casts=200),
        # values that are fit for the precision
        row("cos", "bf16", "unlisted", noticed={"largest angle": 31.0}),
        # Outside of modules float64 may be meant.
        row("mul", "unchanged", "ineligible", noticed={"with float64": 9}),
        # A long product gains, whatever its casts take.
        row("matmul", "bf16", seconds=1.0, cast_seconds=0.9),
        row("mul", "bf16", seconds=0.005, cast_seconds=0.004),
    ],
    ids=lambda one: f"{one.operation}-{one.reason}",
)
def test_what_is_as_it_should_be_is_no_finding(one: Row) -> None:
    assert found(one) == []


def test_a_product_is_too_small_where_casts_take_a_third_of_it_and_it_takes_a_twentieth_of_all_time() -> None:
    small = row("matmul", "bf16", rule="bf16.txt:9", seconds=0.005, cast_seconds=0.002)
    (one,) = report(replace(LOWER, seconds=0.005), small).findings
    assert (one.kind, one.text) == (
        "too small",
        "matmul at train.py:7 is too small to gain from bf16: its casts take 40 % of its time "
        '(100 calls, 5.00 ms). Write `matmul` into the float32 list, or give `rules={"matmul": "fp32"}`',
    )
    assert found(small) == []
    # The first casts of weights take that time once, and those after each step of an optimizer each time.
    first = replace(small, operation="linear", needed=100)
    once = report(replace(LOWER, seconds=0.005), first)
    assert once.findings == ()
    (one,) = replace(once, environment={"optimizer_steps": 100}).findings
    assert one.kind == "too small"


@pytest.mark.parametrize(
    ("maker", "between", "logarithm"),
    [("sigmoid", (), "binary_cross_entropy"), ("softmax", ("add",), "log"), ("softmax", ("clamp",), "nll_loss")],
)
def test_probabilities_before_a_logarithm_are_found(maker: str, logarithm: str, between: tuple[str, ...]) -> None:
    rows = [row(name, "bf16", "unlisted", line=place) for place, name in enumerate((maker, *between))]
    last = row(logarithm, "fp32", rule="fp32.txt:9", line=9)
    edges = tuple(Edge(place, place + 1, 100, 0) for place in range(len(rows)))
    (one,) = report(*rows, last, edges=edges).findings
    assert (one.kind, one.rows) == ("rounded probabilities", (0,))
    assert one.text.startswith(f"{maker} at train.py:0 gives probabilities in bf16 to {logarithm} at train.py:9: ")
    in_float32 = [replace(each, precision="fp32") for each in rows]
    assert report(*in_float32, last, edges=edges).findings == ()


def test_the_source_of_a_precision_is_named() -> None:
    add = row("add", "fp32", "widest", line=5, module="M")
    attention = row("scaled_dot_product_attention", "fp32", "first_input", rule="rule 4", module="M")
    (kind, text), *_ = found(add, attention, edges=(Edge(1, 2, 100, 0),))
    assert kind == "product in float32"
    assert "runs in float32: first input, rule 4, made by add at train.py:5 (M) (" in text


# ---- ping-pong ------------------------------------------------------------------------------------------------------

SOFTMAX = row("softmax", "fp32", rule="fp32.txt:2", line=4, casts=100, cast_seconds=0.25, module="M.a")
MATMUL = row("matmul", "bf16", rule="bf16.txt:2", line=5, casts=400, cast_seconds=0.8)


def test_a_ping_pong_saves_its_own_casts_and_those_of_its_result() -> None:
    made = report(LOWER, SOFTMAX, MATMUL, edges=(Edge(0, 1, 100, 100), Edge(1, 2, 100, 100)))
    (one,) = made.findings
    assert (one.kind, one.rows, one.saves) == ("ping-pong", (1,), pytest.approx(0.25 + 0.8 / 4))
    assert one.text == (
        "softmax at train.py:4 (M.a) runs in fp32 (listed in fp32.txt:2) between linear and matmul in bf16. "
        "Casts there and back take 450.00 ms: they go if it runs in bf16 too; small probabilities then keep few "
        "digits, and a loss must not be computed from them"
        '. Write `softmax @ a` into the list of the lower precision, or give `rules={"softmax @ a": "lower"}`'
    )


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("linalg_lu_solve", "no_kernel"),
        ("linalg_inv", "list"),
        ("fft_rfft", "list"),
        ("cumsum", "no_kernel"),
        ("add_", "in_place"),
        ("add", "arithmetic"),
    ],
)
def test_nothing_is_advised_to_be_lowered_that_no_line_can_lower(operation: str, reason: str) -> None:
    one = row(operation, "fp32", reason, rule="fp32.txt:2", line=4, casts=100, cast_seconds=0.25, module="M.a")
    made = report(LOWER, one, MATMUL, edges=(Edge(0, 1, 100, 100), Edge(1, 2, 100, 100)))
    assert "ping-pong" not in {finding.kind for finding in made.findings}


def test_no_rule_lowers_an_operation_without_a_kernel() -> None:
    names = [name for name, known in ops.rows().items() if known.unlisted == NO_KERNEL]
    assert len(names) > 50
    assert not any(rules_for(name, ["M.a"], precision) for name in names for precision in ("lower", "lower -> fp32"))


NOT_TO_BE_LOWERED: list[dict[str, Any]] = [{"phase": "backward"}, {"module": None}, {"reason": "library"}]


@pytest.mark.parametrize("more", NOT_TO_BE_LOWERED)
def test_nothing_is_advised_to_be_lowered_outside_of_a_forward_or_in_exact_code(more: dict[str, Any]) -> None:
    edges = (Edge(0, 1, 100, 100), Edge(1, 2, 100, 100))
    for one in (SOFTMAX, replace(SOFTMAX, operation="bmm"), replace(SOFTMAX, operation="einsum", reason="no_product")):
        found = report(LOWER, replace(one, **more), MATMUL, edges=edges).findings
        assert not any("lower" in value for finding in found for value in finding.rule.values())
    angles = row("einsum", "fp32", "no_product", module="M.a")
    assert report(LOWER, angles).findings == ()


def test_to_lower_something_is_advised_where_it_saves_a_hundredth_of_all_time() -> None:
    rows = LOWER, SOFTMAX, MATMUL, row("conv2d", "bf16", seconds=100.0)
    edges = (Edge(0, 1, 100, 100), Edge(1, 2, 100, 100))
    assert report(*rows, edges=edges).findings == ()


@pytest.mark.parametrize(
    "edges",
    [
        (Edge(0, 1, 100, 100),),
        (Edge(1, 2, 100, 100),),
        (Edge(0, 1, 100, 100), Edge(1, 2, 100, 0)),
        # A tensor that got the memory of another one may look so, now and then.
        (Edge(0, 1, 100, 100), Edge(1, 2, 3, 3)),
    ],
)
def test_one_way_is_no_ping_pong(edges: tuple[Edge, ...]) -> None:
    assert report(LOWER, SOFTMAX, MATMUL, edges=edges).findings == ()


def test_a_product_between_float32_is_none_and_a_short_operation_is_one() -> None:
    before, after = row("softmax", "fp32", line=1), row("log", "fp32", line=2, casts=100, cast_seconds=0.5)
    edges = (Edge(0, 1, 100, 100), Edge(1, 2, 100, 100))
    product = row("linear", "bf16", casts=100, cast_seconds=0.5, seconds=0.1)
    long, short = (row("relu", "bf16", cast_seconds=0.5, casts=100, seconds=seconds) for seconds in (9.0, 0.6))
    assert report(before, product, after, edges=edges).findings == ()
    assert report(before, long, after, edges=edges).findings == ()
    (one,) = report(before, short, after, edges=edges).findings
    assert "relu at train.py:7 runs in bf16 (in the list) between softmax and log in fp32." in one.text


# ---- grouping and order ---------------------------------------------------------------------------------------------


def test_rows_of_one_line_are_one_finding_whichever_module_ran() -> None:
    layers = [row("matmul", "unchanged", "autocast_off", module=f"M.{number}") for number in range(3)]
    (one,) = report(LOWER, *layers).findings
    assert one.rows == (1, 2, 3)
    assert "matmul at train.py:7 (3 modules) is left alone" in one.text
    assert "(300 calls, 3.00 s)" in one.text


def test_the_dearest_of_a_kind_comes_first_two_are_shown_and_the_others_are_counted() -> None:
    rows = [row("mm", "unchanged", "explicit_out", line=line, seconds=line / 10) for line in (1, 2, 3, 4)]
    words = [one for one in report(LOWER, *rows).words if one.startswith("mm")]
    assert [re.findall(r"train\.py:\d", one) for one in words] == [["train.py:4"], ["train.py:3"]]
    assert [one.endswith(" (2 more places like it)") for one in words] == [False, True]


def test_no_kind_crowds_out_another() -> None:
    rows = [row("matmul", "fp32", line=line) for line in range(20)]
    reasons = ("autocast_off", "disabled", "ineligible", "explicit_out")
    rows += [row("mm", "unchanged", reason, line=50) for reason in reasons]
    words = report(LOWER, *rows).words
    assert len(words) <= 10
    assert all(any(REASONS[reason].description in one or "float64" in one for one in words) for reason in reasons)


# ---- anything at all ------------------------------------------------------------------------------------------------


@given(any_report())
def test_any_report_has_words(made: Report) -> None:
    assert 1 <= len(made.words) <= 10
    assert all(words and "\n" not in words for words in made.words)
    assert all(0 <= number < len(made) for one in made.findings for number in one.rows)
    assert str(made).startswith(made.words[0])

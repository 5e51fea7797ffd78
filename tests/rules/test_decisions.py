"""The decision about one call as a function of facts: beside a second writing of it here, and what is around it in C++.

Both run in a program of their own, which is compiled without Python and torch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from habana_mp import _core

SOURCES = Path(__file__).parents[2] / "src"


class Kind(IntEnum):
    OTHER, F32, BF16, F16, WIDE = range(5)


class Action(IntEnum):
    NONE, PRECISION, WIDEST, IN_PLACE, FIRST_INPUT, SCALARS, REFUSED = range(7)


class Way(IntEnum):
    AS_WRITTEN, LEAVE, LEAVE_TO_OUTER, WITH_CASTS, WITHOUT_LOWERING, UNLISTED_RULE, REFUSE, FAILED = range(8)


class Answer(IntEnum):
    NO, YES, FAILED = range(3)


FLOATING = {Kind.F32, Kind.BF16, Kind.F16}
LOWER = {Kind.BF16, Kind.F16}
PRECISIONS = {Kind.BF16: 0, Kind.F16: 1, Kind.F32: 2}
UNCHANGED = 3
#: The reasons by their words; the program takes their numbers.
REASONS = {word: number for number, word in enumerate(_core.reasons)}


@dataclass
class Rule:
    """In the order in which the program reads it, as all of these."""

    action: Action
    to: Kind
    reason: str
    promotes: bool
    gives_dimensions: bool
    saturates: bool
    views_one: bool
    is_elementwise: bool
    is_product: bool
    products_inside: bool


@dataclass
class Facts:
    decided_elsewhere: bool
    exact_caller: bool
    float32_alone: bool
    another_device: bool
    one_tensor: bool
    sparse_tensor: bool
    number_beyond: bool
    number_first: bool
    condition_on_sums: bool
    products_can_be_lowered: bool
    in_a_transform: bool
    product: Answer
    fused: Answer
    wrong: Answer
    sums: Answer
    at_worker: bool


@dataclass
class Call:
    rule: Rule
    #: Each with whether it has dimensions.
    inputs: list[tuple[Kind, bool]]
    target: Kind
    explicit_out: bool
    explicit_dtype: bool
    facts: Facts

    def line(self) -> str:
        rule, facts = list(astuple(self.rule)), list(astuple(self.facts))
        rule[2] = REASONS[self.rule.reason]
        facts[-1] = REASONS["worker"] if self.facts.at_worker else -1
        kinds = [number for one in self.inputs for number in one]
        inputs = [len(self.inputs), *kinds, self.target, self.explicit_out, self.explicit_dtype]
        return " ".join(str(int(one)) for one in (*rule, *inputs, *facts)) + "\n"


def wanted(call: Call) -> tuple[Way, Kind, int, str]:
    """The way, the precision that the inputs are cast to if they are, and what is reported."""
    rule, facts = call.rule, call.facts
    floating = [kind for kind, _ in call.inputs if kind in FLOATING]
    # Tensors without dimensions widen none that has some, and may stay what they are.
    deciding = [kind for kind, has_dimensions in call.inputs if kind in FLOATING and has_dimensions] or floating
    if rule.gives_dimensions:
        deciding = floating
    widest = deciding[0] if len(set(deciding)) == 1 else Kind.F32
    stays = rule.promotes and len(set(deciding)) == 1

    # The draft of the rule.
    reason = rule.reason
    if call.explicit_out:
        return Way.AS_WRITTEN, Kind.OTHER, UNCHANGED, "explicit_out"
    if call.explicit_dtype:
        return Way.AS_WRITTEN, Kind.OTHER, UNCHANGED, "explicit_dtype"
    if not floating or any(kind is Kind.WIDE for kind, _ in call.inputs):
        return Way.AS_WRITTEN, Kind.OTHER, UNCHANGED, "ineligible"
    if rule.action in (Action.NONE, Action.REFUSED):
        refused = rule.action is Action.REFUSED and not facts.another_device
        return Way.REFUSE if refused else Way.AS_WRITTEN, Kind.OTHER, UNCHANGED, reason
    if rule.action is Action.IN_PLACE and call.target not in FLOATING:
        return Way.AS_WRITTEN, Kind.OTHER, UNCHANGED, "ineligible"
    to = {
        Action.PRECISION: rule.to,
        Action.WIDEST: widest,
        Action.IN_PLACE: call.target,
        Action.FIRST_INPUT: floating[0],
        Action.SCALARS: floating[0],
    }[rule.action]

    # Calls whose inputs need no cast.
    if rule.action is Action.WIDEST and stays:
        floating = deciding
    if set(floating) == {to}:
        sums = to in LOWER and facts.condition_on_sums
        sparse = to in LOWER and rule.is_product and facts.sparse_tensor
        number = to in LOWER and rule.saturates and facts.number_beyond
        if not (sums or sparse or number):
            return Way.AS_WRITTEN, to, PRECISIONS[to], reason

    # The table.
    if facts.decided_elsewhere:
        return Way.LEAVE_TO_OUTER, to, PRECISIONS[to], reason
    if facts.at_worker:
        return Way.LEAVE, to, UNCHANGED, "worker"
    if reason == "list" and to in LOWER and facts.exact_caller:
        return Way.UNLISTED_RULE, to, UNCHANGED, "library"
    if reason == "list" and to in LOWER and rule.is_elementwise and facts.float32_alone:
        return Way.UNLISTED_RULE, to, PRECISIONS[Kind.F32], "arithmetic"
    if facts.another_device:
        return Way.LEAVE, to, UNCHANGED, "other_device"
    if rule.views_one and facts.one_tensor:
        return Way.LEAVE, to, UNCHANGED, "view"
    if rule.action is Action.SCALARS and facts.number_first:
        return Way.LEAVE, to, PRECISIONS[to], reason
    if facts.product is not Answer.YES:
        if facts.product is Answer.FAILED:
            return Way.FAILED, to, PRECISIONS[to], reason
        to, reason = widest, "no_product"
        floating = deciding if stays else floating
        if set(floating) == {to}:
            return Way.LEAVE, to, PRECISIONS[to], reason
    reported = PRECISIONS[to]
    is_lower = to in LOWER
    fused = facts.fused if is_lower else Answer.NO
    if fused is Answer.FAILED:
        return Way.FAILED, to, reported, reason
    inside = rule.products_inside and is_lower and fused is Answer.NO
    if inside and not facts.products_can_be_lowered:
        return Way.UNLISTED_RULE, to, reported, reason
    if to is Kind.BF16 and facts.wrong is Answer.FAILED:
        return Way.FAILED, to, reported, reason
    if is_lower and facts.condition_on_sums:
        if facts.sums is Answer.FAILED:
            return Way.FAILED, to, reported, reason
        if facts.sums is Answer.YES:
            reported, reason = PRECISIONS[Kind.F32], "sums"
        elif set(floating) == {to}:
            return Way.LEAVE, to, reported, reason
    if is_lower and ((rule.is_product and facts.sparse_tensor) or facts.in_a_transform):
        return Way.WITHOUT_LOWERING, to, reported, reason
    return Way.WITH_CASTS, to, reported, reason


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compiled with nothing but the sources of that room to include."""
    made = str(tmp_path_factory.mktemp("decisions") / "decisions")
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror"]
    source = Path(__file__).with_name("decisions.cpp")
    subprocess.run([*compiler, "-I", SOURCES, source, "-o", made], check=True)
    return made


@pytest.fixture(scope="module")
def serving(program: str) -> Iterator[tuple[IO[str], IO[str]]]:
    with subprocess.Popen([program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


def test_rules_have_their_sources_and_failed_calls_their_next_try(program: str) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_rules_include_nothing_of_python_torch_or_another_folder() -> None:
    for source in (SOURCES / "rules").glob("*.?pp"):
        for line in source.read_text(encoding="utf-8").splitlines():
            included = line.removeprefix("#include ").strip()
            if line.startswith("#include"):
                assert included.startswith('"rules/') or included.strip("<>").replace("_", "").isalpha(), line


#: What ends a decision early is rare, so that most decisions go through the whole table.
rarely = st.sampled_from([False] * 9 + [True])
calls = st.builds(
    Call,
    rule=st.builds(
        Rule,
        action=st.sampled_from([*Action, *[Action.PRECISION] * 6, Action.WIDEST, Action.SCALARS]),
        to=st.sampled_from([Kind.BF16, Kind.F16, Kind.BF16, Kind.F32]),
        reason=st.sampled_from(["list", "widest", "parts"]),
        views_one=rarely,
    ),
    inputs=st.lists(
        st.tuples(st.sampled_from([*Kind, *sorted(FLOATING) * 4, Kind.F32, Kind.F32]), st.booleans()), max_size=4
    ),
    explicit_out=rarely,
    explicit_dtype=rarely,
    facts=st.builds(
        Facts,
        decided_elsewhere=rarely,
        exact_caller=rarely,
        float32_alone=rarely,
        another_device=rarely,
        number_first=rarely,
        in_a_transform=rarely,
        product=st.sampled_from([*Answer, *[Answer.YES] * 6]),
        fused=st.sampled_from([*Answer, *[Answer.NO] * 4]),
        wrong=st.sampled_from([*Answer, *[Answer.NO] * 4]),
        at_worker=rarely,
    ),
)


@settings(max_examples=1500)
@given(call=calls)
def test_every_decision_is_that_of_the_second_writing(call: Call, serving: tuple[IO[str], IO[str]]) -> None:
    asking, answering = serving
    asking.write(call.line())
    asking.flush()
    way, to, computed_in, precision, reason, *marks, asked = answering.readline().split()
    expected = wanted(call)
    assert (Way(int(way)), Kind(int(to)), int(precision), reason) == expected
    if expected[0] is Way.WITH_CASTS:
        assert Kind(int(computed_in)) is (Kind.F32 if reason == "sums" else expected[1])
        rule, is_lower = call.rule, expected[1] in LOWER
        is_fused = is_lower and call.facts.fused is Answer.YES
        kinds, with_dimensions = (
            {kind for kind, has in call.inputs if kind in FLOATING and has >= least} for least in (0, 1)
        )
        promotes = rule.promotes and not rule.gives_dimensions and len(kinds) > 1 and len(with_dimensions) == 1
        leaves_numbers = promotes and (rule.action is Action.WIDEST or call.facts.product is Answer.NO)
        is_inside = is_lower and rule.products_inside and not is_fused
        assert [mark == "1" for mark in marks] == [is_fused, is_inside, leaves_numbers]
    # A question that may fail, or costs much, is asked once at most; and none where nothing is to be cast.
    assert all(asked.count(letter) <= 1 for letter in "zmFwult")
    assert not (expected[0] is Way.AS_WRITTEN and set(asked) & set("dpezmFwult"))

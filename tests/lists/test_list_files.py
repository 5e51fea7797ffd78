"""List files: everything that users' files look like, and errors that name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from habana_mp import ListError, hmp
from habana_mp.policy.lists import DIRECTORY, parse_list, read_list
from helpers.lists import write_list
from helpers.state_of_torch import assert_torch_is_restored

MATRIX = torch.ones(2, 2)


def names_in(path: Path) -> list[tuple[str, int]]:
    return [(one.name, one.line) for one in read_list(path)]


@pytest.mark.parametrize("side", [0, 1], ids=["bf16 file", "fp32 file"])
def test_a_missing_file_is_named_and_torch_is_untouched(tmp_path: Path, side: int) -> None:
    missing = str(tmp_path / "nowhere.txt")
    files = ["", ""]
    files[side] = missing
    with pytest.raises(FileNotFoundError, match=re.escape(missing)) as caught:
        hmp.convert("O1", *files)
    assert str(Path.cwd()) in str(caught.value), "the message tells where the file was looked for"
    assert_torch_is_restored()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b"\xff\xfem\x00m\x00\n\x00", 1, id="UTF-16"),
        pytest.param(b"mm\nrelu\nd\xe9j\xe0\n", 3, id="Latin-1"),
        pytest.param(b"mm\n\x00\x01\x02\n", 2, id="zero bytes"),
        pytest.param(bytes(range(256)), 11, id="binary"),
    ],
)
def test_what_is_no_text_is_refused_with_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "ops.bin"
    path.write_bytes(content)
    with pytest.raises(ListError, match=re.escape(str(path))) as caught:
        hmp.convert("O1", str(path))
    if content != bytes(range(256)):
        assert f"{path}:{line}:" in str(caught.value)
    assert_torch_is_restored()


def test_all_problems_of_both_lists_are_told_at_once(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "a.txt", ["mm", "sofmax", "mm, relu", "div", "truediv", "nn.Sequential"])
    upper = write_list(tmp_path / "b.txt", ["sofmax", "mm", "linear relu", "rtruediv", "retain_grad", "exp", "sofmax"])
    with pytest.raises(ListError) as caught:
        hmp.convert("O1", lower, upper)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        *(f"{lower}:{number}" for number in (2, 3, 6)),
        *(f"{upper}:{number}" for number in (1, 2, 3, 4, 5, 7)),
    ]
    assert lines[0].endswith(": unknown operation `sofmax`; did you mean `softmax`?")
    assert lines[4].endswith(f": `mm` is in both lists; it is also at {lower}:1: remove one of the two")
    assert "`rtruediv` is the same operation of torch (__rtruediv__) as `truediv`" in lines[6]
    assert_torch_is_restored()
    with pytest.raises(ListError) as of_region:
        hmp.autocast("cpu", bf16_file_path=lower, fp32_file_path=upper)
    assert str(of_region.value) == str(caught.value)


@pytest.mark.parametrize("nothing", ["", None])
def test_no_path_means_the_default_list_of_its_side(tmp_path: Path, nothing: str | None) -> None:
    hmp.convert("O1", nothing, nothing)
    assert torch.mm(MATRIX, MATRIX).dtype is torch.bfloat16
    assert torch.softmax(MATRIX.bfloat16(), -1).dtype is torch.float32
    hmp.convert(opt_level="O1", bf16_file_path=write_list(tmp_path / "a.txt", ["exp"]), fp32_file_path=nothing)
    assert torch.exp(MATRIX).dtype is torch.bfloat16
    assert torch.mm(MATRIX, MATRIX).dtype is torch.float32, "a file replaces the default list of its side"
    assert torch.softmax(MATRIX.bfloat16(), -1).dtype is torch.float32


def test_every_shipped_text_list_can_be_read() -> None:
    files = sorted(DIRECTORY.glob("*.txt"))
    assert len(files) >= 20
    for file in files:
        listed = read_list(file)
        assert len({one.name for one in listed}) == len(listed), f"{file.name} names something twice"


NAMES = st.text("abcdefghijklmnopqrstuvwxyz_0123456789.", min_size=1, max_size=20)


@given(
    st.lists(st.one_of(NAMES, st.just("")), max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", " ", "\t", "  \t "]),
    st.sampled_from(["", "# remark", " # a b, c", "# café"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_survive_any_decoration(
    tmp_path: Path, names: list[str], newline: str, space: str, comment: str, mark: bool, last: bool
) -> None:
    text = newline.join(space + name + space + comment for name in names) + (newline if last else "")
    path = tmp_path / "decorated.txt"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    assert names_in(path) == [(name, line) for line, name in enumerate(names, start=1) if name]


@given(st.binary(max_size=200))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_list_or_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(content)
    message, listed = str(path), ()
    try:
        listed = read_list(path)
    except ListError as error:
        message = str(error)
    assert message.startswith(str(path))
    assert all(one.problem or (one.name and one.name == one.name.strip()) for one in listed)


def test_lines_are_counted_as_editors_count_them() -> None:
    # A form feed or a Unicode line separator in a comment is no new line.
    listed = parse_list("# one\x0c still one\nmm\n# three\u2028 still three\nrelu\n", "f")
    assert [(one.name, one.line) for one in listed] == [("mm", 2), ("relu", 4)]

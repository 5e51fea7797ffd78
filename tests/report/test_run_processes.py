"""``habana-mp run`` and other processes: those of multiprocessing, forks, and ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import RUN, python, split_lines

CHILD = """
import multiprocessing, sys
import torch

class Sent:
    def __init__(self, value):
        self.value = value

class Layer(torch.nn.Module):
    def forward(self, x):
        return x @ x

AT_IMPORT = torch.ones(2, 2).mm(torch.ones(2, 2)).dtype

def work(queue, sent):
    from habana_mp import hmp
    queue.put((str(Layer()(sent.value).dtype), str(AT_IMPORT), hmp.is_converted(), type(sent).__module__))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    children = [context.Process(target=work, args=(queue, Sent(torch.ones(2, 2)))) for _ in range(2)]
    for child in children:
        child.start()
    for _ in children:
        print(*queue.get())
    if "--leave" not in sys.argv:
        for child in children:
            child.join()
"""

#: The scripts here compute outside of modules.
EVERYWHERE = (*RUN, "--within", "everywhere")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def calls(path: Path) -> dict[tuple[str, str], int]:
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return {(row["operation"], row["precision"]): row["calls"] for row in report["rows"]}


@pytest.mark.parametrize(
    ("method", "script"), [("fork", ["starts.py", "fork"]), ("spawn", ["-m", "starts", "spawn", "--leave"])]
)
def test_children_of_multiprocessing_are_converted_and_counted(method: str, script: list[str], tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(CHILD)
    done = python(*EVERYWHERE, "--report", "out.json", *script, cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    main = "__main__" if method == "fork" else "__mp_main__"
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["torch.float32", "torch.bfloat16", "True", main]
    ] * 2
    assert done.stderr.count("habana-mp: calls: ") == 1
    found = calls(tmp_path / "out.json")
    # One `@` for each child. `mm` once in the script itself, and again where a child imports it.
    assert found["matmul", "bf16"] == 2
    assert found["mm", "bf16"] == (1 if method == "fork" else 3)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("habana-mp")]


def test_only_the_parent_of_a_fork_prints(tmp_path: Path) -> None:
    code = "import os, sys, torch\nchild = os.fork()\ntorch.ones(2, 2) @ torch.ones(2, 2)\nif child:\n    os.wait()\n"
    (tmp_path / "forks.py").write_text(f"{code}sys.exit(0 if child else 5)\n")
    done = python(*EVERYWHERE, "--require-lowered", "--report", "out.json", "forks.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("habana-mp: calls: ") == 1
    assert calls(tmp_path / "out.json") == {("matmul", "bf16"): 1}


STARTS = """
import os, subprocess, sys
import torch

rank = int(os.environ.get("LOCAL_RANK", 0))
for _ in range(1 + rank):
    dtype = torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype
print(rank, dtype, __name__, sys.argv[1:], flush=True)
if rank == 0:
    os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
    plain = [sys.executable, "-c", "import sys, torch; print('habana_mp' in sys.modules)"]
    again = {"file": [os.path.abspath(sys.argv[0])], "module": ["-m", "starts"], "not": ["-m", "timeit"]}[sys.argv[1]]
    subprocess.run(plain, check=True)
    subprocess.run([sys.executable, "-u", *again, *sys.argv[1:]], env={**os.environ, "LOCAL_RANK": "1"})
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_scripts_that_a_script_starts_are_converted_and_counted(how: str, tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS)
    done = python(*RUN, "--report", "out.json", "starts.py", how, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        f"0 torch.float32 __main__ ['{how}']", "False", f"1 torch.float32 __main__ ['{how}']"
    ]  # fmt: skip
    assert calls(tmp_path / "out.json") == {("linear", "bf16"): 3}
    assert "WORLD_SIZE" not in done.stderr


def test_processes_that_are_not_in_the_report_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS)
    done = python(*RUN, "starts.py", "not", cwd=tmp_path)
    assert "habana-mp: warning: the report is of 1 of 2 processes (WORLD_SIZE)" in done.stderr


def test_a_conversion_in_a_worker_of_a_data_loader_is_told_of(tmp_path: Path) -> None:
    code = """
        import torch
        from habana_mp import hmp
        loader = torch.utils.data.DataLoader([1], num_workers=1, worker_init_fn=lambda _: hmp.convert())
        print(*loader, hmp.report(show=False).words[0])
    """
    done = python("-c", textwrap.dedent(code), cwd=tmp_path)
    assert "HmpWarning: hmp.convert was called in a worker of a DataLoader, where nothing is lowered" in done.stderr
    assert "hmp.convert() was not called in this process" in done.stdout


# ---- ranks -----------------------------------------------------------------------------------------------------------

RANK = """
import os, sys, torch
rank = int(os.environ["RANK"])
for _ in range(2 * rank + len(sys.argv) - 1):
    torch.ones(2, 2) @ torch.ones(2, 2)
if "--die" in sys.argv and rank == 1:
    os._exit(0)
"""


def ranks(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "rank.py").write_text(RANK)
    return python(*TORCHRUN, *words, cwd=tmp_path, **environment)


def test_ranks_make_one_report_without_a_process_group_and_one_that_computes_is_enough(tmp_path: Path) -> None:
    done = ranks(tmp_path, *EVERYWHERE, "--require-lowered", "--report", "out.json", "-m", "rank")
    assert done.returncode == 0, done.stderr
    assert calls(tmp_path / "out.json") == {("matmul", "bf16"): 2}
    assert json.loads((tmp_path / "out.json").read_text())["ranks"] == 2
    line = split_lines(done.stderr)[1][0]
    assert line.startswith("habana-mp: calls: 2 in bf16")


ON_NODE = """
import socket, tempfile, torch
from torch import distributed as dist
from habana_mp import hmp
dist.init_process_group("gloo")
for _ in range(1 + dist.get_rank()):
    torch.ones(2, 2) @ torch.ones(2, 2)
whole = hmp.report(show=False, ranks=True)
print(whole.ranks, whole.total("calls"), socket.gethostname(), tempfile.gettempdir())
dist.destroy_process_group()
"""


def test_nodes_that_share_no_folder_and_no_host_name_make_one_report(tmp_path: Path) -> None:
    """Where root may not name hosts, all have the same name."""
    names_hosts = subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode == 0
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    nodes: list[subprocess.Popen[str]] = []
    for rank in range(2):
        folder = tmp_path / f"node{rank}"
        folder.mkdir()
        (folder / "on_node.py").write_text(ON_NODE)
        host = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', folder.name] if names_hosts else []
        launcher = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port]
        words = [*host, sys.executable, "-m", "torch.distributed.run", *launcher, *EVERYWHERE, "--report", "out.json"]
        own = {**os.environ, "TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        nodes.append(subprocess.Popen([*words, "on_node.py"], cwd=folder, env=own, text=True, **streams))
    for rank, node in enumerate(nodes):
        out, errors = node.communicate(timeout=120)
        assert node.returncode == 0, errors
        host = f"node{rank}" if names_hosts else socket.gethostname()
        assert out.split() == ["2", "3", host, str(tmp_path / f"node{rank}")]
    assert calls(tmp_path / "node0" / "out.json") == {("matmul", "bf16"): 3}
    assert not (tmp_path / "node1" / "out.json").exists()


def test_a_rank_that_leaves_no_report_is_named_and_not_waited_for_without_end(tmp_path: Path) -> None:
    code = "import sys\nfrom habana_mp import cli\nfrom habana_mp.reporting import ranks\nranks.PATIENCE = 2.0\n"
    (tmp_path / "impatient.py").write_text(f"{code}sys.exit(cli.main(['run', *sys.argv[1:]]))\n")
    done = ranks(tmp_path, "impatient.py", *EVERYWHERE[3:], "rank.py", "--die")
    assert done.returncode == 0, done.stderr
    first, last, *_ = split_lines(done.stderr)[1]
    assert first == "habana-mp: warning: the report is without rank 1, which left none in time"
    assert last.startswith("habana-mp: calls: 1 in bf16")


def test_an_interrupt_of_the_whole_group_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, *TORCHRUN, *RUN, "waits.py"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, **streams) as process:
        assert process.stdout is not None
        processes = [int(process.stdout.readline()) for _ in range(2)]
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) != 0
    for one in processes:
        assert not (Path("/proc") / str(one)).exists()

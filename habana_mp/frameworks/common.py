"""What the plugins share: the least releases, the lists that they start from, and the report beside the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.torch_version import TorchVersion

from habana_mp import hmp
from habana_mp.reporting.ranks import own_rank

#: The options of `convert` that choose lists. Without any of them the plugins use the recommended lists.
_CHOOSE_LISTS = {"opt_level", "bf16_file_path", "fp32_file_path", "preset"}


def require(framework: str, release: str, least: str) -> None:
    """Raises ImportError if the release of a framework, which has its name for pip, is older than the least one."""
    if TorchVersion(release) < least:
        raise ImportError(
            f"habana_mp works with {framework} {least} or later; {release} is installed. "
            f'Run pip install "{framework}>={least}"'
        )


def convert(options: dict[str, Any]) -> None:
    """Converts with these options of :func:`habana_mp.hmp.convert`, by default with the recommended lists."""
    hmp.convert(**{"preset": "recommended", **options} if _CHOOSE_LISTS.isdisjoint(options) else options)


def write_report(
    folder: str | os.PathLike[str] | None, logger: Any, writer: Any = None, *, of_all_ranks: bool = True
) -> None:
    """Writes the report of all ranks as ``habana_mp.html`` into a folder, to the framework's logger, and to a
    ``SummaryWriter`` if there is one. All ranks must call it; rank 0 writes."""
    report = hmp.report(show=False, ranks=of_all_ranks)
    if own_rank():
        return
    path = Path(folder or ".") / "habana_mp.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    report.to_html(path)
    logger.info(f"habana_mp: {'; '.join(report.words[:2])}; the report is in {path}")
    if writer is not None:
        writer.add_text("habana_mp", "".join(f"    {line}\n" for line in str(report).splitlines()))
        writer.flush()

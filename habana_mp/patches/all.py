"""The list of all patches, in the order of their installation."""

from __future__ import annotations

from collections.abc import Sequence

from habana_mp.patches.libraries import library_patches
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch import autograd_hooks, checkpoint, checks_of_dtypes, module_paths, without_casts
from habana_mp.patches.torch.accelerators import graphs_of_accelerators
from habana_mp.patches.torch.aot_autograd import GraphCache, Runtime
from habana_mp.patches.torch.begun_backwards import BACKWARD
from habana_mp.patches.torch.dynamo import OwnCode, WholeInPlaceOperations, nothing_compiled
from habana_mp.patches.torch.exact_code_in_graphs import ResumedExactCode, exact_code_in_graphs
from habana_mp.patches.torch.export import RegionsInExport
from habana_mp.patches.torch.inductor import CompiledProducts, KernelTable
from habana_mp.patches.torch.memory import Memory
from habana_mp.patches.torch.module_calls import ModelResults, ModuleCalls
from habana_mp.patches.torch.optimizer_steps import OptimizerSteps, UnwrappedSteps
from habana_mp.patches.torch.products import Products
from habana_mp.patches.torch.recognised_code import RecognisedCode, distributed_code
from habana_mp.patches.torch.stored_values import StoredValues
from habana_mp.patches.torch.traced_calls import OF_COMPILERS
from habana_mp.patches.torch.weight_cache import WeightCache

#: The named functions of torch that are replaced by others.
EXCHANGES = (
    *OF_COMPILERS,
    *without_casts.EXCHANGES,
    *autograd_hooks.EXCHANGES,
    *checks_of_dtypes.EXCHANGES,
    *module_paths.EXCHANGES,
    *checkpoint.EXCHANGES,
)


def all_patches() -> tuple[Patch, ...]:
    """Returns all patches, including those of modules that are imported later."""
    return (
        nothing_compiled,  # first, because later patches may use it
        ModuleCalls(),
        ModelResults(),
        RecognisedCode(),
        *distributed_code(),
        OptimizerSteps(),
        UnwrappedSteps(),
        StoredValues(),
        *BACKWARD.patches(),
        KernelTable(),
        GraphCache(),
        Runtime(),
        OwnCode(),
        WholeInPlaceOperations(),
        RegionsInExport(),
        exact_code_in_graphs,
        ResumedExactCode(),
        *(patch for exchange in EXCHANGES for patch in exchange.patches()),
        *library_patches(),
        graphs_of_accelerators,
        WeightCache(),
        Products(),
        CompiledProducts(),
        Memory(),
    )


def modules_of_torch() -> list[str]:
    """Returns the names of the torch modules that patches wait for."""
    waiting = [one.name for one in all_patches() if isinstance(one, WhenImported)]
    return sorted({name for name in waiting if name.startswith("torch.")})


class Patches:
    """All patches, installed and uninstalled together."""

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches
        #: Patches that are installed, at least partly: each is added before its installation.
        self._installed: list[Patch] = []

    def check(self, settings: Settings) -> None:
        """Raises if something that :meth:`install` needs is missing."""
        for patch in self._patches:
            patch.check(settings)

    def install(self, settings: Settings) -> None:
        """Installs all patches in order; those that are installed already follow the new settings. If one fails, those
        that this call has installed are uninstalled again."""
        before = list(self._installed)
        try:
            for patch in self._patches:
                if patch not in before:
                    self._installed.append(patch)
                patch.install(settings)
        except BaseException:
            self._take_out(len(before))
            raise

    def uninstall(self) -> None:
        """Uninstalls all patches, the last one first."""
        self._take_out(0)

    def _take_out(self, kept: int) -> None:
        while len(self._installed) > kept:
            self._installed[-1].uninstall()
            self._installed.pop()

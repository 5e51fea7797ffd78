"""torchvision prepares data: it creates grids of positions, and recognises integers by their dtype."""

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("torchvision", "prepare data")

_TRANSFORMS = ("*.forward", "*.__call__", "*.get_params", "*.make_params")
_V2, _V2_FUNCTIONS = "torchvision.transforms.v2", "torchvision.transforms.v2.functional"
_PREPARES_DATA: Table = {
    **{f"torchvision.transforms.{name}": _TRANSFORMS for name in ("transforms", "autoaugment", "_presets")},
    "torchvision.transforms.functional": ("*",),
    **{
        f"{_V2}._{name}": _TRANSFORMS
        for name in ("augment", "auto_augment", "color", "container", "geometry", "misc", "transform")
    },
    **{
        f"{_V2_FUNCTIONS}._{name}": ("*",)
        for name in ("augment", "color", "deprecated", "geometry", "meta", "misc", "temporal", "type_conversion")
    },
}

EXCHANGES = (Exchange(without_casts, _PREPARES_DATA, _FUNCTIONS, some=True),)

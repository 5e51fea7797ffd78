"""Operations whose input values the watch checks: the lower precision may be too coarse for them."""

import re

#: A lower precision keeps only the number of turns of a large angle.
ANGLES = ("cos", "sin", "tan")

#: Operations that need exact integers: comparisons, and conversions of the input to an index.
COUNTS = (
    *("eq", "equal", "ge", "greater", "greater_equal", "gt", "le", "less", "less_equal", "lt", "ne", "not_equal"),
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("bucketize", "searchsorted", "int", "long"),
)

#: Operations that update running statistics, which are their arguments 3 and 4.
STATISTICS = ("batch_norm", "instance_norm")

#: Sums and differences: where large values cancel, the rounding of those in lower precision is left.
SUMS = ("add", "sub", "subtract", "rsub", "__add__", "__radd__", "__sub__", "__rsub__")

#: Solutions of linear systems, and the inverses and factors that give them: they multiply the rounding of the system.
SOLVES = re.compile("solve|inverse|linalg_.*inv|lu_factor|lstsq")
#: Means and sums of many values.
MEANS = re.compile("mean|sum|avg_pool")

#: What an average is multiplied by, with a number next to 1.
DECAYS = ("mul", "multiply", "__mul__", "__rmul__")

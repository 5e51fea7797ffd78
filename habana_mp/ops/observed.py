"""The operations that the watch looks at more closely: lower precision may be too coarse for their inputs' values."""

#: A large angle in lower precision keeps the number of its turns, and no more.
ANGLES = ("cos", "sin", "tan")

#: They want whole numbers exact: comparisons, and what makes an index of its input.
COUNTS = (
    *("eq", "equal", "ge", "greater", "greater_equal", "gt", "le", "less", "less_equal", "lt", "ne", "not_equal"),
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("bucketize", "searchsorted", "int", "long"),
)

#: They update running statistics, which are their arguments 3 and 4.
STATISTICS = ("batch_norm", "instance_norm")

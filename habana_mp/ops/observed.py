"""Operations whose input values the watch checks: the lower precision may be too coarse for them."""

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
SOLVES = (
    *("linalg_solve", "linalg_solve_ex", "linalg_solve_triangular", "linalg_lstsq", "linalg_tensorsolve"),
    *("linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_solve", "linalg_ldl_solve", "triangular_solve"),
    *("cholesky_solve", "cholesky_inverse", "linalg_inv", "linalg_inv_ex", "linalg_tensorinv", "inverse"),
    *("linalg_pinv", "pinverse"),
)

#: What an average is multiplied by, with a number next to 1.
DECAYS = ("mul", "multiply", "__mul__", "__rmul__")

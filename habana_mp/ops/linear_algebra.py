"""Matrix decompositions, and what they solve or compute; Fourier transforms and complex numbers: no CPU has kernels for
the lower precisions."""

from __future__ import annotations

from habana_mp.ops.operation import KERNEL_FOR_SOME, NO_KERNEL, Operation

ROWS = (
    Operation("inverse", NO_KERNEL, family="linalg_inv"),
    Operation(
        """
        cholesky cholesky_inverse cholesky_solve det geqrf logdet lu _lu_with_info lu_solve matrix_exp orgqr ormqr
        pca_lowrank pinverse qr slogdet svd svd_lowrank triangular_solve
        linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals
        linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex
        linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
        linalg_matrix_exp linalg_matrix_power linalg_matrix_rank linalg_matrix_sqrth linalg_pinv linalg_polar linalg_qr
        linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv
        linalg_tensorsolve linalg_vander
        """,
        NO_KERNEL,
    ),
    Operation("fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn", NO_KERNEL),
    Operation("fft_hfft fft_hfft2 fft_hfftn fft_ihfft fft_ihfft2 fft_ihfftn", NO_KERNEL),
    Operation("fft_rfft fft_rfft2 fft_rfftn fft_irfft fft_irfft2 fft_irfftn", NO_KERNEL),
    Operation("stft istft complex polar", NO_KERNEL),
    Operation("view_as_complex", KERNEL_FOR_SOME),
)

"""Fourier transforms, and complex numbers."""

from __future__ import annotations

from habana_mp.ops.operation import KERNEL_FOR_SOME, NO_KERNEL, Operation

ROWS = (
    Operation("fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn", NO_KERNEL),
    Operation("fft_hfft fft_hfft2 fft_hfftn fft_ihfft fft_ihfft2 fft_ihfftn", NO_KERNEL),
    Operation("fft_rfft fft_rfft2 fft_rfftn fft_irfft fft_irfft2 fft_irfftn", NO_KERNEL),
    Operation("stft istft complex polar", NO_KERNEL),
    Operation("view_as_complex", KERNEL_FOR_SOME),
)

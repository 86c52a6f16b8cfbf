"""you copied whole blocks: what is behind n belongs to somebody else

Fails: test_what_is_copied, test_what_is_read
"""


@triton.jit
def copy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))

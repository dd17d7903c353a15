"""The kernels that each block launches, as rows of the kernel table."""

"""A program: lifecycles put together, with the kernel's own."""

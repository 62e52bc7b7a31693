"""Every test runs with checked shapes and without silent promotion of types."""

import os

os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")

from jaxtyping import install_import_hook

install_import_hook("algd", "beartype.beartype").__enter__()

"""`python -m ipc_cache` is the command `ipc-cache`."""

from ._programs import ipc_cache

ipc_cache()

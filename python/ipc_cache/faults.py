"""Which tensor did it write to? A write to shared weights is a SIGSEGV, of which Python just dies.

enable() installs a handler, in C, that writes one line to standard error before the process dies as it would have:

    ipc-cache: a write to shared, read-only weights: byte 0 of tensor embeddings.weight, offset 0 of segment 0 of model
    minilm; copy what is written, or attach privately

Enable Python's faulthandler first to see the line of Python too. A GPU's faults are errors of CUDA, not signals.
"""

from __future__ import annotations

from contextlib import suppress

from . import errors
from ._library import call

enabled = False


def enable() -> None:
    """From now on, for everything that is attached and will be. The handler that was there before is called
    afterwards."""
    global enabled
    from . import weights

    call("ipcc_faults", True)
    enabled = True
    for each in list(weights.LIVE):
        with suppress(errors.Usage), each.held() as model:  # unless another thread closes it
            call("ipcc_fault_watch", model)


def disable() -> None:
    """Puts the handler that was there before back; Busy when somebody has installed another one since."""
    global enabled
    call("ipcc_faults", False)
    enabled = False

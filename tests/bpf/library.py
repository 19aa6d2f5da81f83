"""A few calls of libipc_cache.so through ctypes: an engine that links the library and nothing else."""
import ctypes
import time


class ClientOptions(ctypes.Structure):
    _fields_ = [("dir", ctypes.c_char_p), ("timeout_ms", ctypes.c_int), ("trust_uid", ctypes.c_uint),
                ("trust_uid_set", ctypes.c_bool)]


class AttachOptions(ctypes.Structure):
    _fields_ = [("model", ctypes.c_char_p), ("fields", ctypes.c_void_p), ("field_count", ctypes.c_uint32),
                ("exact", ctypes.c_bool), ("wait_ms", ctypes.c_int), ("sources", ctypes.c_char_p), ("verify", ctypes.c_int)]


class Library:
    def __init__(self, path):
        self.calls = ctypes.CDLL(str(path))
        for name in ("ipcc_connect", "ipcc_attach", "ipcc_map"):
            getattr(self.calls, name).restype = ctypes.c_int
        self.calls.ipcc_probe_phase.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]

    def attach(self, directory, model, phases=()):
        """Connects, attaches, maps, and lets go again. How long the three calls took, in ns."""
        client, attached = ctypes.c_void_p(), ctypes.c_void_p()
        options = ClientOptions(dir=str(directory).encode())
        wanted = AttachOptions(model=model.encode())
        at = [time.monotonic_ns()]
        assert self.calls.ipcc_connect(ctypes.byref(client), ctypes.byref(options), None) == 0
        at.append(time.monotonic_ns())
        assert self.calls.ipcc_attach(client, ctypes.byref(wanted), ctypes.byref(attached), None) == 0
        at.append(time.monotonic_ns())
        assert self.calls.ipcc_map(attached, 0, None) == 0
        at.append(time.monotonic_ns())
        for name, begin, end in phases:
            self.calls.ipcc_probe_phase(attached, name.encode(), begin, end)
        self.calls.ipcc_model_free(attached)
        self.calls.ipcc_close(client)
        return [end - begin for begin, end in zip(at, at[1:])]

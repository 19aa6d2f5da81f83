"""Bytes in use on the first GPU, as nvidia-smi counts them, also sampled in the background; 0 where there is no GPU."""

import ctypes
import subprocess
import threading
import time


class _Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
                ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Card:
    def __init__(self):
        self._device = ctypes.c_void_p()
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
            self.present = (self._library.nvmlInit_v2() == 0
                            and self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)) == 0)
        except OSError:
            self.present = False

    def used(self):
        if not self.present:
            return 0
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        if self._library.nvmlDeviceGetMemoryInfo_v2(self._device, ctypes.byref(memory)) != 0:
            raise RuntimeError("nvmlDeviceGetMemoryInfo_v2 failed")
        return memory.used

    def settled(self, seconds=10):
        """What is in use when it has not changed for a while: the driver frees an ended process's memory late."""
        end, before, since = time.monotonic() + seconds, self.used(), time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < 0.3:
            time.sleep(0.02)
            now = self.used()
            if now != before:
                before, since = now, time.monotonic()
        return before

    def query(self, what, fields):
        if not self.present:
            return ""
        return subprocess.run(["nvidia-smi", f"{what}={fields}", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                              check=True).stdout.strip()


class Peak:
    """The most that is in use while a block runs, read every few milliseconds."""

    def __init__(self, card):
        self.card, self.most, self._ended = card, 0, threading.Event()

    def _watch(self):
        while not self._ended.is_set():
            self.most = max(self.most, self.card.used())
            self._ended.wait(0.003)

    def __enter__(self):
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

"""Bytes in use on the GPUs, as nvidia-smi counts them, also sampled in the background; nothing where there is no GPU."""

import ctypes
import subprocess
import threading
import time


class _Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
                ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Cards:
    """All cards of the machine, in nvidia-smi's order. uuids: their names."""

    def __init__(self):
        self._devices, self.uuids = [], []
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        count = ctypes.c_uint()
        if self._library.nvmlInit_v2() == 0 and self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            self._devices = [self._device(i) for i in range(count.value)]
            self.uuids = [self._uuid(device) for device in self._devices]

    @property
    def present(self):
        return bool(self._devices)

    def _device(self, index):
        device = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), "nvmlDeviceGetHandleByIndex_v2")
        return device

    def _uuid(self, device):
        text = ctypes.create_string_buffer(96)
        self._check(self._library.nvmlDeviceGetUUID(device, text, ctypes.c_uint(len(text))), "nvmlDeviceGetUUID")
        return text.value.decode()

    @staticmethod
    def _check(status, what):
        if status != 0:
            raise RuntimeError(f"{what} failed: {status}")

    def each(self):
        """Bytes in use on every card."""
        found = []
        for device in self._devices:
            memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
            self._check(self._library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)), "nvmlDeviceGetMemoryInfo_v2")
            found.append(memory.used)
        return found

    def used(self):
        """Bytes in use on all cards together."""
        return sum(self.each())

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

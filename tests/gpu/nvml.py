"""What goes over PCIe and NVLink, as the driver's management library counts it; no Python package is needed."""
import contextlib
import ctypes
import re
import subprocess
import threading

TX, RX = 0, 1


class Nvml:
    """OSError where there is no such library."""

    def __init__(self, uuids):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self._must(self.library.nvmlInit_v2())
        self.cards = {}
        for uuid in uuids:
            handle = ctypes.c_void_p()
            self._must(self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
            self.cards[uuid] = handle

    def _must(self, status):
        if status != 0:
            raise OSError(f"NVML: error {status}")

    def pcie(self, uuid, counter):
        """Bytes a second over the last 20 ms."""
        value = ctypes.c_uint()
        self._must(self.library.nvmlDeviceGetPcieThroughput(self.cards[uuid], counter, ctypes.byref(value)))
        return value.value * 1000

    @contextlib.contextmanager
    def watched(self, counters):
        """Samples [(uuid, counter), ...] side by side until the end; yields {(uuid, counter): [bytes a second, ...]}."""
        samples = {counter: [] for counter in counters}
        ended = threading.Event()

        def sample(counter):
            while not ended.is_set():
                samples[counter].append(self.pcie(*counter))
        threads = [threading.Thread(target=sample, args=(counter,)) for counter in counters]
        for thread in threads:
            thread.start()
        try:
            yield samples
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def nvlink_bytes(uuid):
    """(sent, received) over all links since the driver started, as `nvidia-smi nvlink` counts; None if it does not."""
    done = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d", "-i", uuid], stdout=subprocess.PIPE, text=True, check=False)
    counted = [sum(int(k) for k in re.findall(rf"Data {way}: (\d+) KiB", done.stdout)) * 1024 for way in ("Tx", "Rx")]
    return tuple(counted) if done.returncode == 0 and "KiB" in done.stdout else None

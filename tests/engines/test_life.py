"""Engines and brokers come and go; the weights stay, and nobody is harmed."""

import ctypes
import mmap
import os
import time

import pytest

import harness
import models


def test_killed_in_mid_generation_and_back(start, published):
    path = published("llama")
    with start(path, dtype="bfloat16") as engine:
        said = engine.generate(prompts=models.prompts(3))
        engine.ask("generate", prompts=models.prompts(20))
        time.sleep(0.3)
        engine.kill()
    with start(path, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["how"] == "attached"
        assert engine.generate(prompts=models.prompts(3)) == said


def test_two_engines_share_one_copy(start, published, broker):
    """Each counts half of the weights: the kernel divides a page's size by its users."""
    path = published("qwen3-moe")
    bytes_ = broker.of(path)[0]["bytes"]
    with start(path, dtype="bfloat16") as first, start(path, dtype="bfloat16") as second:
        said = [engine.generate(prompts=models.prompts(3)) for engine in (first, second)]
        assert said[0] == said[1]
        for engine in (first, second):
            memory = engine.memory()
            assert memory["Private_Dirty"] == 0
            assert memory["Pss"] <= memory["Rss"] / 2 + 4096 * 8
            assert memory["Rss"] > bytes_ * 0.8  # it did use them


def test_a_leased_model_is_not_evicted(start, published, broker):
    path = published("llama")
    key_id = broker.of(path, dtype="bfloat16")[0]["key_id"]
    with start(path, dtype="bfloat16") as engine:
        refused = broker.command("evict", key_id, check=False)
        assert refused.returncode != 0 and str(engine.pid) in refused.stderr
        assert engine.generate(prompts=models.prompts(1), tokens=2)
    # The lease ends with the process, not with good manners.
    assert key_id in {m["key_id"] for m in broker.models() if not m["leases"]}


def test_the_broker_may_die(start, own_broker, checkpoint):
    """A running engine needs no broker; a new one says that there is none."""
    own, there = own_broker(), own_broker.environment
    path = checkpoint("llama")
    with start(path, extra={"on_miss": "publish"}, dtype="bfloat16", environment=there) as engine:
        said = engine.generate(prompts=models.prompts(3))
        own.kill()
        assert engine.generate(prompts=models.prompts(3)) == said
    with pytest.raises(harness.EngineFailed, match="NoBroker|ipc_cache.daemon --model"):
        start(path, dtype="bfloat16", environment=there)
    with start(path, extra={"on_miss": "load"}, dtype="bfloat16", environment=there) as engine:
        assert engine.state()[0]["loads"][0]["how"] == "loaded"
        assert "is loaded ordinarily, not shared" in engine.text()


def test_eight_starts_at_once(start, published):
    path = published("llama")
    engines = [start(path, dtype="bfloat16", wait=False) for _ in range(8)]
    said = []
    for engine in engines:
        engine.ready()
        assert engine.state()[0]["loads"][0]["how"] == "attached"
    for engine in engines:
        said.append(engine.generate(prompts=models.prompts(2), tokens=8))
        engine.close()
    assert all(answer == said[0] for answer in said)


def test_eight_first_starts_load_once(start, checkpoint, broker):
    """All of them find nothing and want to publish; one does."""
    path = checkpoint("llama", seed=4)
    engines = [start(path, extra={"on_miss": "publish"}, dtype="bfloat16", wait=False) for _ in range(8)]
    how = []
    for engine in engines:
        how.append(engine.ready().state()[0]["loads"][0]["how"])
    for engine in engines:
        engine.close()
    assert sorted(how) == ["attached"] * 7 + ["published"]
    assert len([m for m in broker.models() if m["key"]["model"] == str(path)]) == 1


def test_started_before_anything_is_resident(start, checkpoint):
    """With `wait` an engine waits for the publisher, without it fails at once."""
    path = checkpoint("llama", seed=5)
    with pytest.raises(harness.EngineFailed, match="no model .*resident for you|nothing is resident"):
        start(path, dtype="bfloat16")
    waiting = start(path, extra={"wait": 200}, dtype="bfloat16", wait=False)
    with start(path, extra={"on_miss": "publish"}, dtype="bfloat16"):
        assert waiting.ready().state()[0]["loads"][0]["how"] == "attached"
    waiting.close()


def test_started_before_the_broker(start, checkpoint, own_broker):
    extra = {"wait": 20, "on_miss": "publish"}
    there = own_broker.environment
    with start(checkpoint("llama"), extra=extra, dtype="bfloat16", wait=False, environment=there) as waiting:
        time.sleep(5)
        own_broker()
        assert waiting.ready().state()[0]["loads"][0]["how"] in ("attached", "published")


def resident_share(path):
    """Which part of a file is in the page cache. (Reading with RWF_NOWAIT would start to read ahead.)"""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
    ):
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found) == 0
    return sum(byte & 1 for byte in found) / pages


def forget(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_only_the_first_start_reads_the_checkpoint(start, checkpoint):
    """What was dropped from the page cache stays out of it, but for the header that vLLM looks at."""
    path = checkpoint("wide")
    file = path / "model.safetensors"
    seen = []
    for _ in range(3):
        forget(file)
        assert resident_share(file) == 0
        with start(path, extra={"on_miss": "publish"}, dtype="bfloat16") as engine:
            seen.append((engine.state()[0]["loads"][0]["how"], resident_share(file)))
    assert [how for how, _ in seen] == ["published", "attached", "attached"]
    assert seen[0][1] > 0.95
    assert seen[1][1] < 0.1 and seen[2][1] < 0.1

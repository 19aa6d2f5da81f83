"""`python3 -m ipc_cache.daemon` and two ranks: programs of their own, as a user starts them."""

import json
import os
import subprocess
import time

import pytest

import harness
import models
from conftest import SETTLED

# Two ranks of a CPU engine want a core each, by name; where there is one core both get it.
CORES = sorted(os.sched_getaffinity(0))
RANKS = {"VLLM_CPU_OMP_THREADS_BIND": f"{CORES[0]}|{CORES[-1]}"}


def lines_until(process, count, word="READY!"):
    """The first `count` lines of its output that have the word; fails if it ends before."""
    found = []
    for line in process.stdout:
        if word in line:
            found.append(line)
        if len(found) == count:
            return found
    process.wait()
    pytest.fail(f"the program ended with {process.returncode} after {found}")


def daemon(python, model, *arguments, **options):
    """The daemon on a checkpoint without a tokenizer; its output is a pipe."""
    arguments = ("-m", "ipc_cache.daemon", "--model", model, "--skip-tokenizer-init", *arguments)
    return python(*arguments, stdout=subprocess.PIPE, **options)


@pytest.fixture(scope="module", params=["tensor_parallel", "pipeline_parallel"])
def two_ranks(request, python, broker, checkpoint):
    """The seed's command line, on a model with two ranks; ended by SIGTERM. Its folder, output and layout."""
    path, layout = checkpoint("llama"), request.param
    option = "--tp" if layout == "tensor_parallel" else "--pipeline-parallel-size"
    process = daemon(
        python, path, option, "2", "--master-port", "29611", "--dtype", "bfloat16", "--enforce-eager", environment=RANKS
    )
    ready = lines_until(process, 2)
    yield path, ready, layout
    process.terminate()
    process.wait()


def test_ready_for_each_rank(two_ranks, broker):
    path, ready, layout = two_ranks
    assert sorted(line.split(":")[0] for line in ready) == ["READY! target rank 0", "READY! target rank 1"]
    ranks = [m["key"][f"{layout}_rank"] for m in broker.of(path) if m["key"][f"{layout}_size"] == "2"]
    assert sorted(ranks) == ["0", "1"]


def test_two_ranks_equal_an_ordinary_load(two_ranks, start):
    path, _, layout = two_ranks
    said, bound = [], []
    for format in ("control", "ipc_broker"):
        with start(path, format, dtype="bfloat16", environment=RANKS, **{f"{layout}_size": 2}) as engine:
            bound.append(engine.tensors())
            states = engine.state()
            # On the CPU vLLM's pipelines do not generate, however the weights were loaded: KeyError, of a request.
            if layout == "tensor_parallel":
                said.append(engine.generate(prompts=models.prompts()))
    assert [s["loads"][0]["how"] for s in states] == ["attached", "attached"]
    assert said[:1] == said[1:]
    parts = []
    for rank in range(2):
        control, attached = bound[0][rank][0], bound[1][rank][0]
        parts.append({n: t[:3] for n, t in attached.items()})
        assert parts[rank] == {n: t[:3] for n, t in control.items()}
        assert all(t[3] == "r--s" for n, t in attached.items() if n.endswith("weight"))
    first = "model.layers.0.mlp.down_proj.weight"  # of stages only one has it
    assert first in parts[0] and parts[0][first] != parts[1].get(first)


def test_it_starts_a_broker_and_frees_at_the_end(python, start, checkpoint, tmp_path):
    own = tmp_path / "broker"
    there = {"IPC_CACHE_DIR": str(own)}
    path = checkpoint("qwen3-tied")
    process = daemon(
        python, path, "-tp", "1", "--dtype", "bfloat16", "--name", "tiny", environment=there, stderr=subprocess.PIPE
    )
    lines_until(process, 1)
    with start(path, dtype="bfloat16", environment=there) as engine:
        assert engine.state()[0]["loads"][0]["how"] == "attached"
    # The same again changes nothing, and leaves the model when told to.
    again = daemon(python, path, "--dtype", "bfloat16", "--keep", environment=there)
    assert "attached" in lines_until(again, 1)[0]
    again.terminate()
    assert again.wait() == 0
    listed = subprocess.run(
        [harness.BUILD / "ipc-cache", "--dir", own, "ls", "--json"], capture_output=True, text=True, check=True
    )
    assert [m["name"] for m in json.loads(listed.stdout)["models"]] == ["tiny"]
    process.terminate()
    assert process.wait() == 0
    assert subprocess.run([harness.BUILD / "ipc-cache", "--dir", own, "ping"], capture_output=True).returncode != 0


def test_a_hub_id(python, start, broker, checkpoint, tmp_path):
    """By id, out of the hub's cache and without a network; the snapshot's folder is the same model."""
    snapshot = models.hub(checkpoint("llama"), tmp_path / "hub", "tests/tiny")
    time.sleep(SETTLED)
    cache = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    process = daemon(python, "tests/tiny", "--dtype", "bfloat16", "--revision", "main", "--keep", environment=cache)
    lines_until(process, 1)
    process.terminate()
    assert process.wait() == 0
    assert [m["key"]["model"] for m in broker.models() if "tests/tiny" in m["key"]["model"]] == [
        f"tests/tiny@{models.COMMIT}"
    ]
    arguments = ["--model", "tests/tiny", "--load-format", "ipc_broker", "--dtype", "bfloat16", "--enforce-eager"]
    once = python(harness.ROOT / "examples" / "vllm_once.py", *arguments, environment=cache, stdout=subprocess.PIPE)
    said = once.communicate()[0]
    assert once.returncode == 0 and "tokens [" in said, said
    with start(snapshot, dtype="bfloat16") as engine:
        assert engine.state()[0]["loads"][0]["how"] == "attached"
        answer = engine.generate(prompts=[[1, 5, 9, 200]], tokens=8)[0]
    assert f"tokens {answer['tokens']}" in said


def test_a_failing_rank_fails_the_whole_with_its_own_error(python, broker, changed, checkpoint):
    copy = changed(checkpoint("llama"))
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    process = daemon(python, copy, "--dtype", "bfloat16", stderr=subprocess.PIPE)
    out, err = process.communicate()
    assert process.returncode == 1 and "READY!" not in out
    assert "ipc-cache-daemon: target rank 0: SafetensorError" in err
    assert not [m for m in broker.models() if m["key"]["model"] == str(copy)]


def test_an_unknown_argument_is_vllms_to_refuse(python, broker, checkpoint):
    process = daemon(python, checkpoint("llama"), "--no-such-flag", stderr=subprocess.PIPE)
    _, err = process.communicate()
    assert process.returncode == 1 and "--no-such-flag" in err

"""What runs in the kernels: one program a framework, in cells.

Each defines `digest()` (what must not change, a string), `use()` (graphs, streams, pinned memory: raises if wrong),
`train()` (a few steps on the way to a final loss, as an exact hexadecimal float) and `work()` (needs the GPU).
"""

TORCH = """
import torch
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
big = [torch.randint(-2**62, 2**62, (1 << 27,), device="cuda") for _ in range(4)]
many = [torch.randn(1000 + i, device="cuda") for i in range(200)]
pinned = torch.randn(1 << 22).pin_memory()
side = torch.cuda.Stream()
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batch = torch.randn(256, 1024, device="cuda")
counter = torch.zeros(1 << 22, device="cuda")
with torch.cuda.stream(side):
    counter.add_(0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    counter.add_(1)
counter.zero_()
replays = 0

def digest():
    values = [int(b.sum()) ^ int(b[::7].sum()) for b in big]
    return str(values + [float(sum(t.double().sum() for t in many)).hex()])

def use():
    global replays
    graph.replay()
    replays += 1
    assert int(counter.min()) == int(counter.max()) == replays, "CUDA graph"
    with torch.cuda.stream(side):
        there = pinned.to("cuda", non_blocking=True)
        back = torch.empty_like(pinned, pin_memory=True)
        back.copy_(there, non_blocking=True)
    side.synchronize()
    assert torch.equal(back, pinned), "pinned memory over a side stream"

def train():
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item().hex()

def work():
    return int(big[0][:10].sum())
"""

CUPY = """
import cupy
rng = cupy.random.default_rng(1)
big = [rng.integers(0, 1 << 62, 1 << 27, dtype=cupy.int64) for _ in range(4)]
pinned = cupy.cuda.alloc_pinned_memory(1 << 24)
import numpy
host = numpy.frombuffer(pinned, dtype=numpy.uint8, count=1 << 24)
host[:] = numpy.arange(1 << 24, dtype=numpy.uint8)
side = cupy.cuda.Stream(non_blocking=True)
counter = cupy.zeros(1 << 22, dtype=cupy.int64)
capture = cupy.cuda.Stream(non_blocking=True)
with capture:
    counter += 0
    capture.synchronize()
    capture.begin_capture()
    counter += 1
    graph = capture.end_capture()
replays = 0
weights = rng.standard_normal((2048, 2048), dtype=cupy.float32)
target = rng.standard_normal((2048, 2048), dtype=cupy.float32)

def digest():
    return str([int(b.sum()) ^ int(b[::7].sum()) for b in big])

def use():
    global replays
    graph.launch(capture)
    capture.synchronize()
    replays += 1
    assert int(counter.min()) == int(counter.max()) == replays, "CUDA graph"
    there = cupy.empty(1 << 24, dtype=cupy.uint8)
    there.set(host, stream=side)
    back = numpy.empty_like(host)
    there.get(stream=side, out=back)
    side.synchronize()
    assert (back == host).all(), "pinned memory over a side stream"

def train():
    global weights
    for _ in range(10):
        gradient = weights @ weights.T @ weights / 2048 - target
        weights -= 1e-3 * gradient
    return float(cupy.abs(weights).max()).hex()

def work():
    return int(big[0][:10].sum())
"""

JAX = """
import os
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
import jax, jax.numpy as jnp, numpy
key = jax.random.PRNGKey(0)
big = [jax.random.bits(jax.random.fold_in(key, i), (1 << 28,), "uint32") for i in range(4)]
summed = jax.jit(lambda v: (v.sum(), v[::7].sum()))
params = {"a": jax.random.normal(key, (1024, 4096)) * 0.02, "b": jax.random.normal(key, (4096, 1024)) * 0.02}
batch = jax.random.normal(jax.random.fold_in(key, 99), (256, 1024))

def loss_of(p):
    return jnp.mean((jax.nn.gelu(batch @ p["a"]) @ p["b"] - batch) ** 2)

@jax.jit
def step(p):
    value, gradient = jax.value_and_grad(loss_of)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, gradient), value

def digest():
    return str([tuple(int(x) for x in summed(b)) for b in big])

def use():
    there = jax.device_put(numpy.arange(1 << 22, dtype=numpy.int32))
    assert int((there - jnp.arange(1 << 22, dtype=jnp.int32)).sum()) == 0, "transfer"

def train():
    global params
    for _ in range(10):
        params, value = step(params)
    return float(value).hex()

def work():
    return int(summed(big[0])[0])
"""

# PyTorch's allocator then maps its memory itself.
EXPANDABLE = 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n' + TORCH

PROGRAMS = {"PyTorch": TORCH, "PyTorch, expandable segments": EXPANDABLE, "CuPy": CUPY, "JAX": JAX}

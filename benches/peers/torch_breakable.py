#!/usr/bin/env python3
"""Breakable captures on PyTorch's CUDA graphs: segments in one private pool, with eager breaks between them whose results are copied to fixed addresses.

    benches/peers/torch_breakable.py program [--segments 33] [--kernels 8] [--break-kernels 2] [--json]
    benches/peers/torch_breakable.py layers [--size half-b 8b-eighth 8b 70b-eighth] [--rows 16 64 ...] [--json]

`program` is the program of the bench `replay`, `layers` that of the bench `forward`. What costs time and is not the replay's own (garbage collections
around a capture) is left out.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

# Layers, width, feed-forward, query heads, key and value heads, devices that share the last three.
SIZES = {
    "half-b": (24, 896, 4864, 14, 2, 1),
    "8b-eighth": (32, 4096, 14336, 32, 8, 8),
    "8b": (32, 4096, 14336, 32, 8, 1),
    "70b-eighth": (80, 8192, 28672, 64, 8, 8),
}
LONGEST = 256


class Breakable:
    """Records a forward as graphs with breaks between them, and replays it."""

    def __init__(self, pool, stream, breaks):
        self.pool, self.stream, self.breaks, self.steps = pool, stream, breaks, []

    def record(self, forward):
        with torch.cuda.stream(self.stream):
            self.begin()
            output = forward(self)
            self.end()
        return output

    def begin(self):
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")

    def end(self):
        self.graph.capture_end()
        self.steps.append(self.graph.replay)

    def break_here(self, operation):
        """Runs `operation` now and on every replay; its result is always found in the tensor that this returns."""
        if not self.breaks:
            return operation()
        self.end()
        with torch.cuda.stream(self.stream):
            result = operation()
        self.begin()
        handoff = torch.empty_like(result)
        self.steps.append(lambda: handoff.copy_(operation()))
        return handoff

    def replay(self):
        for step in self.steps:
            step()


class Eager:
    """Runs a forward without capturing it."""

    def break_here(self, operation):
        return operation()


def program(recorder, x, arguments):
    for segment in range(arguments.segments):
        for _ in range(arguments.kernels):
            x = x * 1.0
        if segment + 1 < arguments.segments:
            x = recorder.break_here(lambda x=x: scaled(x, arguments.break_kernels))
    return x


def scaled(x, times):
    for _ in range(times):
        x = x * 1.0
    return x


class Layers:
    """Decoder layers with weights."""

    def __init__(self, size, device):
        self.layers, self.width, inner, heads, kv_heads, shards = SIZES[size]
        self.head = self.width // heads
        self.heads, self.kv_heads, self.inner = heads // shards, max(kv_heads // shards, 1), inner // shards
        weight = lambda rows, columns: torch.randn(rows, columns, device=device, dtype=torch.bfloat16) / columns**0.5
        columns = (self.heads + 2 * self.kv_heads) * self.head
        self.weights = [
            (
                weight(columns, self.width),
                weight(self.width, self.heads * self.head),
                weight(2 * self.inner, self.width),
                weight(self.width, self.inner),
            )
            for _ in range(self.layers)
        ]
        self.norm = torch.ones(self.width, device=device, dtype=torch.bfloat16)

    def forward(self, recorder, x, sines, lengths):
        """`lengths` is read live: as many sequences, all as long."""
        rows = x.shape[0]
        for qkv, out, gate_up, down in self.weights:
            packed = F.linear(F.rms_norm(x, (self.width,), self.norm), qkv).view(rows, -1, self.head)
            q, k, v = packed.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            q, k = rotated(q, sines), rotated(k, sines)
            attended = recorder.break_here(lambda q=q, k=k, v=v: attention(q, k, v, lengths))
            x = torch.addmm(x, attended, out.t())
            gate, up = F.linear(F.rms_norm(x, (self.width,), self.norm), gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate) * up, down.t())
        return x


def rotated(x, sines):
    cosine, sine = sines
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


def attention(q, k, v, lengths):
    sequences, length = lengths[0]
    q, k, v = (t.view(sequences, length, -1, t.shape[-1]).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).reshape(sequences * length, -1)


def measured(run, blocks):
    """Medians in microseconds: of the call, from an idle device to the end, and of one among many."""
    host, latency, back_to_back = [], [], []
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for block in range(blocks + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        called = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        events[0].record()
        for _ in range(10):
            run()
        events[1].record()
        torch.cuda.synchronize()
        if block >= 3:
            host.append((called - start) * 1e6)
            latency.append((done - start) * 1e6)
            back_to_back.append(events[0].elapsed_time(events[1]) * 100)
    return {
        "host_us_median": statistics.median(host),
        "latency_us_median": statistics.median(latency),
        "back_to_back_us": statistics.median(back_to_back),
    }


def show(arguments, row):
    if arguments.json:
        print(json.dumps(row))
    else:
        print("  ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()))


def arms(arguments, forward, row):
    """Eager, breakable and frozen, on one side stream."""
    stream, kept = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = forward(Eager())
        torch.cuda.synchronize()
        if "eager" in arguments.arms:
            show(arguments, {**row, "arm": "eager", **measured(lambda: forward(Eager()), arguments.blocks)})
        for arm, breaks in (("breakable", True), ("frozen", False)):
            if arm not in arguments.arms:
                continue
            started = time.perf_counter()
            recording = Breakable(torch.cuda.graph_pool_handle(), stream, breaks)
            output = recording.record(forward)
            torch.cuda.synchronize()
            milliseconds = (time.perf_counter() - started) * 1e3
            recording.replay()
            torch.cuda.synchronize()
            equal = torch.equal(output, expected)
            figures = measured(recording.replay, arguments.blocks)
            show(arguments, {**row, "arm": arm, **figures, "capture_ms": milliseconds, "equal": equal})
            kept.append(recording)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("program", "layers"):
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true", help="one JSON object a row")
        command.add_argument("--blocks", type=int, default=50)
        command.add_argument("--arms", nargs="+", default=["eager", "breakable", "frozen"])
        if name == "program":
            command.add_argument("--segments", type=int, default=33)
            command.add_argument("--kernels", type=int, default=8)
            command.add_argument("--break-kernels", type=int, default=2)
            command.add_argument("--elements", type=int, default=1024)
        else:
            command.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
            command.add_argument("--rows", nargs="+", type=int, default=[16, 64, 256, 1024, 2048])
    arguments = parser.parse_args()
    device = torch.device("cuda")
    if not arguments.json:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    with torch.no_grad():
        if arguments.command == "program":
            x = torch.ones(arguments.elements, device=device)
            row = {key: getattr(arguments, key) for key in ("segments", "kernels", "break_kernels")}
            arms(arguments, lambda recorder: program(recorder, x, arguments), {"bench": "replay", **row})
            return
        for size in arguments.size:
            layers = Layers(size, device)
            for rows in arguments.rows:
                sequences = -(-rows // LONGEST)
                length = rows // sequences
                places = torch.arange(length, device=device).repeat(sequences)
                rates = 10000.0 ** (-torch.arange(layers.head // 2, device=device) / (layers.head // 2))
                angles = (places[:, None] * rates[None, :])[:, None, :]
                sines = (angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16))
                x = torch.randn(rows, layers.width, device=device, dtype=torch.bfloat16)
                lengths = [(sequences, length)]
                row = {"bench": "forward", "size": size, "rows": rows}
                arms(arguments, lambda recorder: layers.forward(recorder, x, sines, lengths), row)
            del layers


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The pool of the four-layer model 512 -> 2048 -> 512 (float32, a break in each layer) on PyTorch's CUDA graphs: one private pool, one stream.

    benches/peers/torch_pool.py

Prints the bytes that the private pool reserves for each bucket in turn, beside the most bytes that are live at once.
"""

import torch

BUCKETS = [8192, 4096, 2048, 1024, 4096]
WIDTH, INNER, LAYERS = 512, 2048, 4


class Recording:
    """Segments with eager operations between them, in one private pool."""

    def __init__(self, pool, stream):
        self.pool, self.stream, self.graphs = pool, stream, []

    def begin(self):
        self.context = torch.cuda.graph(torch.cuda.CUDAGraph(), pool=self.pool, stream=self.stream)
        self.context.__enter__()

    def end(self):
        self.context.__exit__(None, None, None)
        self.graphs.append(self.context)


def forward(recording, x, w1, w2):
    recording.begin()
    for _ in range(LAYERS):
        h = x @ w1
        handoff = torch.empty_like(h)
        recording.end()
        handoff.copy_(torch.relu(h))
        recording.begin()
        h = handoff
        x = h @ w2
    recording.end()
    return x


def reserved():
    return torch.cuda.memory_reserved()


def main():
    device = torch.device("cuda")
    w1 = torch.randn(WIDTH, INNER, device=device)
    w2 = torch.randn(INNER, WIDTH, device=device)
    inputs = torch.randn(max(BUCKETS), WIDTH, device=device)
    with torch.no_grad():
        # Warm up, and give the eager pool all that the breaks take.
        for _ in range(3):
            x = inputs
            for _ in range(LAYERS):
                h = x @ w1
                handoff = torch.empty_like(h)
                handoff.copy_(torch.relu(h))
                x = handoff @ w2
        torch.cuda.synchronize()
        stream, pool, kept = torch.cuda.Stream(), torch.cuda.graph_pool_handle(), []
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        for rows in BUCKETS:
            before = reserved()
            recording = Recording(pool, stream)
            output = forward(recording, inputs[:rows], w1, w2)
            torch.cuda.synchronize()
            peak = rows * (2 * INNER + WIDTH) * 4
            print(f"{rows:5} rows: grew by {(reserved() - before) / 2**20:7.2f} MiB, peak of live bytes {peak / 2**20:7.2f} MiB")
            # Outputs are kept weakly by the systems that do this.
            del output
            kept.append(recording)


if __name__ == "__main__":
    main()

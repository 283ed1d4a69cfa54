#!/usr/bin/env python3
"""Computes tests/golden/minilm.json: what an independent implementation makes of tests/golden/sentences.txt.

    scripts/fetch_model.py && scripts/golden_embeddings.py

Run once; the result is committed. The implementation is Hugging Face's FlaxBertModel on JAX on the CPU, in float32 with full precision of matrix
products, with Hugging Face's own tokenizer; mean over the tokens and scaling to length 1 as sentence-transformers does them. None of this
repository's code takes part. The packages come from PyPI, by pip, into a virtual environment in .cache/.
"""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".cache" / "golden"
PACKAGES = ["jax==0.4.38", "flax==0.10.2", "transformers==4.46.3", "numpy<2.3"]


def compute():
    os.environ["JAX_PLATFORMS"] = "cpu"
    import flax
    import jax
    import numpy
    import transformers

    jax.config.update("jax_default_matmul_precision", "highest")
    folder = ROOT / "models" / "all-MiniLM-L6-v2"
    tokenizer = transformers.BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    config = transformers.BertConfig.from_pretrained(folder)
    model = transformers.FlaxBertModel(config)
    model.params = weights(folder / "model.safetensors", model.params)
    vectors = []
    for sentence in (ROOT / "tests" / "golden" / "sentences.txt").read_text().splitlines():
        tokens = tokenizer(sentence, truncation=True, max_length=256, padding=False, return_tensors="np")
        hidden = numpy.asarray(model(**tokens).last_hidden_state[0], dtype=numpy.float64)
        mean = hidden.mean(axis=0)
        vector = mean / numpy.linalg.norm(mean)
        vectors.append({"text": sentence, "tokens": hidden.shape[0], "embedding": [float(f"{value:.7g}") for value in vector]})
    versions = {module.__name__: module.__version__ for module in (transformers, jax, flax, numpy)}
    result = {"made_by": "scripts/golden_embeddings.py: FlaxBertModel on JAX, CPU, float32", "versions": versions, "vectors": vectors}
    target = ROOT / "tests" / "golden" / "minilm.json"
    target.write_text(json.dumps(result, ensure_ascii=False, indent=None, separators=(",", ":")).replace("{\"text\"", "\n{\"text\"") + "\n")
    print(f"{target.relative_to(ROOT)}: {len(vectors)} vectors")


def weights(path, template):
    """The checkpoint's weights under Flax's names: kernels are transposed, embeddings and norms renamed."""
    from safetensors.numpy import load_file

    loaded = load_file(path)

    def fill(tree, prefix):
        filled = {}
        for name, value in tree.items():
            # A norm's folder is LayerNorm in both; Flax keeps each layer under its number, as the checkpoint does.
            here = f"{prefix}{name}"
            if isinstance(value, dict):
                filled[name] = fill(value, here + ".")
            elif name == "kernel":
                filled[name] = loaded[f"{prefix}weight"].T
            elif name in ("scale", "embedding"):
                filled[name] = loaded[f"{prefix}weight"]
            else:
                filled[name] = loaded[here]
            if not isinstance(value, dict) and filled[name].shape != value.shape:
                raise ValueError(f"{here}: {filled[name].shape} for {value.shape}")
        return filled

    return fill(template, "")


if __name__ == "__main__":
    if "--compute" in sys.argv:
        compute()
    else:
        python = ENVIRONMENT / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        subprocess.run([python, __file__, "--compute"], check=True)

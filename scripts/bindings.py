#!/usr/bin/env python3
"""Makes src/sys/pregenerated.rs, and holds the crate to the headers of all supported CUDA versions.

    scripts/bindings.py regenerate   rewrites the file from the pinned header
    scripts/bindings.py check        exit 1 unless
        - the committed file equals a fresh generation from the pinned header;
        - the crate builds without a warning with bindings from every header below and with the pregenerated ones;
        - every call of src/sys/calls.rs has the version that cudaTypedefs.h gives it, and that version's parameters.

The headers and libclang come from PyPI, by pip, into .cache/, which git ignores. cargo and a C compiler must be there; a toolkit, a GPU and
clang's own headers need not be.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
PREGENERATED = ROOT / "src" / "sys" / "pregenerated.rs"
CALLS = ROOT / "src" / "sys" / "calls.rs"
LIBCLANG = "libclang==18.1.1"
# The header of the committed bindings.
PINNED = "nvidia-cuda-runtime==13.0.96"
# The last one without a version is the newest there is.
HEADERS = [
    "nvidia-cuda-runtime-cu12==12.0.146",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cuda-runtime-cu12==12.9.79",
    PINNED,
    "nvidia-cuda-runtime",
]
# Headers are the same for every platform; these wheels have them all.
PLATFORMS = ["manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux1_x86_64"]


def fetch(requirement, options=()):
    """The folder into which a package was unpacked. A version that is not pinned is fetched anew each time."""
    folder = CACHE / re.sub(r"[=]+", "-", requirement)
    if "==" in requirement and (folder / "done").exists():
        return folder
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    subprocess.run([*command, *options, "-d", folder, requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    unpacked = folder / wheel.stem
    if not unpacked.exists():
        # Under another name until it is whole: an unpacking that was broken off must not pass for a finished one.
        partial = folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        zipfile.ZipFile(wheel).extractall(partial)
        partial.rename(unpacked)
    for old in folder.iterdir():
        if old.is_dir() and old != unpacked:
            shutil.rmtree(old)
    wheel.unlink()
    (folder / "done").touch()
    return folder


def find(folder, pattern):
    found = sorted(folder.glob(f"**/{pattern}"))
    if not found:
        sys.exit(f"no {pattern} in {folder}")
    return found[0]


def include_of(requirement):
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    return find(fetch(requirement, platforms), "cuda.h").parent


def version_of(include):
    number = int(re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text()).group(1))
    return f"{number // 1000}.{number % 1000 // 10}"


def cargo(arguments, include):
    """Runs cargo check with bindings from this folder's header, or the pregenerated ones; returns them, and whether there was no warning."""
    ours = ("CUDA_", "CONDA_", "BREAKABLE_CUDA_GRAPH_", "VIRTUAL_", "LIBCLANG", "DOCS_RS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["LIBCLANG_PATH"] = str(find(fetch(LIBCLANG), "libclang.so").parent)
    environment["BREAKABLE_CUDA_GRAPH_BINDINGS"] = "generate" if include else "pregenerated"
    if include:
        environment["BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE"] = str(include)
    command = ["cargo", "check", "--quiet", "--locked", "--message-format=json", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    bindings, well = None, result.returncode == 0
    for message in map(json.loads, result.stdout.splitlines()):
        if not message.get("package_id", "").startswith("path+file:"):
            continue
        if message["reason"] == "build-script-executed":
            path = pathlib.Path(message["out_dir"]) / "bindings.rs"
            bindings = path.read_text() if path.exists() else bindings
        if message["reason"] == "compiler-message" and message["message"]["level"] in ("warning", "error"):
            well = False
            print(message["message"]["rendered"], file=sys.stderr)
    return bindings, well


def fresh():
    """What the committed file should hold."""
    include = include_of(PINNED)
    text, _ = cargo(["--lib", "--no-default-features", "--features", "bindgen"], include)
    if text is None:
        sys.exit("no bindings were made")
    lock = (ROOT / "Cargo.lock").read_text()
    bindgen = re.search(r'name = "bindgen"\nversion = "([^"]+)"', lock).group(1)
    header = (
        f"// Made by scripts/bindings.py from cuda.h of CUDA {version_of(include)} with bindgen {bindgen}: names, numbers and layouts.\n"
        "// Not to be edited: `scripts/bindings.py check` compares it with a fresh generation.\n\n"
    )
    return header + text.lstrip()


def declarations(include, header, pattern):
    """The parameters' types of each function whose name is the first group of `pattern`, from the preprocessed header."""
    command = [os.environ.get("CC", "cc"), "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", include / header]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # cuda.h names newest forms without a version: `typedef CUmemPoolProps_v1 CUmemPoolProps;`.
    aliases = {plain: exact for exact, plain in re.findall(r"typedef\s+(CU\w+)\s+(CU\w+)\s*;", text)}
    found = {}
    for match in re.finditer(pattern + r"\s*\(([^;]*)\)\s*;", text):
        parameters = []
        for parameter in match.group(2).split(","):
            words = re.sub(r"([*\[\]])", r" \1 ", parameter).split()
            plain = [word for word in words if re.fullmatch(r"\w+", word) and word != "const"]
            if len(plain) > 1 and plain[-1] not in ("int", "char", "long", "short"):
                words.remove(plain[-1])
            while any(word in aliases for word in words):
                words = [aliases.get(word, word) for word in words]
            parameters.append(" ".join(word for word in words if word not in ("const", "[", "]")))
        found[match.group(1)] = parameters
    return found


def check_versions(include):
    """What is wrong with the versions in the list of calls. The second form of a call is the second that has a typedef, and so on."""
    typedefs = declarations(include, "cudaTypedefs.h", r"CUresult\s*\(\s*\*\s*PFN_(cu\w+_v\d+)\s*\)")
    functions = declarations(include, "cuda.h", r"CUresult\s+(cu\w+)")
    wrong, calls = [], re.findall(r"^\s+(?:needed|optional) (\d+) (\w+)\(", CALLS.read_text(), flags=re.M)
    if len(calls) < 50:
        sys.exit("the list of calls was not understood")
    for since, name in calls:
        base, form = re.fullmatch(r"(\w+?)(?:_v(\d+))?", name).groups()
        known = sorted(int(typedef.rsplit("_v", 1)[1]) for typedef in typedefs if re.fullmatch(rf"{base}_v\d+", typedef))
        if known[int(form or 1) - 1 : int(form or 1)] != [int(since)]:
            wrong.append(f"{name}: version {since}; cudaTypedefs.h has {known or 'none'}")
        elif functions.get(name) != typedefs[f"{base}_v{since}"]:
            wrong.append(f"{name}: parameters {functions.get(name)}; the typedef of {since} has {typedefs[f'{base}_v{since}']}")
    return wrong


def check():
    failures = []
    if PREGENERATED.read_text() == fresh():
        print("src/sys/pregenerated.rs equals a fresh generation", flush=True)
    else:
        failures.append("src/sys/pregenerated.rs differs from a fresh generation (scripts/bindings.py regenerate)")
    for requirement in [*HEADERS, None]:
        include = include_of(requirement) if requirement else None
        name = f"bindings of CUDA {version_of(include)}" if include else "the pregenerated bindings"
        _, well = cargo(["--all-targets"], include)
        print(f"{name}: {'builds without a warning' if well else 'FAILS'}", flush=True)
        if not well:
            failures.append(f"the crate does not build without a warning with {name}")
    newest = include_of(HEADERS[-1])
    wrong = check_versions(newest)
    failures += wrong
    if not wrong:
        print(f"the versions of all calls are those of cudaTypedefs.h of CUDA {version_of(newest)}")
    if failures:
        sys.exit("\n".join(failures))


def main():
    if sys.argv[1:] == ["check"]:
        check()
    elif sys.argv[1:] == ["regenerate"]:
        text = fresh()
        PREGENERATED.write_text(text)
        print(f"{PREGENERATED.relative_to(ROOT)}: {len(text.splitlines())} lines")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

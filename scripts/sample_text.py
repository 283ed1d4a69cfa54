#!/usr/bin/env python3
"""Writes lines of English text for the example `embed`: first paragraphs of the docstrings of Python's standard library.

    scripts/sample_text.py [LINES [WORDS]] > text.txt

WORDS is the most that a line may have.
"""

import ast
import pathlib
import sys
import sysconfig


def sentences():
    """Each sentence once, in the order of the files' names."""
    seen = set()
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py")):
        if "test" in path.parts or "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            paragraph = (ast.get_docstring(node) or "").split("\n\n")[0]
            line = " ".join(paragraph.split())
            if len(line) > 20 and line not in seen:
                seen.add(line)
                yield line


def main():
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    longest = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
    count = 0
    for line in sentences():
        if count == wanted:
            break
        if len(line.split()) <= longest:
            print(line)
            count += 1
    if count < wanted:
        sys.exit(f"only {count} sentences were found")


if __name__ == "__main__":
    main()

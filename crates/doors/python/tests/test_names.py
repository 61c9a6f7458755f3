"""The stubs have the names that the package has, and mypy accepts them and the examples."""

import ast
import importlib.metadata
import inspect
import os
import pathlib
import subprocess
import sys
import types

import pytest

import devmem_tcp
from devmem_tcp import _native

PACKAGE = pathlib.Path(devmem_tcp.__file__).parent
HERE = pathlib.Path(__file__).parent.parent
#: What every class has.
COMMON = set(dir(object)) | {"__module__", "__weakref__", "__buffer__", "__release_buffer__"}


def stub_names():
    """Returns the names of the stub: functions and classes, and of each class its members."""
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {
        node.name: {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("Supports")
    }
    return functions, classes


def test_the_stub_has_all_names_and_no_others():
    functions, classes = stub_names()
    has = {name: value for name, value in vars(_native).items() if not name.startswith("__")}
    assert {name for name, value in has.items() if isinstance(value, types.BuiltinFunctionType)} == functions
    assert {name for name, value in has.items() if isinstance(value, type)} == set(classes)
    for name, members in classes.items():
        real = {member for member in vars(has[name]) if member not in COMMON}
        assert real == members - COMMON, name


def test_everything_is_exported_and_documented():
    assert devmem_tcp.__all__ == sorted(devmem_tcp.__all__)
    public = {name for name in vars(_native) if not name.startswith("_")}
    assert public <= set(devmem_tcp.__all__)
    for name in devmem_tcp.__all__:
        assert getattr(devmem_tcp, name).__doc__, name
    assert (PACKAGE / "py.typed").exists()


def documented(stub):
    """Returns the stub with the docstrings that the classes and functions have."""
    lines = stub.splitlines()
    places = []
    for node in ast.parse(stub).body:
        if isinstance(node, ast.FunctionDef):
            places.append((node, getattr(_native, node.name)))
        elif isinstance(node, ast.ClassDef) and hasattr(_native, node.name):
            of_class = getattr(_native, node.name)
            places.append((node, of_class))
            members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
            places += [(member, getattr(of_class, member.name, None)) for member in members]
    for node, real in reversed(places):
        text = inspect.getdoc(real) if real is not None and not node.name.startswith("__") else None
        if not text:
            continue
        indent = " " * (node.col_offset + 4)
        quoted = f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'
        written = [indent + line if line else "" for line in quoted.split("\n")]
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and first.value.value is ...:
            line = lines[first.lineno - 1]
            lines[first.lineno - 1 : first.end_lineno] = [line[: first.col_offset].rstrip(), *written]
        elif is_text:
            lines[first.lineno - 1 : first.end_lineno] = written
        else:
            # The decorators of the first member belong to it.
            at = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))])
            lines[at - 1 : at - 1] = written
    return "\n".join(lines) + "\n"


def test_the_stub_has_the_docstrings_of_the_package():
    stub = PACKAGE / "_native.pyi"
    wanted = documented(stub.read_text())
    if "DEVMEM_WRITE" in os.environ:
        (HERE / "python/devmem_tcp/_native.pyi").write_text(wanted)
    assert stub.read_text() == wanted, "DEVMEM_WRITE=1 pytest crates/doors/python/tests/test_names.py writes them"


def test_the_package_has_a_version():
    assert devmem_tcp.__version__ == importlib.metadata.version("devmem-tcp")


def test_mypy_accepts_the_package_and_the_examples():
    pytest.importorskip("mypy", reason="SKIP mypy is not installed")
    examples = map(str, sorted([*(HERE / "examples").glob("*.py"), *(HERE / "bench").glob("*.py")]))
    for what in (["--package", "devmem_tcp"], list(examples)):
        checked = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.12", *what]
        run = subprocess.run(checked, capture_output=True, text=True, cwd=HERE, timeout=300)
        assert run.returncode == 0, run.stdout + run.stderr


def test_the_import_loads_neither_numpy_nor_asyncio():
    program = "import sys, devmem_tcp; print([m for m in ('numpy', 'asyncio', 'typing', 'mypy') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n", run.stderr

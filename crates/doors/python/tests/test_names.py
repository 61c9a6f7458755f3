"""The stubs have the names that the package has, and mypy accepts them and the examples."""

import ast
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

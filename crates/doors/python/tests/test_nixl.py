"""The backend for NIXL, driven by NIXL's own wheel: two agents in two processes. Skips where there is no such wheel, or no plugin."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
from devmem_tcp import nixl  # noqa: E402


def plugin() -> pathlib.Path:
    """Returns the plugin: the one that DEVMEM_NIXL_PLUGIN names, or that of the package."""
    named = os.environ.get("DEVMEM_NIXL_PLUGIN")
    if named is not None:
        return pathlib.Path(named)
    try:
        return nixl.folder() / nixl.PLUGIN
    except FileNotFoundError as error:
        pytest.skip(f"SKIP {error}")


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> dict[str, str]:
    """What a process needs to use the plugin: a folder with it alone, and a module torch, which NIXL imports and does not use here."""
    if not nixl.installed():
        pytest.skip("SKIP no NIXL is installed: pip install nixl-cu12")
    (tmp_path / nixl.PLUGIN).symlink_to(plugin())
    if importlib.util.find_spec("torch") is None:
        (tmp_path / "torch.py").write_text("class Tensor: pass\n")
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "NIXL_PLUGIN_DIR": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{inherited}"}


@pytest.mark.parametrize(
    "case",
    [
        "reads_and_writes",
        "without_a_thread",
        "all_sync_modes",
        "notifications_in_both_directions",
        "transfers_to_itself",
        "partial_metadata",
        "a_killed_peer_comes_back",
        "paths_are_told",
    ],
)
@pytest.mark.parametrize("way", ["sockets", "unix", "kernel:lo"])
def test_two_agents(case: str, way: str, environment: dict[str, str]) -> None:
    environment["DEVMEM_NIXL_WAY"] = way
    run = subprocess.run(
        [sys.executable, str(HERE / "nixl_pair.py"), case], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "folder", lambda: pathlib.Path("/nowhere"))
    monkeypatch.setattr(nixl, "installed", lambda: [])
    assert nixl.main([]) == 1
    assert "pip install nixl" in capsys.readouterr().err


def test_the_plugin_is_linked_beside_those_of_nixl(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins, package = tmp_path / ".nixl_cu12.mesonpy.libs" / "plugins", tmp_path / "package"
    plugins.mkdir(parents=True)
    package.mkdir()
    (package / nixl.PLUGIN).touch()
    monkeypatch.setattr(nixl, "folder", lambda: package)
    monkeypatch.setattr(nixl, "installed", lambda: [plugins])
    for _ in range(2):
        assert nixl.main(["--install"]) == 0
        assert (plugins / nixl.PLUGIN).resolve() == (package / nixl.PLUGIN).resolve()

"""A saved Program becomes C that checks itself; what cannot is refused."""

from collections.abc import Callable
from pathlib import Path

from tests.runtime.programs import gather, linear_relu
from tests.standalone import run_standalone

from tilewright.program import save

Golden = Callable[[str, str], None]
Command = Callable[..., tuple[int, str, str]]


def test_export_writes_c_that_checks_itself(command: Command, tmp_path: Path) -> None:
    save(gather(10, 3, 4), tmp_path / "gather.program")
    code, out, _ = command("export", "gather.program", "c")
    assert code == 0
    assert "make -C c sanitize" in out
    assert run_standalone(tmp_path / "c", "check") == ""


def test_export_refuses_a_folder_in_use_and_library_calls(
    command: Command, tmp_path: Path, golden: Golden
) -> None:
    save(linear_relu(2, 3, 4), tmp_path / "linear.program")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for name, folder in (("export_into_a_folder_in_use", "used"), ("export_of_calls", "new")):
        code, _, err = command("export", "linear.program", folder)
        assert code == 2
        golden(f"{name}.txt", err)

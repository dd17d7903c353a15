"""Scripts that hand themselves over to a fork server end as they would by themselves."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from conftest import PATIENCE_S, ROOT

FOLDER = ROOT / "workflow" / "scripts"
HEAD = f"import sys\nsys.path.append({str(FOLDER)!r})\nimport fork_server\nfork_server.hand_over('colorsys')\n"


@contextmanager
def running_server(folder):
    """Start a server, although the path of a socket in TMPDIR would be too long, and yield what names it."""
    code = (
        "import fork_server, os, sys; fork_server.start(); print(os.environ[fork_server.VARIABLE], flush=True); input()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GPULEDGER_FORK_SERVER"}
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment | {"TMPDIR": str(folder)},
    )  # fmt: skip
    yield (holder.stdout.readline() + holder.stdout.readline()).rstrip("\n")
    holder.communicate("\n", timeout=PATIENCE_S)


@pytest.fixture(scope="module", params=["", str(FOLDER / "at_start")], ids=["own process", "at start"])
def started(request, tmp_path_factory):
    """An environment in which a server is running; also one in which scripts of jobs are in a fork from the start."""
    with running_server(tmp_path_factory.mktemp("x" * 120)) as address:
        yield os.environ | {"GPULEDGER_FORK_SERVER": address, "PYTHONPATH": request.param}
    wait_until(lambda: not os.path.exists(address.split("\n")[0]))


def wait_until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def written(folder, text):
    """Write a script where Snakemake writes those of jobs."""
    script = folder / ".snakemake/scripts/script.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, "utf-8")
    return script


def run(code, folder, environment, before=""):
    """Run a script that hands itself over."""
    script = written(folder, before + HEAD + code)
    command = [sys.executable, str(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder)


WHERE = "print(('colorsys' in sys.modules), sys.argv[0].endswith('script.py'), os.getcwd(), os.environ.get('X'))"


def test_a_script_runs_in_a_fork_with_its_own_folder_arguments_and_environment(started, tmp_path):
    done = run(f"import os; {WHERE}; print('odd', file=sys.stderr)", tmp_path, started | {"X": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"True True {tmp_path} 1\n", "odd\n")


def test_scripts_of_jobs_are_in_a_fork_from_their_first_line_on(started, tmp_path):
    """Both up to where they hand themselves over and behind it."""
    own_process = started["PYTHONPATH"] == ""
    done = run("", tmp_path, started, before=f"import os\nprint(os.getppid() == {os.getpid()})\n")
    assert (done.returncode, done.stdout) == (0, f"{own_process}\nFalse\n")


def test_what_is_loaded_once_is_there_for_later_scripts(started, tmp_path):
    head = HEAD.replace("'colorsys'", "'colorsys', once=['no_such_module', 'wave']")
    said = []
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(f"{head}print('wave' in sys.modules)", "utf-8")
        command = [sys.executable, name]
        done = subprocess.run(command, env=started, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
        said.append(done.stdout)
    assert said == ["False\n", "True\n"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads of another process are read from /proc")
def test_the_server_has_no_threads_that_a_fork_would_lose(started, tmp_path):
    """From Python 3.12 on, each fork beside one printed a warning on the user's terminal."""
    modules = "'numba', 'matplotlib.pyplot', 'pyarrow.dataset', 'pyarrow.parquet', 'scipy.spatial'"
    (tmp_path / "script.py").write_text(
        HEAD.replace("'colorsys'", modules)
        + "import os; print('pyarrow' in sys.modules, len(os.listdir(f'/proc/{os.getppid()}/task')))",
        "utf-8",
    )
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, env=started, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True 1\n", "")


def test_nobody_waits_for_a_server_that_died(tmp_path):
    """A fork that outlives it must not keep its socket open."""
    with running_server(tmp_path) as address:
        environment = os.environ | {"GPULEDGER_FORK_SERVER": address}
        (tmp_path / "long.py").write_text(
            HEAD + "import os, time; os.kill(os.getppid(), 9); open('dead', 'w'); time.sleep(20)", "utf-8"
        )
        first = subprocess.Popen([sys.executable, "long.py"], env=environment, cwd=tmp_path)
        wait_until((tmp_path / "dead").exists)
        done = run("print('by itself')", tmp_path, environment)
        assert first.poll() is None, "the fork still runs"
        assert (done.returncode, done.stdout) == (0, "by itself\n")
        first.kill()
        first.wait()


@pytest.mark.parametrize("module", ["draw_once", "fit_once", "predict_once"])
def test_modules_that_are_loaded_once_end_in_silence(module):
    """The server would not say that they fail: all that is lost is time."""
    command = [sys.executable, "-W", "error::UserWarning", str(FOLDER / f"{module}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("address", ["", "/nowhere\n" + sys.executable, "/nowhere\n/another/python"])
def test_without_a_server_a_script_goes_on_by_itself(tmp_path, address):
    done = run(f"import os; {WHERE}", tmp_path, os.environ | {"GPULEDGER_FORK_SERVER": address})
    assert (done.returncode, done.stdout) == (0, f"False True {tmp_path} None\n")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no')", 1, "no"),
        ("sys.exit()", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(7)", 1, "was killed"),
        ("import os; os.kill(os.getpid(), 9)", 1, "perhaps because memory ran out"),
        ("import subprocess; sys.exit(subprocess.run(['false']).returncode + 4)", 5, ""),
    ],
)
def test_status_and_standard_error_are_the_scripts(started, tmp_path, code, status, said):
    done = run(code, tmp_path, started)
    assert done.returncode == status
    assert said in done.stderr
    # The server still serves.
    assert run("print(1)", tmp_path, started).stdout == "1\n"


def test_a_fork_ends_with_the_script_that_handed_itself_over(started, tmp_path):
    begun, left = tmp_path / "begun", tmp_path / "left"
    work = f"""
import pathlib, time
try:
    pathlib.Path({str(begun)!r}).touch()
    time.sleep({PATIENCE_S})
finally:
    pathlib.Path({str(left)!r}).touch()
"""
    script = written(tmp_path, f"{HEAD}\n{work}")
    process = subprocess.Popen([sys.executable, str(script)], env=started)
    wait_until(begun.exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(left.exists)

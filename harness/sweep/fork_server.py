"""A Python that has TensorFlow imported already: a server that forks one child for each program, and its client.

``python -S fork_server.py SOCKET program.py arguments`` does what ``python program.py arguments`` does (``-m`` and
``-c`` too), with the client's folder, environment, cores, output and signals, also as a rank under mpirun or Slurm.
Most of a short launch's time is the import. `warm_python` starts the server once a session, and gives a program to be
called in place of Python; whatever such a program starts as ``sys.executable`` is forked too.

A launch needs a Python of its own (``sys.executable``) where a test kills or stops ranks, or looks at their processes:
the client is not the rank, and what kills it ends the rank only a moment later.
"""

import contextlib
import json
import os
import signal
import socket
import sys

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_in_server(address: str, arguments: list[str]) -> int:
    """Have the server at `address` run a program; return its exit code, 1 if it ended without one."""
    cores = sorted(os.sched_getaffinity(0))
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    message = json.dumps([os.getcwd(), dict(os.environ), cores, ignored, arguments]).encode()  # noqa: PTH109 - fast
    ending: list[int] = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(message).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(message)
        answer = receive(connection, 4)
        if len(answer) < 4:  # the child has died before it could say who it is
            return 1
        pid = int.from_bytes(answer, "big")

        def pass_on(number: int, frame: object) -> None:
            ending.append(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in _PASSED_ON[ignored:]:
            signal.signal(number, pass_on)
        answer = receive(connection, 1)
    if not answer and ending:  # the signal ended it, as it would have ended this process
        signal.signal(ending[-1], signal.SIG_DFL)
        os.kill(os.getpid(), ending[-1])
    return answer[0] if answer else 1


def receive(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes, fewer where the other end has gone."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while len(received) < count:
            part = connection.recv(count - len(received))
            if not part:
                break
            received += part
    return received


def serve(address: str, python: str) -> None:
    """Fork a child for each request that comes to `address`, until standard input ends; `python` starts clients."""
    import selectors

    import h5py
    import keras
    import pandas as pd
    import pyarrow.parquet
    import scipy.optimize
    import scipy.stats
    import tensorflow as tf

    tf.constant, keras.Model, h5py, pd, pyarrow, scipy  # noqa: B018 - some load lazily
    # Children are of several versions of the harness, each with a PYTHONPATH of its own.
    assert not any(name.partition(".")[0] == "harness" for name in sys.modules)
    plain, sys.executable = sys.executable, python
    path = sys.path[1:]
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        children: set[int] = set()
        while not any(key.fd == 0 for key, _ in selector.select()):
            connection = listener.accept()[0]
            child = os.fork()
            if child == 0:
                listener.close()
                answer_client(connection, path, plain)
            connection.close()
            children = {pid for pid in {*children, child} if os.waitpid(pid, os.WNOHANG)[0] == 0}


def answer_client(connection: socket.socket, path: list[str], plain: str) -> None:
    """Be the child that runs the program of the client of `connection`, and end with its exit code.

    `path` is where it imports from after its own PYTHONPATH, `plain` the server's Python.
    """
    import threading

    head, files, *_ = socket.recv_fds(connection, 4, 3)
    head += receive(connection, 4 - len(head))
    wanted = int.from_bytes(head, "big")
    text = receive(connection, wanted)
    if len(files) < 3 or not wanted or len(text) < wanted:
        os._exit(1)  # the client has died in its message
    folder, environment, cores, ignored, arguments = json.loads(text)
    os.setsid()  # a child of its own family, as the client is
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | {"PYTHONHASHSEED": "0", "HARNESS_PLAIN_PYTHON": plain})  # the server's
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.orig_argv = [sys.executable, *arguments]
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    connection.sendall(os.getpid().to_bytes(4, "big"))

    def follow() -> None:
        if not receive(connection, 1):  # the client has ended
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    code = _run(arguments)
    connection.sendall(bytes([code % 256]))
    os._exit(code)


def _take_first(place: str) -> None:
    """Import from `place` first, as Python does unless PYTHONSAFEPATH is set."""
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, place)


def _run(arguments: list[str]) -> int:
    import atexit
    import runpy

    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            _take_first(os.getcwd())  # noqa: PTH109
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            _take_first("")
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            _take_first(os.path.dirname(os.path.abspath(arguments[0])))  # noqa: PTH100, PTH120
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it was
        import traceback

        traceback.print_exc()
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    if "mpi4py.MPI" in sys.modules:
        mpi = sys.modules["mpi4py.MPI"]
        if mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        sys.exit(run_in_server(sys.argv[1], sys.argv[2:]))

"""A Python that has TensorFlow imported already: a server that forks one child for each program, and its client.

``python -S fork_server.py SOCKET program.py arguments`` does what ``python program.py arguments`` does (``-m`` and
``-c`` too), with the client's folder, environment, cores, output and signals, also as a rank under mpirun or Slurm.
Most of a short launch's time is the import. `warm_python` starts the server once a session, and gives a program to be
called in place of Python; whatever such a program starts as ``sys.executable`` is forked too.

A launch needs a Python of its own (``sys.executable``) where a test kills or stops ranks, or looks at their processes:
the client is not the rank, and what kills it ends the rank only a moment later. A rank ends with the server too.
"""

import contextlib
import json
import os
import signal
import socket
import sys

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
IMPORTED = ("tensorflow", "keras", "h5py", "pandas", "pyarrow.parquet", "scipy.optimize", "scipy.stats")
_FORKED = "HARNESS_SERVED_PROCESS"  # its process id, and the bytes of files that its server had in memory
_ROOM = "HARNESS_ENVIRONMENT_ROOM"
ROOM = {_ROOM: "-" * 1024}
"""Variable of the server's environment: memory in which a child shows variables of its own."""
_SHOWN = ("HARNESS_JOB", "HARNESS_GUARD")  # by which a launch's processes are found
_PR_SET_PDEATHSIG = 1  # prctl(2)


def run_in_server(address: str, arguments: list[str]) -> int:
    """Have the server at `address` run a program; return its exit code, 1 if it ended without one."""
    cores = sorted(os.sched_getaffinity(0))
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    message = json.dumps([os.getcwd(), dict(os.environ), cores, ignored, arguments]).encode()  # noqa: PTH109 - fast
    ending: list[int] = []
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError as error:  # no start afresh: such a process trains at another speed than forked ones
            print(f"harness: the Python that ranks are forked from has ended ({error})", file=sys.stderr)
            return 1
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


def _import_all(modules: tuple[str, ...], absent: tuple[str, ...]) -> None:
    """Import `modules` as if those that are `absent` were not installed: they can be imported afterwards as ever."""
    import importlib

    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: "there is no such module"
    for module in modules:
        importlib.import_module(module)
    if "tensorflow" in modules:
        sys.modules["tensorflow"].constant  # noqa: B018 - it loads lazily
    for module in absent:
        del sys.modules[module]
    # Children are of several versions of the harness, each with a PYTHONPATH of its own.
    assert not any(module.partition(".")[0] == "harness" for module in sys.modules)


def serve(address: str, python: str, modules: tuple[str, ...] = IMPORTED, absent: tuple[str, ...] = ()) -> None:
    """Fork a child for each request that comes to `address`, until standard input ends; `python` starts clients.

    `modules` are imported before, as if the `absent` ones were not installed.
    """
    import gc
    import selectors

    _import_all(modules, absent)
    gc.collect()
    gc.freeze()  # a child's garbage collection writes to no page that it shares
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - fast
        library_bytes = int(file.read().split()[2]) * os.sysconf("SC_PAGE_SIZE")
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
            server = os.getpid()
            child = os.fork()
            if child == 0:
                listener.close()
                _end_with(server)
                answer_client(connection, path, plain, library_bytes)
            connection.close()
            children = {pid for pid in {*children, child} if os.waitpid(pid, os.WNOHANG)[0] == 0}


def _end_with(server: int) -> None:
    """Have the kernel kill this process when its parent, the `server`, ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != server:  # it has ended meanwhile
        os._exit(1)


def _show_variables(environment: dict[str, str]) -> None:
    """Write the variables by which a launch's processes are found to where /proc/self/environ shows them.

    A forked process has the memory in which its parent's environment was when it started. The server has left room
    there, which nothing else uses.
    """
    import ctypes

    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - fast
        environ_text = file.read()
    place = environ_text.find(f"{_ROOM}=".encode())
    if place < 0:
        return
    room = environ_text.index(b"\0", place) - place
    text = b"\0".join(f"{name}={environment[name]}".encode() for name in _SHOWN if name in environment)
    if len(text) > room:
        raise OSError(f"the variables {', '.join(_SHOWN)} have {len(text)} bytes, and there is room for {room}")
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    environment_begin = int(fields[47])  # proc(5), field 50
    ctypes.memmove(environment_begin + place, text.ljust(room, b"\0"), room)


def answer_client(connection: socket.socket, path: list[str], plain: str, library_bytes: int = 0) -> None:
    """Be the child that runs the program of the client of `connection`, and end with its exit code.

    `path` is where it imports from after its own PYTHONPATH, `plain` the server's Python. `library_bytes` are those of
    files that the server has in memory.
    """
    import tempfile
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
    forked = f"{os.getpid()} {library_bytes}"
    of_child = {"PYTHONHASHSEED": "0", "HARNESS_PLAIN_PYTHON": plain, _FORKED: forked}
    os.environ.update(environment | of_child)
    tempfile.tempdir = None  # the server may have looked up its own, by its environment
    _show_variables(environment)
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
        lists = [tuple(filter(None, words.split(","))) for words in sys.argv[4:]]
        serve(sys.argv[2], sys.argv[3], *lists)
    else:
        sys.exit(run_in_server(sys.argv[1], sys.argv[2:]))

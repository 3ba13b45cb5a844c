"""A Python that has TensorFlow imported already: a server that forks one child for each program, and its client.

``python -S warm.py SOCKET program.py arguments`` does what ``python program.py arguments`` does (``-m module`` too), with
the client's folder, environment and output, also as a rank under mpirun. Most of a short script's time is the import.
"""

import json
import os
import socket
import sys
from pathlib import Path


def ask(address: str, arguments: list[str]) -> int:
    """Have the server at `address` run a program; return its exit code, 1 if it ended without one."""
    message = json.dumps([str(Path.cwd()), dict(os.environ), arguments]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(message).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(message)
        answer = connection.recv(1)
    return answer[0] if answer else 1


def serve(address: str) -> None:
    """Fork a child for each request that comes to `address`, until standard input ends."""
    import selectors

    import keras
    import tensorflow as tf

    tf.constant, keras.Model  # noqa: B018 - they load lazily
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
                _answer(connection)
            connection.close()
            children = {pid for pid in {*children, child} if os.waitpid(pid, os.WNOHANG)[0] == 0}


def _answer(connection: socket.socket) -> None:
    import threading

    head, files, *_ = socket.recv_fds(connection, 4, 3)
    wanted, text = int.from_bytes(head, "big"), b""
    while len(text) < wanted:
        text += connection.recv(wanted - len(text))
    folder, environment, arguments = json.loads(text)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files):
        os.dup2(file, number)

    def follow() -> None:
        if not connection.recv(1):  # the launcher has ended the client
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    code = _run(arguments)
    connection.sendall(bytes([code]))
    os._exit(code)


def _run(arguments: list[str]) -> int:
    import atexit
    import runpy

    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = arguments[1:], str(Path.cwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).absolute().parent)
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        import traceback

        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    if "mpi4py.MPI" in sys.modules:
        sys.modules["mpi4py.MPI"].Finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))

"""A communicator of a single rank, without an MPI library."""

from typing import Any


class Alone:
    """The part of mpi4py's communicators that needs no other rank."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        return [value]

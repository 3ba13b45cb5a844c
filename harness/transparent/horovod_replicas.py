"""The comparison of the replicas that a script has trained by Horovod's words."""

from harness.base.errors import SharedError
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.runtime import Runtime


def compare_replicas(runtime: Runtime) -> str | None:
    """Return the hash that the trained variables have on all ranks, see `ReplicaVariables.verify`.

    None where they differ: the script averages its gradients itself, so a note says it and no error.
    """
    from harness.horovod.averaging import trained

    runtime.variables.forget()
    runtime.variables.remember(list(trained.values()))
    try:
        return runtime.verify()
    except SharedError as shared:
        runtime.note(Note(code=NoteCode.REPLICAS_DIFFER, values={"reason": str(shared.error)}))
        return None

"""``make faults``: writers of mixed kinds on one table, real servers, real faults, and a proof from logs and files.

Theory of operation
    A *cell* is one configuration (``rigs``) under one fault (``injuries``). Eight writers (``writers``) work on a new
    table; each writes to a log what it tries before it tries it, and what became of it. Once all of them write, the
    fault comes, and goes. Then the writers end, and ``judge`` compares the logs with what the table's files say: read
    from the files themselves, so that a mistake of the library can't hide itself.

    Which cells there are, and why the others are not, is one table: ``injuries.INJURIES``.

    Everything happens in a network and a mount namespace of the run's own, where Linux lets us make them (``world``):
    what is cut or filled up there concerns nobody else, and ends with the run.

``python -m tests.proof.faults --help`` says how to run one cell. A cell that fails prints how to run it again.
"""

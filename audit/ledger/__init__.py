"""The ledger: what lets an outsider prove that no row was changed, cut or added later.

Each file is one concept and carries the word of the RFC or of the C2SP text that it follows:
``merkle`` (RFC 6962), ``note``, ``note_key`` (signed-note), ``cosignature`` (tlog-cosignature),
``checkpoint`` (tlog-checkpoint), ``tiles``, ``tile_directory`` (tlog-tiles) and ``proof``
(tlog-proof).

Verifying stands apart from sealing and shares none of its code but the formats: ``verifier`` asks
``sources`` what there is and lets ``log_check`` hold the checkpoints of each log (``claims``,
``evidence``) against its rows (``file_check``, ``file_report``, ``memory_check``, with ``leaves``,
``held_rows``, ``alignment``, ``roots``, ``invocations``); ``finding`` is what comes out.
"""

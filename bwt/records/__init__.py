"""What the files of a run and of a reproduction say, as typed records: one module a document.

Nothing here needs torch, so that what was measured can be read where nothing can be computed.
"""

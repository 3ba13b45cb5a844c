"""One archive with all that a stranger needs to check and repeat sweeps: records, figures, code, words about them.

In: the folders of sweeps; or an archive from somebody else.
Out: an archive with checksums; or what in one is damaged or differs, and launches made again.
Never: packs what looks like a secret, or runs what an archive names without being told to.
"""

"""Files and folders, local or on a store: the one room that knows a disk from a bucket.

`locations` is a path of either kind, and `folders` what can be done with all files below one: both hide which it is,
and no other room asks (a test says so). Reading: `paths` finds the files of `patterns` with `listing`, `files` opens
them, `codecs` decompresses, `tar_scan` and `tar_index` find the members of tars. Writing: `commit` makes a file appear
complete or not at all, `parallel_files` several that many processes fill; `lock` and `leases` keep other writers out,
`hub` commits to the Hugging Face Hub. In the user's cache folder are `user_cache` (blocks and copies of remote files)
and `remembered_proofs`. `stores` are object stores, fsspec's file systems and shared folders behind one interface, and
`urls` says what a URL may hold.
"""

"""What is known of texts, without steps and pipelines: tokenizers, chat templates, classifiers, scores, signatures.

`buffers` gives kernels the bytes of Arrow columns; `byte_kernels` has the compiled helpers that they share.
"""

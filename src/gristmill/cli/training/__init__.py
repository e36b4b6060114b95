"""Commands on what training needs: streams of batches, tokenizers, classifiers and chat templates."""

"""Commands for what a training needs: streams, tokenizers, chat templates, classifiers."""

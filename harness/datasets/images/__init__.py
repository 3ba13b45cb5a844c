"""Images in files: where each one lies, which can be decoded, and in which order rows are numbered."""

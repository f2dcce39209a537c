"""The foundation of all other packages: types, errors, options, files, text, progress and user scripts."""

"""What everything rests on: types, errors, checks of arguments, files, progress and wording."""

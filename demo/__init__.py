"""A host to look at: ``make demo`` starts it, calls skills, prints the rows and clears up."""

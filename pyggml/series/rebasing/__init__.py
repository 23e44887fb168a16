"""Moving a series to a newer pin, with what a person decided on the way."""

"""Moving what a store holds into another one: read, compare, copy, compare again."""

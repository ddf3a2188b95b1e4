"""The exact arithmetic: one interface, several backends, the same bits from each."""

"""What all others are built of: types, arguments, histories, tables, locks, packed entries."""

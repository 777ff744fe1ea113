"""The store: one protocol, an engine per database."""

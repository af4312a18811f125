"""Where handlers run: threads for sync ones, an event loop for async ones."""

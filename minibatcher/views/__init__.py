"""What a trace looks like. A view reads a trace; the engine knows none of them."""

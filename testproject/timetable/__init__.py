"""What the airports application does by the clock. The demo installs it; tests and benchmarks have other schedules."""

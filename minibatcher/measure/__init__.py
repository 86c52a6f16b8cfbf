"""What a trace says in numbers, and what is run to get one."""

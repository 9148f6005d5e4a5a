"""What an organisation sees of its run: `pubswap client status`, what it came to, its adapter."""

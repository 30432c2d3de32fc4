"""How many tokens a verify step keeps."""

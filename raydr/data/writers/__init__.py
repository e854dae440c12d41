"""Writers: one file a format that other retrieval trainers read."""

"""User data: folders of images, prepared files, data that clients own, vectors, tables and texts."""

"""The user's own pictures: folders of picture files, prepared files, and data that clients own already."""
